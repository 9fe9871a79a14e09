"""What a request selects by node, class and CEL, among published devices.

Owns the tests and the messages about invalid ones. It tests one device at a time, so the caller can yield in between. CEL runs
within Kubernetes' cost limit.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from draco.cel import DeviceTest, Selector, ready_selector
from draco.maintenance.gate import SelectionProblem
from draco.resources.api.claims import DeviceClass, DeviceSelector
from draco.resources.api.maintenance import MaintenanceSelector
from draco.resources.api.slices import Device
from draco.resources.names import DeviceKey
from draco.resources.texts import counted, reason_of, shown

MOST_DEVICES = 256
"""The most devices that node, class and CEL may select: the selection is fixed in the status, which holds no more."""
_LONGEST_ERROR = 200


def test_of_class(device_class: DeviceClass) -> DeviceTest | str:
    """The test of a class; the error, if a selector does not compile."""
    found = _compiled(device_class.spec.selectors)
    return found if isinstance(found, str) else DeviceTest(found)


class RequestTest(msgspec.Struct, frozen=True):
    """What a request asks of a device beyond its names. With a `problem` it cannot be evaluated."""

    selector: MaintenanceSelector
    by_class: DeviceTest | None = None
    by_cel: DeviceTest | None = None
    problem: SelectionProblem | None = None

    def says(self, key: DeviceKey, device: Device, node: str) -> bool | str:
        """Whether the device is selected; the error, if an expression fails on it."""
        selector = self.selector
        wanted = (selector.driver, selector.pool, selector.device)
        if any(want and want != have for want, have in zip(wanted, key, strict=True)):
            return False
        if selector.node_name and selector.node_name != node:
            return False
        for test in (self.by_class, self.by_cel):
            said = True if test is None else test.says(key.driver, device)
            if said is not True:
                return said
        return True


def test_of(selector: MaintenanceSelector, classes: Mapping[str, DeviceClass]) -> RequestTest:
    """The test of a selector. `classes` are the existing ones."""
    by_class = by_cel = None
    if name := selector.device_class_name:
        if name not in classes:
            said = f"There is no DeviceClass {shown(name)}: see `kubectl get deviceclasses`, or wait until it is made."
            return RequestTest(selector, problem=SelectionProblem("NoDeviceClass", said))
        found = test_of_class(classes[name])
        if isinstance(found, str):
            said = f"A selector of DeviceClass {name} does not compile: {found}."
            return RequestTest(selector, problem=SelectionProblem("InvalidSelector", said))
        by_class = found
    for index, each in enumerate(selector.selectors):
        compiled = _compiled([each])
        if isinstance(compiled, str):
            said = f"spec.deviceSelector.selectors[{index}] does not compile: {compiled}."
            return RequestTest(selector, problem=SelectionProblem("InvalidSelector", said))
    if selector.selectors and not isinstance(compiled := _compiled(selector.selectors), str):
        by_cel = DeviceTest(compiled)
    return RequestTest(selector, by_class, by_cel)


def selector_fails(device: DeviceKey, error: str) -> SelectionProblem:
    """The problem of an expression that fails on a device: nothing is selected then, as for claims."""
    error = _short(error)
    said = f"The selectors cannot be evaluated for {device.device} of {device.pool}: {error}. Test with has() or orValue()."
    return SelectionProblem("SelectorFails", said)


def too_many(number: int) -> SelectionProblem:
    """The problem of a selection that is larger than the status can hold."""
    said = f"{counted(number, 'device')} are selected, and {MOST_DEVICES} at most can be: ask for fewer, in several requests."
    return SelectionProblem("TooManyDevices", said)


def _compiled(selectors: Iterable[DeviceSelector]) -> Sequence[Selector] | str:
    found = []
    for selector in selectors:
        if selector.cel is not None:
            compiled = ready_selector(selector.cel.expression)
            if isinstance(compiled, str):
                return _short(compiled)
            found.append(compiled)
    return found


def _short(text: str) -> str:
    return reason_of(text, _LONGEST_ERROR)
