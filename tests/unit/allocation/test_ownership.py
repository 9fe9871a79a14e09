"""Which claims Draco allocates, and how it searches for them."""

import msgspec
import pytest

from draco.allocation.ownership.claims import ONLY_OPERATOR_ALLOCATED, as_allocated, as_searched, is_for_operator
from draco.allocation.ownership.classes import ClassFault, OfDriver, class_fault
from draco.cel import compile_selector, device_view
from draco.resources.api.claims import (
    AllocationResult,
    CelSelector,
    DeviceAllocationResult,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.api.taints import DeviceToleration

OURS, THEIRS = "gpu.draco.dev", "gpu.nvidia.com"
CLASSES = {
    OURS: DeviceClass(metadata=ObjectMeta(name=OURS, labels={"draco.dev/allocator": "operator"})),
    THEIRS: DeviceClass(metadata=ObjectMeta(name=THEIRS)),
}


def exactly(name: str, *, admin_access: bool | None = None) -> DeviceRequest:
    asked = ExactDeviceRequest(device_class_name=name, admin_access=admin_access)
    return DeviceRequest(name=f"of-{name}", exactly=asked)


def first_of(*names: str) -> DeviceRequest:
    choices = [DeviceSubRequest(name=f"choice-{name}", device_class_name=name) for name in names]
    return DeviceRequest(name="choice", first_available=choices)


def claim_of(*requests: DeviceRequest) -> ResourceClaim:
    return ResourceClaim(spec=ResourceClaimSpec(devices=DeviceClaim(requests=list(requests))))


@pytest.mark.parametrize(
    ("claim", "is_ours"),
    [
        (claim_of(exactly(OURS)), True),
        (claim_of(exactly(OURS), first_of(OURS)), True),
        (claim_of(exactly(THEIRS)), False),
        (claim_of(exactly(OURS), exactly(THEIRS)), False),
        (claim_of(first_of(OURS, THEIRS)), False),
        (claim_of(exactly("gone")), False),
        (claim_of(exactly(OURS, admin_access=True)), False),
        (claim_of(), False),
    ],
)
def test_a_claim_is_dracos_if_all_its_classes_are(claim: ResourceClaim, *, is_ours: bool) -> None:
    assert is_for_operator(claim, CLASSES) is is_ours


def test_a_search_sees_only_devices_that_draco_allocates_in_spite_of_their_taint() -> None:
    claim = claim_of(exactly(OURS), first_of(OURS))
    searched = as_searched(claim, CLASSES)
    first, second = searched.spec.devices.requests
    assert first.exactly is not None
    for tolerations, selectors in (
        (first.exactly.tolerations, first.exactly.selectors),
        (second.first_available[0].tolerations, second.first_available[0].selectors),
    ):
        assert [each.key for each in tolerations] == ["draco.dev/operator-allocated"]
        assert [each.cel.expression for each in selectors if each.cel] == [ONLY_OPERATOR_ALLOCATED]
    assert claim.spec.devices.requests[0].exactly == ExactDeviceRequest(device_class_name=OURS)


def test_the_selector_answers_for_every_device() -> None:
    selector = compile_selector(ONLY_OPERATOR_ALLOCATED)
    allocator = {"draco.dev/allocator": DeviceAttribute(string="operator")}
    ours, plain = Device(name="gpu-0", attributes=allocator), Device(name="gpu-1")
    other = Device(name="gpu-2", attributes={"draco.dev/other": DeviceAttribute(string="operator")})
    assert [selector.matches(device_view(THEIRS, each)) for each in (ours, plain, other)] == [True, False, False]


def test_what_is_written_has_the_claims_own_tolerations() -> None:
    (request,) = as_searched(claim_of(exactly(OURS)), CLASSES).spec.devices.requests
    assert request.exactly is not None
    own = DeviceToleration(key="example.com/slow", operator="Exists")
    found = DeviceRequestAllocationResult(
        request="gpu", driver=THEIRS, pool="node", device="gpu-0", tolerations=[own, *request.exactly.tolerations]
    )
    result = AllocationResult(devices=DeviceAllocationResult(results=[found]))
    assert as_allocated(result).devices.results == [msgspec.structs.replace(found, tolerations=[own])]


def test_a_class_is_judged_by_devices_that_can_be_read() -> None:
    selectors = [DeviceSelector(cel=CelSelector(expression=ONLY_OPERATOR_ALLOCATED))]
    unlabelled = DeviceClass(metadata=ObjectMeta(name="lost"), spec=DeviceClassSpec(selectors=selectors))
    unreadable = Device(name="gpu-0", attributes={"driverVersion": DeviceAttribute(version="580")})
    devices = [OfDriver(THEIRS, each) for each in (unreadable, Device(name="gpu-1"))]
    assert class_fault(unlabelled, devices[:1]) is None
    assert class_fault(unlabelled, devices) is ClassFault.NEITHER
