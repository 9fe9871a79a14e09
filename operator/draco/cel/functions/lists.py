"""List functions: CEL's lists and sets extensions, Kubernetes' list library, and optionals. Macros are elsewhere."""

from collections.abc import Callable, Iterator
from functools import cmp_to_key
from itertools import pairwise
from typing import Final

from draco.cel.errors import EvaluationError
from draco.cel.functions.costs import (
    DISTINCT,
    EQUIVALENT_SETS,
    FLATTENING,
    INCLUDING,
    RANGE,
    REVERSING,
    SETS,
    SLICING,
    TRAVERSING,
    sorting,
)
from draco.cel.functions.operators import add, compare, is_comparable, unsupported
from draco.cel.functions.overloads import Row, row
from draco.cel.values.bounds import check_items, toil_inside, toil_of_all
from draco.cel.values.equality import is_equal
from draco.cel.values.texts import shown
from draco.cel.values.values import (
    NONE,
    Duration,
    Key,
    Optional,
    UInt,
    Value,
    find,
    is_zero,
    key_of,
    type_name,
    value_of_key,
)

_LONGEST_RANGE: Final = 1_000_000


def _slice(items: list[Value], start: int, end: int) -> list[Value]:
    if start < 0 or end < 0:
        raise EvaluationError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise EvaluationError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(items):
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def _flatten(items: Value, depth: Value = 1) -> list[Value]:
    if type(items) is not list:
        raise EvaluationError(f"no such overload: {type_name(items)}.flatten()")
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    flat = items
    for _ in range(depth):
        if not any(type(one) is list for one in flat):
            break
        check_items(sum(len(one) if type(one) is list else 1 for one in flat))
        flat = [part for one in flat for part in (one if type(one) is list else (one,))]
    return list(flat)


def _flatten_to(items: Value, depth: Value) -> list[Value]:
    if type(items) is not list or type(depth) is not int:
        raise EvaluationError(f"no such overload: {type_name(items)}.flatten({type_name(depth)})")
    return _flatten(items, depth)


def sort_by_keys(items: Value, keys: list[Value]) -> list[Value]:
    """Sort items by their keys. Raises EvaluationError if the keys have no common order."""
    if type(items) is not list:
        raise EvaluationError("no such overload: @sortByAssociatedKeys")
    if not items:
        return items
    if not is_comparable(keys[0]):
        raise EvaluationError("list elements must be comparable")
    if len(keys) > 1 and any(type(key) is not type(keys[0]) for key in keys):
        raise EvaluationError("list elements must have the same type")
    by_key = cmp_to_key(_compare_keys)
    order = sorted(range(len(items)), key=lambda position: by_key(keys[position]))
    return [items[position] for position in order]


def _compare_keys(one: Value, other: Value) -> int:
    try:
        return compare(one, other)
    except EvaluationError:
        return 0  # NaN is not less than anything, and sorting continues


def _sort(items: Value) -> list[Value]:
    if type(items) is not list:
        raise unsupported("sort", items)
    return sort_by_keys(items, items)


def _range(size: int) -> list[int]:
    if size < 0:
        raise EvaluationError(f"lists.range: size must be non-negative, got {size}")
    if size > _LONGEST_RANGE:
        raise EvaluationError(f"lists.range: size {size} exceeds maximum allowed ({_LONGEST_RANGE})")
    return list(range(size))


def _distinct(items: list[Value]) -> list[Value]:
    seen: set[str] = set()
    unique: list[Value] = []
    others: list[Value] = []
    for item in items:
        if type(item) is str:
            if item in seen:
                continue
            seen.add(item)
        elif any(is_equal(item, other) for other in others):
            continue
        else:
            others.append(item)
        unique.append(item)
    return unique


def _holds(items: list[Value], wanted: Value) -> bool:
    return any(is_equal(wanted, item) for item in items)


def _sets_contains(items: list[Value], others: list[Value]) -> bool:
    return all(_holds(items, other) for other in others)


def _sets_equivalent(items: list[Value], others: list[Value]) -> bool:
    return _sets_contains(items, others) and _sets_contains(others, items)


def _sets_intersects(items: list[Value], others: list[Value]) -> bool:
    return any(_holds(others, item) for item in items)


def _is_sorted(items: list[Value]) -> bool:
    _check_comparable(items)
    return all(_compare_keys(one, other) <= 0 for one, other in pairwise(items))


def _check_comparable(items: list[Value]) -> None:
    if not all(map(is_comparable, items)):
        raise EvaluationError("no such overload")


def _sum(zero: Value) -> Value:
    def total(items: list[Value]) -> Value:
        result = zero
        for item in items:
            result = add(result, item)
        return result

    return total


def _best(name: str, sign: int) -> Value:
    """The first of the largest (sign 1) or smallest (sign -1) elements."""

    def best(items: list[Value]) -> Value:
        _check_comparable(items)
        if not items:
            raise EvaluationError(f"{name} called on empty list")
        result = items[0]
        for item in items[1:]:
            if _compare_keys(item, result) == sign:
                result = item
        return result

    return best


def _index_of(items: list[Value], wanted: Value) -> int:
    return next((position for position, item in enumerate(items) if is_equal(item, wanted)), -1)


def _last_index_of(items: list[Value], wanted: Value) -> int:
    return next((position for position in reversed(range(len(items))) if is_equal(items[position], wanted)), -1)


def _includes(target: Value, wanted: Value) -> bool:
    return any(is_equal(item, wanted) for item in (target if type(target) is list else [target]))


def _at_end(position: int) -> Callable[[list[Value]], Optional]:
    return lambda items: Optional(items[position]) if items else NONE


