"""The agent machine's first layer: a node, and the life of the agent on it: started, given its turn, killed, hanging.

Owns the state of a run. What claims do is in `claims`, what happens to hardware in `accidents`; `machine` says what is promised.
"""

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import structlog
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from draco.resources.draco import MigMode, WantedGpu, WantedInstance
from draco.simulator import faults, procfs, state, sysfs
from draco.simulator.state import StateError
from tests.adversary.agent import observer
from tests.adversary.agent.driven import Driven, Gone, NoAnswer
from tests.adversary.agent.scheduler import Claim, Published
from tests.adversary.agent.sickness import Sickness, fenced
from tests.adversary.agent.surroundings import NODE, Death, Disk, Killed, Source
from tests.doubles.clock import ManualClock

LISTENING_S = 21.0
"""A turn in which an agent that listens has heard what was said."""
REST_S = 61.0
"""A turn in which an agent that works has seen everything and has tried everything again."""
NUMBERS = st.integers(min_value=0, max_value=7)
"""Which of several: by this number, modulo how many there are."""
KUBELET_RECORD = "dra_manager_state"
FAILING = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetUUID",
)

fired: Counter[str] = Counter()
"""How often each rule did something, and what came of it; over all machines of this process."""
at_once: Counter[int] = Counter()
"""How many claims were prepared when something happened to the agent or the hardware: how often each number."""


