"""Traces of MIG claims: JSON lines in time order, one event each.

Owns the form of a line and what makes a trace invalid. Reads as a stream; memory is bounded by the claims present at one time.
"""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from draco.mig.board import Board, Profile
from draco.mig.layouts import unknown_profiles
from draco.resources.errors import DracoError

LONGEST_LINE: Final = 64 << 10
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
_MISSING: Final = re.compile(r"missing required field `([^`]*)`")
_WRONG: Final = re.compile(r" - at `\$\.(\w+)`")
_FORMS: Final = {"t": "a number", "movable": "true or false"}


class TraceError(DracoError):
    """A trace that cannot be replayed."""


class Arrive(NamedTuple):
    """A claim arrives."""

    t: float
    claim: str
    profile: Profile
    movable: bool


class Depart(NamedTuple):
    """A claim departs."""

    t: float
    claim: str


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    t: float
    arrive: str | int | None = None
    depart: str | int | None = None
    profile: str | None = None
    movable: bool | None = None


def events(lines: Iterable[bytes], board: Board, name: str) -> Iterator[Arrive | Depart]:
    """The events of a trace. Raises TraceError with the first invalid line."""
    decoder = msgspec.json.Decoder(_Line)
    profiles = {profile.name: profile for profile in board.profiles}
    present: set[str] = set()
    before = -math.inf
    for number, written in enumerate(lines, 1):
        where = f"{name}:{number}"
        if len(written) > LONGEST_LINE:
            raise TraceError(f"{where}: the line is longer than {LONGEST_LINE} bytes: an event is one line of JSON")
        if not written.strip():
            continue
        line = _decoded(decoder, written, where)
        if line.t < before:
            raise TraceError(f"{where}: time goes back from {before:g} to {line.t:g}: sort the trace by t")
        before = line.t
        event = _event(line, profiles, board, where)
        if isinstance(event, Arrive):
            if event.claim in present:
                raise TraceError(f"{where}: claim {event.claim} arrives again before it departed: give it another name")
            present.add(event.claim)
        elif event.claim not in present:
            raise TraceError(f"{where}: claim {event.claim} departs, but has not arrived")
        else:
            present.remove(event.claim)
        yield event


def _decoded(decoder: msgspec.json.Decoder[_Line], written: bytes, where: str) -> _Line:
    try:
        return decoder.decode(written)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        form = '{"t": 0.5, "arrive": "a", "profile": "1g.10gb"} or {"t": 2, "depart": "a"}'
        raise TraceError(f"{where}: {_why(str(error))}; an event reads {form}") from None


def _why(problem: str) -> str:
    """Msgspec's decoding error in the words of a trace."""
    if unknown := _UNKNOWN.search(problem):
        return f'an event has no field "{unknown[1][:40]}"'
    if missing := _MISSING.search(problem):
        return f'"{missing[1]}" is missing'
    if wrong := _WRONG.search(problem):
        return f'"{wrong[1]}" must be {_FORMS.get(wrong[1], "a string")}'
    return "the line is not a JSON object"


def _event(line: _Line, profiles: dict[str, Profile], board: Board, where: str) -> Arrive | Depart:
    if not math.isfinite(line.t):
        raise TraceError(f"{where}: t is {line.t}: it must be a number")
    if (line.arrive is None) == (line.depart is None):
        raise TraceError(f'{where}: an event has either "arrive" or "depart", with the name of a claim')
    if line.depart is not None:
        if line.profile is not None or line.movable is not None:
            raise TraceError(f'{where}: only a claim that arrives has "profile" and "movable"')
        return Depart(line.t, str(line.depart))
    if line.profile is None:
        raise TraceError(f'{where}: claim {line.arrive} arrives without "profile"')
    profile = profiles.get(line.profile.removeprefix("MIG "))
    if profile is None:
        raise TraceError(f"{where}: {''.join(unknown_profiles(board, [line.profile]))}")
    return Arrive(line.t, str(line.arrive), profile, bool(line.movable))
