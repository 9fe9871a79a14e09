"""The agent machine's second layer: the agent's life on its node. It is started, run, killed, and hangs.

Owns these steps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from draco.agent.errors import AnotherPlugin
from draco.resources.api.draco import MigMode, WantedGpu, WantedInstance
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import procfs, state, sysfs
from draco_local.simulator.gpus.state import StateError
from tests.adversary.agent import observer
from tests.adversary.agent.decisions import KEYS
from tests.adversary.agent.driven import Driven, Gone, NoAnswer
from tests.adversary.agent.failing import FAILING, LACKS
from tests.adversary.agent.node import NUMBERS, Node, accident, fired, paced
from tests.adversary.agent.surroundings import NODE, Death, Killed

LISTENING_S = 21.0
"""A turn this long lets a listening agent hear every event."""
REST_S = 61.0
"""A turn this long lets a working agent read everything and retry everything."""


class LifeOfAgent(Node):
    """Steps for the agent of one node."""

    @initialize(
        board=st.sampled_from(("H100-80GB", "H100-80GB", "H100-80GB", "A100-80GB")),
        gpus=st.integers(2, 3),
        dynamic=st.sampled_from(((), (0,), (0, 1), (1,))),
        peace=st.sampled_from((4, 2, 8, 0)),
        lacks=st.just(()) | st.lists(LACKS, min_size=1, max_size=3, unique_by=lambda one: one[0]).map(tuple),
        shared=st.sampled_from(
            (
                (),
                ("Memory by default",),
                ("Count 4", "Memory"),
                ("", "Unlimited"),
                ("Limited", "Limited"),
                ("MIG, too", "MIG, too, by count"),
                ("Limited", "MIG, too"),
            )
        ),
        static=st.sampled_from(((), (), (0,), (1,))),
        driver=st.sampled_from(("", "615")),
        mps=st.booleans(),
    )
    def begin(
        self,
        board: str,
        gpus: int,
        dynamic: tuple[int, ...],
        peace: int = 0,
        lacks: tuple[tuple[str, str], ...] = (),
        shared: tuple[str, ...] = (),
        static: tuple[int, ...] = (),
        driver: str = "",
        mps: bool = False,
    ) -> None:
        fired["sequences"] += 1
        self._patch()
        self.peace, self.quiet = peace, 4
        node = state.create(self.path, board=board, gpus=gpus, node_name=NODE)
        if board.startswith("A100"):
            with state.mutate(self.path) as made:
                made.gpus[0].mig_current = made.gpus[0].mig_pending = 1
        for function, code in lacks:
            self._lack(0, function, code)
        if driver:
            faults.reload_driver(self.path, version=driver)
        self._make_cgroups()
        sysfs.build(self.folder / "sys", node)
        procfs.build(self.path, state.load(self.path))
        self._make_nodes()
        (self.folder / "cdi").mkdir()
        (self.folder / "k" / "plugins_registry").mkdir(parents=True)
        self._others()
        self._kubelet_records()
        if mps:
            self._keep_mps()
        for gpu in dynamic:
            if gpu >= len(shared):
                self._policy(gpu, "dynamic")
        for gpu in static if shared else ():
            self._policy(gpu, "static")
        self.start()
        self.turn(REST_S)
        for index, asked in enumerate(shared):
            self._share_gpu(index, asked)
        for _ in (1, 2) if shared else ():
            if self.agent is not None:
                self.turn(REST_S)

    @precondition(lambda self: self.agent is None)
    @rule()
    def start(self) -> None:
        self.death = Death()
        if self.armed:
            self.death.arm(self.armed)
        self.rivals.born += 1
        self.born = self.rivals.born
        self.clock.pass_without_a_turn(0.01)  # no two agents start at the same moment
        with self._living("start"):
            self.agent = Driven(
                self.folder,
                loop=self.loop,
                clock=self.clock,
                source=self.source,
                disk=self.disk,
                death=self.death,
            )
            if not self._starts_alone(self.agent):
                return
            if self._served():
                self._seen_all()
                self._check_fences(self._publish())
                self.damaged = False

    def _starts_alone(self, agent: Driven) -> bool:
        """Start the agent. It must refuse exactly if another plugin serves the driver."""
        others = any(rival.contends for rival in self.rivals.live)
        try:
            agent.start()
        except AnotherPlugin:
            assert others, "the agent does not start, though nobody else serves the driver"
            fired["start: refused beside another"] += 1
            if not self.source.gone:
                assert self.source.condition("Exclusive") == "False", "nobody is told why the agent does not start"
            self._bury()
            return False
        assert not others or not agent.ready, "the agent began to serve beside another plugin"
        return True

    @precondition(lambda self: self.agent is not None)
    @precondition(paced(lambda self: self.idle <= 0))
    @rule(seconds=st.sampled_from((1.0, 21.0, REST_S, REST_S)))
    def turn(self, seconds: float) -> None:
        agent = self._up()
        self.idle = 2
        answered = self._answers()  # if not, the agent's last reading may have failed
        late = self._to_be_given_up() if seconds == REST_S else set()
        laws = self._laws_at_rest() if seconds == REST_S else []
        self._operator_looks()
        if self.agent is not agent:
            return  # it died of what it was told
        with self._living("turn"):
            agent.turn(seconds)
            served = self._served()
            if seconds == REST_S and served:
                self._seen_all()
            if seconds >= LISTENING_S and served and self._answers():
                fired["xid: known"] += len(self.sickness.told)
                self.sickness.had_turn(self._hardware(), long=seconds == REST_S, room=self.disk.free is None)
            published = self._publish()
            self._check_fences(published)
            if published is not None and seconds == REST_S and served and answered and self._answers():
                self._check_offer(published)
                self._check_place()
                self.reachable = not self.source.gone
            self.damaged = self.damaged and not self._served()
            for law in self._laws_at_rest() if laws else ():
                if law in laws:
                    law()
            self._check_given_up(late & self._to_be_given_up())

    def _laws_at_rest(self) -> list[Callable[[], None]]:
        """What must be true at the end of a long turn, if that was to be true at its beginning, too."""
        return []

    def _works(self) -> bool:
        """Whether the agent serves, and nothing keeps it from doing its work."""
        return (
            self.agent is not None
            and self._served()
            and self._answers()
            and self.disk.free is None
            and not self.gave_way
        )

    def _keep_mps(self) -> None:
        """Start a keeper of MPS daemons. `Mps` implements it."""

    def _make_cgroups(self) -> None:
        """Make the node's cgroups. `MemoryLimits` implements it."""

    def _to_be_given_up(self) -> set[str]:
        """The deleted claims that the agent can unprepare now."""
        quiet = self._served() and self._answers() and not (self.source.gone or self.source.slow_s or self.gave_way)
        hardware = self._hardware()
        used = any(gpu["processes"] for gpu in hardware["gpus"])
        if not quiet or used or self.disk.free is not None:
            return set()
        lost = bool(hardware["missing"]) or any(gpu["error"] for gpu in hardware["gpus"])
        return {
            claim.uid
            for claim in self.claims.values()
            if claim.gone and claim.parts and (not lost or all(part.whole for part in claim.parts.values()))
        }

    def _check_given_up(self, late: set[str]) -> None:
        """A deleted claim that nothing uses must be unprepared within a minute."""
        fired["gone claims that were given up"] += len(late)
        stays = {one.claim for one in observer.look(self.folder).given} & late
        stays |= late & {
            uid for uid, claim in self._up().agent.parts.checkpoint.claims.items() if claim.state == "prepared"
        }
        assert not stays, f"claims whose objects are gone are prepared for more than a minute: {stays}"

    @precondition(lambda self: self.agent is not None)
    @accident()
    def kill(self) -> None:
        fired["kill"] += 1
        self._bury()

    @precondition(lambda self: not self.armed)
    @accident(steps=st.integers(1, 60) | st.integers(1, 600))
    def kill_soon(self, steps: int) -> None:
        """Let the agent die after this many steps; if none runs, the next one started."""
        self.armed = steps
        self.death.arm(steps)

    @contextmanager
    def _living(self, what: str) -> Iterator[None]:
        """Run a block in which the agent may die."""
        fired[what] += 1
        try:
            yield
        except (Killed, Gone):
            fired[f"{what}: killed"] += 1
            self._bury()
        except AnotherPlugin:  # it stood by and has just become the node's agent
            assert any(rival.contends for rival in self.rivals.live), (
                "the agent does not serve, though nobody else does"
            )
            fired[f"{what}: gave up beside another"] += 1
            self._bury()
        except NoAnswer:
            assert self.hanging, "the agent does not answer, though nothing hangs"
            fired[f"{what}: no answer"] += 1

    def _bury(self) -> None:
        """Remove the ended agent. The standby agent becomes the node's agent."""
        self.armed = 0
        self.sickness.died()
        self.gave_way = False
        agent, self.agent = self.agent, None
        if agent is not None:
            if agent.forgets:
                self.decisions.lost(KEYS)
            agent.death.dead = True
            if self.hanging:
                self._let_go(agent)
            agent.stop()
        self._reap()
        if self.next is not None:
            fired["taken over"] += 1
            self.agent, self.next = self.next, None
            self._promoted()

    def _promoted(self) -> None:
        """Note that another agent is the node's now."""
        self.death = self._up().death
        self.rivals.born += 1
        self.born = self.rivals.born
        self._told()

    def _bury_all(self) -> None:
        """End every agent."""
        while self.agent is not None or self.next is not None:
            self._bury()

    def _reap(self) -> None:
        """Remove the standby agent if it has ended. `HandingOver` implements it."""

    def _let_go(self, agent: Driven) -> None:
        self.hanging = False
        with state.mutate(self.path) as node:
            node.failures[:] = [one for one in node.failures if one.effect != "hang"]
        agent.let_go()
        if self.next is not None and self.next is not agent:
            with suppress(AnotherPlugin):  # it has just become the node's agent, beside another plugin
                self.next.let_go()

    @precondition(lambda self: self._served() and not self.hanging)
    @accident(function=st.sampled_from((*FAILING, "nvmlDeviceGetFieldValues", "")), pick=st.none() | NUMBERS)
    def hang(self, function: str, pick: int | None) -> None:
        """Calls of this function hang from now on."""
        with suppress(StateError):  # there is no such GPU any more
            faults.hang(self.path, function, gpu=None if pick is None or not function else self._gpu(pick))
            self._up().threads.hangs = self.hanging = True
            if self.next is not None:  # it starts reading when it takes the node over
                self.next.threads.hangs = True
            self.sickness.disturbed()
            fired["hang"] += 1

    @precondition(lambda self: self.hanging and self.agent is not None)
    @rule()
    def let_go(self) -> None:
        """The hanging calls return, and later ones work."""
        with self._living("let go"):
            self._let_go(self._up())

    @precondition(lambda self: self.agent is None and not self.damaged)
    @accident(at=st.integers(0, 5000), how=st.sampled_from(("flip", "cut")))
    def damage(self, at: int, how: str) -> None:
        """Damage the checkpoint while the agent is down."""
        record = self.folder / "agent" / "checkpoint.json"
        if not record.exists():
            return
        content = record.read_bytes()
        used = len(content.rstrip()) or 1
        at %= used
        changed = content[:at] if how == "cut" else content[:at] + bytes([content[at] ^ 0x11]) + content[at + 1 :]
        record.write_bytes(changed)
        fired[f"damage: {how}"] += 1
        self.damaged = True
        seen = observer.look(self.folder)
        # For an instance without a spec, the owner may be unknown now: the agent may leave it alone.
        self.unclaimed |= seen.serials() - {seen.serial(one.uuid) for one in seen.given}
        self._forgotten()

    def _forgotten(self) -> None:
        """After damage to the checkpoint, only claims with a spec or a reported device count as prepared.

        This includes an unprepared claim whose status still reports its device.
        """
        specs = {one.claim for one in observer.look(self.folder).given}
        for claim in self.claims.values():
            if claim.told is not (claim.uid in specs or self.source.reported(claim.name)):
                claim.told, claim.unsure = False, True

    @accident(pick=NUMBERS, mode=st.sampled_from(("none", "dynamic", "dynamic", "dynamic", "static", "disabled")))
    def policy(self, pick: int, mode: str) -> None:
        """The MIG mode that the operator wants for a GPU changes."""
        self._policy(pick, mode)

    def _policy(self, pick: int, mode: str) -> None:
        fired[f"policy {mode}"] += 1
        boards = self._boards()
        uuid: Any = boards[pick % len(boards)]
        self.wanted.pop(uuid, None)
        common: dict[str, Any] = {"uuid": uuid, "policy": "p"}
        if mode == "dynamic":
            self.wanted[uuid] = WantedGpu(**common, mode=MigMode.DYNAMIC)
        elif mode == "disabled":
            self.wanted[uuid] = WantedGpu(**common, mode=MigMode.DISABLED)
        elif mode == "static":
            layout = [WantedInstance(profile="3g.40gb", start=4), WantedInstance(profile="1g.10gb", start=0)]
            self.wanted[uuid] = WantedGpu(**common, mode=MigMode.STATIC, layout=layout)
        self._decide()

    def _boards(self) -> list[str]:
        """UUIDs of all boards of the node, including those missing from the driver, and those that the agent still publishes."""
        node = state.load(self.path)
        published = [board for each in self.past[-1:] for board in map(each.board, each.names())]
        return list(dict.fromkeys([*(gpu.uuid for gpu in [*node.gpus, *node.missing]), *published]))

    def _decide(self) -> None:
        """Write the operator's decisions into the GpuNode, if there is one."""
        if self.source.gpu_node is not None:
            fired["decided"] += 1
            gpus = [msgspec.to_builtins(each) for each in self.wanted.values()]
            self.source.decide(self.decisions.spec(self._boards()) | {"gpus": gpus} | self._forms())
        self._told()

    def _share_gpu(self, pick: int, asked: str) -> None:
        """Say how a GPU is to be shared. `Sharing` implements it."""

    def _forms(self) -> dict[str, Any]:
        """How the operator wants GPUs to be shared. `Sharing` implements it."""
        return {}

    def _operator_looks(self) -> None:
        """Let the operator decide anew about shared GPUs. `Sharing` implements it."""

    def _told(self) -> None:
        """Let the agent read the GpuNode, if it can."""
        if self.agent is not None:
            with self._living("told of its GpuNode"):
                self._up().listen()
