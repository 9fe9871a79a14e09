"""Which requests may begin now: what all budgets together allow out of service, the oldest request first.

Owns that decision over all requests together. A caller that decides one round at a time, and passes what it admitted before,
never exceeds a budget. A request that does not fit waits, and younger ones that need the same place of the budget wait behind it,
so a stream of small requests cannot starve a large one. It does not block other budgets: a request that waits for two budgets may
be overtaken in one of them. A request that can never fit, or waits for a person, blocks nobody.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from draco.maintenance.gate import Waiting
from draco.maintenance.selecting.fleet import PhysicalGpu
from draco.resources.api.maintenance import BudgetScope, MaintenanceBudgetSpec
from draco.resources.names import PoolKey
from draco.resources.texts import counted, listed


class StartCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A request that would begin if admitted. `age` orders them."""

    uid: str
    name: str
    age: tuple[bool, float, str]
    gpus: frozenset[PhysicalGpu]


class BudgetLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A budget and its GPUs, each with the place in which it is counted ("" is the cluster).

    `elsewhere` are published GPUs outside the budget, `without` the pools that have none of its GPUs. Any other GPU is not
    published now, for example because its node reboots. It counts as the budget's, in the place of its pool (`pool_places`, by
    pool name), because nobody can tell that the budget excludes it.
    """

    name: str
    spec: MaintenanceBudgetSpec
    places: Mapping[PhysicalGpu, str]
    totals: Mapping[str, int]
    elsewhere: Collection[PhysicalGpu] = frozenset()
    without: Collection[PoolKey] = frozenset()
    pool_places: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def about_all(self) -> bool:
        """Whether it applies to devices of every class."""
        return not self.spec.device_class_name

    def allows(self, place: str) -> int | None:
        """How many GPUs may be out of service in a place; None means any number."""
        limits = [] if self.spec.max_devices is None else [self.spec.max_devices]
        percent = self.spec.max_percent
        if percent is not None:
            share = self.totals.get(place, 0) * percent // 100
            limits.append(max(share, 1) if percent else 0)
        return min(limits, default=None)

    def counted(self, gpus: Iterable[PhysicalGpu]) -> Counter[str]:
        """How many of these GPUs are in each place."""
        return Counter(place for gpu in gpus if (place := self._place(gpu)) is not None)

    def concerns(self, gpus: Iterable[PhysicalGpu]) -> bool:
        """Whether it applies to any of these."""
        return self.about_all or any(self._place(gpu) is not None for gpu in gpus)

    def _place(self, gpu: PhysicalGpu) -> str | None:
        known = self.places.get(gpu)
        if known is not None or gpu in self.elsewhere or gpu.pool_key in self.without:
            return known
        return "" if self.spec.per is BudgetScope.CLUSTER else self.pool_places.get(gpu.pool, gpu.pool)


class FailedRequest(msgspec.Struct, frozen=True):
    """A request that failed, for the circuit breaker."""

    name: str
    gpus: frozenset[PhysicalGpu]


class StartDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that may begin (UIDs) with their GPUs, and why the others wait. `waiting_for` counts these by budget."""

    admitted: Mapping[str, frozenset[PhysicalGpu]]
    waiting: Mapping[str, Waiting]
    waiting_for: Mapping[str, int]


def admit(
    candidates: Iterable[StartCandidate],
    out: Collection[PhysicalGpu],
    budgets: Iterable[BudgetLimit],
    failed: Collection[FailedRequest] = (),
    *,
    returning: Collection[PhysicalGpu] = (),
    before: Collection[str] = (),
) -> StartDecision:
    """Decide about all candidates.

    `out` is what is out of service now. `returning` are those of `out` that no request keeps out any more: they count until they
    are back, and a candidate that wants one needs room for it like for any other. `before` are requests that were admitted and
    have not begun: they come first, and are refused only if a budget has shrunk.
    """
    limits = [_Ledger(each, frozenset(out), failed) for each in sorted(budgets, key=lambda each: each.name)]
    gone, kept = set(out), set(out).difference(returning)
    admitted: dict[str, frozenset[PhysicalGpu]] = {}
    waiting: dict[str, Waiting] = {}
    counts: Counter[str] = Counter()
    for candidate in sorted(candidates, key=lambda each: (each.uid not in before, each.age)):
        fresh, more = candidate.gpus - kept, candidate.gpus - gone
        held_up = [(ledger, why) for ledger in limits if (why := ledger.refuses(candidate, fresh, more))]
        if held_up:
            ledger, why = min(held_up, key=lambda each: _ORDER.index(each[1].reason))
            if why.reason == _FULL:
                for each, _ in held_up:
                    each.queue(fresh, more)
            waiting[candidate.uid] = why
            counts[ledger.name] += 1
            continue
        for ledger in limits:
            ledger.take(more)
        gone |= more
        kept |= fresh
        admitted[candidate.uid] = candidate.gpus
    return StartDecision(admitted=admitted, waiting=waiting, waiting_for=counts)


