"""The agent machine's first layer: one node, as a run of the machine finds it, and what its agent says of it to others.

Owns the state of a run, and what must be true of what is published and registered. What the agent goes through is in `life`, what
claims do in `claims`, what happens to hardware in `accidents`; `machine` says what is promised.
"""

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any

import structlog
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from draco.resources.api.draco import WantedGpu
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import state
from tests.adversary.agent import observer
from tests.adversary.agent.decisions import Decisions
from tests.adversary.agent.driven import Driven
from tests.adversary.agent.processes import owned, side_by_side
from tests.adversary.agent.rivals import Rivals, sockets_beside
from tests.adversary.agent.scheduler import Claim, Published
from tests.adversary.agent.sickness import Sickness, fenced, refused
from tests.adversary.agent.surroundings import DRIVER, Death, Disk, Source
from tests.doubles.clock import ManualClock

NUMBERS = st.integers(min_value=0, max_value=7)
"""Which of several: by this number, modulo how many there are."""
KUBELET_RECORD = "dra_manager_state"
SHARED_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
CAPABILITIES = 1200
"""More than there are of the GPUs of a sequence, wherever their numbers begin."""

fired: Counter[str] = Counter()
"""How often each rule did something, and what came of it; over all machines of this process."""
at_once: Counter[int] = Counter()
"""How many claims were prepared when something happened to the agent or the hardware: how often each number."""


