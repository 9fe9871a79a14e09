"""`"…".format([…])`, as in version 2 of cel-go's strings extension.

Owns the clauses %s %d %f %e %b %x %X %o with their precision, and how values appear inside lists and maps. %f and %e write
American English numbers: thousands separators, `∞`, and superscript digits for powers of ten.
"""

import math
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Final, NamedTuple

from draco.cel.errors import EvaluationError
from draco.cel.functions.costs import FORMATTING
from draco.cel.functions.overloads import row
from draco.cel.values.bounds import check_text, toil_of_formatting
from draco.cel.values.texts import PLAIN_TEXTS, double_text, duration_text, quoted, timestamp_text
from draco.cel.values.values import MAPS, MAX_INT, Duration, Timestamp, UInt, Value, type_name, value_of_key

_PRECISION: Final = 6
_MAX_UINT8: Final = 255
_LARGEST_PRECISION: Final = 10_000_009
_TOO_PRECISE: Final = "%!(NOVERB)"
"""Go's output for larger precisions: it stops reading a number above a million."""
INT64_DIGITS: Final = 19
"""Numbers with more digits exceed int64."""
_DIGITS: Final = re.compile(r"[0-9]*")
_SUPERSCRIPT: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_DOUBLE_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Clause(NamedTuple):
    """What a letter prints: values of the types named `kinds`, if `write` does not return None; otherwise it complains."""

    kinds: frozenset[str]
    complaint: str
    write: Callable[[Value, int], str | None]

    def fill(self, value: Value, precision: int) -> str:
        """Print a value. Raises EvaluationError."""
        text = self.write(value, precision) if type_name(value) in self.kinds else None
        if text is None:
            raise EvaluationError(f"{self.complaint}, was given {type_name(value)}")
        return text


def format_text(template: str, values: list[Value]) -> str:
    """Fill in the clauses of a template. Raises EvaluationError."""
    out: list[str] = []
    position = used = length = 0
    while True:
        percent = template.find("%", position)
        if percent < 0:
            return "".join([*out, template[position:]])
        out.append(template[position:percent])
        if template.startswith("%%", percent):
            out.append("%")
            position = percent + 2
            continue
        if used >= len(values):
            raise EvaluationError(f"index {used} out of range")
        if percent + 1 >= len(template):
            raise EvaluationError("unexpected end of string")
        position, clause, precision = _read_clause(template, percent + 1)
        try:
            out.append(clause.fill(values[used], precision))
            length += len(out[-1])
            check_text(length)
        except EvaluationError as error:
            raise EvaluationError(f"error during formatting: {error}") from None
        used += 1


def _read_clause(template: str, position: int) -> tuple[int, Clause, int]:
    precision = _PRECISION
    if template[position] == ".":
        match = _DIGITS.match(template, position + 1)
        digits = match[0] if match else ""
        position += 1 + len(digits)
        if position >= len(template):
            raise _bad_clause("error while parsing precision: could not find end of precision specifier")
        precision = _precision(digits)
    letter = template[position]
    clause = CLAUSES.get(letter)
    if clause is None:
        raise _bad_clause(f'unrecognized formatting clause "{letter}"')
    return position + 1, clause, precision


def _precision(digits: str) -> int:
    if not digits:
        reason = 'strconv.Atoi: parsing "": invalid syntax'
        raise _bad_clause(f"error while parsing precision: error while converting precision to integer: {reason}")
    if len(digits.lstrip("0")) > INT64_DIGITS or int(digits) > MAX_INT:
        raise _bad_clause(f"error while parsing precision: {too_precise(digits)}")
    return int(digits)


def too_precise(digits: str) -> str:
    """Return Kubernetes' error text for a precision beyond int64."""
    return f'error while converting precision to integer: strconv.Atoi: parsing "{digits}": value out of range'


def _bad_clause(reason: str) -> EvaluationError:
    return EvaluationError(f"could not parse formatting clause: {reason}")


