"""Claims with opaque configurations, where not every GPU can have them: which GPU Draco gives them, what is said."""

from typing import Any

import msgspec
import pytest

from draco.allocation.configurations import VERSION, able
from draco.allocation.configured_claims import implied_selectors
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.ownership.claims import as_judged, as_searched
from draco.explanation.explain import explain
from draco.explanation.findings.devices import device_verdicts
from draco.explanation.model import Cause, ChangeKind, PendingReason, ProblemKind
from draco.explanation.problems.claims import problems_of
from draco.explanation.wording import report
from draco.placing.groups.group import ClaimGroup, GroupMember
from draco.resources.api.claims import (
    DeviceClaimConfiguration,
    DeviceClass,
    DeviceClassConfiguration,
    DeviceRequest,
    DeviceSubRequest,
    OpaqueConfiguration,
    ResourceClaim,
)
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.names import ATTRIBUTE_TIME_SLICING, NVIDIA_DEVICE_CLASS, NVIDIA_DRIVER
from draco.whatif.trials import Trial, run
from tests.builders import a_claim, a_device_class, a_node, a_slice
from tests.unit.placing.test_place import CLASS, TAINT, devices

LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
DEFAULT = {"strategy": "TimeSlicing"}
MPS = {"strategy": "Mps"}
CAN_SLICE = able(ATTRIBUTE_TIME_SLICING)


def opaque(sharing: Any, kind: str = "GpuConfig", driver: str = NVIDIA_DRIVER) -> OpaqueConfiguration:
    return OpaqueConfiguration(
        driver=driver, parameters={"apiVersion": VERSION, "kind": kind, **({"sharing": sharing} if sharing else {})}
    )


def asking(
    *configs: OpaqueConfiguration, device_class: str = CLASS, requests: tuple[str, ...] = (), name: str = "a"
) -> ResourceClaim:
    claim = a_claim(name, device_class=device_class)
    config = [DeviceClaimConfiguration(requests=list(requests), opaque=each) for each in configs]
    claim_devices = msgspec.structs.replace(claim.spec.devices, config=config)
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=claim_devices))


def a_gpu(name: str, can: bool | None, *, ours: bool = True) -> Device:
    attributes = {"type": DeviceAttribute(string="mig" if "-mig-" in name else "gpu")}
    if can is not None:
        attributes[ATTRIBUTE_TIME_SLICING] = DeviceAttribute(bool_=can)
    if not ours:
        return Device(name=name, attributes=attributes)
    attributes["draco.dev/allocator"] = DeviceAttribute(string="operator")
    return Device(name=name, attributes=attributes, taints=[TAINT])


def a_class(*configs: OpaqueConfiguration, name: str = CLASS) -> DeviceClass:
    made = a_device_class(name)
    labels = {"draco.dev/allocator": "operator"} if name == CLASS else {}
    return msgspec.structs.replace(
        made,
        metadata=msgspec.structs.replace(made.metadata, labels=labels),
        spec=msgspec.structs.replace(made.spec, config=[DeviceClassConfiguration(opaque=each) for each in configs]),
    )


def a_fleet(*can: bool | None, classes: tuple[DeviceClass, ...] = (), claims: tuple[ResourceClaim, ...] = ()) -> Fleet:
    """A node per GPU, which can have time slices or not, or does not say."""
    return Fleet.of(
        nodes=[a_node(f"node-{n}") for n in range(len(can))],
        slices=[a_slice(f"node-{n}", [a_gpu("gpu-0", each)]) for n, each in enumerate(can)],
        classes=[a_class(), *classes],
        claims=claims,
    )


def placed(fleet: Fleet, claim: ResourceClaim) -> list[str]:
    return devices(fleet, ClaimGroup([GroupMember([claim])]))[0]


@pytest.mark.parametrize(
    ("can", "got"),
    [
        ([False, True], ["node-1/gpu-0"]),
        ([False, None], ["node-1/gpu-0"]),
        ([None, True], ["node-0/gpu-0"]),
        ([False, False], []),
    ],
)
def test_a_claim_gets_a_gpu_that_can_have_its_time_slice(can: list[bool | None], got: list[str]) -> None:
    assert placed(a_fleet(*can), asking(opaque(LONG))) == got
    assert placed(a_fleet(*can), asking(opaque(DEFAULT))) == ["node-0/gpu-0"]
    assert placed(a_fleet(*can), asking()) == ["node-0/gpu-0"]


def test_a_configuration_of_the_class_counts_unless_the_claim_overrides_it() -> None:
    fleet = a_fleet(False, True, classes=(a_class(opaque(LONG)),))
    assert placed(fleet, asking()) == ["node-1/gpu-0"]
    assert placed(fleet, asking(opaque(DEFAULT))) == ["node-0/gpu-0"]


