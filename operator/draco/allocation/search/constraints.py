"""Constraints of a claim: what its devices must have in common, or not.

Owns the two kinds of constraint as sets of values that devices join and leave in the order of a search. A device that joins a
constraint is the last that has joined until it leaves.
"""

from collections.abc import Hashable, Sequence
from typing import Protocol

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.columns import attribute_key
from draco.resources.api.claims import DeviceConstraint
from draco.resources.api.slices import Device, DeviceAttribute


class Constraint(Protocol):
    """A constraint during one search."""

    def applies(self, request: str, full_name: str) -> bool:
        """Whether it is about the request, known by its own name and, an alternative, as "request/alternative" too."""
        ...

    def join(self, driver: str, device: Device) -> bool:
        """Take a device in, if the constraint then still holds."""
        ...

    def leave(self) -> None:
        """Take the last one out."""
        ...


class MatchAttribute:
    """All devices have the attribute, with one value."""

    def __init__(self, attribute: str, requests: Sequence[str]) -> None:
        self._attribute = attribute
        self._requests = frozenset(requests)
        self._value: Hashable | None = None
        self._devices = 0

    def applies(self, request: str, full_name: str) -> bool:
        """See Constraint."""
        return _is_about(self._requests, request, full_name)

    def join(self, driver: str, device: Device) -> bool:
        """See Constraint."""
        attribute = _find(device, driver, self._attribute)
        if attribute is None:
            return False
        value = attribute_key(attribute)
        if not self._devices:
            self._value = value
        elif value is None or value != self._value:
            return False
        self._devices += 1
        return True

    def leave(self) -> None:
        """See Constraint."""
        self._devices -= 1


class DistinctAttribute:
    """All devices have the attribute, no two with the same value. Values of different types differ."""

    def __init__(self, attribute: str, requests: Sequence[str]) -> None:
        self._attribute = attribute
        self._requests = frozenset(requests)
        self._values: list[Hashable | None] = []

    def applies(self, request: str, full_name: str) -> bool:
        """See Constraint."""
        return _is_about(self._requests, request, full_name)

    def join(self, driver: str, device: Device) -> bool:
        """See Constraint."""
        attribute = _find(device, driver, self._attribute)
        if attribute is None:
            return False
        value = attribute_key(attribute)
        if self._values and (value is None or value in self._values):
            return False
        self._values.append(value)
        return True

    def leave(self) -> None:
        """See Constraint."""
        self._values.pop()


def constraints_of(claim: str, constraints: Sequence[DeviceConstraint]) -> list[Constraint]:
    """The constraints of a claim, which is named in the AllocationError that an unknown kind of constraint raises."""
    made: list[Constraint] = []
    for index, constraint in enumerate(constraints):
        if constraint.match_attribute is not None:
            made.append(MatchAttribute(constraint.match_attribute, constraint.requests))
        elif constraint.distinct_attribute is not None:
            made.append(DistinctAttribute(constraint.distinct_attribute, constraint.requests))
        else:
            raise AllocationError(
                f"claim {claim}, constraint #{index}: empty constraint (unsupported constraint type?)"
            )
    return made


def _is_about(requests: frozenset[str], request: str, full_name: str) -> bool:
    return not requests or request in requests or full_name in requests


def _find(device: Device, driver: str, name: str) -> DeviceAttribute | None:
    found = device.attributes.get(name)
    if found is None:
        domain, slash, identifier = name.partition("/")
        if slash and domain == driver:
            found = device.attributes.get(identifier)
    return found
