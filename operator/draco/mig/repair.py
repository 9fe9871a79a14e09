"""The fewest moves of idle instances that make room for a blocked one.

Owns the plan, exact for two moves: it finds a way if there is one, and among those with fewest moves the one that leaves most
capability. It never touches an instance in use; the plan is executed elsewhere. It applies where Draco chooses places, in
replays. Where kube-scheduler allocates, `draco.mig_policy.releases` tries the removal of claims with the scheduler's own rules.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from draco.mig.board import Placement, Profile
from draco.mig.geometry import BoardPool, Choice, Geometry, State


class PlacedInstance(NamedTuple):
    """An existing instance. `movable`: idle and ours, so it may be destroyed if it is created again elsewhere."""

    placement: Placement
    movable: bool


class InstanceMove(NamedTuple):
    """One instance destroyed and created again."""

    source: Choice
    to: Choice

    def __str__(self) -> str:
        return f"{self.source.placement} of GPU {self.source.gpu} to GPU {self.to.gpu} start {self.to.start}"


class RepairPlan(NamedTuple):
    """A plan: destroy all sources, create them at their targets, then create the wanted one."""

    moves: tuple[InstanceMove, ...]
    wanted: Choice

    def __str__(self) -> str:
        first = "; ".join(map(str, self.moves)) or "no moves"
        return f"{first}; then {self.wanted.placement} on GPU {self.wanted.gpu}"


def plan_repair(
    geometry: Geometry, gpus: Sequence[Sequence[PlacedInstance]], wanted: Profile, max_moves: int = 2
) -> RepairPlan | None:
    """Make room for one more instance with at most `max_moves` (0 to 2) moves; None if that is impossible.

    `gpus` are all GPUs of the same board that may take part, with every instance on them.
    """
    if not 0 <= max_moves <= 2:
        raise ValueError(f"repair is planned for 0 to 2 moves, not {max_moves}")
    search = _Search(geometry, gpus)
    if (choice := search.pool.choose(wanted)) is not None:
        return RepairPlan((), choice)
    for moves in range(1, max_moves + 1):
        if found := min(search.plans(wanted, moves), key=lambda plan: plan[:2], default=None):
            return found.moves
    return None


class _Opened(NamedTuple):
    """Room made on one GPU: what leaves, and what replaces it."""

    out: tuple[Choice, ...]
    into: Choice


class _Plan(NamedTuple):
    """Fields are ordered by importance; smaller is better, as for a placement."""

    lost: int
    units_left: int
    moves: RepairPlan


class _Search:
    """Tries plans on a copy of the fleet's states, and undoes each."""

    def __init__(self, geometry: Geometry, gpus: Sequence[Sequence[PlacedInstance]]) -> None:
        self.geometry = geometry
        self.pool = BoardPool(geometry, [geometry.state_of(held.placement for held in gpu) for gpu in gpus])
        self.lost = 0
        """Capability lost by what is applied so far."""
        self._movable = {
            gpu: [Choice(gpu, held.placement) for held in gpus[gpu] if held.movable] for gpu in _few_of_each(gpus)
        }

    def plans(self, wanted: Profile, moves: int) -> Iterator[_Plan]:
        for opened in self._openings(wanted, moves, ()):
            self._open(opened)
            yield from self._finished(opened.into, [], opened.out)
            self._close(opened)
        if moves == 2:
            yield from self._chains(wanted)

    def _chains(self, wanted: Profile) -> Iterator[_Plan]:
        for first in self._openings(wanted, 1, ()):
            self._open(first)
            [moved] = first.out
            for second in self._openings(moved.placement.profile, 1, first.out):
                self._open(second)
                yield from self._finished(first.into, [InstanceMove(moved, second.into)], second.out)
                self._close(second)
            self._close(first)

    def _openings(self, profile: Profile, moves: int, gone: tuple[Choice, ...]) -> Iterator[_Opened]:
        """Places for a profile if exactly that many movable instances of one GPU leave, and not with fewer."""
        for gpu, movable in self._movable.items():
            state = self.pool.states[gpu]
            for out in combinations([each for each in movable if each not in gone], moves):
                opened = self._without(state, out)
                if not self.geometry.room(opened, profile):
                    continue
                fewer = [self._without(state, part) for part in combinations(out, moves - 1)]
                for placement in self.geometry.fits(opened):
                    if placement.profile == profile and not any(self.geometry.fits_at(s, placement) for s in fewer):
                        yield _Opened(out, Choice(gpu, placement))

    def _finished(self, wanted: Choice, done: list[InstanceMove], out: Sequence[Choice]) -> Iterator[_Plan]:
        units_left = self.geometry.board.units - self.pool.states[wanted.gpu].mask.bit_count()
        homeless = sorted(out, key=lambda each: (-each.placement.profile.size, each.gpu, each.start))
        if (homed := self._homes(homeless)) is not None:
            moves, lost = homed
            yield _Plan(lost, units_left, RepairPlan((*done, *moves), wanted))

    def _homes(self, homeless: Sequence[Choice]) -> tuple[list[InstanceMove], int] | None:
        """Targets for all, and the total loss."""
        if not homeless:
            return [], self.lost
        first, *rest = homeless
        for home in self._places(first.placement.profile, only_best=not rest):
            self._put(home)
            further = self._homes(rest)
            self._take(home)
            if further is not None:
                return [InstanceMove(first, home), *further[0]], further[1]
        return None

    def _places(self, profile: Profile, *, only_best: bool) -> Iterator[Choice]:
        """The best place, then one of each other kind, which may leave room for the next instance."""
        if (best := self.pool.choose(profile)) is None:
            return
        yield best
        if only_best:
            return
        met = {(self.pool.states[best.gpu], best.start)}
        for gpu, state in enumerate(tuple(self.pool.states)):
            for placement in self.geometry.fits(state):
                if placement.profile == profile and (state, placement.start) not in met:
                    met.add((state, placement.start))
                    yield Choice(gpu, placement)

    def _without(self, state: State, out: Sequence[Choice]) -> State:
        for choice in out:
            state = self.geometry.remove(state, choice.placement)
        return state

    def _open(self, opened: _Opened) -> None:
        for choice in opened.out:
            self._take(choice)
        self._put(opened.into)

    def _close(self, opened: _Opened) -> None:
        self._take(opened.into)
        for choice in opened.out:
            self._put(choice)

    def _put(self, choice: Choice) -> None:
        before = self.geometry.capability(self.pool.states[choice.gpu])
        self.pool.put(choice)
        self.lost += before - self.geometry.capability(self.pool.states[choice.gpu])

    def _take(self, choice: Choice) -> None:
        before = self.geometry.capability(self.pool.states[choice.gpu])
        self.pool.take(choice)
        self.lost += before - self.geometry.capability(self.pool.states[choice.gpu])


def _few_of_each(gpus: Sequence[Sequence[PlacedInstance]]) -> Iterator[int]:
    """No plan opens more than two GPUs with the same instances."""
    seen: dict[tuple[PlacedInstance, ...], int] = {}
    for gpu, there in enumerate(gpus):
        alike = tuple(sorted(there, key=lambda held: held.placement.start))
        seen[alike] = seen.get(alike, 0) + 1
        if seen[alike] <= 2:
            yield gpu
