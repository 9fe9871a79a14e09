"""Selectors that fail on devices, and names that nobody publishes: what is wrong, and what was meant."""

from typing import Any

import pytest

from draco.explanation.explain import explain
from draco.explanation.model import ProblemKind
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.names import STANDARD_PCI_BUS_ID
from draco.selectors.corrections import corrected
from tests.builders import a_claim, a_slice
from tests.unit.explanation.clusters import ATTRIBUTES, CAPACITY, GPU, H100, a_fleet, asking
from tests.unit.explanation.test_problems import the_problem


def test_a_selector_that_fails_on_some_devices_is_told_with_a_guard() -> None:
    problem = the_problem(asking(f'{ATTRIBUTES}.productName == "{H100}"', device_class="any"))
    assert (problem.kind, problem.fatal) == (ProblemKind.SELECTOR_ERRORS, True)
    assert problem.text == (
        "selector #0 of claim default/c fails on 1 device, for example nic.example.com/n1/nic-0: no such key: productName; "
        "this fails the pod on every node"
    )
    assert problem.remedy == f'write device.driver == "{GPU}" && {ATTRIBUTES}.productName == "{H100}"'


def test_where_devices_of_one_driver_differ_the_guard_asks_for_the_attribute() -> None:
    fleet = a_fleet()
    fleet.put_slice(a_slice("n3", [Device(name="bare")]))
    problem = the_problem(asking(f"{ATTRIBUTES}.index < 9 || false"), fleet)
    assert problem.remedy == f"write has({ATTRIBUTES}.index) && ({ATTRIBUTES}.index < 9 || false)"


def test_where_a_gpu_has_no_memory_of_its_own_the_guard_asks_for_the_capacity() -> None:
    fleet = a_fleet()
    fleet.put_slice(a_slice("n3", [Device(name="unified")]))
    wanted = f'{CAPACITY}.memory.compareTo(quantity("40Gi")) >= 0'
    assert the_problem(asking(wanted), fleet).remedy == f'write "memory" in device.capacity["{GPU}"] && {wanted}'


def test_what_was_meant_is_told_once() -> None:
    problem = the_problem(asking(f"{CAPACITY}.memory >= quantity('40Gi')"))
    assert problem.text == "selector #0 of claim default/c does not compile: `>=` does not compare a quantity"
    assert problem.remedy == f'write {CAPACITY}.memory.compareTo(quantity("40Gi")) >= 0'


def test_a_constant_that_fails_on_every_device_is_told_as_it_was_meant() -> None:
    problem = the_problem(asking(f'{CAPACITY}.memory.compareTo(quantity("40 GB")) >= 0'))
    assert problem.kind is ProblemKind.SELECTOR_ERRORS
    assert problem.remedy == f'write {CAPACITY}.memory.compareTo(quantity("40G")) >= 0'


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (f'{CAPACITY}.multiprocessors.compareTo(quantity("9")) > 0', f"the capacity {GPU}/multiprocessors"),
        (f'{ATTRIBUTES}.cudaDriverVersion.isGreaterThan(semver("12.0.0"))', f"the attribute {GPU}/cudaDriverVersion"),
        (f'{ATTRIBUTES}.uuid == "GPU-1"', f"the attribute {GPU}/uuid"),
    ],
)
def test_a_name_of_nvidia_that_nobody_publishes_is_no_slip_of_another(expression: str, said: str) -> None:
    """A driver's version says nothing about CUDA's: NVML may tell either alone."""
    problem = the_problem(asking(expression))
    assert problem.text == f"selector #0 of claim default/c fails the pod on every node: no device publishes {said}"
    assert problem.remedy == "select by an attribute that is published: driverVersion, ecc, index, productName"


def test_a_corrected_selector_is_guarded_where_devices_lack_what_it_reads() -> None:
    fleet = a_fleet()
    fleet.put_slice(a_slice("n3", [Device(name="unified")]))
    wanted = 'device.capacity["nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0'
    right = wanted.replace("nvidia.com", GPU)
    assert the_problem(asking(wanted), fleet).remedy == f'write "memory" in device.capacity["{GPU}"] && {right}'


def test_a_domain_that_is_like_none_is_told_with_those_that_are_published() -> None:
    problem = the_problem(asking('device.attributes["amd.com"].x == 1'))
    assert problem.remedy == (
        "start the driver that publishes it, or write one of the published domains: gpu.nvidia.com, nic.example.com"
    )


def test_a_guard_that_leaves_devices_on_which_the_selector_fails_is_not_told() -> None:
    fleet = a_fleet()
    counted = Device(name="counted", attributes={"index": DeviceAttribute(int_=1)})
    fleet.put_slice(a_slice("n3", [Device(name="bare-0"), Device(name="bare-1"), counted]))
    problem = the_problem(asking(f"({ATTRIBUTES}.index > 0) == {ATTRIBUTES}.ecc"), fleet)
    assert problem.remedy == (
        f"write has({ATTRIBUTES}.ecc) && has({ATTRIBUTES}.index) && ({ATTRIBUTES}.index > 0) == {ATTRIBUTES}.ecc"
    )


def test_a_failure_on_devices_in_use_harms_nobody_yet() -> None:
    fleet = a_fleet(a_claim("held", on=["nic.example.com/n1/nic-0"]))
    problem = the_problem(asking(f'{ATTRIBUTES}.productName == "{H100}"', device_class="any"), fleet)
    assert (problem.kind, problem.fatal) == (ProblemKind.SELECTOR_ERRORS, False)
    assert "; it is in use, so it matters only when one is free" in problem.text


