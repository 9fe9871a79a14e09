"""Wanted layouts: from profiles and counts to placements on one GPU of a board, or why that is impossible.

Owns legality and its message, with the nearest possible layout. Which GPU gets which layout, and when, is decided elsewhere.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from draco.mig.board import Board, Placement, Profile
from draco.mig.geometry import Geometry, State, geometry, largest_first
from draco.mig.known_boards import BOARDS
from draco.resources.api.draco import LayoutInstances
from draco.resources.errors import DracoError
from draco.resources.names import MIG_PROFILE


class LayoutError(DracoError):
    """A layout that is impossible on a board. `nearest` is possible, and part of the message; empty if there is none."""

    def __init__(self, reason: str, nearest: Sequence[Placement] = (), shown: str = "", details: str = "") -> None:
        self.nearest = tuple(nearest)
        fix = f"; the nearest that can exist is {shown or written(nearest)}" if nearest else ""
        super().__init__(f"{reason}{fix}{details}")


class _Wanted(NamedTuple):
    profile: Profile
    start: int | None


_TOKENS = MappingProxyType({"ofa_engines": "optical flow accelerators", "jpeg_engines": "JPEG engines"})
ArrangementValue = tuple[int, int, int, int]
"""The value of an arrangement: wanted units it holds, instances it holds, those at a wanted or present start, capability left."""


def resolve(
    board: Board, items: Iterable[LayoutInstances], present: Collection[Placement] = ()
) -> tuple[Placement, ...]:
    """Placements for a layout, by start. Raises `LayoutError` if it is impossible on one GPU of the board.

    With a free choice of start, a `present` instance is kept; otherwise the rest of the GPU keeps the most capability.
    """
    wanted = _expanded(board, list(items))
    made = geometry(board)
    placed, missing = _arranged(made, wanted, frozenset(present))
    starts = Counter(Placement(each.profile, each.start) for each in wanted if each.start is not None)
    off = starts - Counter(placed)
    if not missing and not off:
        return _by_start(placed)
    nearest = _filled(made, placed, missing)
    with_starts = ", ".join(f"{each.profile.name} at {each.start}" for each in nearest)
    raise LayoutError(_reason(made, wanted), nearest, with_starts if off else "")


def written(placements: Iterable[Placement]) -> str:
    """A layout for people: `1 x 3g.40gb, 4 x 1g.10gb`, the largest first."""
    counted = Counter(each.profile for each in placements)
    return ", ".join(f"{counted[profile]} x {profile.name}" for profile in largest_first(counted))


def unknown_profiles(board: Board, lacking: Sequence[str]) -> tuple[str, str]:
    """The message about profiles that a board lacks: the cause, and the profiles that it has."""
    names = [each.name for each in sorted(board.profiles, key=lambda each: (each.size, each.slices, each.name))]
    plain = list(map(_plain, lacking))
    meant = f", write {' and '.join(plain)}" if set(plain) <= set(names) else ""
    cause = f"there is no profile {' or '.join(lacking)} on this board{meant}"
    return cause, f" (the board has {', '.join(names)})"


def _plain(name: str) -> str:
    """The name of a profile without the prefix of nvidia-smi, which writes MIG 1g.10gb."""
    return name.strip().lower().removeprefix("mig").strip()


def _expanded(board: Board, items: Sequence[LayoutInstances]) -> list[_Wanted]:
    """Every wanted instance; of one profile at most one more than a GPU holds, which suffices to see that they do not fit."""
    wanted: list[_Wanted] = []
    for item in items:
        profile = board.profile(item.profile)
        if profile is None:
            lacking = dict.fromkeys(each.profile for each in items if board.profile(each.profile) is None)
            reason, profiles = unknown_profiles(board, list(lacking))
            is_here = all(board.profile(_plain(name)) for name in lacking)
            raise LayoutError(reason, () if is_here else _counterpart(board, items), details=profiles)
        if item.count < 1:
            raise LayoutError(f"count of {item.profile} is {item.count}: it must be at least 1")
        if item.start is not None and item.count > 1:
            raise LayoutError(
                f"{item.count} x {item.profile} cannot all start at {item.start}: give each its own start"
            )
        if item.start is not None and item.start not in profile.starts:
            starts = " or ".join(map(str, sorted(profile.starts)))
            near = min(profile.starts, key=lambda start: (abs(start - (item.start or 0)), start))
            raise LayoutError(f"{item.profile} cannot start at {item.start}: it starts at {starts}, {near} is nearest")
        wanted += [_Wanted(profile, item.start)] * min(item.count, profile.max_instances + 1)
    for profile in dict.fromkeys(each.profile for each in wanted):
        total = sum(item.count for item in items if item.profile == profile.name)
        if total > (most := geometry(board).room(geometry(board).empty, profile)):
            placed, missing = _arranged(geometry(board), wanted, frozenset())
            reason = f"{total} x {profile.name} do not fit on a GPU, which holds at most {most}"
            raise LayoutError(reason, _filled(geometry(board), placed, missing))
    return wanted


def _counterpart(board: Board, items: Sequence[LayoutInstances]) -> tuple[Placement, ...]:
    """The nearest equivalent of a layout that was written for another board; empty if no profile has one.

    Profile names contain the rounded memory, so equally divided boards use different names for the same parts, and one name may
    mean different parts. An NVIDIA board that has all the names determines the parts; without one, the names do.
    """
    items = [msgspec.structs.replace(item, profile=_plain(item.profile)) for item in items]
    source = next((each for each in BOARDS.values() if all(each.profile(item.profile) for item in items)), None)
    wanted: list[_Wanted] = []
    for item in items:
        profile = _like(board, item.profile, source.profile(item.profile) if source is not None else None)
        if profile is not None and item.count > 0:
            wanted += [_Wanted(profile, None)] * min(item.count, profile.max_instances)
    made = geometry(board)
    placed, missing = _arranged(made, wanted, frozenset())
    return _filled(made, placed, missing)


def _like(board: Board, name: str, meant: Profile | None) -> Profile | None:
    """The board's profile with as many slices, the same engines (by its sign), and the nearest memory."""
    if (asked := MIG_PROFILE.fullmatch(name)) is None:
        return None
    alike: dict[Profile, int] = {}
    for each in board.profiles:
        found = MIG_PROFILE.fullmatch(each.name)
        if found is not None and (found["slices"], found["sign"]) == (asked["slices"], asked["sign"]):
            other_gb = abs(int(found["gb"]) - int(asked["gb"]))
            alike[each] = abs(each.size - meant.size) if meant is not None else other_gb
    return min(alike, key=alike.__getitem__, default=None)