def _value(one: Optional) -> Value:
    if not one.present:
        raise EvaluationError("optional.none() dereference")
    return one.value


def _unwrap(items: list[Value]) -> list[Value]:
    for item in items:
        if type(item) is not Optional:
            raise EvaluationError(f"value {shown(item)} is not optional")
    return [item.value for item in items if item.present]


def _insert(entries: dict[str | Key, Value], key: Value, value: Value) -> dict[str | Key, Value]:
    if find(entries, key)[0]:
        raise EvaluationError(f"insert failed: key {shown(key)} already exists")
    entries[key_of(key)] = value
    return entries


def _insert_all(entries: dict[str | Key, Value], more: dict[str | Key, Value]) -> dict[str | Key, Value]:
    for key, value in more.items():
        _insert(entries, value_of_key(key), value)
    return entries


_COMPARABLE: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_IN_IDS: Final = {"duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp"}
_ZEROS: Final = {"int": 0, "uint": UInt(0), "double": 0.0, "duration": Duration(0)}
_MAX, _MIN = _best("max", 1), _best("min", -1)


def _comparable_rows(kind: str) -> Iterator[Row]:
    items = f"list({kind})"
    yield row(f"list_{kind}_is_sorted_bool", f"{items}.isSorted() -> bool", _is_sorted, cost=TRAVERSING)
    yield row(f"list_{kind}_max_{kind}", f"{items}.max() -> {kind}", _MAX, cost=TRAVERSING)
    yield row(f"list_{kind}_min_{kind}", f"{items}.min() -> {kind}", _MIN, cost=TRAVERSING)


def _sorting_rows(kind: str) -> Iterator[Row]:
    identity = f"list_{_IN_IDS.get(kind, kind)}_sort"
    by_item, by_key = sorting(kind), sorting(kind, 1)
    yield row(identity, f"list({kind}).sort() -> list({kind})", singleton=_sort, cost=by_item, toil=toil_of_all)
    signature = f"list(T).@sortByAssociatedKeys(list({kind})) -> list(T)"
    yield row(f"{identity}ByAssociatedKeys", signature, singleton=sort_by_keys, cost=by_key)


OVERLOADS: Final = {
    "standard": (
        row("list_sets_contains_list", "sets.contains(list(T), list(T)) -> bool", _sets_contains, cost=SETS),
        row("list_sets_equivalent_list", "sets.equivalent(list(T), list(T)) -> bool", _sets_equivalent, cost=EQUIVALENT_SETS),
        row("list_sets_intersects_list", "sets.intersects(list(T), list(T)) -> bool", _sets_intersects, cost=SETS),
        *(each for kind in _COMPARABLE for each in _comparable_rows(kind)),
        *(
            row(f"list_{kind}_sum_{kind}", f"list({kind}).sum() -> {kind}", _sum(zero), cost=TRAVERSING)
            for kind, zero in _ZEROS.items()
        ),
        row("list_first", "list(V).first() -> optional(V)", _at_end(0), toil=toil_of_all),
        row("list_last", "list(V).last() -> optional(V)", _at_end(-1), toil=toil_of_all),
        row("optional_of", "optional.of(V) -> optional(V)", Optional),
        row(
            "optional_ofNonZeroValue",
            "optional.ofNonZeroValue(V) -> optional(V)",
            lambda value: NONE if is_zero(value) else Optional(value),
        ),
        row("optional_none", "optional.none() -> optional(V)", lambda: NONE),
        row("optional_value", "optional(V).value() -> V", _value),
        row("optional_hasValue", "optional(V).hasValue() -> bool", lambda one: one.present),
        row("optional_or_optional", "optional(V).or(optional(V)) -> optional(V)"),
        row("optional_orValue_value", "optional(V).orValue(V) -> V"),
        row("optional_unwrap", "optional.unwrap(list(optional(V))) -> list(V)", _unwrap, toil=toil_of_all),
        row("optional_unwrapOpt", "list(optional(V)).unwrapOpt() -> list(V)", _unwrap, toil=toil_of_all),
        row("@mapInsert_map_key_value", "cel.@mapInsert(map(K, V), K, V) -> map(K, V)", _insert),
        row("@mapInsert_map_map", "cel.@mapInsert(map(K, V), map(K, V)) -> map(K, V)", _insert_all),
    ),
    "positions": (
        row("list_a_index_of_int", "list(A).indexOf(A) -> int", _index_of, cost=TRAVERSING, toil=toil_of_all),
        row("list_a_last_index_of_int", "list(A).lastIndexOf(A) -> int", _last_index_of, cost=TRAVERSING, toil=toil_of_all),
    ),
    "lists": (
        row("list_slice", "list(T).slice(int, int) -> list(T)", _slice, cost=SLICING),
        row("list_flatten", "list(list(T)).flatten() -> list(T)", singleton=_flatten, cost=FLATTENING, toil=toil_inside),
        row("list_flatten_int", "list(dyn).flatten(int) -> list(dyn)", singleton=_flatten_to, cost=FLATTENING, toil=toil_inside),
        row("lists_range", "lists.range(int) -> list(int)", _range, cost=RANGE),
        row("list_reverse", "list(T).reverse() -> list(T)", lambda items: items[::-1], cost=REVERSING),
        row("list_distinct", "list(T).distinct() -> list(T)", _distinct, cost=DISTINCT),
        *(each for kind in _COMPARABLE for each in _sorting_rows(kind)),
    ),
    "includes": (row("list_includes_dyn_dyn", "dyn.includes(dyn) -> bool", _includes, cost=INCLUDING),),
}  # fmt: skip
