"""Costs of functions before they run, from the sizes of what they are given.

Owns one rule per family of functions, as Kubernetes' estimator has them. A function without a rule here has a cost of one, or a
rule of the language itself in `cost`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from draco.cel.ast import Expr, Literal
from draco.cel.ranges import NOTHING, ONE, UNBOUNDED, UNKNOWN, Range, fixed
from draco.cel.types import Type

_CHARACTER: Final = 0.1
_PATTERN_CHARACTER: Final = 0.25
_LONGEST_FORMAT: Final = 64
_LONGEST_NAME_PATTERN: Final = 128
_ADDRESS: Final = Range(4, 16)
"""Bytes of an address, of either family."""


class Argument(NamedTuple):
    """A target or an argument: its node, its type, where in the device it comes from, and its size if that is known."""

    node: Expr
    type: Type
    path: tuple[str, ...]
    known_size: Range | None
    declared: Callable[[tuple[str, ...]], Range | None]

    @property
    def size(self) -> Range:
        """The size, or that nothing is known of it."""
        return self.known_size or self.declared(self.path) or UNKNOWN

    @property
    def traversal(self) -> Range:
        """The cost of reading a text once."""
        return self.size.scaled(_CHARACTER)


class Estimate(NamedTuple):
    """The cost of a call without that of its arguments, and the size of its result where the rule knows one."""

    cost: Range
    size: Range | None = None


_FREE_OF_SIZE: Final = frozenset(
    [
        "masked",
        "prefixLength",
        "family",
        "isUnspecified",
        "isLoopback",
        "isLinkLocalMulticast",
        "isLinkLocalUnicast",
        "isGlobalUnicast",
        "format.named",
        "sign",
        "asInteger",
        "isInteger",
        "asApproximateFloat",
        "isGreaterThan",
        "isLessThan",
        "compareTo",
        "add",
        "sub",
        "major",
        "minor",
        "patch",
        "getScheme",
        "getHostname",
        "getHost",
        "getPort",
        "getEscapedPath",
        "getQuery",
    ]
)
_ONE_TRAVERSAL: Final = frozenset({"cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"})
_OVER_ELEMENTS: Final = frozenset({"isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"})
_SAME_SIZE: Final = frozenset({"lowerAscii", "upperAscii", "substring", "trim"})


def estimate_function(
    function: str, overload: str, target: Argument | None, arguments: Sequence[Argument], libraries: frozenset[str]
) -> Estimate | None:
    """The cost of a call by the rule of its function, or None where it has none."""
    if "lists" in libraries and (of_list := _list_function(overload, target, arguments)) is not None:
        return of_list
    if overload.startswith("list_sets_"):
        factor = 2 if overload == "list_sets_equivalent_list" else 1
        return Estimate((arguments[0].size * arguments[1].size).scaled(factor) + ONE)
    if function in _FREE_OF_SIZE:
        return Estimate(ONE)
    if function in _ONE_TRAVERSAL:
        return Estimate(arguments[0].traversal)
    if target is not None and (of_target := _method(function, overload, target, arguments)) is not None:
        return of_target
    return _function(function, overload, target, arguments)


def _list_function(overload: str, target: Argument | None, arguments: Sequence[Argument]) -> Estimate | None:  # noqa: PLR0911 - one per case
    """Functions that make a list: each of its elements counts, and one allocation."""
    if overload == "lists_range":
        return _allocated(fixed(_number(arguments[0], UNBOUNDED)), 1)
    if target is None:
        return None
    if overload == "list_slice":
        start, end = _number(arguments[0], 0), _number(arguments[1], target.size.most)
        return _allocated(fixed((end - start) % 2**64), 1)
    if overload == "list_reverse":
        return _allocated(target.size, 1)
    if overload in {"list_flatten", "list_flatten_int"}:
        return _allocated(target.size, _number(arguments[0], UNBOUNDED) if arguments else 1)
    if overload == "list_distinct":
        return _allocated(target.size * target.size, 2)
    if overload.endswith(("_sort", "_sortByAssociatedKeys")):
        compared = (arguments[0] if arguments else target).size
        factor = 2 + _CHARACTER if overload.startswith(("list_string_", "list_bytes_")) else 2.0
        return _allocated(compared * compared, factor)
    return None


def _allocated(size: Range, factor: float) -> Estimate:
    return Estimate(size.scaled(factor) + ONE + fixed(10), size)


def _number(argument: Argument, otherwise: int) -> int:
    node = argument.node
    if isinstance(node, Literal) and node.kind == "int" and isinstance(node.value, int):
        return max(node.value, 0)
    return otherwise


def _method(function: str, overload: str, target: Argument, arguments: Sequence[Argument]) -> Estimate | None:  # noqa: PLR0911, PLR0912 - a table
    size = target.size
    if function in _OVER_ELEMENTS:
        return Estimate(_over_elements(function, target))
    if function in _SAME_SIZE:
        return Estimate(target.traversal, size)
    match function:
        case "replace":
            return Estimate(size.scaled(2 * _CHARACTER), _replaced(size, arguments[0].size, arguments[1].size))
        case "split":
            most = size.most
            if len(arguments) > 1 and isinstance(limit := arguments[1].node, Literal) and isinstance(limit.value, int):
                most = limit.value % 2**64
            return Estimate(size.scaled(2 * _CHARACTER), Range(0, most))
        case "join":
            return _joined(target, arguments)
        case "find" | "findAll":
            cost = (size + ONE).scaled(_CHARACTER) * arguments[0].size.scaled(_PATTERN_CHARACTER)
            return Estimate(cost, Range(0, size.most))
        case "matches":
            return Estimate((size + ONE).scaled(_CHARACTER) * arguments[0].size.scaled(_PATTERN_CHARACTER))
        case "contains":
            return Estimate(target.traversal * arguments[0].traversal)
        case "startsWith" | "endsWith":
            return Estimate(arguments[0].traversal)
        case "format":
            return Estimate(target.traversal)
        case "validate":
            return Estimate(arguments[0].traversal.scaled(_LONGEST_NAME_PATTERN * _PATTERN_CHARACTER))
        case "ip":
            return Estimate(ONE)
        case "containsIP" | "containsCIDR":
            cost = (_ADDRESS + _ADDRESS).scaled(_CHARACTER)
            if function == "containsCIDR":
                cost += _ADDRESS.scaled(_CHARACTER) + ONE
            return Estimate(cost + arguments[0].traversal if overload.endswith("_string") else cost)
    return None


def _function(function: str, overload: str, target: Argument | None, arguments: Sequence[Argument]) -> Estimate | None:  # noqa: PLR0911 - one per case
    if target is not None or not arguments:
        return None
    first, size = arguments[0], arguments[0].size
    match function:
        case "url":
            return Estimate(first.traversal, size)
        case "ip":
            return Estimate(first.traversal)
        case "ip.isCanonical":
            return Estimate(size.scaled(2 * _CHARACTER))
        case "matches":
            return Estimate((size + ONE).scaled(_CHARACTER) * arguments[1].size.scaled(_PATTERN_CHARACTER))
        case "strings.quote":
            return Estimate(first.traversal, Range((size.least + 2) % 2**64, (size.most * 2 + 2) % 2**64))
        case "_==_":
            cost = _equality(first, arguments[1])
            return None if cost is None else Estimate(cost)
    match overload:
        case "string_to_bytes":
            return Estimate(first.traversal, Range(size.least, size.most * 4 % 2**64))
        case "bytes_to_string":
            return Estimate(first.traversal, Range(size.least // 4, size.most))
        case "in_list":
            return Estimate(arguments[1].size.scaled(1))
    return None


def _over_elements(function: str, target: Argument) -> Range:
    """One comparison an element, and reading each where they are texts."""
    if target.type.parameters:
        element = target.type.parameters[0]
        each = ONE
        if element.name in {"string", "bytes"}:
            inside = target.declared((*target.path, "@items")) if target.path else None
            each += (inside or UNKNOWN).scaled(_CHARACTER)
        return target.size * each
    return target.size * ONE if function == "includes" else target.traversal


def _replaced(size: Range, old: Range, new: Range) -> Range:
    """How long a text can be after a replacement."""
    least_count = most_count = least_kept = most_kept = 0
    if old.least == 0:
        most_count, most_kept = min(size.most + 1, UNBOUNDED), size.most
    elif new.most <= old.least:
        most_kept = size.most
    else:
        most_count = _quotient(size.most, old.least)
    if old.most == 0:
        least_count, least_kept = min(size.least + 1, UNBOUNDED), size.least
    elif old.most <= new.least:
        least_kept = size.least
    else:
        least_count = _quotient(size.least, old.most)
    return Range(least_count, most_count) * new + Range(least_kept, most_kept)


def _quotient(dividend: int, divisor: int) -> int:
    return min(math.ceil(dividend / divisor), UNBOUNDED)


def _joined(target: Argument, arguments: Sequence[Argument]) -> Estimate:
    inside = target.declared((*target.path, "@items")) if target.path else None
    size = target.size * (inside or UNKNOWN) if target.type.parameters else NOTHING
    if arguments:
        gaps = Range(max(target.size.least - 1, 0), max(target.size.most - 1, 0))
        size += arguments[0].size * gaps
    return Estimate(size.scaled(_CHARACTER), size)


def _equality(one: Argument, other: Argument) -> Range | None:
    """Comparing two values of Kubernetes' own types."""
    if one.type.name != other.type.name:
        return None
    match one.type.name:
        case "net.IP" | "net.CIDR" | "kubernetes.Quantity" | "kubernetes.Semver":
            return ONE
        case "kubernetes.NamedFormat":
            return Range(1, _LONGEST_FORMAT).scaled(_CHARACTER)
        case "kubernetes.URL":
            return Range(1, (other.known_size or ONE).most).scaled(_CHARACTER)
    return None
