"""Creates EvictionRequests for pods under maintenance, and withdraws those no longer wanted.

Owns the EvictionRequests: where they are served, they are watched, each pod gets one, and one that no maintenance wants is
deleted, whichever process made it. Only the time of the first request is in memory; losing it costs a pause.
`maintenance.draining` decides the contents, and when one is wanted.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

import structlog

from draco.controller.view import ClusterView
from draco.kube.clock import wait_for
from draco.kube.connect.client import Client
from draco.kube.connect.retry import TRANSIENT
from draco.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.maintenance.draining.eviction_requests import (
    RequestedEviction,
    RequestStanding,
    eviction_request_for,
    is_draco_request,
    is_wanted,
    pod_uid,
    request_key,
    standing_of,
)
from draco.maintenance.taint_rules import MANAGED_BY
from draco.resources.api.core import Pod
from draco.resources.api.evictions import EvictionRequest
from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import DEVICE_MAINTENANCES, Kind
from draco.resources.names import LABEL_MANAGED_BY, DeviceKey

log = structlog.get_logger(__name__)

_COUNTED_WITHIN_S = 1.0
"""How soon to look again at a request that a paused budget may withdraw: nothing signals that its GPUs are counted."""


class EvictionRequests:
    """The EvictionRequests of all maintenances, one per pod. Reconciles each by its key, and withdraws unwanted ones."""

    def __init__(
        self,
        client: Client,
        kind: Kind[EvictionRequest],
        view: ClusterView,
        *,
        paused: Callable[[Collection[DeviceKey]], str],
        knows_what_is_paused: Callable[[], bool],
    ) -> None:
        """`paused` names what stops evictions from these devices; it is complete once `knows_what_is_paused`."""
        self._client = client
        self._kind = kind
        self._view = view
        self._paused = paused
        self._knows_what_is_paused = knows_what_is_paused
        self._first_asked: dict[str, datetime] = {}  # by pod UID
        self._refused: set[str] = set()  # UIDs of pods
        self._withdrawn: dict[str, str] = {}  # by pod UID: a request of ours that may still be in the store
        self.informer: Informer[EvictionRequest] = Informer(
            client, kind, label_selector=f"{LABEL_MANAGED_BY}={MANAGED_BY}", clock=view.clock
        )

    async def known(self, within_s: float) -> None:
        """Wait until the requests are known: before that, pods that the cluster handles would be evicted."""
        await wait_for(self.informer.synced, self._view.clock, within_s)

    def subscribe(self, wake: Callable[[ObjectKey], None]) -> None:
        """Call `wake` with the key of every request that may have to be withdrawn."""
        self.informer.subscribe(lambda change: wake(change.key))
        self._view.pods.subscribe(lambda change: self._wake_for_pod(change, wake))
        self._view.claims.subscribe_keys(wake, lambda _: self.all_keys(), reads=lambda claim: claim.devices_held)
        self._view.maintenances.subscribe_keys(wake, lambda _: self.all_keys(), reads=_decisive)
        self._view.budgets.subscribe_keys(wake, lambda _: self.all_keys(), reads=lambda budget: budget.spec)

    def all_keys(self) -> set[ObjectKey]:
        """Every request."""
        return {each.metadata.key for each in self.informer.store.values()}

    def of(self, pods: Iterable[Pod]) -> Mapping[str, RequestedEviction] | None:
        """The requests for these pods, by UID; None if not known yet."""
        if not self.informer.synced.is_set() or self.informer.unserved_s:
            return None
        found = {}
        for pod in pods:
            uid = pod.metadata.uid
            request = self._request_for(pod)
            if request is None and uid not in self._first_asked:
                continue
            standing = standing_of(request, pod) if request else RequestStanding.UNANSWERED
            found[uid] = RequestedEviction(
                at=self._first_asked.setdefault(uid, self._view.clock.now()),
                standing=RequestStanding.GIVEN_UP if uid in self._refused else standing,
            )
        return found

    async def make(self, pod: Pod) -> bool:
        """Request the pod's eviction. Return whether this is the first request. Raises ApiError if it must be retried."""
        uid = pod.metadata.uid
        made = True
        try:
            await self._client.create(self._kind, eviction_request_for(pod))
        except AlreadyExists:
            made = False  # made by a former process, and not yet in the store
        except TRANSIENT:
            raise
        except ApiError as error:
            # No longer served, forbidden, a quota, a webhook: evict the pod as in other clusters.
            log.info("drain.request_refused", pod=str(pod.metadata.key), error=str(error))
            self._refused.add(uid)
            made = False
        self._first_asked.setdefault(uid, self._view.clock.now())
        if not self._view.pods.store.still_has(
            pod
        ):  # the watch has delivered its end: the entry would never be removed
            self._forget(uid)
        return made

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Withdraw this request if nobody wants it. Return seconds until the next look."""
        request = self.informer.store.get(key)
        if request is None or not is_draco_request(request) or request.metadata.deletion_timestamp is not None:
            return None
        uid, target = pod_uid(request), request.spec.target.pod
        pod = self._view.pods.store.get(ObjectKey(key.namespace, target.name)) if target else None
        pod = pod if pod and pod.metadata.uid == uid else None
        held = self._view.devices_held(pod.claims if pod else ())
        if is_wanted(pod, held, self._view.maintenances.store.values(), self._is_paused):
            return None if self._knows_what_is_paused() else _COUNTED_WITHIN_S
        # Another replica may lead by now and know of newer maintenances.
        if pod and is_wanted(pod, held, await self._client.list(DEVICE_MAINTENANCES), self._is_paused):
            return None if self._knows_what_is_paused() else _COUNTED_WITHIN_S
        try:
            await self._client.delete(self._kind, key, uid=request.metadata.uid)
        except (NotFound, Conflict):
            pass  # it is gone or replaced; that event wakes us
        else:
            log.info("drain.request_withdrawn", request=str(key), pod=target.name if target else "")
        self._forget(uid)
        if pod and self._view.pods.store.still_has(pod):
            self._withdrawn[uid] = request.metadata.uid
        return None

    def _request_for(self, pod: Pod) -> EvictionRequest | None:
        """The request for this pod, unless it was withdrawn and the store does not show that yet."""
        request = self.informer.store.get(request_key(pod))
        return request if request and request.metadata.uid != self._withdrawn.get(pod.metadata.uid) else None

    def _forget(self, uid: str) -> None:
        self._first_asked.pop(uid, None)
        self._refused.discard(uid)

    def _is_paused(self, maintenance: DeviceMaintenance) -> bool:
        return bool(self._paused([each.key for each in maintenance.status.devices]))

    def _wake_for_pod(self, change: Change[Pod], wake: Callable[[ObjectKey], None]) -> None:
        if change.after is None and change.before is not None:
            self._forget(change.before.metadata.uid)
            self._withdrawn.pop(change.before.metadata.uid, None)
        for pod in change.versions[:1]:
            if self.informer.store.get(request_key(pod)) is not None:
                wake(request_key(pod))


def _decisive(maintenance: DeviceMaintenance) -> tuple[Any, ...]:
    meta, spec, status = maintenance.metadata, maintenance.spec, maintenance.status
    return meta.deletion_timestamp, spec.drain, spec.cancelled, spec.finished, status.phase, status.devices
