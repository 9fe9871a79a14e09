"""Reports PodGroups that keep devices without having pods, and takes these back where the GPUs' policies permit it.

Owns how long that has been so, the PodGroup's Event, and the order of the release. A new pod of the group does not write to a
claim that is already reserved, so it would not make our write conflict. Therefore the reservation is removed first: a new pod, or
kube-controller-manager for it, must then reserve the claim again. The allocation is removed only if nobody has reserved it after
a while and the API server knows no pod.

The times are in memory only: a new leader starts counting again, so it takes back later, never sooner.
`allocation.ownership.leaks` defines a leak.
"""

from collections.abc import Callable, Iterable

import structlog

from draco.allocation.ownership.gangs import GangKey, GangSource, pod_group_of
from draco.allocation.ownership.leaks import (
    cause_and_fix,
    ended_users,
    group_made_for,
    is_leaked,
    is_there,
    keepers,
    release_after,
)
from draco.controller.deallocation_writes import Deallocations
from draco.controller.metrics import OperatorMetrics
from draco.controller.mig.decisions import MigDecisions
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.kube.events.notes import Notes, NotesByKey
from draco.kube.events.shares import EventReason
from draco.mig_policy.release_policy import prepared_on
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.api.scheduling import PodGroup
from draco.resources.kinds import CLAIMS, PODS
from draco.resources.texts import agreeing, counted, listed

log = structlog.get_logger(__name__)

KEPT_REASON = EventReason("DevicesKeptWithoutPods", "Allocating", "Warning")
RELEASED_REASON = EventReason("LeakReleased", "Allocating")
_BY_KEEPER = "PodGroup that keeps it"
SETTLE_S = 10.0
"""How long a claim must be unreserved before it is deallocated, so that schedulers notice and pods show up."""
_AGAIN_S = 5.0
"""Retry interval while a write or a node's agent is pending."""
_POLICIES_S = 15.0
"""How often to ask whether policies permit it: a GPU's policies are unknown while its node is away."""
_NEVER_S = float("inf")


