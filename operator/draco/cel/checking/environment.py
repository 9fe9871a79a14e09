"""Environments: the CEL variables and functions that an expression may use.

Owns the two environments of selectors. The scheduler compiles with everything it knows (`STORED_EXPRESSIONS`); the API server
admits a new expression only if the previous Kubernetes version could read it too (`new_expressions`). Expressions about other
objects than devices (`expressions_over`) can be checked, but neither compiled nor estimated here.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from draco.cel.values import types
from draco.cel.values.types import Type


class Environment(msgspec.Struct, frozen=True):
    """What an expression may use.

    `libraries` names the overloads beside the standard ones: semver, lists, includes, and positions in a list, which come before
    or after those in a text. `attribute` is the static type of an attribute's value; at run time the value has another type.
    `declared` are variables instead of `device`, each with its fields.
    """

    libraries: frozenset[str]
    has_allow_multiple_allocations: bool
    attribute: Type
    declared: Mapping[str, Mapping[str, Type]] | None = None

    def variable(self, name: str) -> Type | None:
        """Return the type of a variable."""
        if self.declared is None:
            return types.DEVICE if name == "device" else None
        return Type("object", name) if name in self.declared else None

    def fields(self, of: Type) -> Mapping[str, Type] | None:
        """Return the fields of an object that `variable` returned; None for any other, whose fields the checker does not know."""
        if self.declared is not None:
            return self.declared.get(of.name)
        if of != types.DEVICE:
            return None
        declared = {
            "driver": types.STRING,
            "attributes": types.map_of(types.STRING, types.map_of(types.STRING, self.attribute)),
            "capacity": types.map_of(types.STRING, types.map_of(types.STRING, types.QUANTITY)),
        }
        return declared | ({"allowMultipleAllocations": types.BOOL} if self.has_allow_multiple_allocations else {})


STORED_EXPRESSIONS: Final = Environment(
    libraries=frozenset({"semver", "lists", "includes", "late_positions"}),
    has_allow_multiple_allocations=True,
    attribute=types.DYN,
)
"""What the scheduler of Kubernetes 1.37 compiles with, whatever its feature gates."""


def expressions_over(variables: Mapping[str, Mapping[str, Type]]) -> Environment:
    """Return the environment of plain CEL with these variables."""
    return Environment(
        libraries=frozenset(), has_allow_multiple_allocations=False, attribute=types.DYN, declared=variables
    )


_OLDEST: Final = 34
_SHARES_BY_DEFAULT: Final = 36
_LISTS: Final = 36


def new_expressions(minor: int, *, list_attributes: bool = False) -> Environment:
    """Return what the API server of Kubernetes 1.<minor> admits in a new object; `list_attributes` is its feature gate.

    New expressions must be readable by the previous version, except for what a gate adds. The gate for consumable capacity is on
    from 1.36. Raises ValueError before 1.34, where DRA was not yet stable.
    """
    if minor < _OLDEST:
        raise ValueError(f"Kubernetes 1.{minor} has no stable DRA; the oldest supported version is 1.{_OLDEST}")
    compatible = minor - 1
    libraries = {"semver", "late_positions" if compatible >= 37 else "early_positions"}
    if compatible >= 34:
        libraries.add("lists")
    has_lists = list_attributes and minor >= _LISTS
    if has_lists or compatible >= 37:
        libraries.add("includes")
    return Environment(
        libraries=frozenset(libraries),
        has_allow_multiple_allocations=minor >= _SHARES_BY_DEFAULT,
        attribute=types.DYN if has_lists else types.ANY,
    )
