"""Whether a set of instances fits on a number of equal GPUs if all were placed again: an exact test.

Owns that question only; `geometry` places instances. Two kinds of board have a closed form that is fast for any number of GPUs;
every other table is searched. On nested boards (each size divides the next, and starts are all multiples of it)
instances fit if their units do. On the eight-unit grid of seven compute slices a GPU is two halves: the left is one 4g, one 3g or
two pairs of units; the right is one 3g, or a pair and the weak pair (units 6 and 7), which takes a double-memory 1g or a single
1g, but no 2g.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import pairwise

from draco.mig.board import Board, Profile
from draco.mig.geometry import SharedResource, scarce

Counts = Mapping[Profile, int]
"""How many instances of each profile."""


class ClosedForm(Enum):
    """Why a board's packing has a closed form, or that it has none."""

    NESTED = "nested"
    SEVEN_SLICES = "seven slices"
    OTHER = "other"


class _Role(Enum):
    SINGLE = (1, (0, 1, 2, 3, 4, 5, 6))
    DOUBLE = (2, (0, 2, 4, 6))
    PAIR = (2, (0, 2, 4))
    THREE = (4, (0, 4))
    FOUR = (4, (0,))
    WHOLE = (8, (0,))


_ROLES = {role.value: role for role in _Role}


def packable(board: Board, counts: Counts, gpus: int) -> bool:
    """Whether these instances fit on that many empty GPUs of the board."""
    wanted = {profile: number for profile, number in counts.items() if number > 0}
    if not wanted:
        return True
    tokens = _tokens(board, frozenset(wanted))
    match shape(board):
        case ClosedForm.NESTED if not tokens:
            return sum(profile.size * number for profile, number in wanted.items()) <= gpus * board.units
        case ClosedForm.SEVEN_SLICES if _only_singles_are_scarce(tokens, wanted):
            rare = sum(n for profile, n in wanted.items() if profile.size == 1 and tokens and tokens[0].uses[profile])
            return _seven_slices_fit(wanted, gpus, rare)
    return _search(board, frozenset(wanted)).packable(wanted, gpus)


@lru_cache(maxsize=256)
def shape(board: Board) -> ClosedForm:
    """The closed form of a board, by its table alone."""
    sizes = sorted({profile.size for profile in board.profiles} | {board.units})
    divides = all(larger % smaller == 0 for smaller, larger in pairwise(sizes))
    if divides and all(sorted(p.starts) == list(range(0, board.units, p.size)) for p in board.profiles):
        return ClosedForm.NESTED
    if board.units == 8 and all(_role(profile) for profile in board.profiles):
        return ClosedForm.SEVEN_SLICES
    return ClosedForm.OTHER


def _role(profile: Profile) -> _Role | None:
    return _ROLES.get((profile.size, tuple(sorted(profile.starts))))


@lru_cache(maxsize=4096)
def _tokens(board: Board, wanted: frozenset[Profile]) -> tuple[SharedResource, ...]:
    return scarce(board, tuple(sorted(wanted, key=lambda profile: profile.id)))


def _only_singles_are_scarce(tokens: Sequence[SharedResource], wanted: Counts) -> bool:
    """Whether the only scarce resource, if any, is one 1g with certain engines (`+me`) per GPU."""
    if not tokens:
        return True
    [token, *more] = tokens
    return not more and token.total == 1 and all(p.size in {1, 8} or not token.uses[p] for p in wanted)


def _seven_slices_fit(wanted: Counts, gpus: int, rare: int) -> bool:
    number = dict.fromkeys(_Role, 0)
    for profile, instances in wanted.items():
        role = _role(profile)
        assert role is not None  # noqa: S101 - the board's shape says so
        number[role] += instances
    shared = gpus - number[_Role.WHOLE]  # GPUs that hold no 7g
    threes_right = min(number[_Role.THREE], shared)
    left_taken = number[_Role.FOUR] + number[_Role.THREE] - threes_right
    left, right = shared - left_taken, shared - threes_right  # halves still free
    if left < 0:
        return False
    pairs = 2 * left + right - number[_Role.PAIR]
    doubles_in_weak = min(number[_Role.DOUBLE], right)
    if pairs < 0:
        return False
    pairs -= number[_Role.DOUBLE] - doubles_in_weak
    weak = right - doubles_in_weak  # each takes one 1g
    if number[_Role.SINGLE] > 2 * pairs + weak:
        return False
    # A rare 1g needs its own GPU with a place for any 1g: a weak pair, or a free pair on a GPU without one. Full halves are
    # packed on as few GPUs as possible.
    full = max(0, left_taken + threes_right - shared)
    return rare <= weak + min(pairs, shared - full - weak)