def test_a_configuration_that_no_device_can_have_holds_none() -> None:
    assert placed(a_fleet(True), asking(opaque(MPS))) == []
    assert placed(a_fleet(True), asking(opaque(MPS, kind="MigDeviceConfig"))) == []
    assert placed(a_fleet(True), asking(opaque(MPS, driver="gpu.example.com"))) == ["node-0/gpu-0"]


def test_a_configuration_for_whole_gpus_keeps_the_request_that_it_names_from_mig_devices() -> None:
    fleet = a_fleet()
    fleet.put_node(a_node("node-0"))
    fleet.put_slice(a_slice("node-0", [a_gpu("gpu-1-mig-1g10gb-19-0", None), a_gpu("gpu-2", None)]))
    assert placed(fleet, asking(opaque(LONG), requests=("gpu",))) == ["node-0/gpu-2"]
    assert placed(fleet, asking(opaque(None, "MigDeviceConfig"), requests=("gpu",))) == ["node-0/gpu-1-mig-1g10gb-19-0"]


def test_each_alternative_is_judged_by_its_own_configuration() -> None:
    claim = asking(opaque(LONG), requests=("gpu/slow",))
    choices = [DeviceSubRequest(name=name, device_class_name=CLASS) for name in ("slow", "any")]
    request = DeviceRequest(name="gpu", first_available=choices)
    claim_devices = msgspec.structs.replace(claim.spec.devices, requests=[request])
    claim = msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=claim_devices))
    assert list(implied_selectors(claim, {CLASS: a_class()})) == ["gpu/slow"]
    assert placed(a_fleet(False), claim) == ["node-0/gpu-0"]
    assert explain(a_fleet(False), [claim]).problems == []


def test_a_claim_without_configuration_is_searched_as_it_is() -> None:
    classes = {CLASS: a_class(), NVIDIA_DEVICE_CLASS: a_class(name=NVIDIA_DEVICE_CLASS)}
    assert implied_selectors(asking(), classes) == {}
    [request] = as_searched(asking(), classes).spec.devices.requests
    assert request.exactly is not None
    assert len(request.exactly.selectors) == 1
    theirs = asking(opaque(LONG), device_class=NVIDIA_DEVICE_CLASS)
    assert as_judged(theirs, classes) is theirs, "kube-scheduler does not know what a device can do"


def test_each_device_says_why_it_is_not_given() -> None:
    fleet = a_fleet(False, True, claims=(a_claim("other", on=["gpu.nvidia.com/node-1/gpu-0"]),))
    first, second = device_verdicts(fleet, [asking(opaque(LONG))])
    assert (first.cause, second.cause) == (Cause.CONFIGURATION_REFUSED, Cause.IN_USE)
    assert first.text == (
        "unable to have the claim's configuration, because it asks for time slices of Long, and the board or the driver cannot "
        "set them"
    )
    told = explain(fleet, [asking(opaque(LONG))])
    assert told.reason is PendingReason.IN_USE
    assert told.summary == (
        "None of the 2 devices that request gpu selects is free: 1 is in use by default/other (no pod uses it); 1 is unable to "
        "have the claim's configuration, because it asks for time slices of Long, and the board or the driver cannot set them. "
        "Delete claim default/other, which is allocated but not used by any pod."
    )
    assert explain(fleet, [asking()]).fits


def test_where_no_gpu_can_have_it_waiting_does_not_help_and_nobody_is_to_change_a_selector() -> None:
    told = explain(a_fleet(False, False), [asking(opaque(LONG))])
    assert (told.reason, told.fits) == (PendingReason.CONFIGURATION_REFUSED, False)
    assert told.summary == (
        "The claim's configuration for request gpu cannot be carried out, because it asks for time slices of Long, and the board "
        "or the driver of node-0/gpu-0 cannot set them. Remove it."
    )
    [problem] = told.problems
    assert (problem.kind, problem.fatal) == (ProblemKind.CONFIGURATION_REFUSED, True)
    assert not {each.kind for each in told.nearest} & {ChangeKind.DROP_SELECTOR, ChangeKind.RELAX_SELECTOR}
    assert not any("timeSlicing" in line for line in report(told))


