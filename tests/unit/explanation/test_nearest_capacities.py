"""Capacities of shared devices that would do in smaller amounts."""

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.explanation.model import ChangeKind
from draco.resources.api.claims import (
    AllocationResult,
    CapacityRequirements,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
)
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import Device, DeviceCapacity
from tests.builders import a_claim, a_node, a_slice
from tests.unit.explanation.clusters import GPU, a_class, asking
from tests.unit.explanation.test_nearest import told


def shared(**capacity: str) -> Fleet:
    """A node with one shared GPU, of which claim `other` holds what it has not asked for."""
    held_amounts = {"cores": "100", "memory": "4Gi"} if "cores" not in capacity else capacity
    device = Device(
        name="gpu-0",
        capacity={"cores": DeviceCapacity(value="100"), "memory": DeviceCapacity(value="40Gi")},
        allow_multiple_allocations=True,
    )
    result = DeviceRequestAllocationResult(
        request="gpu", driver=GPU, pool="n1", device="gpu-0", share_id="s", consumed_capacity=held_amounts
    )
    other = asking(capacity=CapacityRequirements(requests={"memory": "4Gi"}))
    status = msgspec.structs.replace(
        a_claim("other", on=["n1/gpu-0"], reserved_for=["p"]).status,
        allocation=AllocationResult(devices=DeviceAllocationResult(results=[result])),
    )
    other = msgspec.structs.replace(other, metadata=ObjectMeta(name="other", namespace="default"), status=status)
    return Fleet.of(
        slices=[a_slice("n1", [device])],
        nodes=[a_node("n1")],
        classes=[a_class(GPU, f'device.driver == "{GPU}"')],
        claims=[other],
    )


def test_a_capacity_that_a_request_takes_without_asking_is_to_be_asked_for() -> None:
    claim = asking(capacity=CapacityRequirements(requests={"memory": "4Gi"}))
    changes = told(shared(cores="10", memory="4Gi"), claim)
    text = "ask for at most 90 of cores in request gpu: without a request it takes 100"
    assert changes[ChangeKind.LOWER_CAPACITY] == text


def test_two_capacities_that_are_short_are_lowered_together() -> None:
    changes = told(shared(cores="10", memory="4Gi"), asking())
    text = (
        "ask for at most 90 of cores and at most 36Gi of memory in request gpu: without a request it takes 100 and 40Gi"
    )
    assert changes[ChangeKind.LOWER_CAPACITY] == text


def test_of_two_claims_that_take_all_of_a_capacity_without_asking_both_have_to_ask() -> None:
    changes = told(shared(), asking(capacity=CapacityRequirements(requests={"memory": "4Gi"})))
    assert changes[ChangeKind.LOWER_OTHERS] == (
        "ask for only the cores needed, and recreate claim default/other with a request for the same: without one, each "
        "takes 100"
    )
