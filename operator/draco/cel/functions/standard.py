"""Standard functions: conversions, sizes, simple text tests, timestamps and durations, in UTC unless a zone is given."""

import re
import zoneinfo
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from draco.cel.errors import EvaluationError
from draco.cel.functions.costs import AFFIX, CONTAINING, MATCHING, TO_BYTES, TO_TEXT
from draco.cel.functions.operators import timestamp_of, unsupported
from draco.cel.functions.overloads import Row, row
from draco.cel.values.bounds import toil_of_compiling
from draco.cel.values.regex import compile_pattern
from draco.cel.values.texts import DAY_S, SECOND, civil_date, double_text, duration_text, timestamp_text
from draco.cel.values.values import (
    MAPS,
    MAX_INT,
    MAX_UINT,
    MIN_INT,
    Cidr,
    Duration,
    Ip,
    Timestamp,
    TypeValue,
    UInt,
    Value,
    int_of,
    type_name,
    uint_of,
)

_UNITS: Final = {
    "ns": 1, "us": 10**3, "\u00b5s": 10**3, "\u03bcs": 10**3, "ms": 10**6, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND,
}  # fmt: skip
_SPAN: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]+)")
_MOMENT: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d{1,2}):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_DECIMAL_INT: Final = re.compile(r"[+-]?[0-9]+")
_DECIMAL_UINT: Final = re.compile(r"[0-9]+")
_DIGITS: Final = "[0-9]+(?:_[0-9]+)*"
_DOUBLE: Final = re.compile(rf"[+-]?(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")
_HEX_DOUBLE: Final = re.compile(r"[+-]?0[xX]_?(?:[0-9a-fA-F_]+\.?[0-9a-fA-F_]*|\.[0-9a-fA-F_]+)[pP][+-]?[0-9]+")
_SPECIAL_DOUBLE: Final = re.compile(r"[+-]?(?:inf|infinity)|nan", re.IGNORECASE)
_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
_ZONE_HOURS: Final = re.compile(r"[+-]?[0-9]+")


def _same(value: Value) -> Value:
    return value


def _not_convertible(target: str) -> EvaluationError:
    return EvaluationError(f"type conversion error from 'string' to '{target}'")


def _int_of_text(text: str) -> int:
    if _DECIMAL_INT.fullmatch(text) and len(text.lstrip("+-0")) < 20 and MIN_INT <= (number := int(text)) <= MAX_INT:
        return number
    raise _not_convertible("int")


def _uint_of_text(text: str) -> UInt:
    if _DECIMAL_UINT.fullmatch(text) and len(text.lstrip("0")) < 21 and (number := int(text)) <= MAX_UINT:
        return UInt(number)
    raise _not_convertible("uint")


def _int_of_double(number: float) -> int:
    if -(2.0**63) < number < 2.0**63:
        return int(number)
    raise EvaluationError("integer overflow")


def _uint_of_double(number: float) -> UInt:
    if 0 <= number < 2.0**64:
        return UInt(number)
    raise EvaluationError("unsigned integer overflow")


def _double_of_text(text: str) -> float:
    if _DOUBLE.fullmatch(text):
        number = float(text)
    elif _HEX_DOUBLE.fullmatch(text):
        try:
            number = float.fromhex(text.replace("_", ""))
        except OverflowError:
            raise _not_convertible("double") from None
    elif _SPECIAL_DOUBLE.fullmatch(text):
        return float(text)
    else:
        raise _not_convertible("double")
    if number in {float("inf"), float("-inf")}:
        raise _not_convertible("double")
    return number


def _bool_of_text(text: str) -> bool:
    if text not in _BOOLS:
        raise _not_convertible("bool")
    return _BOOLS[text]


