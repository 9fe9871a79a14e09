"""Which requests may begin now: what all budgets together let go out of service, the oldest request first.

Owns that decision, over all requests at once. Who is asked about all of them, one decision at a time, never lets more out of
service than a budget allows, as long as it asks again for what it has admitted before.

A request that does not fit waits, and younger ones that need the same of the budget wait behind it: a stream of small ones does
not starve a large one. It holds up nobody in budgets where it would fit, so one that waits for two budgets may be overtaken in
one while it waits for the other. A request that can never fit, or waits for a person, holds up nobody.
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
    """A request that would begin, were it admitted. `age` orders them."""

    uid: str
    name: str
    age: tuple[bool, float, str]
    gpus: frozenset[PhysicalGpu]


class BudgetLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A budget, and the GPUs that it is about, each with the place within which they are counted: "" is the cluster.

    `elsewhere` are the published GPUs that it is not about, `without` the pools that have none that it is about. Any other GPU is
    one that nobody publishes now, as while its node reboots: it counts where the rest of its pool does (`pool_places`, by the
    pool's name), for nobody knows that the budget is not about it.
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
        """Whether it is about devices of any class."""
        return not self.spec.device_class_name

    def allows(self, place: str) -> int | None:
        """How many GPUs may be out of service in a place; None: any number."""
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
        """Whether it is about any of these."""
        return self.about_all or any(self._place(gpu) is not None for gpu in gpus)

    def _place(self, gpu: PhysicalGpu) -> str | None:
        """Within what the GPU is counted; None if the budget is not about it."""
        known = self.places.get(gpu)
        if known is not None or gpu in self.elsewhere or gpu.pool_key in self.without:
            return known
        return "" if self.spec.per is BudgetScope.CLUSTER else self.pool_places.get(gpu.pool, gpu.pool)


class FailedRequest(msgspec.Struct, frozen=True):
    """A request that failed, for the circuit breaker."""

    name: str
    gpus: frozenset[PhysicalGpu]


class StartDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The UIDs of requests that may begin, with the GPUs that they may take, and why the others wait.

    `waiting_for` counts the requests that wait for each budget.
    """

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

    `out` is what is out of service now. `returning` is what of it nobody keeps out any more: it counts until it is back, and who
    wants it asks for it as for any other. `before` are those that were admitted and have not begun: they are first, and are
    refused only if a budget has become smaller.
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
"""What only a person can change is said first."""


class _Ledger:
    """One budget while a decision is made."""

    def __init__(self, limit: BudgetLimit, out: frozenset[PhysicalGpu], failed: Collection[FailedRequest]) -> None:
        self.name = limit.name
        self._limit = limit
        self._used = limit.counted(out)
        self._queued: set[str] = set()
        self._failed = sorted(each.name for each in failed if limit.concerns(each.gpus))

    def refuses(
        self, candidate: StartCandidate, fresh: Collection[PhysicalGpu], more: Collection[PhysicalGpu]
    ) -> Waiting | None:
        """Why the budget does not let the candidate take what nobody else keeps out, of which `more` is still in service."""
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
        """A candidate waits for these: a younger one does not go first where it has no room."""
        adds = self._limit.counted(more)
        for place in self._limit.counted(fresh):
            allowed = self._limit.allows(place)
            if allowed is not None and self._used[place] + adds[place] > allowed:
                self._queued.add(place)

    def take(self, more: Collection[PhysicalGpu]) -> None:
        """The candidate takes these out of service."""
        self._used += self._limit.counted(more)


def paused_by(budget: str) -> str:
    """A budget is paused."""
    return f"MaintenanceBudget {budget} is paused: nothing more is taken out of service until its spec.paused is false."


def _too_many_failed(budget: str, failed: Collection[str], most: int) -> str:
    return (
        f"{counted(len(failed), 'request')} failed ({listed(failed)}), more than the {most} of MaintenanceBudget {budget}: "
        "see to them, then cancel or delete them."
    )


def _never(limit: BudgetLimit, place: str, number: int, allowed: int) -> str:
    return (
        f"This takes {counted(number, 'GPU')}{_at(limit, place)}, and MaintenanceBudget {limit.name} never allows more than "
        f"{allowed}: ask for fewer, in several requests, or raise the budget."
    )


def _full(limit: BudgetLimit, place: str, allowed: int) -> str:
    # Without the numbers of the moment: hundreds that wait would all be written whenever one is done.
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