class LeakedClaims:
    """Reconciles one PodGroup at a time."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        decisions: MigDecisions,
        notes: Notes,
        events: EventRecorder,
        *,
        metrics: OperatorMetrics,
        tell_after_s: float,
    ) -> None:
        self._client = client
        self._view = view
        self._decisions = decisions
        self._notes = NotesByKey(notes, lambda each: ObjectKey(each.namespace, each.name))
        self._events = events
        self._count = metrics.leaks_released
        self._tell_after_s = tell_after_s
        self._deallocations = Deallocations(client, view)
        self._since_s: dict[ObjectKey, dict[str, float]] = {}  # by PodGroup and claim UID
        self._unreserved_s: dict[str, float] = {}  # by claim UID
        self._adopted = False
        view.claims.store.add_index(_BY_KEEPER, lambda claim: [each.key for each in keepers(claim)])
        metrics.on_scrape(
            "draco_leaked_claims",
            "Claims that PodGroups without a pod keep on GPUs that Draco allocates, once reported. On the leader only.",
            [],
            lambda: sum(len(self._since_s.get(key, ())) for key in self._notes.said),
        )

    @property
    def trouble(self) -> str:
        """Which PodGroups keep devices without pods; "" if none."""
        names = sorted(self._notes.said)
        if not names:
            return ""
        return (
            f"{counted(len(names), 'PodGroup')} without a pod {agreeing(len(names), 'keeps', 'keep')} GPUs: "
            f"{listed(map(str, names))}. Delete what is not used any more with kubectl delete podgroup, or set "
            "spec.gangs.releaseLeakedAfter of the MigPolicies, so that Draco takes the GPUs back."
        )

    def subscribe(self, wake: Callable[[ObjectKey], None]) -> None:
        """Call `wake` with every PodGroup that a change may affect."""
        self._view.claims.subscribe_keys(wake, lambda claim: [each.key for each in keepers(claim)])
        self._view.pods.subscribe_keys(wake, self._concerned, reads=lambda pod: (is_there(pod), pod.claims))
        self._view.mig_policies.subscribe_keys(wake, lambda _: list(self._since_s), reads=lambda policy: policy.spec)
        self._view.pod_groups.subscribe(lambda change: wake(change.key))

    def all_keys(self) -> set[ObjectKey]:
        """The PodGroups that keep claims, and an arbitrary name so that a former leader's Events are found."""
        kept = {each.key for claim in self._view.claims.store.values() for each in keepers(claim)}
        return kept | {ObjectKey("", "")}

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Report the PodGroup and take back what is permitted. Raises ApiError."""
        await self._adopt()
        group, leaked = self._view.pod_groups.store.get(key), self._leaked(key)
        now_s = self._view.clock.monotonic()
        before = self._since_s.pop(key, {})
        if group is None or not leaked:
            await self._notes.withdraw(key)
            self._forget(before)
            return None
        since = self._since_s[key] = {uid: before.get(uid, now_s) for uid in (each.metadata.uid for each in leaked)}
        self._forget(before.keys() - since.keys())
        waits = [await self._release(claim, key, since[claim.metadata.uid]) for claim in leaked]
        return min(await self._tell(group, leaked, min(since.values())), *waits)

    def _forget(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._unreserved_s.pop(uid, None)

    async def _adopt(self) -> None:
        if self._adopted:
            return
        for key in await self._notes.adopt():
            if not self._leaked(key):
                await self._notes.withdraw(key)
        self._adopted = True

    def _leaked(self, key: ObjectKey) -> list[ResourceClaim]:
        claims = self._view.claims.store.by_index(_BY_KEEPER, key)
        classes = self._view.classes_by_name if claims else {}
        found = [each for each in claims if is_leaked(each, classes, self._view.pod_groups.store.get, self._pods(each))]
        return sorted(found, key=lambda claim: claim.metadata.name)

    def _pods(self, claim: ResourceClaim) -> Iterable[Pod]:
        yield from self._view.pods_of(claim.metadata.key)
        for each in keepers(claim):
            yield from self._view.pods_of_gang(GangKey(GangSource.POD_GROUP, each.key.namespace, each.key.name))

    def _concerned(self, pod: Pod) -> Iterable[ObjectKey]:
        if group := pod_group_of(pod):
            yield ObjectKey(group.namespace, group.name)
        for key in pod.claims:
            claim = self._view.claims.store.get(key)
            yield from (each.key for each in (keepers(claim) if claim else ()))

    async def _tell(self, group: PodGroup, leaked: list[ResourceClaim], since_s: float) -> float:
        key, regarding = group.metadata.key, self._view.pod_groups.kind.reference(group.metadata)
        await self._notes.withdraw_unless_of(regarding)
        for_s = self._view.clock.monotonic() - since_s
        if for_s < self._tell_after_s and key not in self._notes.said:  # a former leader's report still applies
            return self._tell_after_s - for_s
        text = cause_and_fix(key, leaked, int(self._tell_after_s // 60))
        return await self._notes.say(regarding, f"{text} {self._prospect(leaked)}".rstrip())

    def _prospect(self, leaked: list[ResourceClaim]) -> str:
        """What happens if nobody acts."""
        made = [each for each in leaked if group_made_for(each)]
        if not made:
            return ""
        afters = [release_after(self._decisions.policies_of(each.devices_held)) for each in made]
        known = [each for each in afters if each is not None]
        if len(known) < len(made):
            return "A MigPolicy can have Draco take the devices back: spec.gangs.releaseLeakedAfter."
        if any(ended_users(each, self._pods(each)) for each in made):
            return (
                "Draco takes the devices back, as the MigPolicy says, once the pods that have ended are deleted, too."
            )
        if refusal := next(filter(None, map(self._deallocations.refusal, made)), ""):
            return refusal
        minutes = int(max(known).total_seconds() // 60)
        return f"Draco takes the devices back after {minutes} min without a pod, as the MigPolicy says."

    async def _release(self, claim: ResourceClaim, group: ObjectKey, since_s: float) -> float:
        """Take the next step of the release if due. Return seconds until the next look."""
        # A claim with a fixed name would be allocated again immediately, so taking it back is pointless.
        if not group_made_for(claim) or ended_users(claim, self._pods(claim)):
            return _NEVER_S  # checked again once these pods are gone
        after = release_after(self._decisions.policies_of(claim.devices_held))
        if after is None:
            return _POLICIES_S
        now_s, uid = self._view.clock.monotonic(), claim.metadata.uid
        if claim.status.reserved_for:
            if self._unreserved_s.pop(uid, None) is not None:
                since_s = self._since_s[group][uid] = now_s  # it was used, though no pod was seen
        else:
            self._unreserved_s.setdefault(uid, now_s)
        due_s = max(since_s + after.total_seconds(), self._unreserved_s.get(uid, now_s - SETTLE_S) + SETTLE_S)
        wait_s = max(due_s - now_s, self._deallocations.left_s(claim))
        if wait_s > 0:
            return wait_s
        names = {each.pool for each in claim.devices_held}
        nodes = [node for name in names if (node := self._view.gpu_nodes.store.get(ObjectKey("", name)))]
        if prepared_on(claim, nodes):
            return _AGAIN_S
        if claim.status.reserved_for:
            await self._deallocations.take_back(claim, "reservedFor")
        elif not await self._has_pods(claim) and await self._deallocations.take_back(claim):
            self._announce(claim, group)
        return _AGAIN_S  # wait for the pending change

    async def _has_pods(self, claim: ResourceClaim) -> bool:
        """Whether the API server knows a pod that may use the claim: the watch may lag."""
        groups = {each.key.name for each in keepers(claim)}
        pods = await self._client.list(PODS, namespace=claim.metadata.namespace)
        return any(
            is_there(pod)
            and (
                claim.metadata.key in pod.claims
                or (pod.spec.scheduling_group is not None and pod.spec.scheduling_group.pod_group_name in groups)
            )
            for pod in pods
        )

    def _announce(self, claim: ResourceClaim, group: ObjectKey) -> None:
        devices = listed(f"{each.device} of {each.pool}" for each in claim.results)
        self._count.inc()
        log.info("leak.released", claim=str(claim.metadata.key), devices=devices, pod_group=str(group))
        self._events.record(
            CLAIMS.reference(claim.metadata),
            RELEASED_REASON,
            f"Draco took back {devices}, as the MigPolicy says: PodGroup {group} has no pod. Its next pods get devices.",
        )
