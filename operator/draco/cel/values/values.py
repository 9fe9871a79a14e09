"""Runtime values of expressions.

Owns the value types that Python lacks, the names of types in CEL and Go, and map keys. Plain Python values stand for the rest.
Use `type(value)`, never isinstance: True is not an int here, and UInt is not one either.
"""

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final, NamedTuple, TypeAlias

from draco.cel.errors import Abort, EvaluationError
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer

Value: TypeAlias = Any
"""Any value of an expression. Untyped, because published devices decide at run time."""

MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**63 - 1
MAX_UINT: Final = 2**64 - 1


class UInt(int):
    """An unsigned 64-bit number. Arithmetic gives plain ints: wrap the result again."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A signed duration in nanoseconds, within int64."""

    ns: int


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A timestamp in nanoseconds since 1970 UTC. The original offset only affects its text."""

    ns: int
    offset_s: int = 0


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value: the result of `type(x)` and the value of `int`."""

    name: str


@dataclass(frozen=True, slots=True)
class Ip:
    """An address without zone, never an IPv4 address mapped into IPv6."""

    address: IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Cidr:
    """An address with the length of its network prefix; host bits are kept."""

    address: IPv4Address | IPv6Address
    prefix_length: int


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed URL. `host` includes the port; `query` is kept as written; `text` is its canonical spelling."""

    text: str
    scheme: str
    host: str
    hostname: str
    port: str
    escaped_path: str
    query: str


@dataclass(frozen=True, slots=True, eq=False)
class NamedFormat:
    """One of Kubernetes' named string formats. `check` returns the errors of a text."""

    name: str
    check: Callable[[str], list[str]]
    regex_size: int
    """Kubernetes charges a check like a regular expression of this length."""