def _text_of_bytes(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


def parse_duration(text: str) -> Duration:
    """Parse a Go duration (`1h30m`, `-1.5s`). Raises EvaluationError."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return Duration(0)
    total, position = 0, 0
    while position < len(rest):
        part = _SPAN.match(rest, position)
        unit = _UNITS.get(part[3]) if part else None
        if part is None or unit is None or not (part[1] or part[2]) or len(part[1]) > 19:
            raise _not_convertible("google.protobuf.Duration")
        total += int(part[1] or "0") * unit
        if part[2]:
            digits = part[2][:18]
            total += int(float(int(digits)) * (float(unit) / 10.0 ** len(digits)))
        position = part.end()
    if not rest or total > MAX_INT + (sign < 0):
        raise _not_convertible("google.protobuf.Duration")
    return Duration(sign * total)


def parse_timestamp(text: str) -> Timestamp:
    """Parse an RFC 3339 timestamp, as leniently as Go. Raises EvaluationError."""
    part = _MOMENT.fullmatch(text)
    if part is None:
        raise _not_convertible("google.protobuf.Timestamp")
    year, month, day, hour, minute, second = (int(part[group]) for group in range(1, 7))
    offset_s = 0
    if part[8]:
        hours, minutes = int(part[9]), int(part[10])
        if hours > 24 or minutes > 60:
            raise _not_convertible("google.protobuf.Timestamp")
        offset_s = (hours * 3600 + minutes * 60) * (-1 if part[8] == "-" else 1)
    try:
        # Python has no year 0. It has the same calendar as the year 400.
        days = (
            datetime(year or 400, month, day, hour, minute, second, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        ).days
    except ValueError:
        raise _not_convertible("google.protobuf.Timestamp") from None
    days -= 0 if year else 146_097
    seconds = days * DAY_S + hour * 3600 + minute * 60 + second - offset_s
    return timestamp_of(seconds * SECOND + int((part[7] or "0").ljust(9, "0")[:9]), offset_s)


def _size(value: Value) -> int:
    if type(value) in {str, list, bytes} or type(value) in MAPS:
        return len(value)
    if type(value) is Ip:
        return int(value.address.max_prefixlen) // 8
    if type(value) is Cidr:
        return -(-int(value.prefix_length) // 8)
    raise unsupported("size", value)


def _matches(text: Value, pattern: Value) -> bool:
    if type(text) is not str:
        raise unsupported("matches", text)
    if type(pattern) is not str:
        raise EvaluationError("no such overload")
    return compile_pattern(pattern).search(text) is not None


def _text_test(test: Callable[[str, str], bool]) -> Callable[[Value, Value], bool]:
    def run(text: Value, part: Value) -> bool:
        if type(text) is not str or type(part) is not str:
            raise EvaluationError("no such overload")
        return test(text, part)

    return run


def _zone_offset_s(moment: Timestamp, zone: str) -> int:
    """Seconds east of UTC at a timestamp, for a zone's name or `[+-]hh:mm`."""
    hours, colon, minutes = zone.partition(":")
    if colon:
        return _numeric_offset_s(zone, hours, minutes)
    if zone in {"", "UTC"}:
        return 0
    if ".." in zone or zone[0] in "/\\":
        raise EvaluationError("time: invalid location name")
    try:
        here = zoneinfo.ZoneInfo(zone)
        offset = (
            (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=moment.ns // SECOND)).astimezone(here).utcoffset()
        )
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise EvaluationError(f"unknown time zone {zone}") from None
    except OverflowError:
        offset = None
    return int(offset.total_seconds()) if offset is not None else 0


def _numeric_offset_s(zone: str, hours: str, minutes: str) -> int:
    for digits in (hours, minutes):
        if not _ZONE_HOURS.fullmatch(digits):
            raise EvaluationError(f'strconv.Atoi: parsing "{digits}": invalid syntax')
        if len(digits) > 18:
            raise EvaluationError(f'strconv.Atoi: parsing "{digits}": value out of range')
    offset = int(hours) * 60 + (-int(minutes) if zone.startswith("-") else int(minutes))
    return offset * 60


def _new_year(year: int) -> int:
    before = year - 1
    return before * 365 + before // 4 - before // 100 + before // 400 - 719_162


def _of_moment(part: Callable[[int, int], int]) -> Callable[..., int]:
    def of_moment(moment: Timestamp, zone: str = "UTC") -> int:
        local = moment.ns + _zone_offset_s(moment, zone) * SECOND
        return part(*divmod(local, DAY_S * SECOND))

    return of_moment


def _whole(unit_ns: int) -> Callable[[Duration], int]:
    """A duration in whole units, truncated towards zero."""

    def of_duration(duration: Duration) -> int:
        units = abs(duration.ns) // unit_ns
        return -units if duration.ns < 0 else units

    return of_duration


_PARTS: Final[Sequence[tuple[str, str, Callable[[int, int], int], int | None]]] = (
    ("getFullYear", "year", lambda days, _: civil_date(days)[0], None),
    ("getMonth", "month", lambda days, _: civil_date(days)[1] - 1, None),
    ("getDayOfYear", "day_of_year", lambda days, _: days - _new_year(civil_date(days)[0]), None),
    ("getDayOfMonth", "day_of_month", lambda days, _: civil_date(days)[2] - 1, None),
    ("getDate", "day_of_month_1_based", lambda days, _: civil_date(days)[2], None),
    ("getDayOfWeek", "day_of_week", lambda days, _: (days + 4) % 7, None),
    ("getHours", "hours", lambda _, ns: ns // (3600 * SECOND), 3600 * SECOND),
    ("getMinutes", "minutes", lambda _, ns: ns // (60 * SECOND) % 60, 60 * SECOND),
    ("getSeconds", "seconds", lambda _, ns: ns // SECOND % 60, SECOND),
    ("getMilliseconds", "milliseconds", lambda _, ns: ns // 10**6 % 1000, 10**6),
)
"""Parts of a timestamp: function, name in ids, the part from the day (from 1970) and the nanoseconds within it; and the unit in
nanoseconds if the function also works on durations.
"""


def _part_rows(function: str, part: str, of: Callable[[int, int], int], unit_ns: int | None) -> Iterator[Row]:
    run = _of_moment(of)
    yield row(f"timestamp_to_{part}", f"timestamp.{function}() -> int", run)
    suffix = "tz" if part == "seconds" else "with_tz"
    yield row(f"timestamp_to_{part}_{suffix}", f"timestamp.{function}(string) -> int", run)
    if unit_ns is not None:
        yield row(f"duration_to_{part}", f"duration.{function}() -> int", _whole(unit_ns))


_CONTAINS: Final = _text_test(str.__contains__)
_ENDS_WITH: Final = _text_test(str.endswith)
_STARTS_WITH: Final = _text_test(str.startswith)

OVERLOADS: Final = {
    "standard": (
        row("size_bytes", "size(bytes) -> int", singleton=_size),
        row("bytes_size", "bytes.size() -> int", singleton=_size),
        row("size_list", "size(list(A)) -> int", singleton=_size),
        row("list_size", "list(A).size() -> int", singleton=_size),
        row("size_map", "size(map(A, B)) -> int", singleton=_size),
        row("map_size", "map(A, B).size() -> int", singleton=_size),
        row("size_string", "size(string) -> int", singleton=_size),
        row("string_size", "string.size() -> int", singleton=_size),
        row("type", "type(A) -> type(A)", lambda value: TypeValue(type_name(value))),
        row("to_dyn", "dyn(A) -> dyn", _same),
        row("bool_to_bool", "bool(bool) -> bool", _same),
        row("string_to_bool", "bool(string) -> bool", _bool_of_text),
        row("bytes_to_bytes", "bytes(bytes) -> bytes", _same),
        row("string_to_bytes", "bytes(string) -> bytes", lambda text: text.encode("utf-8", "surrogatepass"), cost=TO_BYTES),
        row("double_to_double", "double(double) -> double", _same),
        row("int64_to_double", "double(int) -> double", float),
        row("string_to_double", "double(string) -> double", _double_of_text),
        row("uint64_to_double", "double(uint) -> double", float),
        row("duration_to_duration", "duration(duration) -> duration", _same),
        row("string_to_duration", "duration(string) -> duration", parse_duration),
        row("int64_to_int64", "int(int) -> int", _same),
        row("double_to_int64", "int(double) -> int", _int_of_double),
        row("duration_to_int64", "int(duration) -> int", lambda one: one.ns),
        row("string_to_int64", "int(string) -> int", _int_of_text),
        row("timestamp_to_int64", "int(timestamp) -> int", lambda one: one.ns // SECOND),
        row("uint64_to_int64", "int(uint) -> int", lambda one: int_of(int(one))),
        row("string_to_string", "string(string) -> string", _same),
        row("bool_to_string", "string(bool) -> string", lambda one: "true" if one else "false"),
        row("bytes_to_string", "string(bytes) -> string", _text_of_bytes, cost=TO_TEXT),
        row("double_to_string", "string(double) -> string", double_text),
        row("duration_to_string", "string(duration) -> string", duration_text),
        row("int64_to_string", "string(int) -> string", str),
        row("timestamp_to_string", "string(timestamp) -> string", timestamp_text),
        row("uint64_to_string", "string(uint) -> string", lambda one: str(int(one))),
        row("timestamp_to_timestamp", "timestamp(timestamp) -> timestamp", _same),
        row("int64_to_timestamp", "timestamp(int) -> timestamp", lambda seconds: timestamp_of(seconds * SECOND)),
        row("string_to_timestamp", "timestamp(string) -> timestamp", parse_timestamp),
        row("uint64_to_uint64", "uint(uint) -> uint", _same),
        row("double_to_uint64", "uint(double) -> uint", _uint_of_double),
        row("int64_to_uint64", "uint(int) -> uint", uint_of),
        row("string_to_uint64", "uint(string) -> uint", _uint_of_text),
        row("contains_string", "string.contains(string) -> bool", singleton=_CONTAINS, cost=CONTAINING),
        row("ends_with_string", "string.endsWith(string) -> bool", singleton=_ENDS_WITH, cost=AFFIX),
        row("starts_with_string", "string.startsWith(string) -> bool", singleton=_STARTS_WITH, cost=AFFIX),
        row("matches", "matches(string, string) -> bool", singleton=_matches, cost=MATCHING, toil=toil_of_compiling),
        row("matches_string", "string.matches(string) -> bool", singleton=_matches, cost=MATCHING, toil=toil_of_compiling),
        *(each for part in _PARTS for each in _part_rows(*part)),
    )
}  # fmt: skip


CONVERSIONS: Final = frozenset(
    {"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"}
)
"""Kubernetes computes these at compile time if the argument is a constant."""
