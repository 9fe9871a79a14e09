"""All laws of what Draco publishes and allocates: bare GPUs, allocators, groups, reservations, limits, and evictions.

Owns which law is told of which change. Judges nothing itself.
"""

from collections.abc import Callable, Iterator, Mapping

from tests.adversary.cluster.observer.allocators import Allocators, Traded
from tests.adversary.cluster.observer.bare import Bare
from tests.adversary.cluster.observer.evicted import Evictions
from tests.adversary.cluster.observer.gates import Gates
from tests.adversary.cluster.observer.groups import Groups
from tests.adversary.cluster.observer.job_sets import JobSets
from tests.adversary.cluster.observer.limited import Limits
from tests.adversary.cluster.observer.order import Order
from tests.adversary.cluster.observer.pod_budgets import PodBudgets
from tests.adversary.cluster.observer.pod_groups import PodGroups
from tests.adversary.cluster.observer.reservations import Reservations
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World


class DracosLaws:
    """Told of each change of any kind."""

    def __init__(self, world: World) -> None:
        self._allocators = Allocators(world)
        self._bare = Bare(world)
        self._groups = Groups(world)
        self._gates = Gates(world)
        self.order = Order(world)
        self._pod_groups = PodGroups(world)
        self._job_sets = JobSets(world)
        self._reservations = Reservations(world)
        self._limits = Limits(world)
        self._pod_budgets = PodBudgets(world)
        self.evictions = Evictions(world)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many events each law had to judge."""
        return {
            "claims allocated by Draco": self._allocators.by_draco,
            "devices that lost the taint of a hand-over or a fault": self._bare.looked_at,
            "groups that had all they need": self._groups.whole,
            "PodGroups that had all they need": self._groups.whole_pod_groups,
            "groups of both allocators that had all they need of Draco": self._groups.whole_of_both,
            "gates that went off": self._gates.off,
            "gates that went off pods of gangs by PodGroup": self._gates.off_gangs,
            "groups that began before one like them, and were compared": self.order.compared,
            "allocations to JobSets that were judged": self._job_sets.judged,
            "claims that PodGroups kept for their pods": self._pod_groups.kept,
            "claims that were taken back from PodGroups": self._pod_groups.taken_back,
            "reserved claims that got devices": self._reservations.reserved,
            "reserved devices that were taken over": self._reservations.taken_over,
            "allocations that a limit was about": self._limits.bound,
            "pods that left for others": self.evictions.preempted,
            "pods that left with their groups": self.evictions.released,
            "evictions that were looked at for need": self.evictions.needless.judged,
            "evictions that a budget of pods was about": self._pod_budgets.judged,
        }

    def traded(self) -> list[Traded]:
        """GPUs whose allocator changed and that are usable now."""
        return list(self._allocators.traded())

    def changed(self, kind: str, before: Object | None, after: Object | None, now: float) -> None:
        """An object was written or deleted."""
        self.evictions.needless.changed(kind, before, after, now)
        match kind:
            case "slice":
                self._allocators.slice_changed(after)
                self._bare.slice_changed(after, now)
            case "gpunode":
                self._bare.report_changed(after)
            case "pod":
                self._groups.pod_changed(before, after, now)
                self._gates.pod_changed(before, after, now)
                self.order.pod_changed(before, after)
                self._pod_groups.pod_changed(after, now)
                self._job_sets.pod_changed(before, after, now)
                self._pod_budgets.pod_changed(before, after, now)
                self.evictions.pod_changed(before, after, now)
                if after is not None:
                    self._reservations.pod_changed(after, now)
            case "reservation":
                self._reservations.reservation_changed(before, after)
            case "pod group":
                self._gates.pod_group_changed(after, now)
            case "job":
                self._groups.job_changed(before, after, now)
                self._job_sets.job_changed(before, after, now)
            case "policy":
                self.evictions.policy_changed(before, now)
            case "pod budget":
                self._pod_budgets.budget_changed(before, after, now)
            case "limit":
                self._limits.limit_changed(before, after, now)
            case "event":
                self.order.event_changed(after, now)
            case "claim":
                self._allocators.claim_changed(before, after, now)
                self._groups.claim_changed(before, after, now)
                self._gates.claim_changed(before, after, now)
                self.order.claim_changed(before, after, now)
                self._pod_groups.claim_changed(before, after, now)
                self._job_sets.claim_changed(before, after, now)
                self._reservations.claim_changed(before, after, now)
                self._limits.claim_changed(before, after, now)
                self.evictions.claim_changed(before, after, now)

    def weighed(self, now: float, *, grace_s: float, undisturbed: Callable[[float], bool]) -> Iterator[Suspicion]:
        """Violations. `undisturbed` says whether one operator has led since a time, with the API server up."""
        yield from self._allocators.weighed(now)
        yield from self._bare.weighed(now)
        yield from self._groups.weighed(now, grace_s=grace_s, undisturbed=undisturbed)
        yield from self._gates.weighed(now, grace_s=grace_s, undisturbed=undisturbed)
        yield from self.order.weighed(now, grace_s=grace_s, undisturbed=undisturbed)
        yield from self._pod_groups.weighed(now)
        yield from self._job_sets.weighed(now, grace_s=grace_s, undisturbed=undisturbed)
        yield from self._reservations.weighed(now)
        yield from self._limits.weighed(now)
        yield from self._pod_budgets.weighed()
        yield from self.evictions.weighed(now, grace_s=grace_s, undisturbed=undisturbed)
