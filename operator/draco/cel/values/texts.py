"""The text of a value, as Go writes it: in conversions to string and in error messages."""

import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Final

from draco.cel.values.bounds import check_message
from draco.cel.values.values import MAPS, Duration, Optional, Timestamp, TypeValue, UInt, Value, go_type, value_of_key

SECOND: Final = 10**9
DAY_S: Final = 86_400
ESCAPES: Final = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\", '"': '\\"',
}  # fmt: skip


def double_text(number: float) -> str:
    """Write a double in Go's shortest form (`%g`): `1e+06`, `0.1`, `+Inf`."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    exact = Decimal(repr(number))
    digits = "".join(map(str, exact.as_tuple().digits)).rstrip("0") or "0"
    magnitude = exact.adjusted()
    minus = "-" if exact.is_signed() else ""
    if digits != "0" and not -4 <= magnitude < 6:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{minus}{digits[0]}{fraction}e{'-' if magnitude < 0 else '+'}{abs(magnitude):02d}"
    return minus + _plain(abs(number))


def _plain(number: float) -> str:
    """A finite double without exponent, in the fewest digits that identify it."""
    text = format(Decimal(repr(number)), "f")
    return text.rstrip("0").removesuffix(".") if "." in text else text


def duration_text(duration: Duration) -> str:
    """Write a duration as `string()` does: decimal seconds, converted through a double as in Go."""
    return _plain(duration_seconds(duration)) + "s"


def duration_seconds(duration: Duration) -> float:
    """Return a duration in seconds, rounded as in Go."""
    whole = abs(duration.ns) // SECOND
    rest = abs(duration.ns) % SECOND
    seconds = float(whole) + float(rest) / 1e9
    return -seconds if duration.ns < 0 else seconds


def timestamp_text(moment: Timestamp) -> str:
    """Write a timestamp in RFC 3339, with as many decimals as needed, in its original offset."""
    seconds, nanos = divmod(moment.ns, SECOND)
    days, clock = divmod(seconds + moment.offset_s, DAY_S)
    year, month, day = civil_date(days)
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    time = f"{clock // 3600:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}{fraction}"
    return f"{year:04d}-{month:02d}-{day:02d}T{time}{_offset_text(moment.offset_s)}"


def _offset_text(offset_s: int) -> str:
    if not offset_s:
        return "Z"
    minutes = abs(offset_s) // 60
    return f"{'-' if offset_s < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"


def civil_date(days: int) -> tuple[int, int, int]:
    """Year, month and day of a day from 1970; unlike Python without a last year. Counts from March, so the leap day is last."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month += 3 if month < 10 else -9
    return era * 400 + year + (month <= 2), month, day


def quoted(text: str) -> str:
    """Write a text in double quotes with Go's escapes (`%q`)."""
    return f'"{"".join(map(_quoted_character, text))}"'


def _quoted_character(character: str) -> str:
    escape = ESCAPES.get(character)
    if escape is not None:
        return escape
    if character == " " or (character.isprintable() and not character.isspace()):
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


PLAIN_TEXTS: Final[dict[type, Callable[[Value], str]]] = {
    str: str,
    bool: lambda value: "true" if value else "false",
    int: str,
    UInt: lambda value: str(int(value)),
    float: double_text,
    Duration: duration_text,
    Timestamp: timestamp_text,
    TypeValue: lambda value: value.name,
}
"""Values with the same text in messages and in `string()`."""


def shown(value: Value) -> str:  # noqa: PLR0911 - one per kind of text
    """Write a value inside an error message (`%v`)."""
    kind = type(value)
    if kind in PLAIN_TEXTS:
        return PLAIN_TEXTS[kind](value)
    if value is None:
        return "NULL_VALUE"
    if kind is list:
        return f"[{_joined(map(shown, value))}]"
    if kind in MAPS:
        return f"{{{_joined(f'{shown(value_of_key(key))}: {shown(item)}' for key, item in value.items())}}}"
    if kind is Optional:
        return f"optional({shown(value.value)})" if value.present else "optional.none()"
    if kind is bytes:
        return "[" + " ".join(map(str, value)) + "]"
    return f"{{{value}}}" if go_type(value).startswith("cel.") else str(value)


def _joined(parts: Iterable[str]) -> str:
    text = ", ".join(parts)
    check_message(len(text))
    return text


_NATIVE_COMPLAINTS: Final = {
    "types.Int": "unsupported type conversion from 'int' to {0}",
    "types.Uint": "unsupported type conversion from 'uint' to {0}",
    "types.Double": "type conversion error from Double to '{0}'",
    "types.Bool": "type conversion error from bool to '{0}'",
    "types.String": "unsupported native conversion from string to '{0}'",
    "types.Bytes": "type conversion error from Bytes to '{0}'",
    "types.Null": "type conversion error from 'null_type' to '{0}'",
    "types.Duration": "type conversion error from 'Duration' to '{0}'",
    "types.Timestamp": "type conversion error from 'Timestamp' to '{0}'",
    "*types.baseList": "type conversion error from list to '{0}'",
    "*types.baseMap": "type conversion error from map to '{0}'",
    "cel.mapper": "type conversion error from map to '{0}'",
    "*types.Type": "type conversion not supported for 'type'",
}


def native_complaint(value: Value, wanted: str) -> str:
    """Go's error for a value that cannot become a Go type; each type has its own."""
    if type(value) is Optional:
        return native_complaint(value.value, wanted) if value.present else "optional.none() dereference"
    words = _NATIVE_COMPLAINTS.get(go_type(value))
    name = go_type(value).rpartition(".")[2]
    return words.format(wanted) if words else f"type conversion error from '{name}' to '{wanted}'"
