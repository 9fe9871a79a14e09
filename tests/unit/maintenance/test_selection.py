"""What a request selects by node, class and CEL, and what can be wrong with its selectors."""

from typing import Any

import msgspec
import pytest

from draco.cel import DeviceTest
from draco.maintenance.selecting.fleet import FleetPool
from draco.maintenance.selecting.rehearsal import PoolSelection, Selected
from draco.maintenance.selecting.selectors import MOST_DEVICES
from draco.maintenance.selecting.selectors import test_of as selector_test
from draco.maintenance.selecting.selectors import test_of_class as class_test
from draco.resources.api.claims import CelSelector, DeviceSelector
from draco.resources.api.maintenance import MaintenanceSelector
from draco.resources.api.slices import Device, DeviceAttribute, ResourceSlice
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import a_device, a_device_class, a_slice

A100 = a_device("gpu-0", product="NVIDIA A100")
H100 = a_device("gpu-1", product="NVIDIA H100")
IS_A100 = 'device.attributes["gpu.nvidia.com"].productName.contains("A100")'
SLICES = [
    a_slice("node-0", [A100, H100]),
    a_slice("node-1", [A100]),
    a_slice("node-2", ["gpu-0"], driver="gpu.example.com"),
]
CLASSES = {
    "nvidia": a_device_class("nvidia"),
    "a100": a_device_class("a100", selector=f"device.driver == '{NVIDIA_DRIVER}' && {IS_A100}"),
    "broken": a_device_class("broken", selector="device.drivr == 1"),
}


def asked(*expressions: str, **fields: Any) -> MaintenanceSelector:
    return MaintenanceSelector(
        selectors=[DeviceSelector(cel=CelSelector(expression=each)) for each in expressions], **fields
    )


def select(selector: MaintenanceSelector, slices: list[ResourceSlice]) -> Selected:
    selection = PoolSelection(selector_test(selector, CLASSES))
    for item in slices:
        selection.add(FleetPool(item.pool, [item]))
    return selection.result()


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (asked(node_name="node-0"), ["node-0/gpu-0", "node-0/gpu-1"]),
        (asked(node_name="node-0", device="gpu-1"), ["node-0/gpu-1"]),
        (asked(device_class_name="nvidia"), ["node-0/gpu-0", "node-0/gpu-1", "node-1/gpu-0"]),
        (asked(device_class_name="a100"), ["node-0/gpu-0", "node-1/gpu-0"]),
        (asked(device_class_name="a100", node_name="node-1"), ["node-1/gpu-0"]),
        (asked(IS_A100, driver=NVIDIA_DRIVER), ["node-0/gpu-0", "node-1/gpu-0"]),
        (asked("true", pool="node-2"), ["node-2/gpu-0"]),
        (asked(f"!{IS_A100}", device_class_name="nvidia"), ["node-0/gpu-1"]),
        (asked('device.driver == "gpu.example.com"'), ["node-2/gpu-0"]),
    ],
)
def test_all_that_is_asked_must_be_so(selector: MaintenanceSelector, names: list[str]) -> None:
    found = select(selector, SLICES)
    assert found.problem is None
    assert sorted(f"{each.pool}/{each.device}" for each in found.devices) == names


@pytest.mark.parametrize(
    ("selector", "reason", "said"),
    [
        (asked(device_class_name="gone"), "NoDeviceClass", "There is no DeviceClass gone"),
        (asked(device_class_name="broken"), "InvalidSelector", "A selector of DeviceClass broken does not compile"),
        (
            asked("true", "device.drivr == 1"),
            "InvalidSelector",
            "selectors[1] does not compile: at 1:7: undefined field 'drivr'.",
        ),
        (
            asked("(" * 300 + "true" + ")" * 300),
            "InvalidSelector",
            "selectors[0] does not compile: expression recursion",
        ),
        (asked(IS_A100), "SelectorFails", "cannot be evaluated for gpu-0 of node-2"),
        (asked(node_name="node-9"), "NoDevices", "node node-9"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_selected(selector: MaintenanceSelector, reason: str, said: str) -> None:
    found = select(selector, SLICES)
    assert found.devices == frozenset()
    assert found.problem is not None
    assert found.problem.reason == reason
    assert said in found.problem.message
    assert ".." not in found.problem.message


@pytest.mark.parametrize(("number", "reason"), [(MOST_DEVICES, ""), (MOST_DEVICES + 1, "TooManyDevices")])
def test_no_more_is_selected_than_the_status_can_hold(number: int, reason: str) -> None:
    slices = [a_slice(f"node-{node}", [f"gpu-{gpu}" for gpu in range(64)]) for node in range(number // 64)]
    slices.append(a_slice("rest", [f"gpu-{gpu}" for gpu in range(number % 64)]))
    found = select(asked("true"), slices)
    assert (found.problem.reason if found.problem else "") == reason
    assert len(found.devices) == (0 if reason else number)


def test_devices_that_agree_in_all_that_is_read_are_asked_once_and_others_each_for_itself() -> None:
    test = class_test(CLASSES["a100"])
    assert isinstance(test, DeviceTest)
    said = [test.says(NVIDIA_DRIVER, each) for each in (A100, H100, a_device("gpu-7", product="NVIDIA A100"))]
    assert said == [True, False, True]
    listing = Device(name="gpu-9", attributes={"productName": DeviceAttribute(strings=["NVIDIA A100"])})
    assert test.says(NVIDIA_DRIVER, listing) is not True
    assert test.says("gpu.example.com", A100) is False


def test_a_device_that_no_selector_can_be_asked_about_fails_alone() -> None:
    test = class_test(CLASSES["nvidia"])
    assert isinstance(test, DeviceTest)
    odd = msgspec.structs.replace(A100, attributes=A100.attributes | {"other": DeviceAttribute(version="580")})
    for _ in range(2):
        assert "parse semantic version" in str(test.says(NVIDIA_DRIVER, odd))
        assert test.says(NVIDIA_DRIVER, A100) is True
