"""Evicts the rest of a running group that has lost a pod, where the policies of its GPUs say so, to restart it as a whole.

Owns how long a group has been short of a pod, the evictions, and their Events. All running pods are evicted or none: the API
server is asked about each before the first eviction. The times are in memory only: a new leader starts counting again, so it
evicts later, never sooner. If the operator dies halfway, the rest follows once the evicted pods have been recreated and wait,
unless the group is whole by then. `allocation.ownership.losses` defines a loss.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import structlog
from prometheus_client import Counter

from draco.allocation.ownership.gangs import GangKey, GangSource, GangTerms, gang_of, job_set_of
from draco.allocation.ownership.losses import GroupStanding, is_made_for_a_pod, releases, standing
from draco.controller.allocation.gang_reading import Gangs, of_job
from draco.controller.allocation.preempting.preemption import Preemptions
from draco.controller.evictions import NOT_PERMITTED, PodEvictions, refused
from draco.controller.mig.decisions import MigDecisions
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.connect.retry import Backoff
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.maintenance.draining.disruption import why_refused
from draco.placing.preempting.victims import VictimInput, evictable
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import ObjectReference, Pod, PodDisruptionBudget
from draco.resources.api.draco import PartialLoss
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, PODS
from draco.resources.texts import counted, sentence

log = structlog.get_logger(__name__)

RELEASED_REASON = EventReason("GroupReleased", "Releasing")
KEPT_REASON = EventReason("GroupNotReleased", "Releasing", "Warning")
AFTER_S = 300.0
"""How long a group may be short of a pod."""
_AGAIN_S, _LONGEST_S = 10.0, 300.0
"""Backoff after refused evictions."""
_STAYS = (
    "one of them is a static pod, has not ended after its grace period, or shares a claim with pods of another group: delete "
    "it yourself"
)


class _Shortage(msgspec.Struct):
    """When to evict the pods of an incomplete group, or to retry."""

    due_s: float
    backoff: Backoff
    is_begun: bool = False
    """Whether some pods were evicted and others refused: continue before all pods are recreated."""

    def is_of(self, found: GroupStanding) -> bool:
        """Whether the group is still short of a pod."""
        return found.is_short or (self.is_begun and found.missing > 0)


class PartialLosses:
    """Reconciles one group at a time."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        decisions: MigDecisions,
        gangs: Gangs,
        preemptions: Preemptions,
        *,
        evictions: PodEvictions,
        events: EventRecorder,
        count: Counter,
    ) -> None:
        self._client = client
        self._view = view
        self._decisions = decisions
        self._gangs = gangs
        self._preemptions = preemptions
        self._evictions = evictions
        self._events = events
        self._count = count
        self._short: dict[GangKey, _Shortage] = {}

    @property
    def trouble(self) -> str:
        """Why no group is released though a policy says so, and the fix; "" without a problem."""
        return NOT_PERMITTED if self._evictions.left_s > 0 and self._wanted else ""

    @property
    def _wanted(self) -> bool:
        policies = self._view.mig_policies.store.values()
        return any(each.spec.gangs.on_partial_loss is PartialLoss.RELEASE for each in policies)

    def subscribe(self, wake: Callable[[GangKey], None]) -> None:
        """Call `wake` with every group that a change may affect."""

        def gangs(pods: Iterable[Pod]) -> set[GangKey]:
            return set(filter(None, map(gang_of, pods))) if self._wanted else set()

        self._view.pods.subscribe_keys(wake, lambda pod: gangs([pod]))
        self._view.claims.subscribe_keys(
            wake,
            lambda claim: gangs(self._view.pods_of(claim.metadata.key)),
            reads=lambda claim: claim.status.allocation is None,
        )
        self._view.mig_policies.subscribe_keys(wake, lambda _: self.all_keys(), reads=lambda policy: policy.spec)
        self._view.jobs.subscribe_keys(wake, lambda job: [job_set_of(job)] if self._wanted else (), reads=of_job)
        self._view.pod_groups.subscribe(lambda change: wake(GangKey(GangSource.POD_GROUP, *change.key)))

    def all_keys(self) -> set[GangKey]:
        """All groups that have pods."""
        return {gang for pod in self._view.pods.store.values() if (gang := gang_of(pod))}

    async def reconcile(self, gang: GangKey) -> float | None:
        """Release the group if it is time. Return seconds until the next look. Raises ApiError."""
        if not self._wanted:
            self._short.pop(gang, None)
            return None
        found = self._standing(gang, self._gangs.pods(gang), self._view.claims.store.get)
        if found is None or found.is_whole or not self._may_be_released(found.held):
            self._short.pop(gang, None)
            return None
        now_s, shortage = self._view.clock.monotonic(), self._short.get(gang)
        if shortage is None and found.is_short:
            backoff = Backoff(self._view.clock, base_s=_AGAIN_S, cap_s=_LONGEST_S)
            shortage = self._short[gang] = _Shortage(now_s + AFTER_S, backoff)
        if shortage is None or not shortage.is_of(found):
            if found.missing:  # no pod has replaced the missing one; otherwise a replacement is about to start
                self._short.pop(gang, None)
            return None
        if shortage.due_s > now_s:
            return shortage.due_s - now_s
        if self._preemptions.of(str(gang)) is not None or self._view.disruption_budgets.forbidden:
            return _AGAIN_S  # others may be leaving for it, or evictions be refused halfway
        await self._release(gang, shortage)
        return max(0.0, shortage.due_s - self._view.clock.monotonic())

    def _standing(
        self, gang: GangKey, pods: Sequence[Pod], claim_of: Callable[[ObjectKey], ResourceClaim | None]
    ) -> GroupStanding | None:
        terms = self._gangs.terms(gang)
        return (
            standing(terms.size, pods, claim_of, self._view.classes_by_name) if isinstance(terms, GangTerms) else None
        )

    def _may_be_released(self, held: Sequence[ResourceClaim]) -> bool:
        devices = [device for claim in held for device in claim.devices_held]
        return all(map(is_made_for_a_pod, held)) and releases(self._decisions.policies_of(devices))

    async def _release(self, gang: GangKey, shortage: _Shortage) -> None:
        """Evict all running pods if the API server still shows the loss: the watch may lag."""
        known = await self._client.list(PODS, namespace=gang.namespace)
        claims = {each.metadata.key: each for each in await self._client.list(CLAIMS, namespace=gang.namespace)}
        pods = [pod for pod in known if gang_of(pod) == gang]
        shortage.due_s = self._view.clock.monotonic() + _AGAIN_S
        found = self._standing(gang, pods, claims.get)
        if found is None or not shortage.is_of(found) or not self._may_be_released(found.held):
            return
        going, staying = await self._evict(gang, known, found)
        if going:
            self._announce(gang, going, found.missing)
        if staying:
            shortage.is_begun = shortage.is_begun or bool(going)
            shortage.due_s = self._view.clock.monotonic() + shortage.backoff.next()
            self._refuse(gang, staying, found.missing)

    async def _evict(
        self, gang: GangKey, known: Sequence[Pod], found: GroupStanding
    ) -> tuple[list[Pod], list[tuple[Pod, str]]]:
        """Evict all running pods of the group, or none. Return those that leave, and those that stay with the reason."""
        pods = [pod for pod in known if gang_of(pod) == gang]
        running = [pod for pod in pods if pod.spec.node_name and not pod.is_over]
        budgets = self._view.budgets_in([gang.namespace])
        asked = self._victims(gang, known, found, ())
        if not asked:
            return [], [(running[0], _STAYS)]
        staying = refused(asked, await self._evictions.would_evict(asked))
        if not staying and not self._victims(gang, known, found, budgets):
            # Each of them could leave alone.
            return [], [(pod, why) for pod in asked if (why := why_refused(pod, budgets))]
        going: list[Pod] = []
        if not staying:
            going, staying = await self._evictions.evict_in_turn(asked)
        return going, [(pod, (answer.by_budget and why_refused(pod, budgets)) or answer.why) for pod, answer in staying]

    def _victims(
        self, gang: GangKey, known: Sequence[Pod], found: GroupStanding, budgets: Sequence[PodDisruptionBudget]
    ) -> list[Pod]:
        """The running pods, if preemption rules allow evicting them and that affects no pod outside the group."""
        pods = {pod.metadata.key: pod for pod in known if gang_of(pod) == gang}
        seen = VictimInput(
            now=self._view.clock.now(),
            claims=found.held,
            permits=is_made_for_a_pod,
            pods_of=lambda key: [pod for pod in known if key in pod.claims],
            together=lambda pod: list(pods.values()) if gang_of(pod) == gang else [pod],
            budgets=budgets,
        )
        victims = evictable(seen).victims
        claims = {key for each in victims for key in each.claims}
        names = dict.fromkeys(key for each in victims for key in each.pods)
        if claims != {each.metadata.key for each in found.held} or not pods.keys() >= names.keys():
            return []
        return [pods[key] for key in names]

    def _announce(self, gang: GangKey, going: Sequence[Pod], missing: int) -> None:
        self._count.labels("evicted").inc(len(going))
        log.info("loss.released", group=str(gang), pods=[str(each.metadata.key) for each in going])
        note = (
            f"Evicted: {gang} has been short of {counted(missing, 'pod')} for {_minutes()} min (MigPolicy "
            "spec.gangs.onPartialLoss); it will be allocated again together."
        )
        for pod in going:
            self._events.record(PODS.reference(pod.metadata), RELEASED_REASON, note)
        if (group := self._pod_group(gang)) is not None:
            self._events.record(group, RELEASED_REASON, note)

    def _refuse(self, gang: GangKey, staying: Sequence[tuple[Pod, str]], missing: int) -> None:
        """Report once, on the PodGroup or the first pod that stays, why the group keeps its devices."""
        self._count.labels("refused").inc(len(staying))
        first, why = staying[0]
        names = [str(pod.metadata.key) for pod, _ in staying]
        log.info("loss.refused", group=str(gang), pods=names, why=why)
        note = (
            f"{gang} has been short of {counted(missing, 'pod')} for {_minutes()} min, and Draco cannot evict the rest "
            f"(MigPolicy spec.gangs.onPartialLoss). Pod {first.metadata.name}: {sentence(why)}"
        )
        self._events.record(self._pod_group(gang) or PODS.reference(first.metadata), KEPT_REASON, note)

    def _pod_group(self, gang: GangKey) -> ObjectReference | None:
        if gang.source is not GangSource.POD_GROUP:
            return None
        group = self._view.pod_groups.store.get(ObjectKey(gang.namespace, gang.name))
        return self._view.pod_groups.kind.reference(group.metadata) if group is not None else None


def _minutes() -> int:
    return int(AFTER_S // 60)
