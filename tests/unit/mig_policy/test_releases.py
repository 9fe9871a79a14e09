"""Idle claims that stand in the way of a waiting one: the fewest, and only if all find a place."""

from collections.abc import Sequence

import msgspec
import pytest

from draco.agent import partitions
from draco.agent.gpus import DriverInfo
from draco.agent.instances import GpuMig
from draco.agent.partitions import Divisible
from draco.agent.slices import Located
from draco.allocation.fleet import Fleet
from draco.mig_policy.releases import Release, plan_release
from draco.resources.claims import CelSelector, DeviceSelector, ResourceClaim
from draco.resources.core import Node, PodSpec
from draco.resources.meta import ObjectKey
from draco.resources.slices import ResourceSlice
from draco.simulator.planner_boards import BOARDS
from tests.builders import a_claim, a_device_class, a_gpu, a_node, a_pod, a_slice

H100 = BOARDS["H100-80GB"]
MIG = a_device_class("mig.nvidia.com", selector="device.attributes['gpu.nvidia.com'].type == 'mig'")
WAITING = ObjectKey("default", "waiting")
IDS = {profile.name: profile.id for profile in H100.profiles}


def published(node: str, gpus: int) -> list[ResourceSlice]:
    """What an agent publishes of so many H100s that can be divided."""
    divisible = [
        Divisible(located=Located(gpu), mig=GpuMig(gpu=gpu.uuid, capable=True, enabled=True, board=H100), board=H100)
        for gpu in map(a_gpu, range(gpus))
    ]
    driver = DriverInfo(driver_version="580.65.06", cuda_driver_version="13.0", nvml_version="13")
    devices = partitions.devices(divisible, driver, partitions.order(divisible))
    contents = [devices[start : start + 64] for start in range(0, len(devices), 64)]
    count = len(contents) + 1
    counters = a_slice(node, [], name=f"{node}-0", of=count, shared_counters=partitions.counters(divisible))
    return [counters, *(a_slice(node, chunk, name=f"{node}-{i + 1}", of=count) for i, chunk in enumerate(contents))]


def partition(text: str, node: str = "node-0") -> str:
    """From "0:3g.40gb@4" to the device's name."""
    gpu, placement = text.split(":")
    name, start = placement.split("@")
    return f"{node}/gpu-{gpu}-mig-{name.replace('.', '').replace('+', '-')}-{IDS[name]}-{start}"


def asking(name: str, profile: str, on: str = "", *, used: bool = False) -> ResourceClaim:
    claim = a_claim(
        name, device_class="mig.nvidia.com", on=[partition(on)] if on else [], reserved_for=["user"] if used else []
    )
    (request,) = claim.spec.devices.requests
    assert request.exactly is not None
    expression = f'device.attributes["gpu.nvidia.com"].profile == "{profile}"'
    exactly = msgspec.structs.replace(
        request.exactly, selectors=[DeviceSelector(cel=CelSelector(expression=expression))]
    )
    devices = msgspec.structs.replace(claim.spec.devices, requests=[msgspec.structs.replace(request, exactly=exactly)])
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))


def planned(
    *claims: ResourceClaim,
    wanted: str,
    gpus: int = 1,
    max_moves: int = 2,
    nodes: Sequence[Node] = (a_node("node-0"),),
    spec: PodSpec | None = None,
) -> Release | None:
    waiting = asking("waiting", wanted)
    slices = [each for node in nodes for each in published(node.metadata.name, gpus)]
    fleet = Fleet.of(slices=slices, nodes=nodes, classes=[MIG], claims=[*claims, waiting])
    pod = a_pod("train", claims=["waiting"])
    if spec is not None:
        pod = msgspec.structs.replace(pod, spec=spec)
    before = {key: fleet.state.held_by(key) for key in fleet.claims}
    found = plan_release(fleet, pod, [waiting], dict.fromkeys(fleet.idle, max_moves))
    assert {key: fleet.state.held_by(key) for key in fleet.claims} == before
    return found


def names(found: Release | None) -> list[str]:
    return [] if found is None else [key.name for key in found.claims]


def test_one_idle_claim_in_the_way_is_named_if_it_finds_another_place() -> None:
    found = planned(asking("idle", "1g.10gb", "0:1g.10gb@0"), wanted="4g.40gb")
    assert found == Release(
        pod=ObjectKey("default", "train"),
        waiting=(WAITING,),
        node="node-0",
        claims=(ObjectKey("default", "idle"),),
        devices={ObjectKey("default", "idle"): ("gpu-0-mig-1g10gb-19-0 of node-0",)},
    )
    assert str(found) == "default/waiting fits on node-0 without default/idle"


def test_a_claim_that_a_pod_uses_is_never_named() -> None:
    assert planned(asking("busy", "1g.10gb", "0:1g.10gb@0", used=True), wanted="4g.40gb") is None


def test_what_fits_as_things_are_needs_no_release() -> None:
    assert planned(asking("idle", "1g.10gb", "0:1g.10gb@6"), wanted="4g.40gb") is None


def test_an_idle_claim_that_would_find_no_other_place_stays() -> None:
    assert planned(asking("idle", "7g.80gb", "0:7g.80gb@0"), wanted="1g.10gb") is None
    assert names(planned(asking("idle", "7g.80gb", "0:7g.80gb@0"), wanted="1g.10gb", gpus=2)) == []


def test_two_go_where_one_does_not_suffice() -> None:
    idle = [asking("a", "1g.10gb", "0:1g.10gb@0"), asking("b", "1g.10gb", "0:1g.10gb@2")]
    assert names(planned(*idle, wanted="4g.40gb")) == ["a", "b"]
    assert planned(*idle, wanted="4g.40gb", max_moves=1) is None


def test_one_goes_where_one_suffices() -> None:
    idle = [asking("a", "1g.10gb", "0:1g.10gb@6"), asking("b", "1g.10gb", "0:1g.10gb@2")]
    assert names(planned(*idle, wanted="4g.40gb")) == ["b"]


def test_three_are_never_named() -> None:
    idle = [asking(name, "1g.10gb", f"0:1g.10gb@{start}") for name, start in (("a", 0), ("b", 1), ("c", 2))]
    assert planned(*idle, wanted="4g.40gb") is None


def test_a_claim_may_go_to_another_gpu() -> None:
    idle = asking("idle", "3g.40gb", "0:3g.40gb@0")
    busy = asking("busy", "3g.40gb", "1:3g.40gb@0", used=True)
    assert names(planned(idle, busy, wanted="7g.80gb", gpus=2)) == ["idle"]


@pytest.mark.parametrize("node_selector", [{"zone": "elsewhere"}])
def test_a_node_that_the_pod_may_not_go_to_is_no_help(node_selector: dict[str, str]) -> None:
    spec = PodSpec(node_selector=node_selector)
    assert planned(asking("idle", "1g.10gb", "0:1g.10gb@0"), wanted="4g.40gb", spec=spec) is None


def test_a_claim_that_no_node_can_ever_meet_moves_nobody() -> None:
    assert planned(asking("idle", "1g.10gb", "0:1g.10gb@0"), wanted="9g.99gb") is None