def accident(**given: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule for what happens to the agent or its hardware. Then there is quiet for a while, in which claims come and go."""

    def made(step: Callable[..., None]) -> Any:
        @wraps(step)
        def happens(self: "Node", **drawn: Any) -> None:
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


class Node(RuleBasedStateMachine):
    """One node's life."""

    watching: frozenset[str] = frozenset()
    """Pods that have administrative access: they may run where others do."""
    until: float | None = None
    """When the hunt is over, by the real clock."""

    def __init__(self) -> None:
        super().__init__()
        structlog.configure(processors=[_drop])
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(owned)
        self.loop.set_exception_handler(lambda *_: None)  # tasks of agents that were killed
        self.folder = Path(tempfile.mkdtemp(prefix="adv-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.path = self.folder / "gpus.json"
        self.clock = ManualClock()
        self.source = Source()
        self.disk = Disk()
        self.death = Death()
        self.agent: Driven | None = None
        self.next: Driven | None = None
        """The one that stands by."""
        self.busy: set[str] = set()
        """Claims of which kubelet waits for an answer."""
        self.armed = 0
        self.hanging = False
        self.claims: dict[str, Claim] = {}
        self.past: list[Published] = []
        self.wanted: dict[Any, WantedGpu] = {}
        self.current = True
        """Whether the agent has had its turn since hardware changed."""
        self.modes: dict[str, int] = {}
        """The MIG modes that the agent saw in that turn."""
        self.foreign: frozenset[int] = frozenset()
        self.alive: frozenset[int] = frozenset()
        self.unclaimed: frozenset[int] = frozenset()
        self.left: frozenset[tuple[object, ...]] = frozenset()
        """Where instances were in this boot that are gone."""
        self.files: dict[Path, bytes] = {}
        self.damaged = False
        """Whether the record was damaged since the agent was last served."""
        self.sickness = Sickness()
        self.decisions = Decisions()
        self.rivals = Rivals(self.folder / "k" / "plugins_registry", self.folder / "k" / "plugins" / DRIVER)
        self.patched = ExitStack()
        self.born = 0
        """When the agent that runs was started, compared with its rivals."""
        self.gave_way = False
        """Whether the agent was found to give way to another plugin, which is still there."""
        self.reachable = True
        """Whether the API server was there ever since the agent last had a long turn."""
        self.pid = 1000
        self.number = 0
        self.broken = False
        self.peace = self.quiet = 0
        """So many steps of quiet follow each accident; those that are left."""
        self.idle = 0
        """Whether time passed in the step before."""

    def _patch(self) -> None:
        """From now on agents are run on this node, and on no other."""
        self.patched.enter_context(sockets_beside(self.rivals))
        self.patched.enter_context(side_by_side())

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

    def _make_nodes(self) -> None:
        """The device nodes of all that the driver may ever have here, as nvidia-smi makes them."""
        dev = self.folder / "root" / "dev"
        (dev / "nvidia-caps").mkdir(parents=True, exist_ok=True)
        for name in (
            *SHARED_NODES,
            *(f"nvidia{minor}" for minor in range(8)),
            *map(_capability, range(1, CAPABILITIES)),
        ):
            (dev / name).touch()

    def _kubelet_records(self) -> None:
        """Kubelet has a record of its own of what it asked for and has not given up."""
        asked = [claim.uid for claim in self.claims.values() if claim.told or claim.unsure or claim.leaving]
        (self.folder / "k" / KUBELET_RECORD).write_text(json.dumps(asked))

    # Its agent

    def _up(self) -> Driven:
        assert self.agent is not None
        return self.agent

    def _served(self) -> bool:
        """Whether kubelet finds the agent's socket."""
        return self.agent is not None and self.agent.ready

    def _seen_all(self) -> None:
        """The agent had its turn; if it could see, it knows."""
        if self.hanging:
            return
        if self._answers():
            self.current = True
            self.modes = {gpu["uuid"]: gpu["mig_current"] for gpu in self._hardware()["gpus"]}
        self._note_alive()

    def _hardware(self) -> Any:
        return json.loads(self.path.read_text())

    def _answers(self) -> bool:
        """Whether the driver answers whatever it is asked."""
        node = self._hardware()
        failing = [
            one
            for one in node["failures"]
            if (one["gpu_uuid"], one["function"], one["error"]) not in self.sickness.lacks
        ]
        broken = failing or node["driver"]["error"] or any(gpu["error"] == 999 for gpu in node["gpus"])
        return not self.hanging and not broken

    def _lack(self, gpu: int, function: str, code: str) -> None:
        """From now on NVML answers so for a board, for ever, and nothing is wrong with it."""
        uuid = state.load(self.path).gpus[gpu].uuid
        self.sickness.lacks.add((uuid, function, faults.ERRORS[code]))
        if function == "nvmlDeviceGetMinorNumber":
            self.sickness.placeless.add(uuid)
        faults.fail(self.path, function, faults.ERRORS[code], gpu=uuid)
        fired[f"lacks {function}"] += 1

    def _stop_failing(self, *, but: str = "") -> None:
        """What fails works again, `but` calls that fail so; what a board does not have it still has not."""
        with state.mutate(self.path) as node:
            node.failures[:] = [
                one
                for one in node.failures
                if one.effect == but or (one.gpu_uuid, one.function, one.error) in self.sickness.lacks
            ]

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
            why = self.decisions.why_bare(fresh, self.sickness)
            assert not why, why
            self._check_names(fresh)
            self._check_counters(fresh)
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
            if "-mig-" not in device["name"] and self.sickness.waits(board, hardware):
                fired["waits for its fabric"] += 1
                assert refused(device), f"{device['name']} is offered, and {board} has not joined its fabric"

    def _check_place(self) -> None:
        """Who was there first keeps the node, and both say so."""
        others = [rival for rival in self.rivals.live if rival.contends]
        first = [rival for rival in others if rival.born < self.born]
        ours = self.rivals.registered()
        self.gave_way = bool(first)
        if first:
            fired["gave way"] += 1
            assert not ours, f"somebody was there before the agent, and it still serves {ours}"
        else:
            fired["kept the node"] += bool(others)
            assert ours, "the agent was there first, and kubelet does not find it"
        if self._is_reported():
            alone = self.source.condition("Exclusive")
            assert alone == ("False" if others else "True"), (
                f"of {len(others)} other plugins it is said: Exclusive {alone}"
            )

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
        shown = {published.board(device["name"]) for device in published.devices}
        for board in there if self.disk.free is None and not self.damaged else ():
            fired["stays published"] += 1
            assert board in shown or not self.sickness.well(board, hardware), f"{board} is well, and not published"
        nameless = self.sickness.placeless & there
        if self._is_decided() and not self.source.mute:
            why = self.decisions.why_not_heard(published)
            assert not why, why
        if nameless and self._is_reported():
            fired["said to be unidentified"] += 1
            assert self.source.condition("Readable") == "False", f"nothing is said of {nameless}"

    def _check_names(self, published: Published) -> None:
        """A name that a claim has does not come to stand for another board."""
        names = set(published.names())
        for claim in self.claims.values():
            for device, part in claim.parts.items() if claim.told and not claim.leaving else ():
                assert device not in names or published.board(device) == part.gpu, (
                    f"{device}, which claim {claim.name} has of {part.gpu}, is published as {published.board(device)}"
                )

    def _check_counters(self, published: Published) -> None:
        """A GPU of which a claim has a part is nobody's as a whole: its counters say so, or nobody can have it."""
        claims = [claim for claim in self.claims.values() if claim.told and not claim.leaving]
        parts = {part.gpu for claim in claims for part in claim.exclusive if not part.whole}
        for device in published.devices:
            board = published.board(device["name"])
            if board in parts and "-mig-" not in device["name"]:
                kept = device.get("consumesCounters") or device.get("taints")
                assert kept, f"{device['name']} is offered to everybody, and claims have parts of it"

    def _is_reported(self) -> bool:
        """Whether the GpuNode is there, and must say how things stand."""
        return self.reachable and not self.source.gone and self.source.gpu_node is not None

    def _is_decided(self) -> bool:
        """Whether it says what an operator has decided."""
        there = self.source.gpu_node
        return self._is_reported() and there is not None and bool(there.spec.decided)

    def _gpu(self, pick: int) -> int:
        return pick % max(1, len(state.load(self.path).gpus))


def _capability(number: int) -> str:
    return f"nvidia-caps/nvidia-cap{number}"


def _drop(*_args: Any) -> Any:
    raise structlog.DropEvent
