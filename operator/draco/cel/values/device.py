"""Devices as selectors see them: attributes and capacities by domain, with versions and quantities parsed.

Names without a domain belong to the driver's domain.
"""

from typing import Any

from draco.cel.errors import EvaluationError
from draco.cel.values.values import DomainMap, Value
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer, SemVerError


class DeviceVariable:
    """The value of `device` in a selector. `attributes` and `capacity` map a domain to a map of identifier to value."""

    __slots__ = ("allow_multiple_allocations", "attributes", "capacity", "driver")

    def __init__(
        self,
        driver: str,
        attributes: dict[str, dict[str, Value]],
        capacity: dict[str, dict[str, Value]],
        *,
        allow_multiple_allocations: bool = False,
    ) -> None:
        self.driver = driver
        self.attributes = DomainMap(attributes)
        self.capacity = DomainMap(capacity)
        self.allow_multiple_allocations = allow_multiple_allocations

    def as_map(self) -> dict[str, Any]:
        """Return the device as one map, for expressions that use it whole."""
        return {
            "driver": self.driver,
            "allowMultipleAllocations": self.allow_multiple_allocations,
            "attributes": self.attributes,
            "capacity": self.capacity,
        }


def device_view(driver: str, device: Device) -> DeviceVariable:
    """Return what a selector sees of a device of `driver`.

    Raises EvaluationError if Kubernetes cannot evaluate any selector on it (an attribute without value, a bad version).
    """
    attributes: dict[str, dict[str, Value]] = {}
    for name, attribute in device.attributes.items():
        _put(attributes, driver, name, _attribute_value(name, attribute))
    capacity: dict[str, dict[str, Value]] = {}
    for name, amount in device.capacity.items():
        _put(capacity, driver, name, Quantity.parse(amount.value))
    return DeviceVariable(
        driver, attributes, capacity, allow_multiple_allocations=bool(device.allow_multiple_allocations)
    )


def _put(values: dict[str, dict[str, Value]], driver: str, name: str, value: Value) -> None:
    """If a name exists with its domain and without it, the one with it counts, as in kubernetes#142202."""
    domain, identifier = split_name(name, driver)
    holder = values.setdefault(domain, {})
    if "/" in name:
        holder[identifier] = value
    else:
        holder.setdefault(identifier, value)


def split_name(name: str, driver: str) -> tuple[str, str]:
    """Domain and identifier of a name; the default domain is the driver's."""
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _attribute_value(name: str, attribute: DeviceAttribute) -> Value:
    for plain in (attribute.ints, attribute.bools, attribute.strings):
        if plain is not None:
            return plain
    try:
        if attribute.versions is not None:
            return [SemVer.parse(version) for version in attribute.versions]
        for value in (attribute.int_, attribute.bool_, attribute.string):
            if value is not None:
                return value
        if attribute.version is not None:
            return SemVer.parse(attribute.version)
    except SemVerError as error:
        raise EvaluationError(f"attribute {name}: parse semantic version: {error}") from None
    raise EvaluationError(f"attribute {name}: unsupported attribute value")