class Optional:
    """A value that may be absent."""

    __slots__ = ("present", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.present = True


def _absent() -> Optional:
    none = Optional(None)
    none.present = False
    return none


NONE: Final = _absent()


class ComputedQuantity(Quantity):
    """The result of add() or sub(). Kubernetes holds it by reference: its `==` does not recognise one on the right."""

    __slots__ = ()


class Key(NamedTuple):
    """A map key that is not a string, with its type: 1, 1u, 1.0 and true are different keys."""

    kind: type
    value: Value


class DomainMap(dict[str, Value]):
    """A device's attributes or capacities by domain. An unknown domain reads as an empty map, but is not `in` it."""

    __slots__ = ()

    def __missing__(self, key: object) -> Value:
        return EMPTY


EMPTY: Final[dict[str, Value]] = {}

_NAMES: Final[dict[type, tuple[str, str]]] = {
    bool: ("bool", "types.Bool"),
    int: ("int", "types.Int"),
    UInt: ("uint", "types.Uint"),
    float: ("double", "types.Double"),
    str: ("string", "types.String"),
    bytes: ("bytes", "types.Bytes"),
    type(None): ("null_type", "types.Null"),
    list: ("list", "*types.baseList"),
    dict: ("map", "*types.baseMap"),
    DomainMap: ("map", "cel.mapper"),
    TypeValue: ("type", "*types.Type"),
    Optional: ("optional_type", "*types.Optional"),
    Duration: ("google.protobuf.Duration", "types.Duration"),
    Timestamp: ("google.protobuf.Timestamp", "types.Timestamp"),
    Quantity: ("kubernetes.Quantity", "cel.Quantity"),
    ComputedQuantity: ("kubernetes.Quantity", "*cel.Quantity"),
    SemVer: ("kubernetes.Semver", "cel.Semver"),
    Ip: ("net.IP", "cel.IP"),
    Cidr: ("net.CIDR", "cel.CIDR"),
    Url: ("kubernetes.URL", "cel.URL"),
    NamedFormat: ("kubernetes.NamedFormat", "cel.Format"),
}
_BY_REFERENCE: Final[frozenset[type]] = frozenset((list, dict, DomainMap, Optional, Quantity, ComputedQuantity, Url))
"""Each value is a distinct key, because Go compares these by reference."""
_UNHASHABLE: Final = frozenset({SemVer, bytes, NamedFormat})
"""Types that Go cannot use as map keys: trying stops its evaluation."""
NUMBERS: Final = frozenset({int, UInt, float})
MAPS: Final[frozenset[type]] = frozenset((dict, DomainMap))


def type_name(value: Value) -> str:
    """Return CEL's name of a value's type, as in `type(x)` and error texts."""
    return _NAMES[type(value)][0]


def go_type(value: Value) -> str:
    """Return Go's name of a value's type, as in some of Kubernetes' error texts."""
    return _NAMES[type(value)][1]


def no_such_overload(function: str, *arguments: Value) -> EvaluationError:
    """Return the error for argument types without an overload."""
    return EvaluationError(f"no such overload: {function}({', '.join(map(type_name, arguments))})")


def int_of(number: int) -> int:
    """Check a result of int arithmetic. Raises EvaluationError on int64 overflow."""
    if MIN_INT <= number <= MAX_INT:
        return number
    raise EvaluationError("integer overflow")


def uint_of(number: int) -> UInt:
    """Check a result of uint arithmetic. Raises EvaluationError on uint64 overflow."""
    if 0 <= number <= MAX_UINT:
        return UInt(number)
    raise EvaluationError("unsigned integer overflow")


def key_of(value: Value) -> str | Key:
    """Return the map key of a value. Raises Abort if Go cannot hash it."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[no-any-return]
    check_hashable(value)
    if kind in _BY_REFERENCE:
        return Key(kind, _Identity(value))
    return Key(kind, value)


def check_hashable(value: Value) -> None:
    """Raise Abort for types that Go cannot hash."""
    if type(value) in _UNHASHABLE:
        raise Abort(f"internal error: runtime error: hash of unhashable type {go_type(value)}")


class _Identity:
    """A key that equals only itself, like values that Go holds by reference."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


def value_of_key(key: str | Key) -> Value:
    """Return the value of a map key, as iteration over the map gives it."""
    if type(key) is str:
        return key
    value = key.value  # type: ignore[union-attr]
    return value.value if type(value) is _Identity else value


def find(entries: Value, value: Value) -> tuple[bool, Value]:
    """Whether a map has a key, and its value; numbers match across int, uint and double."""
    if type(value) is str:
        return (True, entries[value]) if value in entries else (False, None)
    if type(entries) is DomainMap:
        return False, None
    key = key_of(value)
    if key in entries:
        return True, entries[key]
    if type(value) in NUMBERS:
        for kind in NUMBERS - {type(value)}:
            number = as_number(value, kind)
            if number is not None and Key(kind, number) in entries:
                return True, entries[Key(kind, number)]
    return False, None


def as_number(value: Value, kind: type) -> Value | None:
    """Convert a number to another type; None where that type cannot hold it exactly."""
    if kind is float:
        number = float(value)
        return number if number == value else None
    if type(value) is float:
        if not value.is_integer() or (
            kind is int and value == MIN_INT
        ):  # cel-go counts the smallest int as an overflow
            return None
        value = int(value)
    if kind is UInt:
        return UInt(value) if 0 <= value <= MAX_UINT else None
    return int(value) if MIN_INT <= value <= MAX_INT else None


def is_zero(value: Value) -> bool:
    """Whether `optional.ofNonZeroValue` makes an empty optional of the value."""
    kind = type(value)
    if kind is Duration:
        return bool(value.ns == 0)
    if kind is Timestamp:
        return bool(value.ns == -62_135_596_800 * 10**9)  # Go's zero time is the year 1
    return value is None or (kind in _HAVE_ZERO and not value)


_HAVE_ZERO: Final = frozenset({bool, int, UInt, float, str, bytes, list, dict, DomainMap})
