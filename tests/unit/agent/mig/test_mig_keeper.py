"""Which GPUs are worked on after a change, and when they are retried, without an API server."""

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
import structlog

from draco.agent.hardware.gpus import GpuMigView, PlacementKey
from draco.agent.hardware.monitor import HardwareView
from draco.agent.mig.keeper import MigKeeper
from draco.agent.mig.last_spec import NOTHING, LastSpec, SpecMemory
from draco.agent.mig.layout import LayoutApplier
from draco.agent.state.changes import PoliciesChanged
from draco.agent.state.facts import NodeFacts
from draco.agent.state.node import NodeState
from draco.kube.connect.client import Client
from draco.kube.queue import run_workers
from draco.resources.api.draco import IsolatedGpu, MigMode, MigState, PromisedDevice, WantedGpu
from draco.resources.names import GpuUuid
from tests.builders import a_gpu, a_mig_node
from tests.doubles.clock import ManualClock

ONE, TWO = GpuUuid("GPU-1"), GpuUuid("GPU-2")
VIEW = HardwareView(gpus=tuple(a_gpu(uuid=uuid) for uuid in (ONE, TWO)))


class Node:
    """Two GPUs, and what was done to them: "keep", the mode that was applied, or "" where no policy was."""

    def __init__(self) -> None:
        self.done: list[tuple[GpuUuid, str]] = []
        self.note = ""
        self.isolations: list[list[str]] = []
        self.divisions = {uuid: GpuMigView(gpu=uuid) for uuid in (ONE, TWO)}
        self.clock = ManualClock()
        self.state = NodeState(ManualClock())
        self.state.on(PoliciesChanged, self._policies_changed)
        self.memory = cast("SpecMemory", SimpleNamespace(last=LastSpec(node_uid="", spec=NOTHING)))
        self.keeper = MigKeeper(
            cast("Client", None),
            self.state,
            node="node-0",
            memory=self.memory,
            layouts=cast("LayoutApplier", self),
            divisions=lambda: self.divisions,
            on_gpu=self._on_gpu,
            clock=self.clock,
        )

    def _policies_changed(self, _change: PoliciesChanged) -> None:
        self.isolations.append([each.request for each in self.state.facts.wanted.isolated])

    def keep(self, uuid: GpuUuid) -> str:
        self.done.append((uuid, "keep"))
        return self.note

    def apply(self, uuid: GpuUuid, wanted: WantedGpu | None, _promised: object = ()) -> str:
        self.done.append((uuid, wanted.mode.value if wanted else ""))
        return self.note

    async def _on_gpu(self, _uuid: GpuUuid, work: Callable[[], str]) -> str:
        return work()

    def want(self, *uuids: GpuUuid, promised: GpuUuid | None = None, isolated: Iterable[str] = ()) -> None:
        """As if the watch had reported the wanted state, a claim allocated one of the GPUs, and maintenance."""
        node = a_mig_node(wanted=[WantedGpu(uuid=uuid, policy="p", mode=MigMode.DYNAMIC) for uuid in uuids])
        if promised is not None:
            whole = PromisedDevice(device="gpu-0", uuid=promised, claim="default/claim")
            node = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, promised=[whole]))
        under = [IsolatedGpu(request=each, key="draco.dev/maintenance", effect="NoSchedule") for each in isolated]
        node = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, isolated=under))
        self.memory.last = LastSpec(node_uid="", spec=node.spec)
        self.keeper._want()

    async def work(self, seconds: float = 0.0) -> list[tuple[GpuUuid, str]]:
        """What is done within this time."""
        self.done.clear()
        working = asyncio.create_task(
            run_workers(self.keeper._queue, self.keeper._reconcile, workers=1, log=structlog.get_logger())
        )
        await self.clock.advance(seconds)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return sorted(self.done)


@pytest.fixture
def node() -> Node:
    return Node()


async def test_before_it_is_known_what_is_wanted_gpus_are_only_kept(node: Node) -> None:
    node.keeper.touch_all()
    assert await node.work() == [(ONE, "keep"), (TWO, "keep")]


async def test_once_it_is_known_what_is_wanted_gpus_of_no_policy_are_worked_on_too(node: Node) -> None:
    node.want(ONE)
    assert await node.work() == [(ONE, "Dynamic"), (TWO, "")]


async def test_only_gpus_of_which_something_else_is_wanted_are_worked_on(node: Node) -> None:
    node.want(ONE)
    await node.work()
    node.want(ONE)
    assert await node.work() == []
    node.want(ONE, TWO)
    assert await node.work() == [(TWO, "Dynamic")]
    node.want(TWO)
    assert await node.work() == [(ONE, "")]


async def test_a_gpu_that_is_promised_to_a_claim_or_no_longer_is_worked_on(node: Node) -> None:
    node.want(ONE)
    await node.work()
    node.want(ONE, promised=TWO)
    assert await node.work() == [(TWO, "")]
    node.want(ONE)
    assert await node.work() == [(TWO, "")]


async def test_what_is_under_maintenance_is_told_at_once_whenever_it_changes(node: Node) -> None:
    node.want(ONE)
    assert node.isolations == []
    node.want(ONE, isolated=["swap-fan"])
    node.want(ONE, isolated=["swap-fan"])
    node.want(ONE, isolated=["swap-fan", "dust"])
    node.want(ONE)
    assert node.isolations == [["swap-fan"], ["swap-fan", "dust"], []]


@pytest.mark.parametrize("open_thing", ["a note", "a dirty GPU", "a missing instance"])
async def test_a_gpu_is_tried_again_until_nothing_is_open(node: Node, open_thing: str) -> None:
    if open_thing == "a note":
        node.note = "MIG mode waits."
    elif open_thing == "a dirty GPU":
        node.divisions[ONE] = GpuMigView(gpu=ONE, state=MigState.DIRTY)
    else:
        node.divisions[ONE] = GpuMigView(gpu=ONE, missing=(PlacementKey(ONE, 19, 0),))
    node.want(ONE)
    assert (ONE, "Dynamic") in await node.work()
    assert (ONE, "Dynamic") in await node.work(60.0)
    node.note, node.divisions[ONE] = "", GpuMigView(gpu=ONE)
    await node.work(60.0)
    assert await node.work(600.0) == []


async def test_a_gpu_that_left_the_node_is_not_tried_again(node: Node) -> None:
    node.note = "MIG mode waits."
    node.want(ONE, TWO)
    await node.work()
    node.divisions = {}
    assert await node.work(600.0) == []


async def test_a_gpu_that_comes_when_it_is_known_what_is_wanted_of_it_is_worked_on_once(node: Node) -> None:
    """After a reboot, for example, the driver may be loaded later than the agent starts."""
    there, node.divisions = node.divisions, {}
    node.keeper.touch_all()
    node.want(ONE)
    assert await node.work() == []
    node.divisions = there
    for expected in ([(ONE, "Dynamic"), (TWO, "")], []):
        node.keeper.seen(NodeFacts(view=VIEW))
        assert await node.work() == expected


async def test_a_gpu_that_was_away_is_worked_on_as_if_it_were_new(node: Node) -> None:
    node.note = "NVML refuses."
    node.want(ONE)
    await node.work()
    there, node.divisions = node.divisions, {}
    await node.work(600.0)
    node.note, node.divisions = "", there
    node.keeper.seen(NodeFacts(view=VIEW))
    assert await node.work() == [(ONE, "Dynamic"), (TWO, "")]