class _Search:
    """The general case: how often to use which layout of one GPU, found by search.

    A layout counts only by how many of each profile it holds, and only layouts to which nothing can be added are used. Most
    impossible sets are rejected by weights that a GPU holds only so much of; the others by depth-first search with memory of
    failures. Profiles with equal needs are merged.
    """

    def __init__(self, board: Board, profiles: Sequence[Profile]) -> None:
        tokens = _tokens(board, frozenset(profiles))
        alike: dict[tuple[object, ...], list[Profile]] = {}
        for each in sorted(profiles, key=lambda each: (-each.size, len(each.starts), each.id)):
            alike.setdefault((each.size, tuple(sorted(each.starts)), *(t.uses[each] for t in tokens)), []).append(each)
        self._alike = list(alike.values())
        kinds = [each[0] for each in self._alike]
        self._sizes = tuple(kind.size for kind in kinds)
        self._layouts = _maximal(_multisets(kinds, tokens))
        at_least = [tuple(int(kind.size >= size) for kind in kinds) for size in set(self._sizes)]
        alone = [tuple(int(other is kind) for other in kinds) for kind in kinds]
        gauges = [self._sizes, *at_least, *alone, *(tuple(token.uses[kind] for kind in kinds) for token in tokens)]
        self._most = [(gauge, max(_dot(gauge, made) for made in self._layouts)) for gauge in gauges]
        self._failed: set[tuple[tuple[int, ...], int]] = set()

    def packable(self, counts: Counts, gpus: int) -> bool:
        start = (tuple(sum(counts.get(profile, 0) for profile in kind) for kind in self._alike), gpus)
        if self._hopeless(*start):
            return False
        path = [(start, self._steps(*start))]
        while path:
            (left, _), steps = path[-1]
            if not any(left):
                return True
            step = next((each for each in steps if not self._hopeless(*each)), None)
            if step is None:
                self._failed.add(path.pop()[0])
            else:
                path.append((step, self._steps(*step)))
        return False

    def _steps(self, left: tuple[int, ...], gpus: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """What is left after one more GPU, which holds one of the hardest kind and as much as fits beside it."""
        first = next((index for index, number in enumerate(left) if number), 0)
        clipped = {tuple(map(min, made, left)) for made in self._layouts if made[first]}
        for made in sorted(_maximal(clipped), key=lambda each: (-_dot(self._sizes, each), each)):
            yield tuple(map(int.__sub__, left, made)), gpus - 1

    def _hopeless(self, left: tuple[int, ...], gpus: int) -> bool:
        return any(_dot(gauge, left) > gpus * most for gauge, most in self._most) or (left, gpus) in self._failed


@lru_cache(maxsize=256)
def _search(board: Board, profiles: frozenset[Profile]) -> _Search:
    return _Search(board, tuple(profiles))


def _multisets(profiles: Sequence[Profile], tokens: Sequence[SharedResource]) -> set[tuple[int, ...]]:
    """How many of each profile the layouts of one GPU hold, computed from the first unit to the last."""
    reached: dict[int, set[tuple[int, ...]]] = {0: {(0,) * len(profiles)}}
    done: set[tuple[int, ...]] = set()
    last = max(start for profile in profiles for start in profile.starts)
    while reached:
        unit = min(reached)
        here = reached.pop(unit)
        if unit > last:
            done |= here
            continue
        reached.setdefault(unit + 1, set()).update(here)
        for index, profile in enumerate(profiles):
            if unit in profile.starts:
                more = {(*made[:index], made[index] + 1, *made[index + 1 :]) for made in here}
                reached.setdefault(unit + profile.size, set()).update(m for m in more if _allowed(profiles, tokens, m))
    return done


def _allowed(profiles: Sequence[Profile], tokens: Sequence[SharedResource], made: tuple[int, ...]) -> bool:
    return all(sum(t.uses[p] * n for p, n in zip(profiles, made, strict=True)) <= t.total for t in tokens)


def _maximal(made: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    kept: list[tuple[int, ...]] = []
    for one in sorted(made, key=sum, reverse=True):
        if not any(all(map(int.__le__, one, other)) for other in kept):
            kept.append(one)
    return set(kept)


def _dot(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(map(int.__mul__, one, other))
