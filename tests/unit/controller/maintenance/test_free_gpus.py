"""The number of free GPUs is the same in the preview of a maintenance, in the operator's rehearsal, and in `draco status`."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.maintenance.selecting.fleet import PhysicalGpu
from draco.maintenance.selecting.rehearsal import RehearsedObjects, rehearse
from draco.overview.snapshot import Snapshot
from draco.overview.status import status_of
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.draco import GpuNode
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import Device, DeviceCapacity
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule
from draco.resources.kinds import TAINT_RULES
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import a_claim, a_device, a_device_class, a_gpu_node, a_maintenance, a_node, a_rule, a_slice
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import tell

HANDED_OVER = DeviceTaint(key="draco.dev/operator-allocated", effect="NoSchedule")
DRACOS = {"draco.dev/allocator": "operator"}


def a_class(**labels: str) -> DeviceClass:
    return msgspec.structs.replace(a_device_class(), metadata=ObjectMeta(name="gpus", labels=labels))


def tainted(key: str, effect: str = "NoSchedule") -> Device:
    return a_device("gpu-1", taints=[DeviceTaint(key=key, effect=effect)])


def shared(memory: str) -> list[Any]:
    """A shared GPU of 80 GiB, of which a claim holds `memory`."""
    device = a_device("gpu-1", allow_multiple_allocations=True, capacity={"memory": DeviceCapacity(value="80Gi")})
    claim = a_claim("shares", on=["node-0/gpu-1"])
    assert claim.status.allocation is not None
    devices = claim.status.allocation.devices
    results = [msgspec.structs.replace(devices.results[0], consumed_capacity={"memory": memory})]
    allocation = msgspec.structs.replace(
        claim.status.allocation, devices=msgspec.structs.replace(devices, results=results)
    )
    return [device, msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=allocation))]


class World:
    """Four GPUs on a ready node; `said` describes `gpu-1`."""

    def __init__(self, said: Sequence[Any], device_class: DeviceClass) -> None:
        def given(kind: type[Any]) -> list[Any]:
            return [each for each in said if isinstance(each, kind)]

        (first, *_) = [*given(Device), a_device("gpu-1")]
        handed_over = [HANDED_OVER] if device_class.metadata.labels else []
        plain = [first, *(a_device(f"gpu-{number}") for number in (0, 2, 3))]
        devices = [msgspec.structs.replace(each, taints=[*each.taints, *handed_over]) for each in plain]
        self.slices = [a_slice("node-0", devices)]
        self.rules: list[DeviceTaintRule] = given(DeviceTaintRule)
        self.claims: list[ResourceClaim] = given(ResourceClaim)
        self.nodes: list[Node] = given(Node) or [a_node()]
        self.gpu_nodes: list[GpuNode] = given(GpuNode) or [a_gpu_node(gpus=4)]
        self.device_class = device_class

    def previewed(self) -> int:
        objects = RehearsedObjects(
            slices=self.slices,
            claims=self.claims,
            classes=[self.device_class],
            pods=[],
            rules=self.rules,
            nodes=self.nodes,
            gpu_nodes=self.gpu_nodes,
        )
        (found,) = rehearse(a_maintenance(pool="node-0", device="gpu-0"), objects).summary.classes
        assert found.free_after == max(0, found.free - 1)
        return found.free

    async def rehearsed(self) -> int:
        clock = ManualClock()
        view = ClusterView(cast("Client", None), TAINT_RULES[0], clock=clock)
        fleet = MaintenanceFleet(view)
        tell(view, *self.slices, *self.claims, *self.nodes, *self.gpu_nodes, *self.rules, self.device_class)
        (found,) = await fleet.classes_of([PhysicalGpu(NVIDIA_DRIVER, "node-0", "gpu-0")])
        return len(found.free)

    def shown(self) -> int:
        snapshot = Snapshot(
            nodes=self.nodes,
            slices=self.slices,
            claims=self.claims,
            rules=self.rules,
            gpu_nodes=self.gpu_nodes,
        )
        return status_of(snapshot).devices.free


@pytest.mark.parametrize("is_dracos", [False, True], ids=["kube-scheduler's", "Draco's"])
@pytest.mark.parametrize(
    ("said", "free"),
    [
        pytest.param([], 4, id="nothing"),
        pytest.param([a_rule(driver=NVIDIA_DRIVER, pool="node-0", device="gpu-1")], 3, id="tainted by hand, by name"),
        pytest.param([a_rule(driver=NVIDIA_DRIVER, device="gpu-1")], 3, id="tainted by hand on every node"),
        pytest.param([a_rule(pool="node-0")], 0, id="a whole pool"),
        pytest.param([a_rule()], 0, id="everything"),
        pytest.param([a_rule(pool="node-0", effect="None")], 4, id="only announced"),
        pytest.param([tainted("example.com/broken")], 3, id="tainted in the slice"),
        pytest.param([tainted("example.com/broken", "None")], 4, id="announced in the slice"),
        pytest.param([a_rule(taint="draco.dev/maintenance", pool="node-0", device="gpu-1")], 3, id="in maintenance"),
        pytest.param([a_rule(taint="draco.dev/agent-lost", driver=NVIDIA_DRIVER, pool="node-0")], 0, id="fenced"),
        pytest.param([a_gpu_node(gpus={"gpu-0": "Healthy", "gpu-1": "Unhealthy"})], 3, id="sick without a taint"),
        pytest.param([a_claim("train", on=["node-0/gpu-1"])], 3, id="in use"),
        pytest.param([a_claim("looks on", on=["node-0/gpu-1"], admin_access=True)], 4, id="administrative access"),
        pytest.param(shared("40Gi"), 4, id="shared, with room"),
        pytest.param(shared("80Gi"), 3, id="shared, without room"),
        pytest.param([a_node(ready=False)], 0, id="its node is not ready"),
        pytest.param([a_node("other")], 0, id="its node is gone"),
        pytest.param([a_node(unschedulable=True)], 0, id="its node is cordoned"),
    ],
)
async def test_all_who_count_free_gpus_count_the_same(said: list[Any], free: int, *, is_dracos: bool) -> None:
    world = World(said, a_class(**(DRACOS if is_dracos else {})))
    assert (world.previewed(), await world.rehearsed(), world.shown()) == (free, free, free)


@pytest.mark.parametrize("is_dracos", [False, True], ids=["kube-scheduler's", "Draco's"])
async def test_what_is_handed_over_is_free_for_dracos_classes_alone_and_the_rest_for_the_others(
    *, is_dracos: bool
) -> None:
    """One of four GPUs is handed over; a class of the other allocator does not count it."""
    world = World([], a_class(**(DRACOS if is_dracos else {})))
    devices = [a_device("gpu-1", taints=[HANDED_OVER]), *(a_device(f"gpu-{number}") for number in (0, 2, 3))]
    world.slices = [a_slice("node-0", devices)]
    expected = 1 if is_dracos else 3
    assert (await world.rehearsed(), world.shown()) == (expected, 4)
    objects = RehearsedObjects(slices=world.slices, classes=[world.device_class], nodes=world.nodes)
    (found,) = rehearse(a_maintenance(pool="node-0", device="gpu-1"), objects).summary.classes
    assert (found.free, found.free_after) == (expected, 0 if is_dracos else 3)


async def test_a_gpu_of_which_any_partition_is_in_use_is_not_free() -> None:
    for on in ("gpu-1-mig-1g10gb-19-0", "gpu-1-mig-1g10gb-19-6"):  # the second is no longer published
        world = World([a_claim("part", on=[f"node-0/{on}"])], a_class())
        part = a_device("gpu-1-mig-1g10gb-19-0")
        parts = [part, *(a_device(f"gpu-{number}") for number in range(4))]
        world.slices = [a_slice("node-0", parts)]
        assert (world.previewed(), await world.rehearsed()) == (3, 3)