def _text_of_bytes(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        reason = quoted("invalid UTF-8 in bytes, cannot convert to string")
        raise EvaluationError(f"could not convert argument {reason} to string") from None


def _nested(value: Value) -> str:
    """A list or map with everything in it, as written in an expression."""
    kind = type(value)
    if kind is list:
        return f"[{_joined(map(_element, value))}]"
    entries = sorted(
        ((_key(value_of_key(key)), _element(item)) for key, item in value.items()), key=lambda entry: entry[0]
    )
    return f"{{{_joined((f'{key}:{item}' for key, item in entries))}}}"


def _joined(parts: Iterable[str]) -> str:
    text = ", ".join(parts)
    check_text(len(text))
    return text


_STRINGS: Final[dict[type, Callable[[Value], str]]] = {
    **PLAIN_TEXTS,
    **dict.fromkeys((list, *MAPS), _nested),
    type(None): lambda _: "null",
    bytes: _text_of_bytes,
}
_ELEMENTS: Final[dict[type, Callable[[Value], str]]] = {
    **_STRINGS,
    str: quoted,
    bytes: lambda value: f"b{quoted(_text_of_bytes(value))}",
    float: lambda value: f"{value:.{_PRECISION}f}" if math.isfinite(value) else quoted(double_text(value)),
    Timestamp: lambda value: f"timestamp({quoted(timestamp_text(value))})",
    Duration: lambda value: f"duration({quoted(duration_text(value))})",
}


def _element(value: Value) -> str:
    if type(value) in _ELEMENTS:
        return _ELEMENTS[type(value)](value)
    raise EvaluationError(f"no formatting function for {type_name(value)}")


def _key(value: Value) -> str:
    if type(value) in {str, bool, int, UInt}:
        return _ELEMENTS[type(value)](value)
    raise EvaluationError(f"no formatting function for map key of type {type_name(value)}")


def _of_double(write: Callable[[float, int], str]) -> Callable[[Value, int], str | None]:
    def of_value(value: Value, precision: int) -> str | None:
        number = _DOUBLE_WORDS.get(value) if type(value) is str else value
        return None if number is None else write(number, precision)

    return of_value


def _fixed(number: float, precision: int) -> str:
    special = _special(number)
    if special is not None:
        return special
    if precision > _LARGEST_PRECISION:
        return _TOO_PRECISE
    if precision <= _MAX_UINT8:
        return f"{number:,.{precision}f}"
    return _many_digits(number, precision)


def _many_digits(number: float, precision: int) -> str:
    """Go keeps the minimum number of digits in 8 bits and the maximum in 16; a negative maximum means no limit."""
    least, most = precision % (_MAX_UINT8 + 1), (precision + 2**15) % 2**16 - 2**15
    text = f"{number:,.{most}f}" if most >= 0 else f"{Decimal(repr(number)):,f}"
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0").ljust(least, "0")
    return f"{whole}.{fraction}" if fraction else whole


def _special(number: float) -> str | None:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    return None


def _scientific(number: float, precision: int) -> str:
    """Always six decimals: the precision is the minimum width instead, in Kubernetes too."""
    text = _special(number)
    if text is None:
        digits, _, exponent = f"{number:.{_PRECISION}e}".partition("e")
        power = f"{int(exponent):+03d}".removeprefix("+").translate(_SUPERSCRIPT)
        text = f"{digits}\N{MULTIPLICATION SIGN}10{power}"
    return _TOO_PRECISE if precision > _LARGEST_PRECISION else text.rjust(precision % 2**16)


def _hex(value: Value, _precision: int) -> str:
    if type(value) is str:
        return value.encode("utf-8", "surrogatepass").hex()
    return value.hex() if type(value) is bytes else f"{int(value):x}"


_INTEGERS: Final = frozenset({"int", "uint"})
_DOUBLES: Final = frozenset({"double", "string"})
_MOMENTS: Final = frozenset({"google.protobuf.Duration", "google.protobuf.Timestamp"})
_HEX: Final = Clause(
    _INTEGERS | {"string", "bytes"}, "only integers, byte buffers, and strings can be formatted as hex", _hex
)
CLAUSES: Final = {
    "s": Clause(
        _INTEGERS | _DOUBLES | _MOMENTS | {"bool", "bytes", "list", "map", "null_type", "type"},
        "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps",
        lambda value, _: _STRINGS[type(value)](value),
    ),
    "d": Clause(_INTEGERS, "decimal clause can only be used on integers", lambda value, _: f"{int(value):d}"),
    "f": Clause(_DOUBLES, "fixed-point clause can only be used on doubles", _of_double(_fixed)),
    "e": Clause(_DOUBLES, "scientific clause can only be used on doubles", _of_double(_scientific)),
    "b": Clause(
        _INTEGERS | {"bool"}, "only integers and bools can be formatted as binary", lambda value, _: f"{int(value):b}"
    ),
    "x": _HEX,
    "X": _HEX._replace(write=lambda value, precision: _hex(value, precision).upper()),
    "o": Clause(_INTEGERS, "octal clause can only be used on integers", lambda value, _: f"{int(value):o}"),
}
"""By letter; the checker reads the kinds and complaints, too."""
OVERLOADS: Final = {
    "standard": (
        row("string_format", "string.format(list(dyn)) -> string", format_text, cost=FORMATTING, toil=toil_of_formatting),
    )
}  # fmt: skip
