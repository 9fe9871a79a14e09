"""Evicts the pods of claims that nobody uses, where a DeviceLimit says so (spec.unused), after a notice.

Owns when agents' reports are read (GpuUsages, which nothing watches: only when something may be due), the notices and evictions
with their Events, and the memory of both, which a restart loses: then pods are warned again. Keys are claims; `limits.unused`
decides. Pods are deleted only by the Eviction API, which refuses a former leader where Draco allocates.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

import msgspec
import structlog
from cachetools import TTLCache
from prometheus_client import Counter

from draco.allocation.ownership.gangs import gang_of
from draco.controller.event_subjects import claim_and_pods
from draco.controller.evictions import NOT_PERMITTED, Eviction, PodEvictions
from draco.controller.view import ALLOCATED_IN, ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import Forbidden, NotFound
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.kube.listeners import Listeners
from draco.limits.unused import (
    UnusedInput,
    UnusedNotice,
    UnusedPlan,
    UnusedTerms,
    held,
    plan,
    plan_without_usage,
    terms_of,
)
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.limits import DeviceLimit
from draco.resources.api.maintenance import OVER
from draco.resources.api.meta import ObjectKey
from draco.resources.api.usage import GpuUsageStatus
from draco.resources.kinds import CLAIMS, GPU_USAGES, PODS
from draco.resources.names import ANNOTATION_EVICT_UNUSED, DeviceKey, PoolKey
from draco.resources.texts import listed, sentence

log = structlog.get_logger(__name__)

NOTICE_REASON: Final = EventReason("UnusedEvictionAhead", "EvictingUnused", "Warning")
EVICTED_REASON: Final = EventReason("UnusedEvicted", "EvictingUnused")
REFUSED_REASON: Final = EventReason("UnusedNotEvicted", "EvictingUnused", "Warning")
NOT_READABLE: Final = "Draco may not read who uses the GPUs: set the chart's value operator.evictUnused to true."
_READ_AGAIN_S: Final = 10.0
"""How long a report serves all claims of its node."""
_EVICT_AGAIN_S: Final = 60.0
"""After this time a pod whose eviction was accepted, and that is not terminating, is evicted again."""
_TELL_AGAIN_S: Final = 3600.0
_REMEMBERED: Final = 512


class UnusedClaimReconciler:
    """Reconciles one claim at a time."""

    def __init__(
        self, client: Client, view: ClusterView, evictions: PodEvictions, events: EventRecorder, *, count: Counter
    ) -> None:
        self._client = client
        self._view = view
        self._evictions = evictions
        self._events = events
        self._count = count
        self._noticed: dict[ObjectKey, UnusedNotice] = {}
        self._leaving: TTLCache[str, bool] = TTLCache(_REMEMBERED, _EVICT_AGAIN_S, view.clock.monotonic)  # by pod UID
        self._refused: TTLCache[str, str] = TTLCache(_REMEMBERED, _TELL_AGAIN_S, view.clock.monotonic)  # the same
        self._reports: TTLCache[str, GpuUsageStatus] = TTLCache(_REMEMBERED, _READ_AGAIN_S, view.clock.monotonic)
        self._unreadable = False
        self.when_changed = Listeners[[]]()
        """Called when `trouble` or `warned` may have changed."""

    @property
    def trouble(self) -> str:
        """Why no pod is evicted though a limit says so, and the fix; "" without a problem."""
        if self._unreadable:
            return NOT_READABLE
        return NOT_PERMITTED if self._evictions.forbidden else ""

    def warned(self, limit: str) -> int:
        """The number of claims whose pods are warned because of a limit."""
        return sum(notice.terms.limit == limit for notice in self._noticed.values())

    def subscribe(self, wake: Callable[[ObjectKey], None]) -> None:
        """Call `wake` with every claim whose pods may have to be warned or evicted."""

        def wake_all(_: object) -> None:
            for key in {*self.all_keys(), *self._noticed}:
                wake(key)

        self._view.limits.subscribe(wake_all, reads=lambda limit: (limit.spec, limit.metadata.deletion_timestamp))
        self._view.namespaces.subscribe_keys(
            wake, lambda item: self._keys_in(item.metadata.name), reads=lambda item: item.metadata.labels
        )
        self._view.claims.subscribe(
            lambda change: wake(change.key) if any(self._limits()) else None,
            reads=lambda claim: (claim.results, claim.status.reserved_for, claim.metadata.annotations),
        )
        self._view.pods.subscribe_keys(
            lambda key: wake(key) if any(self._limits()) else None,
            lambda pod: pod.claims,
            reads=lambda pod: (pod.claims, pod.is_over, pod.pending, pod.status.start_time, pod.metadata.annotations),
        )

    def all_keys(self) -> Collection[ObjectKey]:
        """The allocated claims, if a limit ends those that nobody uses."""
        return [key for one in self._view.namespaces.store.values() for key in self._keys_in(one.metadata.name)]

    def _keys_in(self, namespace: str) -> list[ObjectKey]:
        if not any(self._limits()):
            return []
        return [each.metadata.key for each in self._view.claims.store.by_index(ALLOCATED_IN, namespace)]

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Warn or evict the claim's pods if that is due."""
        claim = self._view.claims.store.get(key)
        terms = self._terms(claim) if claim is not None else None
        noticed = self._noticed.get(key)
        if claim is None or terms is None:
            self._remember(key, None)
            return None
        snapshot = self._read(claim, terms, noticed)
        planned = plan_without_usage(snapshot)
        if planned is None:
            usages = {pool: usage for pool in snapshot.pools if (usage := await self._usage(pool)) is not None}
            snapshot = msgspec.structs.replace(snapshot, usages=usages)
            planned = plan(snapshot)
        self._remember(key, planned.notice)
        if planned.notice is not None and planned.notice != noticed:
            self._warn(snapshot, planned.notice)
        if planned.evict and not await self._evict(snapshot, planned):
            return 1.0
        return planned.look_again.total_seconds()

    def _remember(self, key: ObjectKey, notice: UnusedNotice | None) -> None:
        if notice == self._noticed.get(key):
            return
        if notice is None:
            del self._noticed[key]
        else:
            self._noticed[key] = notice
        self.when_changed.tell()

    def _limits(self) -> Iterator[DeviceLimit]:
        limits = self._view.limits.store.values()
        return (each for each in limits if each.spec.unused and each.metadata.deletion_timestamp is None)

    def _terms(self, claim: ResourceClaim) -> UnusedTerms | None:
        namespace = self._view.namespaces.store.get(ObjectKey("", claim.metadata.namespace))
        return terms_of(claim, namespace.metadata.labels, self._limits()) if namespace is not None else None

    def _read(self, claim: ResourceClaim, terms: UnusedTerms, noticed: UnusedNotice | None) -> UnusedInput:
        pods = [pod for pod in self._view.pods_of(claim.metadata.key) if not pod.is_over]
        return UnusedInput(
            now=self._view.clock.now(),
            claim=claim,
            terms=terms,
            pods=pods,
            others=[each for each in self._claims_of(pods) if each.metadata.key != claim.metadata.key],
            maintained=self._maintained(),
            noticed=noticed,
        )

    def _claims_of(self, pods: Iterable[Pod]) -> list[ResourceClaim]:
        """All that these pods, and the rest of their groups, claim."""
        known: dict[str, Pod] = {}
        for pod in pods:
            gang = gang_of(pod)
            together = self._view.pods_of_gang(gang) if gang is not None else []
            known |= {each.metadata.uid: each for each in (pod, *together) if not each.has_ended}
        keys = {key for pod in known.values() for key in self._view.claims_of(pod)}
        return [claim for key in sorted(keys) if (claim := self._view.claims.store.get(key)) is not None]

    def _maintained(self) -> frozenset[DeviceKey]:
        requests = self._view.maintenances.store.values()
        active = (each.status for each in requests if each.status.isolated_at and each.status.phase not in OVER)
        return frozenset(device.key for status in active for device in status.devices)

    async def _usage(self, pool: PoolKey) -> GpuUsageStatus | None:
        """The report of the agent that publishes the pool; None without one. Raises ApiError if it cannot be read now."""
        node = ObjectKey("", pool.pool)
        known = self._view.gpu_nodes.store.get(node)
        if known is None or known.pool != pool:
            return None
        if (report := self._reports.get(pool.pool)) is not None:
            return report
        before = self._unreadable
        try:
            report = (await self._client.get(GPU_USAGES, node)).status
            self._reports[pool.pool] = report
            self._unreadable = False
        except NotFound:
            self._unreadable = False
        except Forbidden as error:
            log.warning("unused.unreadable", error=str(error), remedy=NOT_READABLE)
            self._unreadable = True
        if self._unreadable != before:
            self.when_changed.tell()
        return report

    def _warn(self, snapshot: UnusedInput, notice: UnusedNotice) -> None:
        log.info("unused.warned", claim=str(snapshot.claim.metadata.key), evict_at=notice.evict_at.isoformat())
        note = (
            f"No program has used {_devices(snapshot.claim)} since {notice.since:%Y-%m-%d %H:%M} UTC. The pods are evicted at "
            f"{notice.evict_at:%Y-%m-%d %H:%M} UTC (DeviceLimit {notice.terms.limit}) unless a program uses it before; the "
            f'annotation {ANNOTATION_EVICT_UNUSED}: "false" keeps a pod.'
        )
        for each in claim_and_pods(self._view, snapshot.claim):
            self._events.record(each, NOTICE_REASON, note)

    async def _evict(self, snapshot: UnusedInput, planned: UnusedPlan) -> bool:
        """Evict the pods; return False if the limit has changed since it was read, if only in its status."""
        claim, limit = snapshot.claim, self._view.limits.store.get(ObjectKey("", snapshot.terms.limit))
        if limit is None or not await self._view.limits.is_current(limit):
            return False
        before = self._evictions.forbidden
        for pod in planned.evict:
            if pod.metadata.uid in self._leaving:
                continue  # another of its claims was due, too
            answer = await self._evictions.evict(pod, leader_only=True)
            if answer.outcome is Eviction.ACCEPTED:
                self._leaving[pod.metadata.uid] = True
                self._count.labels("evicted").inc()
                log.info("unused.evicted", pod=str(pod.metadata.key), claim=str(claim.metadata.key), plan=str(planned))
                note = (
                    f"Evicted, because no program has used {_devices(claim)} since {planned.since:%Y-%m-%d %H:%M} UTC "
                    f"(DeviceLimit {snapshot.terms.limit})."
                )
                self._events.record(PODS.reference(pod.metadata), EVICTED_REASON, note)
            elif answer.outcome in {Eviction.REFUSED, Eviction.FORBIDDEN}:
                self._count.labels("refused").inc()
                self._tell_refusal(claim, pod, answer.why)
        if self._evictions.forbidden != before:
            self.when_changed.tell()
        return True

    def _tell_refusal(self, claim: ResourceClaim, pod: Pod, why: str) -> None:
        if self._refused.get(pod.metadata.uid) == why:
            return
        self._refused[pod.metadata.uid] = why
        log.info("unused.refused", pod=str(pod.metadata.key), claim=str(claim.metadata.key), why=why)
        note = f"Pod {pod.metadata.name} is not evicted, though no program uses {_devices(claim)}: {sentence(why)}"
        self._events.record(CLAIMS.reference(claim.metadata), REFUSED_REASON, note)


def _devices(claim: ResourceClaim) -> str:
    return listed(f"{each.device} of {each.pool}" for each in held(claim))
