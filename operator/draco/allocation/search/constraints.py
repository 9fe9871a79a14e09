"""Constraints of a claim: attributes that must be equal or distinct among its devices, which join and leave as on a stack."""

from collections.abc import Hashable, Sequence

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.columns import attribute_key
from draco.resources.api.claims import DeviceConstraint
from draco.resources.api.slices import Device, DeviceAttribute


class Constraint:
    """All devices have the attribute, with one value or, if `distinct`, with different ones; types count."""

    def __init__(self, attribute: str, requests: Sequence[str], *, distinct: bool) -> None:
        self._attribute = attribute
        self._requests = frozenset(requests)
        self._distinct = distinct
        self._values: list[Hashable | None] = []  # of the devices that have joined

    def applies(self, request: str, full_name: str) -> bool:
        """Whether it applies to a request; `full_name` is "request/alternative" for an alternative."""
        return not self._requests or request in self._requests or full_name in self._requests

    def join(self, driver: str, device: Device) -> bool:
        """Add a device if the constraint still holds with it."""
        attribute = attribute_of(device, driver, self._attribute)
        if attribute is None:
            return False
        value = attribute_key(attribute)
        if self._values and (value is None or (value in self._values) is self._distinct):
            return False
        self._values.append(value)
        return True

    def leave(self) -> None:
        """Remove the last device."""
        self._values.pop()


def constraints_of(claim: str, constraints: Sequence[DeviceConstraint]) -> list[Constraint]:
    """The constraints of a claim. Raises AllocationError, with the claim's name, for an unknown kind."""
    made: list[Constraint] = []
    for index, constraint in enumerate(constraints):
        if constraint.match_attribute is not None:
            made.append(Constraint(constraint.match_attribute, constraint.requests, distinct=False))
        elif constraint.distinct_attribute is not None:
            made.append(Constraint(constraint.distinct_attribute, constraint.requests, distinct=True))
        else:
            raise AllocationError(
                f"claim {claim}, constraint #{index}: empty constraint (unsupported constraint type?)"
            )
    return made


def attribute_of(device: Device, driver: str, name: str) -> DeviceAttribute | None:
    """The attribute of a constraint; published without domain if that is the driver's."""
    found = device.attributes.get(name)
    if found is None:
        domain, slash, identifier = name.partition("/")
        if slash and domain == driver:
            found = device.attributes.get(identifier)
    return found
