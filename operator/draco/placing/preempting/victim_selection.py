"""Chooses the victims of preemption for a group: a set in which each one is needed, and which loses the least work.

The cost of a set is compared in this order: its highest priority, pods without a controller, number and priorities of pods,
unused reserved claims, time run. Claims of pods that are leaving anyway are free at no cost. `victims` decides who can be a
victim. Evicts nobody. Must run in a worker, because it evaluates tenants' selectors.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from draco.allocation.fleet.state import amount
from draco.allocation.ownership.handover import GpuPlace
from draco.placing.groups.gang_search import GangSearch, GroupFit, devices_of
from draco.placing.groups.group import ClaimGroup, allocated
from draco.placing.groups.place import own_results
from draco.placing.preempting.victims import Victim
from draco.placing.search.best import BestPlacer
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.errors import DracoError
from draco.resources.names import DeviceKey, PoolKey, read_partition_name

SEARCHES: Final = 150
FEWEST_SEARCHES: Final = 12
"""Maximum number of searches, reduced for large groups; the best set found by then is used."""
_ROUNDS: Final = 4
"""How often to look for a set within the PodDisruptionBudgets."""


class PreemptionPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The victims by index, and the results of each member's claims (empty for none) once they are gone."""

    victims: list[int]
    results: list[list[AllocationResult]]


class PreemptionInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group without a place, its priority, and what can become free: claims of leaving pods, and victims.

    `allowed` is the number of disruptions that each PodDisruptionBudget allows now.
    """

    group: ClaimGroup
    priority: int
    leaving: list[ObjectKey]
    victims: list[Victim]
    allowed: list[tuple[ObjectKey, int]] = []


def plan_preemption(
    placer: BestPlacer, wanted: PreemptionInput, held: Sequence[ResourceClaim], *, spread: Collection[PoolKey] = ()
) -> PreemptionPlan | None:
    """The victims for the group; empty if the leaving claims suffice. None if no eviction helps."""
    with placer.as_if(spread=spread):
        for claim in held:
            placer.put(claim)
        search = _VictimSearch(placer, wanted)
        try:
            return search.best()
        except DracoError:
            return None  # the group is invalid, which its placement reports


Cost = tuple[int, int, list[int], int, float]


def cost(victims: Sequence[Victim]) -> Cost:
    """The cost of these victims; smaller is better."""
    return (
        max((each.priority for each in victims), default=0),
        sum(each.lone for each in victims),
        sorted((one.priority for one in victims for _ in one.pods), reverse=True),
        sum(not each.pods for each in victims),
        sum(each.ran_s for each in victims),
    )


class _Found(NamedTuple):
    """Victims that suffice, and the group's place once they are gone."""

    victims: list[int]
    fit: GroupFit


