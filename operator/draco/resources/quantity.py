"""Quantity: Kubernetes' fixed-point numbers (`40Gi`, `1500m`, `12e6`), with all quirks.

Owns parsing, canonical text, comparison and sums exactly as apimachinery's `resource.Quantity`, because Go and Python decide
selectors, counters and shared capacities on the same values. Does not know what a quantity measures.

Go keeps a quantity as an int64 with a decimal exponent if possible, else as a big decimal. A few results depend on which
(`as_int64`, `value`), so it is kept here too. A parsed text that Go takes for canonical is printed unchanged (`+5`, `1.500`); the
result of a sum never is. Unlike Go, quantities of more than 1,000 digits are refused, because Go would compute for hours.
"""

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import total_ordering
from typing import Final, Self

from draco.resources.errors import DracoError


class QuantityError(DracoError, ValueError):
    """A text is not a quantity. `upstream` is Kubernetes' error for it, for callers that must give the same answer."""

    def __init__(self, text: str, reason: str, upstream: str) -> None:
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        meant = _intended(text) if shown == text else None
        fix = f"write {meant}" if meant else f"{reason}; use a number with an optional suffix such as m, k, M, Gi"
        super().__init__(f'"{shown}" is not a quantity: {fix}')
        self.upstream = upstream


class Format(StrEnum):
    """The family of suffixes of a quantity, taken from its parsed text."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


_WRONG_FORMAT: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_WRONG_NUMBER: Final = "unable to parse numeric part of quantity"
_WRONG_SUFFIX: Final = "unable to parse quantity's suffix"

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}  # powers of 1024
_DECIMAL_OF: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_OF: Final = {0: ""} | {power: suffix for suffix, power in _BINARY.items()}

_SHAPE: Final = re.compile(
    r"(?P<sign>[+-]?)0*+(?P<whole>[0-9]*+)(?:(?P<point>\.)(?P<fraction>[0-9]*+))?+"
    r"(?P<suffix>[eEinumkKMGTP]*+[+-]?[0-9]*+)"
)
"""Possessive, because backtracking never matches and would take cubic time."""
_NUMBER_THEN_LETTERS: Final = re.compile(r"[+-]?[0-9.]*([A-Za-z]+)")
_EXPONENT: Final = re.compile(r"[eE]([+-]?[0-9]+)")
_BYTES: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtTpPeE])(i?)([bB]?)")

_MAX_INT64: Final = 2**63 - 1
_INT64_DIGITS: Final = 18
"""Numbers of so many decimal digits always fit in an int64."""
_WRAPPING_EXPONENTS: Final = frozenset({1, 2, 3, 6, 9})
"""Exponents for which Go multiplies in one step and overflow wraps around; for others it gives zero."""
_NANO: Final = -9
_MAX_DIGITS: Final = 1000


@total_ordering
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Quantity:
    """One quantity; immutable. Equality, order and hash are by value: `1Gi` equals `1024Mi`.

    The value is `mantissa * 10**exponent`; `wide` means that Go holds it as a big decimal. Build one with `parse` or `of`.
    """

    mantissa: int
    exponent: int
    wide: bool
    format: Format
    text: str | None = None
    """The parsed text, if Go prints it unchanged."""

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parse a quantity; None if it is invalid."""
        try:
            return cls.parse(text)
        except QuantityError:
            return None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a quantity as Kubernetes does, without surrounding blanks. Raises QuantityError."""
        shape = _SHAPE.fullmatch(text) if text else None
        if shape is None:
            raise QuantityError(text, _what_is_wrong(text), _WRONG_FORMAT)
        whole, fraction, suffix = shape["whole"] or "0", shape["fraction"] or "", shape["suffix"]
        format_, exponent = _read_suffix(text, suffix)
        negative = shape["sign"] == "-"
        _check_length(text, len(whole) + len(fraction) + (exponent if format_ is not Format.BINARY_SI else 0))
        narrow = _parse_narrow(whole, fraction, format_, exponent, negative=negative)
        if narrow is not None:
            mantissa, scale, keeps_text = narrow
            return cls(mantissa, scale, wide=False, format=format_, text=text if keeps_text else None)
        if not any(character in "0123456789" for character in text[: len(text) - len(suffix)]):
            raise QuantityError(text, "it has no number", _WRONG_NUMBER)
        return cls._parse_wide(whole, fraction, format_, exponent, negative=negative)

    @classmethod
    def _parse_wide(cls, whole: str, fraction: str, format_: Format, exponent: int, *, negative: bool) -> Self:
        """Parse a number that does not fit in an int64: rounded away from zero to a billionth."""
        amount, scale = int(whole + fraction), -len(fraction)
        if format_ is Format.BINARY_SI:
            amount <<= 10 * exponent
        else:
            scale += exponent
        if amount:
            amount, scale = _rescale_up(amount, scale, _NANO), _NANO
        else:
            scale = max(scale, -_MAX_DIGITS)
        if format_ is Format.BINARY_SI:
            one = _ten_to(-scale)
            if amount > _MAX_INT64 * one:
                amount, scale = _MAX_INT64, 0
            elif 0 < amount < one:
                format_ = Format.DECIMAL_SI  # a fraction of one has no binary suffix
        return cls(-amount if negative else amount, scale, wide=True, format=format_)

    @classmethod
    def of(cls, number: int, format_: Format = Format.DECIMAL_SI) -> Self:
        """Return the quantity of an integer."""
        return cls(number, 0, wide=not _is_int64(number), format=format_)

    @property
    def nanos(self) -> int:
        """The exact value in billionths; no quantity is finer."""
        if self.exponent < _NANO:  # the sum with a zero of many decimals
            return self.mantissa // _ten_to(_NANO - self.exponent)
        return self.mantissa * _ten_to(self.exponent - _NANO)

    def __str__(self) -> str:
        return self.text if self.text is not None else self.canonical()

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def canonical(self) -> str:
        """Return the canonical text: no fraction, the largest exact suffix, in the original format."""
        if not self.mantissa:
            return "0"
        if self.format is Format.BINARY_SI and abs(self.nanos) >= 1024 * 10**9 and self.nanos % 10**9 == 0:
            amount, power = _without_factors(self.nanos // 10**9, 1024)
            return f"{amount}{_BINARY_OF.get(power, '')}"  # above Ei Go prints no suffix
        amount, tens = _without_factors(self.mantissa, 10)
        exponent = self.exponent + tens
        amount *= _ten_to(exponent % 3)
        exponent -= exponent % 3
        if self.format is Format.DECIMAL_EXPONENT:
            return f"{amount}e{exponent}" if exponent else str(amount)
        return f"{amount}{_DECIMAL_OF.get(exponent, '')}"  # the same above E

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self.nanos == other.nanos

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self.nanos < other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)

    def compare(self, other: "Quantity") -> int:
        """Return -1, 0 or 1: this one is less than, equal to or greater than the other."""
        return (self.nanos > other.nanos) - (self.nanos < other.nanos)

    def sign(self) -> int:
        """-1, 0 or 1."""
        return (self.mantissa > 0) - (self.mantissa < 0)

    def __bool__(self) -> bool:
        return self.mantissa != 0

    def __neg__(self) -> "Quantity":
        return Quantity(-self.mantissa, self.exponent, wide=self.wide, format=self.format)

    def __add__(self, other: "Quantity") -> "Quantity":
        """The sum, in this one's format, or in the other's if this one is zero."""
        format_ = self.format if self.mantissa else other.format
        exponent = min(self.exponent, other.exponent)
        if self.wide or other.wide:
            return Quantity(_sum_at(self, other, exponent), exponent, wide=True, format=format_)
        if not other.mantissa:
            return Quantity(self.mantissa, self.exponent, wide=False, format=format_)
        if not self.mantissa:
            return Quantity(other.mantissa, other.exponent, wide=False, format=format_)
        total = _sum_at(self, other, exponent)
        coarse = max(self, other, key=lambda one: one.exponent)
        fits = _is_int64(coarse.mantissa * _ten_to(coarse.exponent - exponent)) and _is_int64(total)
        return Quantity(total, exponent, wide=not fits, format=format_)

    def __sub__(self, other: "Quantity") -> "Quantity":
        """The difference, in this one's format, or in the other's if this one is zero. Like Go, adds the wrapped negation."""
        if not other.wide:
            total = self + Quantity(_wrapped(-other.mantissa), other.exponent, wide=False, format=other.format)
            if not total.wide:
                return total
        return self + Quantity(-other.mantissa, other.exponent, wide=True, format=other.format)

    def as_int64(self) -> int | None:
        """Return the value if Go's `AsInt64` gives one; None otherwise, even for some whole numbers."""
        if self.wide or self.exponent < 0:
            return None
        number = self.mantissa * _ten_to(self.exponent)
        return number if _is_int64(number) else None

    def value(self) -> int:
        """Return the value rounded up to an integer like Go's `Value`, including int64 overflow."""
        if not self.wide:
            number = _rescale_up(self.mantissa, self.exponent, 0)
            return _wrapped(number) if self.exponent in _WRAPPING_EXPONENTS or _is_int64(number) else 0
        return self._wide_value()

    def _wide_value(self) -> int:
        down = -self.exponent
        if down == 0:
            return _wrapped(self.mantissa)
        if down < 0:
            factor = _ten_to(-down) if -down <= _INT64_DIGITS else -(2**63)  # amd64's conversion of a too large float
            return _wrapped(_wrapped(self.mantissa) * factor)
        divisor = _ten_to(down)
        if self.mantissa < _MAX_INT64 and down <= _INT64_DIGITS:
            low = _wrapped(self.mantissa)
            quotient = abs(low) // divisor * (-1 if low < 0 else 1)  # towards zero, as Go divides
            return quotient + 1 if low % divisor else quotient
        return _wrapped(-(-self.mantissa // divisor))

    def approximate(self) -> float:
        """Return the float of Go's `AsApproximateFloat64`; infinite if it is too large."""
        try:
            base = float(self.mantissa)
        except OverflowError:
            return math.copysign(math.inf, self.mantissa)
        return base * _power_of_ten(self.exponent) if self.exponent else base


def _read_suffix(text: str, suffix: str) -> tuple[Format, int]:
    """Format and exponent of a suffix: a power of 1024 for BinarySI, else of ten."""
    if suffix in _DECIMAL:
        return Format.DECIMAL_SI, _DECIMAL[suffix]
    if suffix in _BINARY:
        return Format.BINARY_SI, _BINARY[suffix]
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is None:
        raise QuantityError(text, f'unknown suffix "{suffix[:20]}"', _WRONG_SUFFIX)
    if len(exponent[1]) > _MAX_DIGITS or not _is_int64(int(exponent[1])):
        raise QuantityError(text, f"it has more than {_MAX_DIGITS} digits", _WRONG_SUFFIX)
    return Format.DECIMAL_EXPONENT, int(exponent[1])


def _check_length(text: str, digits: int) -> None:
    if digits > _MAX_DIGITS:
        raise QuantityError(text, f"it has more than {_MAX_DIGITS} digits", _WRONG_NUMBER)


def _what_is_wrong(text: str) -> str:
    if not text:
        return "it is empty"
    if text != text.strip():
        return "it has spaces around it"
    letters = _NUMBER_THEN_LETTERS.fullmatch(text)
    if letters is not None and any(character in "0123456789" for character in text):
        return f'unknown suffix "{letters[1]}"'
    return "it is not of the form number and suffix"


def _parse_narrow(
    whole: str, fraction: str, format_: Format, exponent: int, *, negative: bool
) -> tuple[int, int, bool] | None:
    """Mantissa, exponent and "keeps its text" (Go's shortcut for "canonical") of an int64; None for a big decimal."""
    digits = whole + fraction
    if format_ is Format.BINARY_SI:
        if fraction or len(whole) > 14 - 3 * exponent:
            return None
        number = int(whole)
        mantissa, scale, keeps_text = number << 10 * exponent, 0, number % 8 != 0
    else:
        scale = exponent - len(fraction)
        if len(digits) > _INT64_DIGITS or scale < _NANO:
            return None
        mantissa = int(digits)
        keeps_text = scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
    return -mantissa if negative else mantissa, scale, keeps_text


def _sum_at(one: Quantity, other: Quantity, exponent: int) -> int:
    return one.mantissa * _ten_to(one.exponent - exponent) + other.mantissa * _ten_to(other.exponent - exponent)


def _rescale_up(mantissa: int, exponent: int, wanted: int) -> int:
    """The mantissa at another exponent, rounded away from zero if that is coarser."""
    if exponent >= wanted:
        return mantissa * _ten_to(exponent - wanted)
    if wanted - exponent > 2 * _MAX_DIGITS:  # no quantity is that long: the rest is less than one
        return (mantissa > 0) - (mantissa < 0)
    magnitude = -(-abs(mantissa) // _ten_to(wanted - exponent))
    return -magnitude if mantissa < 0 else magnitude


def _without_factors(number: int, factor: int) -> tuple[int, int]:
    """The nonzero number divided by `factor` as often as possible, and how often."""
    times = 0
    while True:
        quotient, rest = divmod(number, factor)
        if rest:
            return number, times
        number, times = quotient, times + 1


def _ten_to(power: int) -> int:
    """A power of ten, for powers from 0."""
    result: int = 10**power
    return result


def _is_int64(number: int) -> bool:
    return -_MAX_INT64 - 1 <= number <= _MAX_INT64


def _wrapped(number: int) -> int:
    """The low 64 bits as a signed number, like Go's conversions."""
    return (number + 2**63) % 2**64 - 2**63


def _power_of_ten(exponent: int) -> float:
    """Go's `math.Pow10`, whose tables do not always give the nearest float."""
    tens, ones = divmod(abs(exponent), 32)
    if exponent > 308:
        return math.inf
    if exponent < 0:
        return float(f"1e-{32 * tens}") / float(f"1e{ones}")
    return float(f"1e{32 * tens}") * float(f"1e{ones}")


def quantity_meant(text: str) -> str | None:
    """The quantity that the text is or means: 40G for 40GB; None if ambiguous: 40g is 40Gi for Docker, 40Gb are bits."""
    return text if Quantity.read(text) is not None else _intended(text)


def _intended(text: str) -> str | None:
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        return None
    number, prefix, binary, unit = match.groups()
    if prefix == "m" and not binary and not unit:
        return f"{number}m"  # m is milli
    if (prefix in "gtpe" and not binary and not unit) or (prefix.isupper() and unit == "b"):
        return None
    prefix = prefix.upper()
    return f"{number}{'k' if prefix == 'K' and not binary else prefix}{binary}"
