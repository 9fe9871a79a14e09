"""What still fits beside existing instances, how much each further one costs, and on which GPU and start it goes.

Owns the states of one GPU, computed once per table and shared by all GPUs that have it, and the rule of capability loss over
several GPUs of one board. Knows nothing of claims, nodes or NVML calls, and changes no GPU. A state is the units and the scarce
shared engines in use. Units decide nearly everything: only engines are counted that can run out before the units do (on the
common boards the optical flow accelerator of `+me`).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from draco.mig.board import Board, Placement, Profile

_ENGINES = ("ofa_engines", "decoders", "jpeg_engines", "encoders", "copy_engines", "multiprocessors")


class State(NamedTuple):
    """What of a GPU is in use. Equal states are interchangeable for every decision."""

    mask: int
    """Memory units, one bit each."""
    tokens: tuple[int, ...]
    """How much of each scarce resource is in use."""
    instances: int
    """The number of instances. The more, the later the GPU becomes empty."""


class SharedResource(NamedTuple):
    """A shared resource that runs out before the units do."""

    name: str
    total: int
    uses: Mapping[Profile, int]


class PlacementRank(NamedTuple):
    """The quality of a placement; smaller is better."""

    loss: int
    minus_instances: int
    units_left: int
    minus_start: int
    placement: Placement

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """The compared part, without the placement."""
        return self[:4]


class Geometry:
    """Everything derived from one board's table, cached per state (192 masks on the 8-unit boards). Use `geometry(board)`."""

    def __init__(self, board: Board, wanted: frozenset[str]) -> None:
        self.board = board
        self.wanted = tuple(each for each in board.profiles if not wanted or each.name in wanted)
        """The profiles to keep room for: all, unless a policy permits only these."""
        alike: dict[tuple[object, ...], list[Profile]] = {}
        for each in self.wanted:
            alike.setdefault((each.size, each.slices, frozenset(each.starts)), []).append(each)
        self._families = tuple(alike.values())
        self.tokens = scarce(board)
        self.empty = State(0, (0,) * len(self.tokens), 0)
        self._uses = {each: tuple(token.uses[each] for token in self.tokens) for each in board.profiles}
        self._masks = {
            each: tuple((s, Placement(each, s).mask) for s in sorted(each.starts)) for each in board.profiles
        }
        self._fits: dict[State, tuple[Placement, ...]] = {}
        self._room: dict[tuple[State, Profile], int] = {}
        self._capability: dict[State, int] = {}
        self._best: dict[tuple[State, Profile], PlacementRank | None] = {}

    def add(self, state: State, placement: Placement) -> State:
        """The state with one more instance."""
        uses = self._uses[placement.profile]
        return State(state.mask | placement.mask, tuple(map(int.__add__, state.tokens, uses)), state.instances + 1)

    def block(self, state: State, mask: int) -> State:
        """The state with one more instance of a profile that the board's table lacks: only its units count."""
        return State(state.mask | mask, state.tokens, state.instances + 1)

    def remove(self, state: State, placement: Placement) -> State:
        """The state with one instance less."""
        uses = self._uses[placement.profile]
        return State(state.mask & ~placement.mask, tuple(map(int.__sub__, state.tokens, uses)), state.instances - 1)

    def state_of(self, placements: Iterable[Placement]) -> State:
        """The state of a GPU with these instances."""
        state = self.empty
        for placement in placements:
            state = self.add(state, placement)
        return state

    def fits(self, state: State) -> tuple[Placement, ...]:
        """Every placement that is possible now."""
        if (known := self._fits.get(state)) is None:
            known = tuple(
                Placement(profile, start)
                for profile in self.board.profiles
                if self._has_tokens(state, profile)
                for start, mask in self._masks[profile]
                if not state.mask & mask
            )
            self._fits[state] = known
        return known

    def fits_at(self, state: State, placement: Placement) -> bool:
        """Whether that placement is possible now."""
        return (
            placement.start in placement.profile.starts
            and not state.mask & placement.mask
            and self._has_tokens(state, placement.profile)
        )

    def room(self, state: State, profile: Profile) -> int:
        """How many instances of one profile still fit, without others."""
        if (known := self._room.get((state, profile))) is None:
            known, end = 0, 0
            for start, mask in self._masks[profile]:
                if start >= end and not state.mask & mask:
                    known, end = known + 1, start + profile.size
            for token, used, use in zip(self.tokens, state.tokens, self._uses[profile], strict=True):
                if use:
                    known = min(known, max(0, token.total - used) // use)
            self._room[state, profile] = known
        return known

    def capability(self, state: State) -> int:
        """Compute slices of everything that still fits, profile by profile, each counted alone.

        It measures options, not capacity. Variants that differ only in engines (`+me`) count as one profile: counted separately,
        they reward free units scattered over many GPUs, which cost accepted claims in replays.
        """
        if (known := self._capability.get(state)) is None:
            known = sum(kind[0].slices * max(self.room(state, each) for each in kind) for kind in self._families)
            self._capability[state] = known
        return known

    def rank(self, state: State, placement: Placement) -> PlacementRank:
        """The rule that compares placements.

        Least loss first. Then the GPU with most instances, which will be the last to become empty, so that others become empty
        sooner. Then fewest units left, then the highest start.
        """
        after = self.add(state, placement)
        left = self.board.units - after.mask.bit_count()
        loss = self.capability(state) - self.capability(after)
        return PlacementRank(loss, -state.instances, left, -placement.start, placement)

    def best(self, state: State, profile: Profile) -> PlacementRank | None:
        """The best start for a profile on a GPU in this state; None if it does not fit."""
        key = (state, profile)
        if key not in self._best:
            ranked = [self.rank(state, each) for each in self.fits(state) if each.profile == profile]
            self._best[key] = min(ranked, key=lambda each: each.cost, default=None)
        return self._best[key]

    def _has_tokens(self, state: State, profile: Profile) -> bool:
        uses = self._uses[profile]
        return all(
            not use or used + use <= token.total
            for token, used, use in zip(self.tokens, state.tokens, uses, strict=True)
        )


@lru_cache(maxsize=256)
def geometry(board: Board, wanted: frozenset[str] = frozenset()) -> Geometry:
    """The geometry of a board: one object for equal tables. `wanted` are the profiles to keep room for; empty means all."""
    return Geometry(board, wanted)


def scarce(board: Board, profiles: Sequence[Profile] = ()) -> tuple[SharedResource, ...]:
    """The shared resources that can run out before the units do, if only these profiles (by default all) are used.

    An engine count that contradicts NVML's maximum of instances for a profile is ignored: some tables have such counts, and the
    maximum was observed to hold.
    """
    profiles = profiles or board.profiles
    kept = [token for token in (*_engines(board), *_instance_limits(board)) if _most(profiles, token) > token.total]
    for token in reversed(kept.copy()):
        others = [each for each in kept if each is not token]
        if _most(profiles, token, others) <= token.total:
            kept = others
    return tuple(kept)


def _engines(board: Board) -> Iterable[SharedResource]:
    if not board.profiles or board.whole.size < board.units:
        return  # no profile has all engines, so their total is unknown
    for engine in _ENGINES:
        total = getattr(board.whole, engine)
        uses = {profile: getattr(profile, engine) for profile in board.profiles}
        if all(use * profile.max_instances <= total for profile, use in uses.items()):
            yield SharedResource(engine, total, uses)


def _instance_limits(board: Board) -> Iterable[SharedResource]:
    for profile in board.profiles:
        uses = {each: int(each == profile) for each in board.profiles}
        yield SharedResource(f"instances of {profile.name}", profile.max_instances, uses)


def _most(profiles: Sequence[Profile], token: SharedResource, kept: Sequence[SharedResource] = ()) -> int:
    """The most of a resource that coexisting instances could use within the other limits."""
    starting: dict[int, list[Profile]] = {}
    for profile in profiles:
        for start in profile.starts:
            starting.setdefault(start, []).append(profile)
    free_from: dict[int, dict[tuple[int, ...], int]] = {0: {(0,) * len(kept): 0}}  # unit -> uses of the others -> most
    for unit in range(max(starting, default=-1) + 1):
        for uses, most in free_from.pop(unit, {}).items():
            _raise(free_from, unit + 1, uses, most)
            for profile in starting.get(unit, ()):
                after = tuple(used + other.uses[profile] for used, other in zip(uses, kept, strict=True))
                if all(used <= other.total for used, other in zip(after, kept, strict=True)):
                    _raise(free_from, unit + profile.size, after, most + token.uses[profile])
    return max(most for found in free_from.values() for most in found.values())


def _raise(found: dict[int, dict[tuple[int, ...], int]], unit: int, uses: tuple[int, ...], most: int) -> None:
    here = found.setdefault(unit, {})
    here[uses] = max(here.get(uses, 0), most)


class Choice(NamedTuple):
    """A place for one instance; `gpu` is an index into the given GPUs."""

    gpu: int
    placement: Placement

    @property
    def start(self) -> int:
        """The first memory unit."""
        return self.placement.start


class BoardPool:
    """GPUs of one board with their instances, grouped by state, so a choice compares states instead of GPUs."""

    def __init__(self, geometry: Geometry, states: Iterable[State]) -> None:
        self.geometry = geometry
        self.states = list(states)
        self._alike: dict[State, set[int]] = {}
        for gpu, state in enumerate(self.states):
            self._alike.setdefault(state, set()).add(gpu)

    def choose(self, profile: Profile) -> Choice | None:
        """The place with the least capability loss; the first GPU among equal ones. None if the profile fits nowhere."""
        ranked = [
            (best.cost, best.placement, state) for state in self._alike if (best := self.geometry.best(state, profile))
        ]
        if not ranked:
            return None
        least = min(rank for rank, _, _ in ranked)
        return min(
            (Choice(min(self._alike[state]), placement) for rank, placement, state in ranked if rank == least),
            key=lambda choice: choice.gpu,
        )

    def put(self, choice: Choice) -> None:
        """Record a new instance."""
        self._change(choice.gpu, self.geometry.add(self.states[choice.gpu], choice.placement))

    def take(self, choice: Choice) -> None:
        """Record a destroyed instance."""
        self._change(choice.gpu, self.geometry.remove(self.states[choice.gpu], choice.placement))

    def room(self, profile: Profile) -> int:
        """How many more of one profile fit."""
        return sum(len(gpus) * self.geometry.room(state, profile) for state, gpus in self._alike.items())

    def _change(self, gpu: int, state: State) -> None:
        alike = self._alike[self.states[gpu]]
        alike.discard(gpu)
        if not alike:
            del self._alike[self.states[gpu]]
        self.states[gpu] = state
        self._alike.setdefault(state, set()).add(gpu)


def largest_first(profiles: Iterable[Profile]) -> list[Profile]:
    """The order for placing several: the hardest to place first."""
    return sorted(profiles, key=lambda each: (-each.size, len(each.starts)))
