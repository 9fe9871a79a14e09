"""Evicts the pods that hold devices under maintenance, as `maintenance.draining` decides.

Owns the evictions, the Events, and the memory of both: when each pod was last asked, and what stopped it. A restart loses this
memory, which affects only the pace. Pods are deleted only by the Eviction API, or by the cluster in answer to an EvictionRequest.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime

import structlog
from prometheus_client import Counter

from draco.controller.evictions import NOT_PERMITTED, Eviction, PodEvictions
from draco.controller.maintenance.eviction_requests import EvictionRequests
from draco.controller.view import ClusterView
from draco.kube.errors import ApiError
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.kube.watch.store import Change
from draco.maintenance.draining.drain import AskedPod, DrainInput
from draco.maintenance.progress import DrainPlan
from draco.maintenance.taint_impact import spares_extended_resources
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.evictions import EvictionRequest
from draco.resources.api.maintenance import DeviceMaintenance, DrainPolicy, MaintenancePhase
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import DEVICE_MAINTENANCES, PODS
from draco.resources.names import DeviceKey
from draco.resources.texts import listed

log = structlog.get_logger(__name__)

EVICTED_REASON = EventReason("PodEvicted", "DrainingDevice")
REQUESTED_REASON = EventReason("PodEvictionRequested", "DrainingDevice")

_AT_ONCE = 4
_DRAINING_PHASES = frozenset({MaintenancePhase.ISOLATED, MaintenancePhase.DRAINING, MaintenancePhase.FAILED})


class PodDrains:
    """Evictions for all requests: a pod that holds devices of two is evicted once."""

    def __init__(
        self,
        view: ClusterView,
        events: EventRecorder,
        *,
        evictions: PodEvictions,
        count: Counter,
        requests: EvictionRequests | None = None,
    ) -> None:
        """`requests` is None where the cluster has no EvictionRequests: then every pod is evicted."""
        self._view = view
        self._events = events
        self._count = count
        self._evictions = evictions
        self._requests = requests
        self._asked: dict[str, AskedPod] = {}  # by pod UID
        self._asked_by: dict[str, set[str]] = {}  # by request UID
        self._in_flight: set[str] = set()

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with the UID of every request that may have to check a pod."""
        self._view.pods.subscribe(self._forget_pod)
        self._view.pods.subscribe_keys(
            wake,
            lambda pod: self._holding(pod.claims),
            reads=lambda pod: (pod.claims, pod.is_over, pod.spec.node_name, pod.metadata.finalizers),
        )
        self._view.disruption_budgets.subscribe_keys(
            wake,
            lambda _: self._refused_by_budgets(),
            reads=lambda budget: (budget.spec, budget.status.disruptions_allowed > 0),
        )
        if self._requests:
            self._requests.informer.subscribe_keys(wake, self._concerned)

    def read(
        self,
        request: DeviceMaintenance,
        devices: Collection[DeviceKey],
        claims: Sequence[ResourceClaim],
        rules: Sequence[DeviceTaintRule],
        *,
        now: datetime,
        paused: str,
    ) -> DrainInput | None:
        """The state of the pods on `devices`, which `claims` hold; None if nobody is to be evicted. `paused` names a budget."""
        if request.spec.drain.policy is DrainPolicy.WAIT:
            return None
        pods = {pod.metadata.uid: pod for claim in claims for pod in self._view.pods_of(claim.metadata.key)}
        namespaces = {claim.metadata.namespace for claim in claims}
        return DrainInput(
            now=now,
            devices=frozenset(devices),
            claims=claims,
            pods=list(pods.values()),
            rules=rules,
            budgets=self._view.budgets_in(namespaces),
            asked=self._asked,
            requested=self._requests.of(pods.values()) if self._requests else None,
            paused=paused,
            forbidden=NOT_PERMITTED if self._evictions.forbidden else "",
            spares_extended=spares_extended_resources(self._view.taint_rules),
            rules_served=self._view.taint_rules is not None,
        )

    def concerns(self, request: DeviceMaintenance, pods: Iterable[Pod]) -> None:
        """Register the request for these pods: their answers are kept until no request needs them."""
        self._asked_by[request.metadata.uid] = self._asked.keys() & {pod.metadata.uid for pod in pods}

    async def carry_out(self, request: DeviceMaintenance, plan: DrainPlan) -> float | None:
        """Evict the pods of `plan.evict`, and create EvictionRequests for those of `plan.request`.

        Returns seconds until the next look. Raises ApiError if the request itself cannot be read (then nobody is evicted), or if
        the cluster did not answer and must be asked again.
        """
        pause_s = self._evictions.left_s if plan.evict else 0.0
        keys = (*(() if pause_s else plan.evict), *plan.request)
        pods = [pod for key in keys if (pod := self._view.pods.store.get(key)) is not None]
        pods = [pod for pod in pods if pod.metadata.uid not in self._in_flight and not pod.is_over]
        if not pods or not await self._view.maintenances.is_current(request):
            return pause_s or None
        self._in_flight |= {pod.metadata.uid for pod in pods}
        limit = asyncio.Semaphore(_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        (self._ask_for if pod.metadata.key in plan.request else self._evict)(request, pod, limit),
                        name=f"evict {pod.metadata.key}",
                    )
                    for pod in pods
                ]
        finally:
            self._in_flight -= {pod.metadata.uid for pod in pods}
        for again in (task.result() for task in tasks):
            if again is not None:
                raise again
        return 1.0

    def forget(self, uid: str) -> None:
        """Forget the evictions for a request that is gone or finished."""
        pods = self._asked_by.pop(uid, set())
        for pod in pods - {each for others in self._asked_by.values() for each in others}:
            self._asked.pop(pod, None)

    def _forget_pod(self, change: Change[Pod]) -> None:
        if change.after is None and change.before is not None:
            self._asked.pop(change.before.metadata.uid, None)

    async def _ask_for(self, request: DeviceMaintenance, pod: Pod, limit: asyncio.Semaphore) -> ApiError | None:
        """Create an EvictionRequest for the pod. Return the error if it must be retried."""
        async with limit:
            if self._requests is None:
                return None
            try:
                made = await self._requests.make(pod)
            except ApiError as error:
                return error
        if made:
            self._count.labels("requested").inc()
            log.info("drain.requested", pod=str(pod.metadata.key), request=request.metadata.name)
            held = self._what_it_holds(request, pod)
            note = f"Asked to leave, because it holds {held}, in maintenance for {request.metadata.name}."
            self._events.record(PODS.reference(pod.metadata), REQUESTED_REASON, note)
        return None

    async def _evict(self, request: DeviceMaintenance, pod: Pod, limit: asyncio.Semaphore) -> None:
        async with limit:
            answer = await self._evictions.evict(pod, grace_s=request.spec.drain.grace_period_seconds)
            match answer.outcome:
                case Eviction.CHANGED:
                    log.info("drain.pod_changed", pod=str(pod.metadata.key), error=answer.error)
                    self._asked.pop(pod.metadata.uid, None)
                case Eviction.REFUSED:
                    self._note(request, pod, refusal=answer.why, by_budget=answer.by_budget)
                    self._count.labels("refused").inc()
                    log.info(
                        "drain.refused", pod=str(pod.metadata.key), request=request.metadata.name, error=answer.error
                    )
                case Eviction.ACCEPTED:
                    self._note(request, pod, refusal="", by_budget=False)
                    self._count.labels("evicted").inc()
                    log.info("drain.evicted", pod=str(pod.metadata.key), request=request.metadata.name)
                    self._announce_eviction(request, pod)

    def _note(self, request: DeviceMaintenance, pod: Pod, *, refusal: str, by_budget: bool) -> None:
        uid = pod.metadata.uid
        before = self._asked.get(uid)
        self._asked[uid] = AskedPod(
            at=self._view.clock.now(), tries=before.tries + 1 if before else 1, refusal=refusal, by_budget=by_budget
        )
        self._asked_by.setdefault(request.metadata.uid, set()).add(uid)

    def _announce_eviction(self, request: DeviceMaintenance, pod: Pod) -> None:
        meta, held = request.metadata, self._what_it_holds(request, pod)
        note = f"Evicted, because it holds {held}, in maintenance for {meta.name}."
        self._events.record(PODS.reference(pod.metadata), EVICTED_REASON, note)
        regarding = DEVICE_MAINTENANCES.reference(meta)
        self._events.record(regarding, EVICTED_REASON, f"Evicted pod {pod.metadata.key}, which holds {held}.")

    def _what_it_holds(self, request: DeviceMaintenance, pod: Pod) -> str:
        devices = sorted(self._view.devices_held(pod.claims).intersection(each.key for each in request.status.devices))
        return listed(f"{each.device} of {each.pool}" for each in devices) or "a device"

    def _refused_by_budgets(self) -> Iterator[str]:
        """The UIDs of requests with a pod whose eviction a budget refused."""
        for uid, pods in self._asked_by.items():
            if any(asked.by_budget for pod in pods if (asked := self._asked.get(pod))):
                yield uid

    def _concerned(self, asked: EvictionRequest) -> Iterator[str]:
        target = asked.spec.target.pod
        pod = self._view.pods.store.get(ObjectKey(asked.metadata.namespace, target.name)) if target else None
        return self._holding(pod.claims if pod else [])

    def _holding(self, claims: Iterable[ObjectKey]) -> Iterator[str]:
        """The UIDs of requests that drain devices of these claims."""
        held = self._view.devices_held(claims)
        for request in self._view.maintenances.store.values() if held else ():
            if _drains(request) and any(each.key in held for each in request.status.devices):
                yield request.metadata.uid


def _drains(request: DeviceMaintenance) -> bool:
    return request.spec.drain.policy is not DrainPolicy.WAIT and request.status.phase in _DRAINING_PHASES