_NEVER, _PAUSED, _CIRCUIT, _FULL = "NeverFits", "Paused", "TooManyFailed", "BudgetUsedUp"
_ORDER = (_NEVER, _PAUSED, _CIRCUIT, _FULL)
"""Reasons that only a person can change come first."""


class _Ledger:
    """One budget during a decision."""

    def __init__(self, limit: BudgetLimit, out: frozenset[PhysicalGpu], failed: Collection[FailedRequest]) -> None:
        self.name = limit.name
        self._limit = limit
        self._used = limit.counted(out)
        self._queued: set[str] = set()
        self._failed = sorted(each.name for each in failed if limit.concerns(each.gpus))

    def refuses(
        self, candidate: StartCandidate, fresh: Collection[PhysicalGpu], more: Collection[PhysicalGpu]
    ) -> Waiting | None:
        """Why the budget refuses the candidate. `fresh`: GPUs that no other request keeps out; `more`: those still in service."""
        limit, spec = self._limit, self._limit.spec
        needs, adds = limit.counted(fresh), limit.counted(more)
        for place, number in needs.items():
            allowed = limit.allows(place)
            if allowed is not None and number > allowed:
                return Waiting(reason=_NEVER, message=_never(limit, place, number, allowed))
        if not limit.concerns(candidate.gpus):
            return None
        if spec.paused:
            return Waiting(reason=_PAUSED, message=paused_by(self.name))
        if spec.max_failed is not None and len(self._failed) > spec.max_failed:
            return Waiting(reason=_CIRCUIT, message=_too_many_failed(self.name, self._failed, spec.max_failed))
        for place in needs:
            allowed = limit.allows(place)
            if allowed is not None and (place in self._queued or self._used[place] + adds[place] > allowed):
                return Waiting(reason=_FULL, message=_full(limit, place, allowed))
        return None

    def queue(self, fresh: Collection[PhysicalGpu], more: Collection[PhysicalGpu]) -> None:
        """Reserve the places where a waiting candidate has no room, so that younger ones do not overtake it."""
        adds = self._limit.counted(more)
        for place in self._limit.counted(fresh):
            allowed = self._limit.allows(place)
            if allowed is not None and self._used[place] + adds[place] > allowed:
                self._queued.add(place)

    def take(self, more: Collection[PhysicalGpu]) -> None:
        self._used += self._limit.counted(more)


def paused_by(budget: str) -> str:
    """The message for requests that a paused budget holds back."""
    return f"MaintenanceBudget {budget} is paused: nothing more is taken out of service until its spec.paused is false."


def _too_many_failed(budget: str, failed: Collection[str], most: int) -> str:
    return (
        f"{counted(len(failed), 'request')} failed ({listed(failed)}), more than the {most} of MaintenanceBudget {budget}: "
        "look into them, then cancel or delete them."
    )


def _never(limit: BudgetLimit, place: str, number: int, allowed: int) -> str:
    return (
        f"This takes {counted(number, 'GPU')}{_at(limit, place)}, and MaintenanceBudget {limit.name} never allows more than "
        f"{allowed}: ask for fewer, in several requests, or raise the budget."
    )


def _full(limit: BudgetLimit, place: str, allowed: int) -> str:
    # Without current numbers: they would change, and be written, for hundreds of waiting requests whenever one finishes.
    return (
        f"Waiting for its turn in MaintenanceBudget {limit.name}, which allows {counted(allowed, 'GPU')}{_at(limit, place)} "
        "to be out of service at once."
    )


def _at(limit: BudgetLimit, place: str) -> str:
    match limit.spec.per:
        case BudgetScope.NODE:
            return f" on node {place}"
        case BudgetScope.NVLINK_DOMAIN:
            return f" in NVLink domain {place}"
        case BudgetScope.CLUSTER:
            return ""
