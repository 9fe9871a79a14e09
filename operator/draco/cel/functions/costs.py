"""Costs of calls: the rules of Kubernetes' two cost models, side by side.

Owns the rules, at the end of this module: a *charge* is the runtime cost of a call that ran, an *estimate* its highest possible
cost from the sizes of its arguments. A row without a rule costs 1 in both. `charges` and `cost` have the language's own costs.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from draco.cel.functions.estimates import (
    NOTHING,
    ONE,
    PER_CHARACTER,
    UNBOUNDED,
    Argument,
    Estimate,
    Estimator,
    Range,
    fixed,
)
from draco.cel.syntax.ast import Literal
from draco.cel.values.bounds import MAX_COST, check_items, too_costly
from draco.cel.values.values import MAPS, Cidr, ComputedQuantity, Ip, NamedFormat, Optional, Url, Value, value_of_key
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer

NEW_LIST: Final = 10
NEW_MAP: Final = 30
_PER_PATTERN_CHARACTER: Final = 0.25
_LONGEST_FORMAT: Final = 64
_LONGEST_NAME_PATTERN: Final = 128
_ADDRESS: Final = Range(4, 16)
"""Bytes of an address of either family."""

Charge: TypeAlias = Callable[[tuple[Value, ...], Value], int]
"""From the arguments, target first, and the result; an error stands in place of an argument or result that failed."""


class CostRule(NamedTuple):
    """Both costs of a call.

    Most of Kubernetes' library rules go by the function's name, cel-go's by the overload's id, which is only known if the checker
    left one overload; otherwise the first overload's `charge_without_id` counts, if it has one. `is_checked_ahead`: the call
    takes as long as it costs, so it does not start if its cost exceeds the rest of the budget. `multiplies`: its cost or result
    can be many times as large as its arguments.
    """

    charge: Charge
    estimate: Estimator | None = None
    charge_without_id: Charge | None = None
    is_checked_ahead: bool = False
    multiplies: bool = False


def one(_arguments: tuple[Value, ...], _result: Value) -> int:
    """Return the charge of a call without a rule."""
    return 1


def _size(value: Value) -> int:
    if type(value) is Optional and value.present:
        return _size(value.value)
    if type(value) in {str, bytes, list} or type(value) in MAPS:
        return len(value)
    if type(value) is Ip:
        return int(value.address.max_prefixlen) // 8
    if type(value) is Cidr:
        return -(-int(value.prefix_length) // 8)
    return 1


def _text(size: float) -> int:
    return math.ceil(size * PER_CHARACTER)


# Texts read as a whole, once or twice.


def _reading(times: int = 1) -> Charge:
    return lambda arguments, _: math.ceil(_size(arguments[0]) * times * PER_CHARACTER)


def _estimated_reading(arguments: Sequence[Argument]) -> Estimate:
    return Estimate(arguments[0].traversal)


def _estimated_reading_twice(arguments: Sequence[Argument]) -> Estimate:
    return Estimate(arguments[0].size.scaled(2 * PER_CHARACTER))


def _estimated_giving(size: Callable[[Range], Range]) -> Estimator:
    return lambda arguments: Estimate(arguments[0].traversal, size(arguments[0].size))


# Texts joined and split.


def _estimated_adding(arguments: Sequence[Argument]) -> Estimate:
    size = arguments[0].size + arguments[1].size
    return Estimate(size.scaled(PER_CHARACTER), size)


def _estimated_joining(arguments: Sequence[Argument]) -> Estimate:
    parts, *separator = arguments
    size = parts.size * parts.size_inside if parts.type.parameters else NOTHING
    if separator:
        gaps = Range(max(parts.size.least - 1, 0), max(parts.size.most - 1, 0))
        size += separator[0].size * gaps
    return Estimate(size.scaled(PER_CHARACTER), size)


def _estimated_splitting(arguments: Sequence[Argument]) -> Estimate:
    most = arguments[0].size.most
    if len(arguments) > 2 and isinstance(limit := arguments[2].node, Literal) and isinstance(limit.value, int):
        most = limit.value % 2**64
    return Estimate(_estimated_reading_twice(arguments).cost, Range(0, most))


def _estimated_replacing(arguments: Sequence[Argument]) -> Estimate:
    size, old, new = (argument.size for argument in arguments[:3])
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
    replaced = Range(least_count, most_count) * new + Range(least_kept, most_kept)
    return Estimate(size.scaled(2 * PER_CHARACTER), replaced)


def _quotient(dividend: int, divisor: int) -> int:
    return min(math.ceil(dividend / divisor), UNBOUNDED)


# Patterns.


def _pattern(text: Value, pattern_size: int) -> int:
    return _text(1 + _size(text)) * math.ceil(pattern_size * _PER_PATTERN_CHARACTER)


def _matching(arguments: tuple[Value, ...], _result: Value) -> int:
    return _pattern(arguments[0], _size(arguments[1]))


def _estimated_matching(arguments: Sequence[Argument]) -> Estimate:
    text, pattern = arguments[0].size, arguments[1].size
    return Estimate((text + ONE).scaled(PER_CHARACTER) * pattern.scaled(_PER_PATTERN_CHARACTER))


# Comparisons.

_FIXED_EQUALITY: Final = frozenset({Quantity, ComputedQuantity, Ip, Cidr, NamedFormat, Url, SemVer})


def _comparing(arguments: tuple[Value, ...], _result: Value) -> int:
    return _text(min(_size(arguments[0]), _size(arguments[1])))


def _estimated_comparing(arguments: Sequence[Argument]) -> Estimate:
    most = min(arguments[0].size.most, arguments[1].size.most)
    return Estimate(Range(int(most > 0), most).scaled(PER_CHARACTER))


def _equating(arguments: tuple[Value, ...], result: Value) -> int:
    return 1 if type(arguments[0]) in _FIXED_EQUALITY else _comparing(arguments, result)


def _estimated_equating(arguments: Sequence[Argument]) -> Estimate:
    left, right = arguments
    if left.type.name == right.type.name:
        match left.type.name:
            case "net.IP" | "net.CIDR" | "kubernetes.Quantity" | "kubernetes.Semver":
                return Estimate(ONE)
            case "kubernetes.NamedFormat":
                return Estimate(Range(1, _LONGEST_FORMAT).scaled(PER_CHARACTER))
            case "kubernetes.URL":
                return Estimate(Range(1, (right.known_size or ONE).most).scaled(PER_CHARACTER))
    return _estimated_comparing(arguments)


def _sets(times: int = 1) -> Charge:
    return lambda arguments, _: 1 + _size(arguments[0]) * _size(arguments[1]) * times


def _estimated_sets(times: int = 1) -> Estimator:
    return lambda arguments: Estimate((arguments[0].size * arguments[1].size).scaled(times) + ONE)


# Addresses and networks.


def _parsing_address(arguments: tuple[Value, ...], _result: Value) -> int:
    return 1 if type(arguments[0]) is Cidr else _text(_size(arguments[0]))


def _containing_ip(arguments: tuple[Value, ...], _result: Value) -> int:
    return _text(2 * _size(arguments[0]))


def _containing_cidr(arguments: tuple[Value, ...], result: Value) -> int:
    return _containing_ip(arguments, result) + _text(_size(arguments[0])) + 1


def _estimated_containing_ip(_arguments: Sequence[Argument]) -> Estimate:
    return Estimate((_ADDRESS + _ADDRESS).scaled(PER_CHARACTER))


def _estimated_containing_cidr(arguments: Sequence[Argument]) -> Estimate:
    return Estimate(_estimated_containing_ip(arguments).cost + _ADDRESS.scaled(PER_CHARACTER) + ONE)


def _with_text(charge: Charge, estimate: Estimator) -> CostRule:
    return CostRule(
        lambda arguments, result: charge(arguments, result) + _text(_size(arguments[1])),
        lambda arguments: Estimate(estimate(arguments).cost + arguments[1].traversal),
        charge_without_id=charge,
    )


# Lists.


def _traversing(arguments: tuple[Value, ...], _result: Value) -> int:
    cost, steps, waiting = 0, 0, [arguments[0]]
    while waiting:
        steps += 1
        check_items(steps // 2)
        if cost > MAX_COST:
            raise too_costly()
        value = waiting.pop()
        if type(value) is str:
            cost += int(len(value.encode("utf-8", "surrogatepass")) * PER_CHARACTER)
        elif type(value) is bytes:
            cost += int(len(value) * PER_CHARACTER)
        elif type(value) is list:
            waiting.extend(value)
        elif type(value) in MAPS:
            waiting.extend(map(value_of_key, value))
            waiting.extend(value.values())
        else:
            cost += 1
    return cost


def _estimated_traversing(arguments: Sequence[Argument]) -> Estimate:
    items = arguments[0]
    if not items.type.parameters:
        return Estimate(items.traversal)
    each = ONE
    if items.type.parameters[0].name in {"string", "bytes"}:
        each += items.size_inside.scaled(PER_CHARACTER)
    return Estimate(items.size * each)


def _estimated_including(arguments: Sequence[Argument]) -> Estimate:
    return _estimated_traversing(arguments) if arguments[0].type.parameters else Estimate(arguments[0].size * ONE)


def _new_list(items: float) -> int:
    return int(items) + 1 + NEW_LIST


def _estimated_new_list(size: Range, factor: float) -> Estimate:
    return Estimate(size.scaled(factor) + ONE + fixed(NEW_LIST), size)


def _making_list(_arguments: tuple[Value, ...], result: Value) -> int:
    return _new_list(_size(result))


def _estimated_slicing(arguments: Sequence[Argument]) -> Estimate:
    items, start, end = arguments
    return _estimated_new_list(fixed((end.number(items.size.most) - start.number(0)) % 2**64), 1)


def _flattening(arguments: tuple[Value, ...], _result: Value) -> int:
    depth = arguments[1] if len(arguments) == 2 else 1
    return _new_list(_size(arguments[0]) * float(depth if type(depth) is int and depth >= 0 else 1))


def _estimated_flattening(arguments: Sequence[Argument]) -> Estimate:
    return _estimated_new_list(arguments[0].size, arguments[1].number(UNBOUNDED) if len(arguments) > 1 else 1)


def _self_comparing(position: int = 0) -> Charge:

    def charge(arguments: tuple[Value, ...], _result: Value) -> int:
        items = arguments[position]
        if type(items) is not list:
            return 1
        factor = 2.0 + (PER_CHARACTER if items and type(items[0]) in {str, bytes} else 0)
        return _new_list(float(len(items) ** 2) * factor)

    return charge


def _estimated_self_comparing(factor: float = 2.0) -> Estimator:
    return lambda arguments: _estimated_new_list(arguments[-1].size * arguments[-1].size, factor)


# The rules.

FREE: Final = CostRule(one)
READING: Final = CostRule(_reading(), _estimated_reading)
READING_TWICE: Final = CostRule(_reading(2), _estimated_reading_twice)
SAME_SIZE: Final = CostRule(_reading(), _estimated_giving(lambda size: size))
QUOTING: Final = CostRule(
    _reading(), _estimated_giving(lambda size: Range((size.least + 2) % 2**64, (size.most * 2 + 2) % 2**64))
)
TO_BYTES: Final = CostRule(
    _reading(), _estimated_giving(lambda size: Range(size.least, size.most * 4 % 2**64)), charge_without_id=one
)
TO_TEXT: Final = CostRule(
    _reading(), _estimated_giving(lambda size: Range(size.least // 4, size.most)), charge_without_id=one
)
AFFIX: Final = CostRule(
    lambda arguments, _: _text(_size(arguments[1])), lambda arguments: Estimate(arguments[1].traversal)
)
CONTAINING: Final = CostRule(
    lambda arguments, _: _text(_size(arguments[0])) * _text(_size(arguments[1])),
    lambda arguments: Estimate(arguments[0].traversal * arguments[1].traversal),
)
ADDING: Final = CostRule(
    lambda arguments, _: _text(_size(arguments[0]) + _size(arguments[1])), _estimated_adding, charge_without_id=one
)
ADDING_LISTS: Final = CostRule(one, lambda arguments: Estimate(ONE, arguments[0].size + arguments[1].size))
JOINING: Final = CostRule(
    lambda _, result: math.ceil(_size(result) * 2 * PER_CHARACTER), _estimated_joining, multiplies=True
)
FORMATTING: Final = READING._replace(multiplies=True)
SPLITTING: Final = CostRule(_reading(2), _estimated_splitting)
REPLACING: Final = CostRule(_reading(2), _estimated_replacing, multiplies=True)
MATCHING: Final = CostRule(_matching, _estimated_matching)
FINDING: Final = CostRule(
    _matching, lambda arguments: Estimate(_estimated_matching(arguments).cost, Range(0, arguments[0].size.most))
)
VALIDATING: Final = CostRule(
    lambda arguments, _: _pattern(arguments[1], arguments[0].regex_size) if type(arguments[0]) is NamedFormat else 1,
    lambda arguments: Estimate(arguments[1].traversal.scaled(_LONGEST_NAME_PATTERN * _PER_PATTERN_CHARACTER)),
)

ORDER_OF_TEXTS: Final = CostRule(_comparing, _estimated_comparing, charge_without_id=one)
EQUALITY: Final = CostRule(_equating, _estimated_equating)
INEQUALITY: Final = CostRule(_comparing, _estimated_comparing)
MEMBERSHIP: Final = CostRule(
    lambda arguments, _: _size(arguments[1]),
    lambda arguments: Estimate(arguments[1].size.scaled(1)),
    charge_without_id=one,
)
SETS: Final = CostRule(_sets(), _estimated_sets(), is_checked_ahead=True, multiplies=True)
EQUIVALENT_SETS: Final = CostRule(_sets(2), _estimated_sets(2), is_checked_ahead=True, multiplies=True)

PARSING_ADDRESS: Final = CostRule(_parsing_address, _estimated_reading)
ADDRESS_OF_NETWORK: Final = CostRule(_parsing_address)
CONTAINING_IP: Final = CostRule(_containing_ip, _estimated_containing_ip)
CONTAINING_IP_TEXT: Final = _with_text(_containing_ip, _estimated_containing_ip)
CONTAINING_CIDR: Final = CostRule(_containing_cidr, _estimated_containing_cidr)
CONTAINING_CIDR_TEXT: Final = _with_text(_containing_cidr, _estimated_containing_cidr)

TRAVERSING: Final = CostRule(_traversing, _estimated_traversing)
INCLUDING: Final = CostRule(_traversing, _estimated_including)
REVERSING: Final = CostRule(_making_list, lambda arguments: _estimated_new_list(arguments[0].size, 1))
RANGE: Final = CostRule(
    _making_list, lambda arguments: _estimated_new_list(fixed(arguments[0].number(UNBOUNDED)), 1), multiplies=True
)
SLICING: Final = CostRule(_making_list, _estimated_slicing)
FLATTENING: Final = CostRule(_flattening, _estimated_flattening, charge_without_id=one, multiplies=True)
DISTINCT: Final = CostRule(_self_comparing(), _estimated_self_comparing(), is_checked_ahead=True, multiplies=True)


def sorting(kind: str, position: int = 0) -> CostRule:
    """The rule for sorting by the elements, of this kind, of the argument at a position."""
    factor = 2.0 + (PER_CHARACTER if kind in {"string", "bytes"} else 0)
    return CostRule(
        _self_comparing(position), _estimated_self_comparing(factor), charge_without_id=one, multiplies=True
    )
