"""Problems of claims with opaque configurations: told before anything is allocated."""

from typing import Any

import msgspec
import pytest

from draco.allocation.configurations import VERSION
from draco.allocation.fleet.fleet import Fleet
from draco.explanation.explain import explain
from draco.explanation.model import ProblemKind
from draco.explanation.problems.claims import problems_of
from draco.explanation.wording import report
from draco.resources.api.claims import (
    DeviceClaimConfiguration,
    DeviceClassConfiguration,
    OpaqueConfiguration,
    ResourceClaim,
)
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.names import ATTRIBUTE_MPS, ATTRIBUTE_TIME_SLICING
from tests.builders import a_node, a_slice
from tests.unit.explanation.clusters import GPU, a_class, a_fleet, asking
from tests.unit.explanation.test_problems import the_problem, the_problems


def configured(claim: ResourceClaim, kind: str = "GpuConfig", **sharing: Any) -> ResourceClaim:
    parameters = {"apiVersion": VERSION, "kind": kind, "sharing": sharing}
    config = DeviceClaimConfiguration(opaque=OpaqueConfiguration(driver=GPU, parameters=parameters))
    devices = msgspec.structs.replace(claim.spec.devices, config=[config])
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))


def test_a_configuration_that_a_node_would_refuse_is_told_before_anything_is_allocated() -> None:
    wanted = configured(asking(), strategy="Mps")
    problem = the_problem(wanted)
    assert (problem.kind, problem.fatal) == (ProblemKind.CONFIGURATION_REFUSED, False)
    assert not problem.is_of_class
    assert problem.text == (
        "the claim's configuration for request gpu cannot be carried out, because sharing.strategy is Mps: there are TimeSlicing "
        "and MPS"
    )
    told = explain(a_fleet(), [wanted])
    assert told.fits
    assert "and the pod will not start there: the claim's configuration" in told.summary
    assert the_problems(configured(asking(), strategy="TimeSlicing")) == []


@pytest.mark.parametrize(
    ("published", "refused"),
    [([False], True), ([False, True], False), ([True, False], False), ([False, None], False), ([None], False)],
)
@pytest.mark.parametrize(
    ("attribute", "sharing", "ending", "remedy"),
    [
        (
            ATTRIBUTE_TIME_SLICING,
            {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
            "and the board or the driver of n1/gpu-0 cannot set them",
            "remove it",
        ),
        (
            ATTRIBUTE_MPS,
            {"strategy": "MPS"},
            "and mps.enabled of the chart",
            "set mps.enabled in the chart's values if it is off, or remove it",
        ),
    ],
)
def test_a_way_of_sharing_is_refused_if_no_selected_gpu_can_have_it(
    published: list[bool | None], refused: bool, attribute: str, sharing: Any, ending: str, remedy: str
) -> None:
    devices = [
        Device(name=f"gpu-{n}", attributes={} if can is None else {attribute: DeviceAttribute(bool_=can)})
        for n, can in enumerate(published)
    ]
    fleet = Fleet.of(
        slices=[a_slice("n1", devices, driver=GPU)],
        nodes=[a_node("n1")],
        classes=[a_class(GPU, f'device.driver == "{GPU}"')],
    )
    problems = the_problems(configured(asking(), **sharing), fleet)
    assert [each.kind for each in problems if each.kind is not ProblemKind.DEVICES_UNABLE] == [
        ProblemKind.CONFIGURATION_REFUSED
    ] * refused
    if refused:
        assert problems[0].text.endswith(ending)
        assert problems[0].remedy == remedy
    assert the_problems(configured(asking(), strategy="TimeSlicing"), fleet) == []


@pytest.mark.parametrize(
    ("published", "kinds"),
    [
        ([True, True], []),
        ([None, True], []),
        ([False, True], [ProblemKind.DEVICES_UNABLE]),
        ([False, False], [ProblemKind.CONFIGURATION_REFUSED]),
        ([False, None], [ProblemKind.DEVICES_UNABLE]),
    ],
)
def test_mps_on_mig_devices_is_told_where_they_cannot_have_it(
    published: list[bool | None], kinds: list[ProblemKind]
) -> None:
    devices = [
        Device(
            name=f"gpu-{n}-mig-1g10gb-19-0",
            attributes={"type": DeviceAttribute(string="mig")}
            | ({} if can is None else {ATTRIBUTE_MPS: DeviceAttribute(bool_=can)}),
        )
        for n, can in enumerate(published)
    ]
    fleet = Fleet.of(
        slices=[a_slice("n1", devices, driver=GPU)],
        nodes=[a_node("n1")],
        classes=[a_class(GPU, f'device.driver == "{GPU}"')],
    )
    problems = the_problems(configured(asking(), kind="MigDeviceConfig", strategy="MPS"), fleet)
    assert [each.kind for each in problems] == kinds


def test_a_configuration_of_a_class_is_told_with_its_name_and_a_claim_may_replace_it() -> None:
    parameters = {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": {"strategy": "Mps"}}
    shared = a_class("shared", f'device.driver == "{GPU}"')
    config = DeviceClassConfiguration(opaque=OpaqueConfiguration(driver=GPU, parameters=parameters))
    fleet = a_fleet()
    fleet.put_class(msgspec.structs.replace(shared, spec=msgspec.structs.replace(shared.spec, config=[config])))
    [problem] = problems_of(fleet, [asking(device_class="shared")])
    assert problem.text.startswith("DeviceClass shared's configuration for request gpu cannot be carried out")
    assert problem.is_of_class
    assert problems_of(fleet, [configured(asking(device_class="shared"), strategy="TimeSlicing")]) == []


def test_a_configuration_for_other_devices_than_the_claims_is_told() -> None:
    """As with NVIDIA's driver it is skipped, so the pod would start without MPS, and nobody would say why."""
    kinds = {"gpu-0": "gpu", "gpu-1-mig-1g10gb-19-0": "mig"}
    devices = [Device(name=name, attributes={"type": DeviceAttribute(string=type_)}) for name, type_ in kinds.items()]
    of_type = f'device.attributes["{GPU}"].type == '
    fleet = Fleet.of(
        slices=[a_slice("n1", devices, driver=GPU)],
        nodes=[a_node("n1")],
        classes=[a_class("mig", of_type + '"mig"'), a_class("whole", of_type + '"gpu"'), a_class("any", "true")],
    )
    parts = configured(asking(device_class="mig"), strategy="MPS")
    [problem] = problems_of(fleet, [parts])
    assert (problem.kind, problem.fatal) == (ProblemKind.CONFIGURATION_WITHOUT_EFFECT, False)
    assert problem.text == "GpuConfig is for whole GPUs, and the claim asks only for MIG devices: it has no effect"
    assert problem.remedy == "write MigDeviceConfig, or remove it"
    told = explain(fleet, [parts])
    assert told.fits
    assert "will not start" not in told.summary
    assert any(problem.text in line for line in report(told))
    for fine in ("whole", "any"):
        assert problems_of(fleet, [configured(asking(device_class=fine), strategy="TimeSlicing")]) == []
    refused = problems_of(fleet, [configured(asking(device_class="mig"), strategy="Mps")])
    assert [each.kind for each in refused] == [ProblemKind.CONFIGURATION_REFUSED]