def test_a_claim_that_kube_scheduler_allocates_is_told_the_selector_that_it_needs() -> None:
    fleet = a_fleet(classes=(a_class(name=NVIDIA_DEVICE_CLASS),))
    for n, can in enumerate((False, False, True)):
        fleet.put_node(a_node(f"node-{n}"))
        fleet.put_slice(a_slice(f"node-{n}", [a_gpu("gpu-0", can, ours=False)]))
    claim = asking(opaque(LONG), device_class=NVIDIA_DEVICE_CLASS)
    [problem] = problems_of(fleet, [claim])
    assert (problem.kind, problem.fatal) == (ProblemKind.DEVICES_UNABLE, False)
    assert problem.text == (
        "of the 3 devices that request gpu selects, 2 cannot have the claim's configuration, because it asks for time slices of "
        "Long, and the board or the driver of node-0/gpu-0 cannot set them"
    )
    assert problem.remedy == f"add to request gpu the selector {CAN_SLICE}"
    told = explain(fleet, [claim])
    assert told.fits
    assert told.summary.startswith("All claims can be allocated on node-0, node-1, node-2")
    assert any(CAN_SLICE in line for line in report(told))
    assert problems_of(fleet, [asking(opaque(DEFAULT), device_class=NVIDIA_DEVICE_CLASS)]) == []
    obstacle = run(fleet, [Trial(claims=[claim])], 1).attempts[0].obstacles[0]
    assert obstacle.remedy == f"make a new claim without it, or with the selector {CAN_SLICE}"


def test_a_simulation_gives_dracos_claims_devices_as_draco_does() -> None:
    [attempt] = run(a_fleet(False, True), [Trial(claims=[asking(opaque(LONG))])], 1).attempts
    assert (attempt.node, attempt.obstacles) == ("node-1", [])
    [attempt] = run(a_fleet(False), [Trial(claims=[asking(opaque(LONG))])], 1).attempts
    assert not attempt.fits
    assert attempt.explanation is not None
    assert attempt.explanation.reason is PendingReason.CONFIGURATION_REFUSED


def test_a_gpu_that_cannot_have_it_is_no_candidate_wherever_it_is_and_whoever_uses_it() -> None:
    fleet = a_fleet(False, True, claims=(a_claim("other", on=["gpu.nvidia.com/node-0/gpu-0"]),))
    fleet.put_node(a_node("node-0", unschedulable=True))
    [first, second] = device_verdicts(fleet, [asking(opaque(LONG))])
    assert (first.cause, second.cause) == (Cause.CONFIGURATION_REFUSED, Cause.FREE)


def test_a_node_whose_gpus_cannot_have_it_counts_as_none_for_who_adds_nodes() -> None:
    assert [(each.request, each.published) for each in explain(a_fleet(False), [asking(opaque(LONG))]).unmet] == [
        ("gpu", 0)
    ]
    assert explain(a_fleet(False), [asking()]).unmet == []


def test_a_request_for_all_devices_takes_those_that_can_have_it() -> None:
    claim = asking(opaque(LONG))
    [request] = claim.spec.devices.requests
    assert request.exactly is not None
    everything = msgspec.structs.replace(request.exactly, allocation_mode="All")
    claim_devices = msgspec.structs.replace(
        claim.spec.devices, requests=[msgspec.structs.replace(request, exactly=everything)]
    )
    claim = msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=claim_devices))
    fleet = a_fleet()
    fleet.put_node(a_node("node-0"))
    fleet.put_slice(a_slice("node-0", [a_gpu("gpu-0", False), a_gpu("gpu-1", True), a_gpu("gpu-2", True)]))
    assert placed(fleet, claim) == ["node-0/gpu-1", "node-0/gpu-2"]
    fleet.put_claim(a_claim("other", on=["gpu.nvidia.com/node-0/gpu-1"]))
    told = explain(fleet, [claim])
    assert (told.reason, told.fits) == (PendingReason.IN_USE, False)
    assert "in use by default/other" in told.summary
    assert "unable to have the claim's" not in told.summary


def test_a_simulation_tells_of_shares_of_a_gpu_that_ask_for_different_time_slices() -> None:
    """kube-scheduler puts both there, and the agent prepares only the first."""
    shared = Device(name="gpu-0", allow_multiple_allocations=True, attributes={"type": DeviceAttribute(string="gpu")})
    fleet = Fleet.of(
        nodes=[a_node("node-0")],
        slices=[a_slice("node-0", [shared])],
        classes=[a_class(name=NVIDIA_DEVICE_CLASS)],
    )
    trials = [
        Trial(claims=[asking(*configs, device_class=NVIDIA_DEVICE_CLASS, name=name)])
        for name, configs in (("long", [opaque(LONG)]), ("also", [opaque(LONG)]), ("plain", []))
    ]
    long, also, plain = run(fleet, trials, 1).attempts
    assert (long.obstacles, also.obstacles) == ([], [])
    [obstacle] = plain.obstacles
    assert obstacle.text.startswith("it asks for time slices of Default on gpu-0, and claim default/")
