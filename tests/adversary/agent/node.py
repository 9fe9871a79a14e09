"""The agent machine's first layer: one node, its state, and what its agent publishes and registers.

Owns the state of a run, and the checks of published devices and registrations. `life` has the agent's steps, `claims` those of
claims, `accidents` those of hardware; `machine` lists the promises.
"""

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import structlog
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from draco.agent.containers import toolkit
from draco.agent.containers.common_edits import CommonEdits
from draco.agent.containers.edits import ContainerEdits
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
"""Picks one of several: this number modulo how many there are."""
KUBELET_RECORD = "dra_manager_state"
SHARED_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
CAPABILITIES = 1200
"""More than the GPUs of a sequence can have, wherever their numbers begin."""
INSTALLED: Any = SimpleNamespace(host=Path("/"))
"""The node's driver, for NVIDIA's hook."""

fired: Counter[str] = Counter()
"""How often each rule acted, and with which result, over all machines of this process."""
at_once: Counter[int] = Counter()
"""How many accidents happened while this many claims were prepared."""


def accident(**given: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule for an accident to the agent or its hardware. A few steps without accidents follow, in which claims come and go."""

    def made(step: Callable[..., None]) -> Any:
        @wraps(step)
        def happens(self: "Node", **drawn: Any) -> None:
            self.quiet = self.peace
            at_once[sum(claim.told and not claim.leaving for claim in self.claims.values())] += 1
            step(self, **drawn)

        return precondition(paced(lambda self: self.quiet <= 0))(rule(**given)(happens))

    return made


def paced(condition: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A precondition that only spaces steps out: a replay may ignore it."""
    condition.paces = True  # type: ignore[attr-defined]
    return condition


class Over(BaseException):
    """The hunt's time is over. This is no failure, so `except Exception` must not catch it."""


class Node(RuleBasedStateMachine):
    """One node and its checks."""

    watching: frozenset[str] = frozenset()
    """Pods with administrative access: they may use the same hardware as others."""
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
        """The standby agent."""
        self.busy: set[str] = set()
        """Claims for which kubelet waits for an answer."""
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
        """Placements of destroyed instances since the last boot."""
        self.files: dict[Path, bytes] = {}
        self.damaged = False
        """Whether the checkpoint was damaged since the agent last served."""
        self.sickness = Sickness()
        self.decisions = Decisions()
        self.rivals = Rivals(self.folder / "k" / "plugins_registry", self.folder / "k" / "plugins" / DRIVER)
        self.patched = ExitStack()
        self.born = 0
        """When the running agent was started, in the order of its rivals' starts."""
        self.gave_way = False
        """Whether the agent gave way to another plugin that is still there."""
        self.reachable = True
        """Whether the API server has been reachable since the agent last had a long turn."""
        self.pid = 1000
        self.number = 0
        self.broken = False
        self.peace = self.quiet = 0
        """How many steps without accidents follow each accident, and how many are left."""
        self.idle = 0
        """Positive shortly after a turn, so that turns do not follow each other."""

    def _patch(self) -> None:
        """Patch the product so that agents run on this node only."""
        self.patched.enter_context(sockets_beside(self.rivals))
        self.patched.enter_context(side_by_side())
        self.patched.enter_context(mock.patch.object(CommonEdits, "limiting", self._limiting))

    def _limiting(self, gpu: str, limit_mib: int) -> ContainerEdits:
        """What the toolkit gives a container that is limited: this node has no driver's files."""
        hook = self.folder / "nvidia-cdi-hook"
        hook.touch()
        with mock.patch.object(toolkit, "_carried_hook", return_value=hook):
            return toolkit.memory_limit(INSTALLED, gpu, limit_mib, keep_in=self.folder)

    def _others(self) -> None:
        """Create files of other programs in the folders where Draco keeps its own."""
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
        """Create all device nodes that the driver may ever need here, as nvidia-smi does."""
        dev = self.folder / "root" / "dev"
        (dev / "nvidia-caps").mkdir(parents=True, exist_ok=True)
        for name in (
            *SHARED_NODES,
            *(f"nvidia{minor}" for minor in range(8)),
            *map(_capability, range(1, CAPABILITIES)),
        ):
            (dev / name).touch()

    def _kubelet_records(self) -> None:
        """Write kubelet's own record of the claims it asked for and has not unprepared."""
        asked = [claim.uid for claim in self.claims.values() if claim.told or claim.unsure or claim.leaving]
        (self.folder / "k" / KUBELET_RECORD).write_text(json.dumps(asked))

    # Its agent

    def _up(self) -> Driven:
        assert self.agent is not None
        return self.agent

    def _served(self) -> bool:
        """Whether the agent serves kubelet."""
        return self.agent is not None and self.agent.ready

    def _seen_all(self) -> None:
        """The agent had its turn. If the driver answers, it knows the current hardware."""
        if self.hanging:
            return
        if self._answers():
            self.current = True
            self.modes = {gpu["uuid"]: gpu["mig_current"] for gpu in self._hardware()["gpus"]}
        self._note_alive()

    def _hardware(self) -> Any:
        return json.loads(self.path.read_text())

    def _answers(self) -> bool:
        """Whether the driver answers every call, apart from unsupported ones."""
        node = self._hardware()
        failing = [
            one
            for one in node["failures"]
            if (one["gpu_uuid"], one["function"], one["error"]) not in self.sickness.lacks
        ]
        broken = failing or node["driver"]["error"] or any(gpu["error"] == 999 for gpu in node["gpus"])
        return not self.hanging and not broken

    def _lack(self, gpu: int, function: str, code: str) -> None:
        """NVML answers this call with this error for a board from now on; the board is healthy all the same."""
        uuid = state.load(self.path).gpus[gpu].uuid
        self.sickness.lacks.add((uuid, function, faults.ERRORS[code]))
        if function == "nvmlDeviceGetMinorNumber":
            self.sickness.placeless.add(uuid)
        faults.fail(self.path, function, faults.ERRORS[code], gpu=uuid)
        fired[f"lacks {function}"] += 1

    def _stop_failing(self, *, but: str = "") -> None:
        """Let failing calls work again, except those with effect `but` and those that a board does not support."""
        with state.mutate(self.path) as node:
            node.failures[:] = [
                one
                for one in node.failures
                if one.effect == but or (one.gpu_uuid, one.function, one.error) in self.sickness.lacks
            ]

    def _note_alive(self) -> None:
        """Note instances that the agent recreated for prepared claims."""
        seen = observer.look(self.folder)
        told = {claim.uid: claim for claim in self.claims.values() if claim.told and not claim.leaving}
        for one in seen.given:
            serial = seen.serial(one.uuid)
            if one.claim in told and serial is not None and not observer.wrong(one, seen):
                self.alive |= {serial}

    def _publish(self) -> Published | None:
        """What the agent publishes now. It is also stored in the API server, if that is reachable."""
        found = self._up().published()
        if found is None:
            return None
        fresh = Published(*found)
        if not self.source.gone and (not self.past or self.past[-1] != fresh):
            self.past = [*self.past[-3:], fresh]
            self.source.publish(*found)
            self._up().slices_written()
            if self.next is not None:
                self.next.see_slices()
            self._check_forms(fresh)
            why = self.decisions.why_bare(fresh, self.sickness)
            assert not why, why
            self._check_names(fresh)
            self._check_counters(fresh)
            fired["published anew"] += 1
        return fresh

    def _check_forms(self, published: Published) -> None:
        """Check how devices are shared. `Sharing` implements it."""

    def _check_fences(self, published: Published | None) -> None:
        """A GPU that is known to be faulty is not offered, nor any partition of it."""
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
        """The plugin that came first keeps the node, and the GpuNode says whether there is another."""
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
        """After a full reading, missing boards are not offered, and healthy ones are published without fault taints."""
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
        """A device name that a claim holds never comes to stand for another board."""
        names = set(published.names())
        for claim in self.claims.values():
            for device, part in claim.parts.items() if claim.told and not claim.leaving else ():
                assert device not in names or published.board(device) == part.gpu, (
                    f"{device}, which claim {claim.name} has of {part.gpu}, is published as {published.board(device)}"
                )

    def _check_counters(self, published: Published) -> None:
        """A GPU with a claimed partition is not free as a whole: it consumes counters or is tainted."""
        claims = [claim for claim in self.claims.values() if claim.told and not claim.leaving]
        parts = {part.gpu for claim in claims for part in claim.exclusive.values() if not part.whole}
        for device in published.devices:
            board = published.board(device["name"])
            if board in parts and "-mig-" not in device["name"]:
                kept = device.get("consumesCounters") or device.get("taints")
                assert kept, f"{device['name']} is offered to everybody, and claims have parts of it"

    def _is_reported(self) -> bool:
        """Whether the GpuNode exists and must be up to date."""
        return self.reachable and not self.source.gone and self.source.gpu_node is not None

    def _is_decided(self) -> bool:
        """Whether the GpuNode also has an operator's decisions."""
        there = self.source.gpu_node
        return self._is_reported() and there is not None and bool(there.spec.decided)

    def _gpu(self, pick: int) -> int:
        return pick % max(1, len(state.load(self.path).gpus))


def _capability(number: int) -> str:
    return f"nvidia-caps/nvidia-cap{number}"


def _drop(*_args: Any) -> Any:
    raise structlog.DropEvent
