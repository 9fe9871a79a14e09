"""Tests devices against several expressions, evaluating each combination of the values that they read once."""

from collections.abc import Hashable, Sequence

from draco.cel.errors import EvaluationError
from draco.cel.selector import Selector
from draco.cel.values.device import device_view
from draco.resources.api.slices import Device

_REMEMBERED = 4096


class DeviceTest:
    """Tests devices against expressions. The answer is cached by all that they read, and all that can make them fail."""

    def __init__(self, selectors: Sequence[Selector]) -> None:
        self._selectors = tuple(selectors)
        self._known: dict[Hashable, bool | str] = {}
        paths = {path for selector in selectors for path in selector.paths}
        self._attributes = {path.id for path in paths if path.kind == "attributes"}
        self._capacity = {path.id for path in paths if path.kind == "capacity"}
        self._remembers = not any(selector.reads_everything for selector in selectors) and all(
            path.kind in {"driver", "allowMultipleAllocations"} or (path.domain and path.id) for path in paths
        )

    def says(self, driver: str, device: Device) -> bool | str:
        """Whether the device matches all; the error, if one fails on it."""
        key = self._key(driver, device) if self._remembers else None
        try:
            known = self._known.get(key)
        except TypeError:  # an attribute that is a list is not hashable
            key = known = None
        if known is None:
            known = self._asked(driver, device)
            if key is not None:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[key] = known
        return known

    def _asked(self, driver: str, device: Device) -> bool | str:
        try:
            view = device_view(driver, device)
            return all(selector.matches(view) for selector in self._selectors)
        except EvaluationError as error:
            return str(error)

    def _key(self, driver: str, device: Device) -> Hashable:
        attributes = tuple(
            (name, value)
            for name, value in device.attributes.items()
            if name.rpartition("/")[2] in self._attributes
            or (value.string is None and value.int_ is None and value.bool_ is None)  # may be unreadable, as a version
        )
        capacity = tuple(
            (name, value.value) for name, value in device.capacity.items() if name.rpartition("/")[2] in self._capacity
        )
        return driver, device.allow_multiple_allocations, attributes, capacity
