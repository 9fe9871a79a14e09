"""Static types of expressions, and which type fits another.

Owns the shapes of types, their names in error texts, and unification: the rules by which Kubernetes' checker decides that an
argument fits a parameter, including odd ones (null fits a quantity, a type variable becomes the more general of two types).
Expressions can nest types without limit, and some macros double them at each step, so size is limited: `TooLarge`.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

MAX_DEPTH: Final = 100
MAX_SIZE: Final = 2000


class TooLarge(ValueError):
    """A type of the expression has more levels or parts than anyone needs."""

    def __init__(self) -> None:
        super().__init__(f"expression has a type that is too large: more than {MAX_DEPTH} levels or {MAX_SIZE} parts")


class Type(msgspec.Struct, frozen=True):
    """A type: `kind` groups types that behave alike, `name` is shown in error texts.

    Kinds: dyn, any, error, null, primitive, time (duration, timestamp), object, opaque, list, map, type, variable. Use `list_of`,
    `map_of`, `optional_of`, `type_of`, `variable` or a constant below.
    """

    kind: str
    name: str
    parameters: "tuple[Type, ...]" = ()
    depth: int = 1
    size: int = 1

    def __str__(self) -> str:
        if not self.parameters:
            return self.name
        return f"{self.name}({', '.join(map(str, self.parameters))})"

    @property
    def is_dyn(self) -> bool:
        """Whether any value may stand here at run time."""
        return self.kind in {"dyn", "any"}


def _composed(kind: str, name: str, *parameters: Type) -> Type:
    depth = 1 + max((part.depth for part in parameters), default=0)
    size = 1 + sum(part.size for part in parameters)
    if depth > MAX_DEPTH or size > MAX_SIZE:
        raise TooLarge
    return Type(kind, name, parameters, depth, size)


DYN: Final = Type("dyn", "dyn")
ANY: Final = Type("any", "any")
ERROR: Final = Type("error", "!error!")
NULL: Final = Type("null", "null")
PRIMITIVES = BOOL, INT, UINT, DOUBLE, STRING, BYTES = tuple(
    Type("primitive", name) for name in ("bool", "int", "uint", "double", "string", "bytes")
)
DURATION, TIMESTAMP = Type("time", "duration"), Type("time", "timestamp")
QUANTITY, SEMVER, URL = (Type("object", f"kubernetes.{name}") for name in ("Quantity", "Semver", "URL"))
FORMAT: Final = Type("object", "kubernetes.NamedFormat")
IP, CIDR = Type("opaque", "net.IP"), Type("opaque", "net.CIDR")
TYPE: Final = Type("type", "type")
DEVICE: Final = Type("object", "kubernetes.DRADevice")


def list_of(element: Type) -> Type:
    """`list(element)`. Like the functions below, raises TooLarge."""
    return _composed("list", "list", element)


def map_of(key: Type, value: Type) -> Type:
    """`map(key, value)`."""
    return _composed("map", "map", key, value)


def optional_of(value: Type) -> Type:
    """`optional_type(value)`."""
    return _composed("opaque", "optional_type", value)


def type_of(value: Type) -> Type:
    """`type(value)`: the type of the type."""
    return _composed("type", "type", value)


def variable(name: str) -> Type:
    """Return a type variable."""
    return Type("variable", name)


def unwrapped(of: Type) -> tuple[Type, bool]:
    """Return the type inside an optional and True, or the type itself and False."""
    if of.name == "optional_type" and of.parameters:
        return of.parameters[0], True
    return of, False


class Bindings:
    """What type variables are bound to. `fits` and `all_fit` bind them if they succeed, and change nothing if not."""

    def __init__(self) -> None:
        self._bound: dict[str, Type] = {}

    def fits(self, one: Type, other: Type) -> bool:
        """Whether one type may stand in place of the other."""
        return self.all_fit((one,), (other,))

    def all_fit(self, ones: Sequence[Type], others: Sequence[Type]) -> bool:
        """Whether each type fits its counterpart with the same bindings."""
        if len(ones) != len(others):
            return False
        before = dict(self._bound)
        if all(self._assignable(one, other) for one, other in zip(ones, others, strict=True)):
            return True
        self._bound = before
        return False

    def resolved(self, of: Type, unbound: Type | None = None) -> Type:
        """Return the type with bound variables replaced, and unbound ones by `unbound` if given."""
        if of.kind == "variable":
            bound = self._bound.get(of.name)
            return unbound or of if bound is None else self.resolved(bound, unbound)
        if not of.parameters:
            return of
        return _composed(of.kind, of.name, *[self.resolved(part, unbound) for part in of.parameters])

    def final(self, of: Type) -> Type:
        """Like `resolved`, with dyn for unbound variables."""
        return self.resolved(of, DYN)

    def _assignable(self, one: Type, other: Type) -> bool:  # noqa: PLR0911 - one per rule
        if other.kind == "variable":
            fits, was_bound = self._substitute(one, other)
            if fits or was_bound:
                return fits
        if one.kind == "variable":
            return self._substitute(other, one)[0]
        if one.is_dyn or other.is_dyn or one is ERROR or other is ERROR:
            return True
        if one.kind == "null":
            return other.kind in _NULLABLE
        if other.kind == "null":
            return one.kind in _NULLABLE
        if one.kind == "type":
            return other.kind == "type"
        if one.kind != other.kind or one.name != other.name or len(one.parameters) != len(other.parameters):
            return False
        return all(self._assignable(a, b) for a, b in zip(one.parameters, other.parameters, strict=True))

    def _substitute(self, value: Type, of: Type) -> tuple[bool, bool]:
        """Whether a variable may stand for a type, and whether it was bound before."""
        if value == of:
            return True, True
        bound = self._bound.get(of.name)
        if bound is None:
            if self._is_free_of(of, value):
                self._bound[of.name] = value
                return True, False
            return False, False
        if value == bound:
            return True, True
        if not self._assignable(value, bound):
            return False, True
        wider = more_general(value, bound)
        if self._is_free_of(of, wider):
            self._bound[of.name] = wider
        return True, True

    def _is_free_of(self, part: Type, whole: Type) -> bool:
        if part == whole:
            return False
        if whole.kind == "variable":
            bound = self._bound.get(whole.name)
            return bound is None or self._is_free_of(part, bound)
        return all(self._is_free_of(part, inner) for inner in whole.parameters)


_NULLABLE: Final = frozenset({"null", "object", "opaque", "any", "dyn", "time"})


def more_general(one: Type, other: Type) -> Type:
    """Return the more general of two types that fit each other."""
    return one if _is_as_general(one, other) else other


def _is_as_general(one: Type, other: Type) -> bool:
    if one.is_dyn or one.kind == "variable":
        return True
    if other.is_dyn or other.kind == "variable" or one.kind != other.kind:
        return False
    if one.kind == "type":
        return True
    if one.kind in {"opaque", "list", "map"}:
        pairs = zip(one.parameters, other.parameters, strict=False)
        return one.name == other.name and all(_is_as_general(a, b) for a, b in pairs)
    return one == other


def is_equivalent(one: Type, other: Type) -> bool:
    """Whether two types are equal except for the names of variables."""
    if one.kind != other.kind or len(one.parameters) != len(other.parameters):
        return False
    if one.kind != "variable" and one.name != other.name:
        return False
    return all(is_equivalent(a, b) for a, b in zip(one.parameters, other.parameters, strict=True))
