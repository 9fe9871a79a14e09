"""Makes room for groups of higher priority: evicts pods and takes back unused reserved devices, for one group at a time.

Owns the evictions and their Events. All evictions happen or none, and only after the reserved devices are back. First the API
server is asked three things: whether it would accept every eviction, so that nobody loses work in vain; whether the group still
waits, since another replica may have served it; and whether the pods of `others` stay, since another replica may have chosen
them. If another replica takes over between these answers and the evictions, the chart's policy rejects the stale replica's
evictions where it can tell the two apart. `preemption` decides who leaves for whom.
"""

from collections.abc import Callable, Collection, Sequence

import structlog
from prometheus_client import Counter

from draco.controller.allocation.preempting.preemption import Nomination, Preemptions
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.controller.deallocation_writes import Deallocations
from draco.controller.evictions import NOT_PERMITTED, PodEvictions, refused
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectMeta
from draco.resources.kinds import CLAIMS, DEVICE_RESERVATIONS, PODS
from draco.resources.texts import agreeing, counted, listed

log = structlog.get_logger(__name__)

PREEMPTED_REASON = EventReason("Preempted", "Preempting")
PREEMPTING_REASON = EventReason("Preempting", "Preempting")


class PreemptionEvictions:
    """Evictions by preempting group."""

    def __init__(
        self,
        client: Client,
        preemptions: Preemptions,
        evictions: PodEvictions,
        events: EventRecorder,
        deallocations: Deallocations,
        *,
        count: Counter,
    ) -> None:
        self._client = client
        self._preemptions = preemptions
        self._evictions = evictions
        self._events = events
        self._deallocations = deallocations
        self._count = count

    @property
    def trouble(self) -> str:
        """Why no eviction happens though a policy permits it, and the fix; "" without a problem."""
        return NOT_PERMITTED if self._evictions.left_s > 0 and self._preemptions.permitted else ""

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with each group for which pods may have to be evicted."""
        self._preemptions.listeners.add(wake)

    def all_keys(self) -> Collection[str]:
        """The groups for which pods are to be evicted."""
        return self._preemptions.pending

    async def reconcile(self, uid: str) -> float | None:
        """Evict all victims of the group, or none. Raises ApiError if something it needs cannot be read."""
        nomination = self._preemptions.of(uid)
        if nomination is None or not nomination.is_pending:
            return None
        if not await self._still_waits(nomination):
            self._preemptions.drop(uid)
            return None
        pods = list(nomination.asked)
        staying = refused(pods, await self._evictions.would_evict(pods))
        is_outdated = not staying and await self._others_leave(nomination)
        if self._preemptions.of(uid) is not nomination:
            return None  # it has a place, or is gone
        if is_outdated:
            log.info("preemption.outdated", group=nomination.waiting.called)
            self._preemptions.reconsider(uid)
            return None
        going: list[Pod] = []
        if not staying and not await self._take_back(nomination):
            self._preemptions.reconsider(uid)
            return None
        if not staying:
            going, staying = await self._evictions.evict_in_turn(pods)
        self._announce(nomination, going)
        has_taken = bool(nomination.unused) and not staying
        if staying:
            self._count.labels("refused").inc(len(staying))
            log.info("preemption.refused", pods=[str(pod.metadata.key) for pod, _ in staying], why=staying[0][1].why)
            self._preemptions.spare([pod for pod, _ in staying])
            self._preemptions.postpone(uid)
        self._preemptions.evicted(uid, going, has_taken=has_taken)
        return None

    async def _take_back(self, nomination: Nomination) -> bool:
        """Take back unused reserved devices. Return whether all are free now: a pod may have started to use one."""
        waiting = nomination.waiting
        for claim in nomination.unused:
            if self._deallocations.left_s(claim) > 0 or not await self._deallocations.take_back(claim):
                return False
            devices = listed(f"{each.device} of {each.pool}" for each in claim.results)
            log.info("preemption.taken_back", group=waiting.called, claim=str(claim.metadata.key), devices=devices)
            its = nomination.counted.get(claim.metadata.uid, 0)
            note = (
                f"Draco took back {devices}, which no pod used: {_who(waiting)} of priority {nomination.priority} "
                f"{agreeing(_pods(waiting) or 1, 'gets', 'get')} them; the reservation's own priority is {its}. Its claim waits "
                "for others."
            )
            self._events.record(CLAIMS.reference(claim.metadata), PREEMPTED_REASON, note)
            if (owner := claim.metadata.controller) is not None:
                key = ObjectMeta(name=owner.name, namespace=claim.metadata.namespace, uid=owner.uid)
                self._events.record(DEVICE_RESERVATIONS.reference(key), PREEMPTED_REASON, note)
        return True

    async def _still_waits(self, nomination: Nomination) -> bool:
        meta = nomination.waiting.group.claims[0].metadata
        found = await self._client.list(CLAIMS, namespace=meta.namespace, field_selector=f"metadata.name={meta.name}")
        return any(each.metadata.uid == meta.uid and each.waits for each in found)

    async def _others_leave(self, nomination: Nomination) -> bool:
        staying: set[str] = set()
        for namespace in sorted({key.namespace for key in nomination.others.values()}):
            pods = await self._client.list(PODS, namespace=namespace)
            staying |= {each.metadata.uid for each in pods if not each.is_over}
        return not nomination.others.keys() <= staying

    def _announce(self, nomination: Nomination, pods: Sequence[Pod]) -> None:
        if not pods:
            return
        waiting, priority = nomination.waiting, nomination.priority
        self._count.labels("evicted").inc(len(pods))
        log.info("preemption.evicted", group=waiting.called, pods=[str(each.metadata.key) for each in pods])
        for pod in pods:
            # Do not name the preempting group: it may belong to another namespace.
            its = nomination.counted.get(pod.metadata.uid, pod.spec.priority)
            its_own = (
                "its own priority is"
                if its == pod.spec.priority
                else "it leaves with its group or reservation, of priority"
            )
            note = (
                f"Evicted, because {_who(waiting)} of priority {priority} {agreeing(_pods(waiting) or 1, 'gets', 'get')} devices "
                f"that it holds; {its_own} {its}."
            )
            self._events.record(PODS.reference(pod.metadata), PREEMPTED_REASON, note)
        devices = listed(f"{each.device} of {each.pool}" for each in nomination.results)
        note = f"Draco evicted {counted(len(pods), 'pod')} of lower priority to make room: {devices}."
        member = waiting.group.members[0]
        self._events.record(CLAIMS.reference(member.claims[0].metadata), PREEMPTING_REASON, note)
        if member.pods:
            self._events.record(PODS.reference(member.pods[0].metadata), PREEMPTING_REASON, note)


def _pods(waiting: WaitingGroup) -> int:
    return sum(len(member.pods) for member in waiting.group.members)


def _who(waiting: WaitingGroup) -> str:
    """Describe the preempting group without its name, which other tenants must not see."""
    return counted(_pods(waiting), "pod") if _pods(waiting) else "a reservation"
