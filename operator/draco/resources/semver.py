"""SemVer: versions in device attributes, strictly semver.org 2.0.0, equal to Kubernetes' Go library (blang/semver).

Numbers are unsigned 64-bit there, so larger ones are refused here too.
"""

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Final, Self

from draco.resources.errors import DracoError

_MAX_UINT64: Final = 2**64 - 1
_IDENTIFIER: Final = re.compile(r"[0-9A-Za-z-]+")
_EXAMPLE: Final = "write major.minor.patch, for example 1.2.3 or 1.2.3-rc.1"


class SemVerError(DracoError, ValueError):
    """A text is not a semantic version. `upstream` is Kubernetes' error for it, with `{}` in place of the quoted `part`."""

    def __init__(self, text: str, reason: str, upstream: str, part: str = "") -> None:
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        super().__init__(f'"{shown}" is not a semantic version: {reason}; {_EXAMPLE}')
        self.upstream = upstream
        self.part = part


@total_ordering
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SemVer:
    """One version; immutable. Equality, order and hash are by precedence, so build metadata does not count."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()
    build: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a version strictly. Raises SemVerError."""
        parts = text.split(".", 2)
        if len(parts) != 3:
            upstream = "No Major.Minor.Patch elements found" if text else "Version string empty"
            raise SemVerError(text, "it does not have three numbers", upstream)
        rest, plus, build = parts[2].partition("+")
        patch, dash, prerelease = rest.partition("-")
        return cls(
            _number(text, "major", parts[0]),
            _number(text, "minor", parts[1]),
            _number(text, "patch", patch),
            tuple(_prerelease(text, one) for one in prerelease.split(".")) if dash else (),
            tuple(_identifier(text, "build metadata", one) for one in build.split(".")) if plus else (),
        )

    @classmethod
    def read(cls, text: str, *, loosely: bool = False) -> Self | None:
        """Parse a version; None if it is invalid."""
        try:
            return cls.parse_loosely(text) if loosely else cls.parse(text)
        except SemVerError:
            return None

    @classmethod
    def parse_loosely(cls, text: str) -> Self:
        """Parse as Kubernetes normalises: without `v` and leading zeros; missing numbers are zero. Raises SemVerError."""
        parts = [_without_leading_zeros(part) for part in text.removeprefix("v").split(".", 2)]
        if len(parts) < 3:
            if "+" in parts[-1] or "-" in parts[-1]:
                reason = "a short version cannot carry a prerelease or build metadata"
                raise SemVerError(text, reason, "short version cannot contain PreRelease/Build meta data")
            parts += ["0"] * (3 - len(parts))
        return cls.parse(".".join(parts))

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(map(str, self.prerelease))
        if self.build:
            text += "+" + ".".join(self.build)
        return text

    def __repr__(self) -> str:
        return f"SemVer({str(self)!r})"

    @property
    def precedence(self) -> tuple[object, ...]:
        """A sort key: a prerelease before its release, numbers before words, fewer identifiers before more."""
        identifiers = tuple((0, one, "") if isinstance(one, int) else (1, 0, one) for one in self.prerelease)
        return (self.major, self.minor, self.patch, not self.prerelease, identifiers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SemVer):
            return NotImplemented
        return self.precedence == other.precedence

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, SemVer):
            return NotImplemented
        return self.precedence < other.precedence

    def __hash__(self) -> int:
        return hash(self.precedence)

    def compare(self, other: "SemVer") -> int:
        """Return -1, 0 or 1: this one is older than, equal to or newer than the other."""
        return (self > other) - (self < other)


def _number(text: str, name: str, digits: str) -> int:
    if digits.isascii() and digits.isdigit():
        return _plain_number(text, digits, f"the {name} part", f"{name.capitalize()} number")
    invalid = (
        f"Invalid character(s) found in {name} number {{}}"
        if digits
        else "strconv.ParseUint: parsing {}: invalid syntax"
    )
    raise SemVerError(text, f"the {name} part {digits[:20]!r} is not a number", invalid, digits)


def _prerelease(text: str, identifier: str) -> int | str:
    if identifier.isascii() and identifier.isdigit():
        return _plain_number(text, identifier, "the prerelease number", "Numeric PreRelease version")
    return _identifier(text, "prerelease", identifier)


def _plain_number(text: str, digits: str, name: str, upstream_name: str) -> int:
    if len(digits) > 1 and digits[0] == "0":
        upstream = f"{upstream_name} must not contain leading zeroes {{}}"
        raise SemVerError(text, f"{name} {digits[:20]!r} has leading zeros", upstream, digits)
    if len(digits) > 20 or int(digits) > _MAX_UINT64:
        out_of_range = "strconv.ParseUint: parsing {}: value out of range"
        raise SemVerError(text, f"the number {digits[:20]} is too large", out_of_range, digits)
    return int(digits)


def _identifier(text: str, name: str, identifier: str) -> str:
    upstream = name.replace("metadata", "meta data")
    if not identifier:
        raise SemVerError(text, f"in its {name} a part is empty", f"{upstream.capitalize()} is empty")
    if not _IDENTIFIER.fullmatch(identifier):
        reason = f"in its {name} {identifier[:20]!r} has characters other than letters, digits and dashes"
        raise SemVerError(text, reason, f"Invalid character(s) found in {upstream} {{}}", identifier)
    return identifier


def _without_leading_zeros(part: str) -> str:
    if len(part) <= 1:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1] in set("0123456789") else f"0{stripped}"