def accident(**given: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule for what happens to the agent or its hardware. Then there is quiet for a while, in which claims come and go."""

    def made(step: Callable[..., None]) -> Any:
        @wraps(step)
        def happens(self: "LifeOfAgent", **drawn: Any) -> None:
            self.quiet = self.peace
            at_once[sum(claim.told and not claim.leaving for claim in self.claims.values())] += 1
            step(self, **drawn)

        return precondition(paced(lambda self: self.quiet <= 0))(rule(**given)(happens))

    return made


def paced(condition: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A precondition that only spreads steps over time: a step may be played without it."""
    condition.paces = True  # type: ignore[attr-defined]
    return condition


class Over(BaseException):
    """The time of a hunt is over. No failure: no `except Exception` sees it."""


class LifeOfAgent(RuleBasedStateMachine):
    """One node's life."""

    until: float | None = None
    """When the hunt is over, by the real clock."""

    def __init__(self) -> None:
        super().__init__()
        structlog.configure(processors=[_drop])
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda *_: None)  # tasks of agents that were killed
        self.folder = Path(tempfile.mkdtemp(prefix="adv-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.path = self.folder / "gpus.json"
        self.clock = ManualClock()
        self.source = Source()
        self.disk = Disk()
        self.death = Death()
        self.agent: Driven | None = None
        self.armed = 0
        self.hanging = False
        self.claims: dict[str, Claim] = {}
        self.past: list[Published] = []
        self.wanted: dict[Any, WantedGpu] = {}
        self.current = True
        """Whether the agent has had its turn since hardware changed."""
        self.foreign: frozenset[int] = frozenset()
        self.alive: frozenset[int] = frozenset()
        self.unclaimed: frozenset[int] = frozenset()
        self.files: dict[Path, bytes] = {}
        self.damaged = False
        """Whether the record was damaged since the agent was last served."""
        self.sickness = Sickness()
        self.pid = 1000
        self.number = 0
        self.broken = False
        self.peace = self.quiet = 0
        """So many steps of quiet follow each accident; those that are left."""
        self.idle = 0
        """Whether time passed in the step before."""

    @initialize(
        board=st.sampled_from(("H100-80GB", "H100-80GB", "H100-80GB", "A100-80GB")),
        gpus=st.integers(2, 3),
        dynamic=st.sampled_from(((), (0,), (0, 1), (1,))),
        peace=st.sampled_from((4, 2, 8, 0)),
    )
    def begin(self, board: str, gpus: int, dynamic: tuple[int, ...], peace: int = 0) -> None:
        fired["sequences"] += 1
        self.peace, self.quiet = peace, 4
        node = state.create(self.path, board=board, gpus=gpus, node_name=NODE)
        if board.startswith("A100"):
            with state.mutate(self.path) as made:
                made.gpus[0].mig_current = made.gpus[0].mig_pending = 1
        sysfs.build(self.folder / "sys", node)
        procfs.build(self.path, state.load(self.path))
        (self.folder / "cdi").mkdir()
        (self.folder / "k" / "plugins_registry").mkdir(parents=True)
        self._others()
        self._kubelet_records()
        for gpu in dynamic:
            self._policy(gpu, "dynamic")
        self.start()
        self.turn(REST_S)

    def _others(self) -> None:
        """Files that other programs keep where we keep ours."""
        cdi = self.folder / "cdi"
        registry = self.folder / "k" / "plugins_registry"
        contents = {
            cdi / "nvidia.yaml": b"cdiVersion: 0.5.0\n",
            cdi / "k8s.gpu.nvidia.com-claim_0.json": b"{}",
            cdi / "draco-gpu.nvidia.com.json": b"{}",
            cdi / "draco-other.example.com-0.json.tmp": b"{",
            registry / "other.example.com-reg.sock": b"",
        }
        for path, content in contents.items():
            path.write_bytes(content)
        self.files = contents

    def _kubelet_records(self) -> None:
        """Kubelet has a record of its own of what it asked for and has not given up."""
        asked = [claim.uid for claim in self.claims.values() if claim.told or claim.unsure or claim.leaving]
        (self.folder / "k" / KUBELET_RECORD).write_text(json.dumps(asked))

    # The agent

    @precondition(lambda self: self.agent is None)
    @rule()
    def start(self) -> None:
        self.death = Death()
        if self.armed:
            self.death.arm(self.armed)
        with self._living("start"):
            self.agent = Driven(
                self.folder, loop=self.loop, clock=self.clock, source=self.source, disk=self.disk, death=self.death
            )
            self.agent.start(self.wanted)
            if self._served():
                self._seen_all()
                self._check_fences(self._publish())
                self.damaged = False

    @precondition(lambda self: self.agent is not None)
    @precondition(paced(lambda self: self.idle <= 0))
    @rule(seconds=st.sampled_from((1.0, 21.0, REST_S, REST_S)))
    def turn(self, seconds: float) -> None:
        agent = self._up()
        self.idle = 2
        with self._living("turn"):
            agent.turn(seconds)
            served = self._served()
            if seconds == REST_S and served:
                self._seen_all()
            if seconds >= LISTENING_S and served and self._answers():
                self.sickness.had_turn(self._hardware(), long=seconds == REST_S, room=self.disk.free is None)
            published = self._publish()
            self._check_fences(published)
            if published is not None and seconds == REST_S and served and self._answers():
                self._check_offer(published)
            self.damaged = self.damaged and not self._served()

    @precondition(lambda self: self.agent is not None)
    @accident()
    def kill(self) -> None:
        fired["kill"] += 1
        self._bury()

    @precondition(lambda self: not self.armed)
    @accident(steps=st.integers(1, 60) | st.integers(1, 600))
    def kill_soon(self, steps: int) -> None:
        """The agent, or the next one, dies at the so manieth step."""
        self.armed = steps
        self.death.arm(steps)

    def _up(self) -> Driven:
        assert self.agent is not None
        return self.agent

    def _served(self) -> bool:
        """Whether kubelet finds the agent's socket."""
        return self.agent is not None and self.agent.ready

    @contextmanager
    def _living(self, what: str) -> Iterator[None]:
        """Whatever the agent does here, it may die of it."""
        fired[what] += 1
        try:
            yield
        except (Killed, Gone):
            fired[f"{what}: killed"] += 1
            self._bury()
        except NoAnswer:
            assert self.hanging, "the agent does not answer, though nothing hangs"
            fired[f"{what}: no answer"] += 1

    def _bury(self) -> None:
        self.armed = 0
        self.sickness.died()
        agent, self.agent = self.agent, None
        if agent is not None:
            agent.death.dead = True
            if self.hanging:
                self._let_go(agent)
            agent.stop()

    def _let_go(self, agent: Driven) -> None:
        self.hanging = False
        with state.mutate(self.path) as node:
            node.failures[:] = [one for one in node.failures if one.effect != "hang"]
        agent.let_go()

    @precondition(lambda self: self._served() and not self.hanging)
    @accident(function=st.sampled_from((*FAILING, "nvmlDeviceGetFieldValues", "")), pick=st.none() | NUMBERS)
    def hang(self, function: str, pick: int | None) -> None:
        """From now on such calls never return."""
        with suppress(StateError):  # there is no such GPU any more
            faults.hang(self.path, function, gpu=None if pick is None or not function else self._gpu(pick))
            self._up().threads.hangs = self.hanging = True
            self.sickness.disturbed()
            fired["hang"] += 1

    @precondition(lambda self: self.hanging and self.agent is not None)
    @rule()
    def let_go(self) -> None:
        """They return, and work."""
        with self._living("let go"):
            self._let_go(self._up())

    @precondition(lambda self: self.agent is None and not self.damaged)
    @accident(at=st.integers(0, 5000), how=st.sampled_from(("flip", "cut")))
    def damage(self, at: int, how: str) -> None:
        """Something happens to the record while the agent is down."""
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
        specs = {one.claim for one in seen.given}
        # Of an instance that was being made nobody may know any more whose it was: then it is left alone.
        self.unclaimed |= seen.serials() - {seen.serial(one.uuid) for one in seen.given}
        for claim in self.claims.values():
            # Where neither a spec nor the API server tells of a claim, nobody can know of it; nor can a container have it.
            if claim.told and claim.uid not in specs and not self.source.reported(claim.name):
                claim.told, claim.unsure = False, True

    def _seen_all(self) -> None:
        """The agent had its turn; if it could see, it knows."""
        if self.hanging:
            return
        if self._answers():
            self.current = True
        self._note_alive()

    def _hardware(self) -> Any:
        return json.loads(self.path.read_text())

    def _answers(self) -> bool:
        """Whether the driver answers whatever it is asked."""
        node = self._hardware()
        broken = node["failures"] or node["driver"]["error"] or any(gpu["error"] == 999 for gpu in node["gpus"])
        return not self.hanging and not broken

    def _note_alive(self) -> None:
        """Instances that were made again for claims that kubelet was told of."""
        seen = observer.look(self.folder)
        told = {claim.uid: claim for claim in self.claims.values() if claim.told and not claim.leaving}
        for one in seen.given:
            serial = seen.serial(one.uuid)
            if one.claim in told and serial is not None and not observer.wrong(one, seen):
                self.alive |= {serial}

    def _publish(self) -> Published | None:
        """What it publishes now; the API server gets it, if it is there."""
        found = self._up().published()
        if found is None:
            return None
        fresh = Published(*found)
        if not self.source.gone and (not self.past or self.past[-1] != fresh):
            self.past = [*self.past[-3:], fresh]
            self.source.publish(*found)
            self._check_names(fresh)
            fired["published anew"] += 1
        return fresh

    def _check_fences(self, published: Published | None) -> None:
        """What is known to be sick attracts nobody: no GPU, and no partition of it."""
        hardware = self._hardware()
        if published is None:
            return
        for device in published.devices:
            board = published.board(device["name"])
            why = self.sickness.why(board, hardware)
            fired["fenced"] += bool(why)
            assert not why or fenced(device), f"{device['name']} is offered, and {board} has had {why}"

    def _check_offer(self, published: Published) -> None:
        """The agent has just looked at everything: what is not there attracts nobody, and what is well is not fenced off."""
        hardware = self._hardware()
        there = {gpu["uuid"] for gpu in hardware["gpus"]}
        for device in published.devices:
            board = published.board(device["name"])
            assert board in there or fenced(device), f"{device['name']} is offered, and {board} is not there"
            assert not fenced(device) or not self.sickness.well(board, hardware), (
                f"{device['name']} is well, and fenced"
            )

    def _check_names(self, published: Published) -> None:
        """A name that a claim has does not come to stand for another board."""
        names = set(published.names())
        for claim in self.claims.values():
            for device, part in claim.parts.items() if claim.told and not claim.leaving else ():
                assert device not in names or published.board(device) == part.gpu, (
                    f"{device}, which claim {claim.name} has of {part.gpu}, is published as {published.board(device)}"
                )

    def _gpu(self, pick: int) -> int:
        return pick % max(1, len(state.load(self.path).gpus))

    def _policy(self, pick: int, mode: str) -> None:
        fired[f"policy {mode}"] += 1
        node = state.load(self.path)
        boards = [gpu.uuid for gpu in [*node.gpus, *node.missing]]
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
        if self.agent is not None:
            with self._living("policy told"):
                self._up().want(self.wanted)


def _drop(*_args: Any) -> Any:
    raise structlog.DropEvent