class _VictimSearch:
    """Places one group with changing sets of victims removed."""

    def __init__(self, placer: BestPlacer, wanted: PreemptionInput) -> None:
        fleet = placer.fleet
        self._placer = placer
        self._group = wanted.group
        self._search = GangSearch(placer)
        self._allowed = dict(wanted.allowed)
        self._victims = {number: each for number, each in enumerate(wanted.victims) if each.priority < wanted.priority}
        self._claims = {
            number: [fleet.claims[key] for key in each.claims if key in fleet.claims]
            for number, each in self._victims.items()
        }
        self._gpus = {
            number: {GpuPlace.of(held) for claim in claims for held in claim.devices_held}
            for number, claims in self._claims.items()
        }
        self._gone: set[int] = set()
        self._left = max(FEWEST_SEARCHES, SEARCHES // len(wanted.group.members))
        for key in wanted.leaving:
            if key in fleet.claims:
                placer.put(allocated(fleet.claims[key], None))

    def best(self) -> PreemptionPlan | None:
        if (fit := self._fit(())) is not None:
            return PreemptionPlan([], own_results(self._group, fit))
        every = sorted(self._victims, key=self._cost_alone)
        lowest = self._lowest(every)
        if lowest is None:
            return None
        best = None if self._over_budget(lowest.victims) else lowest
        highest = max((self._victims[each].priority for each in lowest.victims), default=0)
        low = [each for each in every if self._victims[each].priority <= highest]
        for order in [*self._orders(low), *([every] if len(low) < len(every) else [])]:
            if self._left <= 0 or (order is every and best is not None):
                break
            if best is not None and order and min(self._cost([each]) for each in order) >= self._cost(best.victims):
                continue  # any of these costs at least as much
            found = self._within_budgets(order)
            if found is not None and (best is None or self._cost(found.victims) < self._cost(best.victims)):
                best = found
        return PreemptionPlan(sorted(best.victims), own_results(self._group, best.fit)) if best is not None else None

    def _lowest(self, every: Sequence[int]) -> _Found | None:
        """The victims of the lowest priorities with which the group fits, without those not in its way; None if it never fits."""
        priorities = sorted({self._victims[number].priority for number in every})
        found = None
        while priorities and self._left > 0:
            middle = (len(priorities) - 1) // 2 if found is not None else len(priorities) - 1
            low = [each for each in every if self._victims[each].priority <= priorities[middle]]
            if (fit := self._fit(low)) is not None:
                found, priorities = self._narrowed(low, fit), priorities[:middle]
            elif found is None:
                return None
            else:
                priorities = priorities[middle + 1 :]
        return found

    def _orders(self, victims: Sequence[int]) -> Iterator[Sequence[int]]:
        """Orders to try: pool by pool, the cheapest first; and single victims, the cheapest first.

        A single member uses one GPU or one pool, so the victims of each are tried separately.
        """
        by_pool = self._parts(victims, lambda gpu: gpu.pool_key)
        yield list(dict.fromkeys(number for numbers in by_pool for number in numbers))
        if len(self._group.members) > 1:
            yield victims
            yield from self._largest(victims)
        elif devices_of(self._group.members[0]) > 1:
            for numbers in by_pool:
                yield from [numbers, *self._largest(numbers)]
        else:
            for numbers in self._parts(victims, lambda gpu: gpu):
                # Adjacent partitions make room for a larger one.
                along = sorted(numbers, key=self._position)
                yield from [numbers, *self._largest(numbers), along, along[::-1]] if len(numbers) > 1 else [numbers]

    def _largest(self, victims: Sequence[int]) -> list[list[int]]:
        """The order with the largest shares first, of which the fewest have to leave; none without shares."""
        sizes = {number: self._shared(number) for number in victims}
        return [sorted(victims, key=lambda number: -sizes[number])] if any(sizes.values()) else []

    def _shared(self, number: int) -> int:
        """How much it has of devices that it shares."""
        texts = (
            text for one in self._claims[number] for each in one.results for text in each.consumed_capacity.values()
        )
        return sum(map(amount, texts))

    def _parts(self, victims: Sequence[int], part: Callable[[GpuPlace], Hashable]) -> list[list[int]]:
        """The victims grouped by the part of the cluster they hold devices in, the cheapest group first."""
        parts: dict[Hashable, list[int]] = {}
        for number in victims:
            for each in {part(gpu) for gpu in self._gpus[number]}:
                parts.setdefault(each, []).append(number)
        return sorted(parts.values(), key=lambda numbers: (self._cost(numbers), numbers))

    def _within_budgets(self, order: Sequence[int]) -> _Found | None:
        """Sufficient victims by this order, within all PodDisruptionBudgets."""
        for _ in range(_ROUNDS):
            found = self._needed(order)
            if found is None or not (over := self._over_budget(found.victims)):
                return found
            order = [each for each in order if each not in over]
        return None

    def _over_budget(self, victims: Sequence[int]) -> set[int]:
        """The victims that exceed a budget, counting cheaper ones first."""
        asked: Counter[ObjectKey] = Counter()
        over = set()
        for number in sorted(victims, key=self._cost_alone):
            budgets = self._victims[number].budgets
            if any(asked[key] + pods > self._allowed.get(key, 0) for key, pods in budgets):
                over.add(number)
            else:
                asked.update(dict(budgets))
        return over

    def _needed(self, order: Sequence[int]) -> _Found | None:
        """The shortest sufficient start of the order, without victims that are not needed."""
        found = self._shortest(order)
        if found is None:
            return None
        tried: set[int] = set()
        while self._left > 0 and (rest := set(found.victims) - tried):
            number = max(rest, key=self._cost_alone)
            tried.add(number)
            victims = [each for each in found.victims if each != number]
            if (fit := self._fit(victims)) is not None:
                found = self._narrowed(victims, fit)
        return found

    def _shortest(self, order: Sequence[int]) -> _Found | None:
        """The shortest start of the order with which the group fits, without victims not in its way."""
        step = len(self._group.members)
        too_few, size = 0, min(step, len(order))
        while (fit := self._fit(order[:size])) is None:
            if size == len(order) or self._left <= 0:
                return None
            too_few, step = size, step * 2
            size = min(size + step, len(order))
        while size - too_few > 1 and self._left > 0:
            middle = (size + too_few) // 2
            if (closer := self._fit(order[:middle])) is None:
                too_few = middle
            else:
                size, fit = middle, closer
        return self._narrowed(order[:size], fit)

    def _narrowed(self, victims: Sequence[int], fit: GroupFit) -> _Found:
        """Remove victims that hold nothing on the GPUs of the group's place."""
        taken = {
            GpuPlace.of(each.key) for member in fit.results for result in member for each in result.devices.results
        }
        return _Found([each for each in victims if self._gpus[each] & taken], fit)

    def _fit(self, gone: Iterable[int]) -> GroupFit | None:
        """The group's place once these victims are gone; None if it does not fit or the searches are used up."""
        if self._left <= 0:
            return None
        self._left -= 1
        wanted = set(gone)
        for number in wanted - self._gone:
            for claim in self._claims[number]:
                self._placer.put(allocated(claim, None))
        for number in self._gone - wanted:
            for claim in self._claims[number]:
                self._placer.put(claim)
        self._gone = wanted
        fit = self._search.place(self._group)
        if fit.found < self._group.needed:
            return None
        self._search.undo(self._group, fit)
        return fit

    def _cost(self, victims: Iterable[int]) -> Cost:
        return cost([self._victims[number] for number in victims])

    def _position(self, number: int) -> tuple[int, DeviceKey]:
        """The position of its first device: of a partition, its start."""
        first = min(held for claim in self._claims[number] for held in claim.devices_held)
        partition = read_partition_name(first.device)
        return (partition.start if partition is not None else 0), first

    def _cost_alone(self, number: int) -> tuple[object, ...]:
        return *self._cost([number]), self._victims[number].claims