@pytest.mark.parametrize("asked", [{"allocation_mode": "All"}, {"admin_access": True}])
def test_a_failure_on_devices_in_use_fails_a_request_that_meets_them(asked: dict[str, Any]) -> None:
    fleet = a_fleet(a_claim("held", on=["nic.example.com/n1/nic-0"]))
    problem = the_problem(asking(f'{ATTRIBUTES}.productName == "{H100}"', device_class="any", **asked), fleet)
    assert problem.fatal
    assert problem.text.endswith("this fails the pod on every node")


def test_a_request_for_every_device_is_refused_for_one_in_use_on_which_its_selector_fails() -> None:
    fleet = a_fleet(a_claim("held", on=["nic.example.com/n1/nic-0"]))
    every = asking(f'{ATTRIBUTES}.productName == "{H100}"', device_class="any", allocation_mode="All")
    told = explain(fleet, [every])
    assert "no such key: productName" in told.error
    assert told.summary.startswith(
        "Selector #0 of claim default/c fails on 1 device, for example nic.example.com/n1/nic-0: "
    )


@pytest.mark.parametrize(
    ("expression", "text", "remedy"),
    [
        (
            f"{ATTRIBUTES}.speed == 100",
            f"no device publishes the attribute {GPU}/speed (did you mean nic.example.com/speed?)",
            "select by an attribute that is published: driverVersion, ecc, index, productName",
        ),
        (
            f"{ATTRIBUTES}.memory == 1",
            f"no device publishes the attribute {GPU}/memory (it is a capacity, not an attribute)",
            f'write {CAPACITY}.memory.compareTo(quantity("1Gi")) == 0',
        ),
        (
            f'{CAPACITY}.memmory == quantity("80Gi")',
            f"no device publishes the capacity {GPU}/memmory",
            f'write {CAPACITY}.memory == quantity("80Gi")',
        ),
        (
            'device.attributes["gpu.nvidia"].ecc',
            "no device publishes gpu.nvidia/ecc: nothing has the domain gpu.nvidia",
            f"write {ATTRIBUTES}.ecc",
        ),
        (
            f"{ATTRIBUTES}.minor == 0",
            f"no device publishes the attribute {GPU}/minor",
            "choose by `uuid`, or by `pciBusID` in the domain resource.kubernetes.io",
        ),
    ],
)
def test_a_name_that_nobody_publishes_is_told_once_with_the_one_meant(expression: str, text: str, remedy: str) -> None:
    """That the selector fails on a device without the name says the same again."""
    problem = the_problem(asking(expression))
    assert (problem.kind, problem.fatal) == (ProblemKind.SELECTOR_ERRORS, True)
    assert problem.text == f"selector #0 of claim default/c fails the pod on every node: {text}"
    assert problem.remedy == remedy


def test_a_name_that_nobody_publishes_fails_no_pod_while_all_devices_are_in_use() -> None:
    fleet = a_fleet(a_claim("held", on=[f"{GPU}/{node}/gpu-{index}" for node in ("n1", "n2") for index in (0, 1)]))
    problem = the_problem(asking(f"{ATTRIBUTES}.speeed == 1"), fleet)
    assert not problem.fatal
    assert problem.text.startswith(
        "selector #0 of claim default/c fails on 4 devices, all of which are in use: no device publishes the attribute"
    )


def test_a_standard_name_is_told_in_its_own_domain_as_lint_tells_it() -> None:
    fleet = a_fleet()
    address = Device(name="gpu-0", attributes={STANDARD_PCI_BUS_ID: DeviceAttribute(string="0000:07:00.0")})
    fleet.put_slice(a_slice("n3", [address]))
    written = f'{ATTRIBUTES}.pcieBusID == "0000:07:00.0"'
    problem = the_problem(asking(written), fleet)
    assert 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:07:00.0"' in problem.remedy
    assert corrected(written, GPU)[1] == 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:07:00.0"'


@pytest.mark.parametrize(
    ("expression", "cause", "remedy"),
    [
        (
            f'{ATTRIBUTES}.driverVersion.compareTo(semver("570.86")) >= 0',
            '"570.86" is not a semantic version',
            f'write {ATTRIBUTES}.driverVersion.compareTo(semver("570.86.0")) >= 0',
        ),
        (
            f'{ATTRIBUTES}.driverVersion == "570.86.15"',
            "`==` does not compare a version",
            f'write {ATTRIBUTES}.driverVersion.compareTo(semver("570.86.15")) == 0',
        ),
        (
            f"{ATTRIBUTES}.minor == 0",
            f"no device publishes the attribute {GPU}/minor",
            "choose by `uuid`, or by `pciBusID` in the domain resource.kubernetes.io",
        ),
        (
            f'{ATTRIBUTES}.gpuModel == "{H100}"',  # what lint knows, and not similar to what is published
            f"no device publishes the attribute {GPU}/gpuModel",
            f'write {ATTRIBUTES}.productName == "{H100}"',
        ),
    ],
)
def test_what_lint_knows_of_a_failing_selector_is_told_instead_of_the_evaluators_error(
    expression: str, cause: str, remedy: str
) -> None:
    problem = the_problem(asking(expression))
    assert problem.text == f"selector #0 of claim default/c fails the pod on every node: {cause}"
    assert problem.remedy == remedy
