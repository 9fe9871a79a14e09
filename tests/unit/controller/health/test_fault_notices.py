"""Faults of a GPU are reported to the claims and pods that use it: once each, when they begin."""

from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

from draco.controller.health.fault_notices import FaultNoticeReconciler
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.resources.api.claims import AllocatedDeviceStatus, ResourceClaim
from draco.resources.api.core import ObjectReference
from draco.resources.api.draco import GpuNode
from draco.resources.api.health import GpuFaultStatus
from draco.resources.kinds import TAINT_RULES
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import MOMENT, a_claim, a_fault, a_gpu_node, a_pod, a_slice
from tests.doubles.clock import ManualClock
from tests.mig_claims import a_partition
from tests.unit.controller.watching import forget, tell


class Recorded:
    """An Event recorder that keeps the Events in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, str]] = []

    def record(self, regarding: ObjectReference, reason: EventReason, note: str) -> None:
        self.said.append((f"{regarding.kind} {regarding.name}", reason.name, note))

    def taken(self) -> list[str]:
        """The objects that got Events since the last call."""
        told, self.said = [who for who, _, _ in self.said], []
        return told


class World:
    """A node with two GPUs: `train` has the first and `other` the second."""

    def __init__(self) -> None:
        self.clock = ManualClock(MOMENT)
        self.view = ClusterView(cast("Client", None), TAINT_RULES[1], clock=self.clock)
        self.events = Recorded()
        claims = [
            a_claim(name, on=[f"node-0/gpu-{number}"], reserved_for=[name])
            for number, name in enumerate(("train", "other"))
        ]
        pods = [a_pod(name, claims=[name], node="node-0") for name in ("train", "other")]
        tell(self.view, a_slice("node-0", ["gpu-0", "gpu-1"]), *claims, *pods)
        self.restart()

    def restart(self) -> None:
        self.notices = FaultNoticeReconciler(self.view, cast("EventRecorder", self.events))

    async def look(self, *faults: GpuFaultStatus) -> list[str]:
        """The objects that get Events when the first GPU has these faults."""
        tell(self.view, with_faults(a_gpu_node(), *faults))
        await self.notices.reconcile("node-0")
        return self.events.taken()


def with_faults(node: GpuNode, *faults: GpuFaultStatus) -> GpuNode:
    first, *rest = node.status.gpus
    gpus = [msgspec.structs.replace(first, faults=list(faults)), *rest]
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, gpus=gpus))


def xid94(name: str = "Xid94", **fields: Any) -> GpuFaultStatus:
    return a_fault(name, message="Contained memory error.", **{"first_seen": MOMENT, **fields})


async def test_who_uses_the_gpu_is_told_once_and_nobody_else() -> None:
    world = World()
    assert await world.look() == []
    tell(world.view, with_faults(a_gpu_node(), xid94()))
    await world.notices.reconcile("node-0")
    [(_, reason, note), _] = world.events.said
    assert (reason, note) == ("GpuFault", f"gpu-0 of node-0 ({uuid()}), which it uses: Xid94. Contained memory error.")
    assert world.events.taken() == ["ResourceClaim train", "Pod train"]
    assert await world.look(xid94(count=2)) == [], "the same fault goes on"
    assert await world.look() == []
    assert await world.look(xid94(first_seen=MOMENT + timedelta(seconds=5))) == ["ResourceClaim train", "Pod train"]


def uuid() -> str:
    return a_gpu_node().status.gpus[0].uuid


async def test_a_new_leader_tells_what_has_just_begun_and_not_what_was_there() -> None:
    world = World()
    await world.clock.advance(600)
    assert await world.look(xid94()) == []
    world.restart()
    recent = xid94(name="Xid31", first_seen=world.clock.now() - timedelta(seconds=5))
    assert await world.look(xid94(), recent) == ["ResourceClaim train", "Pod train"]
    assert await world.look(xid94(), recent) == []


async def test_a_node_that_is_gone_is_forgotten() -> None:
    world = World()
    await world.look(xid94())
    forget(world.view, a_gpu_node())
    await world.notices.reconcile("node-0")
    assert world.notices._told == {}


def on_an_instance(name: str, partition: str, gi: int | None) -> ResourceClaim:
    claim = a_claim(name, on=[partition])
    _, _, device = partition.partition("/")
    said = AllocatedDeviceStatus(
        driver=NVIDIA_DRIVER, pool="node-0", device=device, data={"giID": gi} if gi is not None else None
    )
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, devices=[said]))


@pytest.mark.parametrize(
    ("instance", "told"), [(7, ["first", "unsaid"]), (8, ["second", "unsaid"]), (None, ["first", "second", "unsaid"])]
)
async def test_of_a_fault_of_an_instance_only_its_users_are_told(instance: int | None, told: list[str]) -> None:
    world = World()
    partitions = [a_partition(f"0:1g.10gb@{start}") for start in range(3)]
    for claim in (a_claim("train"), a_claim("other")):
        forget(world.view, claim)
    numbers = {"first": 7, "second": 8, "unsaid": None}
    names = [each.partition("/")[2] for each in partitions]
    tell(
        world.view,
        a_slice("node-0", names),
        *(on_an_instance(name, each, gi) for (name, gi), each in zip(numbers.items(), partitions, strict=True)),
    )
    assert await world.look() == []
    assert await world.look(xid94(instance=instance)) == [f"ResourceClaim {name}" for name in told]


async def test_a_pod_of_the_same_name_that_came_later_is_not_told() -> None:
    world = World()
    await world.look()
    pod = a_pod("train", claims=["train"], node="node-0")
    tell(world.view, msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid="another")))
    assert await world.look(xid94()) == ["ResourceClaim train"]