def _arranged(
    made: Geometry, wanted: Sequence[_Wanted], present: frozenset[Placement]
) -> tuple[list[Placement], list[Profile]]:
    ordered = sorted(wanted, key=lambda each: (-each.profile.size, each.start is None, each.profile.id))
    known: dict[tuple[State, int], tuple[ArrangementValue, tuple[Placement | None, ...]]] = {}

    def best(state: State, index: int) -> tuple[ArrangementValue, tuple[Placement | None, ...]]:
        if index == len(ordered):
            return (0, 0, 0, made.capability(state)), ()
        if (state, index) not in known:
            each = ordered[index]
            value, rest = best(state, index + 1)
            found: tuple[ArrangementValue, tuple[Placement | None, ...]] = (value, (None, *rest))
            for placement in made.fits(state):
                if placement.profile != each.profile:
                    continue
                (units, number, well, left), rest = best(made.add(state, placement), index + 1)
                well += placement.start == each.start if each.start is not None else placement in present
                value = (units + each.profile.size, number + 1, well, left)
                if value > found[0]:
                    found = value, (placement, *rest)
            known[state, index] = found
        return known[state, index]

    _, places = best(made.empty, 0)
    missing = [each.profile for each, place in zip(ordered, places, strict=True) if place is None]
    return [place for place in places if place is not None], missing


def _filled(made: Geometry, placed: Sequence[Placement], missing: Sequence[Profile]) -> tuple[Placement, ...]:
    filled = list(placed)
    state = made.state_of(filled)
    plain = [each for each in made.board.profiles if not set("+-") & set(each.name)]
    for lacking in largest_first(missing):
        smaller = [p for p in plain if p.size <= lacking.size and p.slices <= lacking.slices and p != lacking]
        for profile in sorted(smaller, key=lambda each: (-each.size, -each.slices)):
            if (ranked := made.best(state, profile)) is not None:
                filled.append(ranked.placement)
                state = made.add(state, ranked.placement)
                break
    return _by_start(filled)


def _reason(made: Geometry, wanted: Sequence[_Wanted]) -> str:
    text = ", ".join(_written(each, number) for each, number in Counter(wanted).items())
    if (units := sum(each.profile.size for each in wanted)) > made.board.units:
        return f"{text} together take {units} memory units, and a GPU has {made.board.units}"
    for token in made.tokens:
        if (uses := sum(token.uses[each.profile] for each in wanted)) > token.total:
            name = _TOKENS.get(token.name, token.name)
            return f"{text} together need {uses} {name}, and a GPU has {token.total}"
    if any(each.start is not None for each in wanted):
        _, missing = _arranged(made, [_Wanted(each.profile, None) for each in wanted], frozenset())
        if not missing:
            return f"{text} overlap where they are to start"
    return f"{text} do not fit beside each other, wherever they start"


def _written(each: _Wanted, number: int) -> str:
    where = "" if each.start is None else f" at {each.start}"
    return f"{each.profile.name}{where}" if where and number == 1 else f"{number} x {each.profile.name}{where}"


def _by_start(placed: Iterable[Placement]) -> tuple[Placement, ...]:
    return tuple(sorted(placed, key=lambda each: each.start))
