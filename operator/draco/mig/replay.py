"""Replays claims that come and go on a simulated fleet, under one of several rules, ours and those of schedulers.

Owns the rules that place an instance, which read a fleet and change nothing, and the counts of a replay: accepted claims, claims
refused although everything would have fit if placed again, and utilisation. It streams: only current claims are kept.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

import msgspec

from draco.mig.board import Profile
from draco.mig.geometry import BoardPool, Choice, Geometry
from draco.mig.ideal_packing import packable
from draco.mig.repair import PlacedInstance, plan_repair


class Policy(StrEnum):
    """The placement rule."""

    SCHEDULER_1_35 = "scheduler-1.35"
    """The node with fewest claims, then any of its GPUs (devices have no fixed order), lowest start."""
    SCHEDULER_1_36 = "scheduler-1.36"
    """The node with fewest claims, then the first GPU and lowest start: devices sorted by name."""
    STEERED = "steered"
    """The same scheduler, with devices published in the order of least capability loss."""
    OPERATOR = "operator"
    """The GPU and start of least capability loss in the whole fleet."""
    ORACLE = "oracle"
    """The upper bound: no placements; a claim is accepted if all would fit after any moves."""


class SimulatedFleet:
    """Equal GPUs in nodes, and how many claims each node has."""

    def __init__(self, geometry: Geometry, gpus: int, gpus_per_node: int) -> None:
        self.geometry = geometry
        self.gpus_per_node = gpus_per_node
        self.pool = BoardPool(geometry, [geometry.empty] * gpus)
        self.claims = [0] * -(-gpus // gpus_per_node)

    def put(self, choice: Choice) -> None:
        """Record a claim's instance."""
        self.pool.put(choice)
        self.claims[choice.gpu // self.gpus_per_node] += 1

    def take(self, choice: Choice) -> None:
        """Remove a claim's instance."""
        self.pool.take(choice)
        self.claims[choice.gpu // self.gpus_per_node] -= 1

    def nodes(self) -> Iterator[range]:
        """The GPUs of each node, nodes with fewest claims first, like the scheduler's default scoring."""
        for node in sorted(range(len(self.claims)), key=self.claims.__getitem__):
            first = node * self.gpus_per_node
            yield range(first, min(first + self.gpus_per_node, len(self.pool.states)))


PlacementRule = Callable[[SimulatedFleet, Profile], Choice | None]


def rule_of(policy: Policy, chance: Callable[[int], int]) -> PlacementRule | None:
    """The rule of a policy; None for the bound, which places nothing. `chance(n)` draws one of 0 … n-1."""
    match policy:
        case Policy.SCHEDULER_1_35:
            return lambda fleet, profile: _lowest_start(fleet, profile, chance)
        case Policy.SCHEDULER_1_36:
            return lambda fleet, profile: _lowest_start(fleet, profile, lambda _: 0)
        case Policy.STEERED:
            return _least_loss_in_node
        case Policy.OPERATOR:
            return lambda fleet, profile: fleet.pool.choose(profile)
        case Policy.ORACLE:
            return None


def _lowest_start(fleet: SimulatedFleet, profile: Profile, pick: Callable[[int], int]) -> Choice | None:
    states = fleet.pool.states
    for node in fleet.nodes():
        if fitting := [gpu for gpu in node if fleet.geometry.room(states[gpu], profile)]:
            gpu = fitting[pick(len(fitting))]
            return Choice(gpu, next(each for each in fleet.geometry.fits(states[gpu]) if each.profile == profile))
    return None


def _least_loss_in_node(fleet: SimulatedFleet, profile: Profile) -> Choice | None:
    for node in fleet.nodes():
        ranked = [(fleet.geometry.best(fleet.pool.states[gpu], profile), gpu) for gpu in node]
        if fitting := [(best.cost, gpu, best.placement) for best, gpu in ranked if best]:
            _, gpu, placement = min(fitting, key=lambda each: each[:2])
            return Choice(gpu, placement)
    return None


class ReplayOutcome(StrEnum):
    """What became of a claim."""

    ACCEPTED = "accepted"
    REPAIRED = "repaired"
    """Accepted after idle instances were moved."""
    AVOIDABLE = "avoidable"
    """Refused, though it would fit if everything were placed again."""
    FULL = "full"
    """Refused, and no placement could have helped."""

    @property
    def accepted(self) -> bool:
        """Whether the claim got its instance."""
        return self in {ReplayOutcome.ACCEPTED, ReplayOutcome.REPAIRED}


class ReplayCounts(msgspec.Struct):
    """What happened since counting began."""

    outcomes: dict[tuple[Profile, ReplayOutcome], int] = msgspec.field(default_factory=dict)
    moves: int = 0
    slice_time: float = 0.0
    """Compute slices in use, integrated over time."""
    time: float = 0.0
    peak_slices: int = 0

    def of(self, *outcomes: ReplayOutcome, profile: Profile | None = None) -> int:
        """How many claims (of one profile) had one of these outcomes."""
        return sum(n for (p, o), n in self.outcomes.items() if o in outcomes and (profile is None or p == profile))

    @property
    def accepted(self) -> int:
        """Claims that got their instance."""
        return self.of(ReplayOutcome.ACCEPTED, ReplayOutcome.REPAIRED)

    @property
    def refused(self) -> int:
        """Claims that did not get one."""
        return self.of(ReplayOutcome.AVOIDABLE, ReplayOutcome.FULL)


class Replay:
    """One policy on one fleet. Without a rule nothing is placed: a claim is accepted if all fit."""

    def __init__(self, fleet: SimulatedFleet, rule: PlacementRule | None, max_moves: int = 0) -> None:
        self.fleet = fleet
        self.board = fleet.geometry.board
        self.gpus = len(fleet.pool.states)
        self.slices = self.gpus * self.board.whole.slices
        self.counts = dict.fromkeys(self.board.profiles, 0)
        self.results = ReplayCounts()
        self.used_slices = 0
        self.at = 0.0
        """The current time; it may start later if nothing has happened yet."""
        self._rule = rule
        self._max_moves = max_moves
        self._active: dict[str, tuple[Profile, bool]] = {}
        self._places: dict[str, Choice] = {}
        self._claims: dict[Choice, str] = {}

    def arrive(self, claim: str, profile: Profile, at: float, *, movable: bool = False) -> ReplayOutcome:
        """Add a claim, and return its outcome. `movable`: repair may move its instance."""
        self.advance(at)
        outcome = self._decide(claim, profile)
        key = (profile, outcome)
        self.results.outcomes[key] = self.results.outcomes.get(key, 0) + 1
        if outcome.accepted:
            self._active[claim] = (profile, movable)
            self.counts[profile] += 1
            self.used_slices += profile.slices
            self.results.peak_slices = max(self.results.peak_slices, self.used_slices)
        return outcome

    def depart(self, claim: str, at: float) -> None:
        """Remove a claim; nothing happens if it has no instance."""
        self.advance(at)
        if claim not in self._active:
            return
        profile, _ = self._active.pop(claim)
        self.counts[profile] -= 1
        self.used_slices -= profile.slices
        if claim in self._places:
            self._remove(claim)

    def holds(self, claim: str) -> bool:
        """Whether a claim has its instance."""
        return claim in self._active

    def headroom(self, profile: Profile) -> int:
        """How many more of a profile fit."""
        return self.fleet.pool.room(profile) if self._rule is not None else self.headroom_repacked(profile)

    def headroom_repacked(self, profile: Profile) -> int:
        """How many more of a profile would fit if everything were placed again."""
        least, most = 0, self.gpus * len(profile.starts)
        while least < most:
            middle = (least + most + 1) // 2
            fits = packable(self.board, self.counts | {profile: self.counts[profile] + middle}, self.gpus)
            least, most = (middle, most) if fits else (least, middle - 1)
        return least

    def _decide(self, claim: str, profile: Profile) -> ReplayOutcome:
        if self._rule is not None and (choice := self._rule(self.fleet, profile)) is not None:
            self._place(claim, choice)
            return ReplayOutcome.ACCEPTED
        self.counts[profile] += 1
        fits = packable(self.board, self.counts, self.gpus)
        self.counts[profile] -= 1
        if not fits:
            return ReplayOutcome.FULL
        if self._rule is None:
            return ReplayOutcome.ACCEPTED
        return ReplayOutcome.REPAIRED if self._max_moves and self._repair(claim, profile) else ReplayOutcome.AVOIDABLE

    def _repair(self, claim: str, profile: Profile) -> bool:
        plan = plan_repair(self.fleet.geometry, self._held(), profile, self._max_moves)
        if plan is None:
            return False
        moved = [(self._claims[move.source], move.to) for move in plan.moves]
        for name, _ in moved:
            self._remove(name)
        for name, to in moved:
            self._place(name, to)
        self._place(claim, plan.wanted)
        self.results.moves += len(moved)
        return True

    def _held(self) -> Sequence[Sequence[PlacedInstance]]:
        gpus: list[list[PlacedInstance]] = [[] for _ in range(self.gpus)]
        for claim, choice in self._places.items():
            gpus[choice.gpu].append(PlacedInstance(choice.placement, self._active[claim][1]))
        return gpus

    def _place(self, claim: str, choice: Choice) -> None:
        self.fleet.put(choice)
        self._places[claim] = choice
        self._claims[choice] = claim

    def _remove(self, claim: str) -> None:
        choice = self._places.pop(claim)
        del self._claims[choice]
        self.fleet.take(choice)

    def advance(self, at: float) -> None:
        """Account for the time until this moment."""
        self.results.slice_time += self.used_slices * (at - self.at)
        self.results.time += at - self.at
        self.at = at


def used_share(replay: Replay) -> float:
    """The mean share of all compute slices that was in use."""
    return replay.results.slice_time / (replay.results.time * replay.slices) if replay.results.time else 0.0


def profiles_met(results: ReplayCounts) -> Iterator[Profile]:
    """The profiles that claims asked for, each once."""
    yield from dict.fromkeys(profile for profile, _ in results.outcomes)
