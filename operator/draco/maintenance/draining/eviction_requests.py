"""EvictionRequests: what one says, what became of it, and when it is withdrawn.

A pod has one request, however many maintenances want it gone, named after the pod's UID, so creating it twice makes one. The pod
owns it, so it is deleted with the pod. Deleting it withdraws it; it has no finalizer. Owns these rules.

Kubernetes 1.37 serves the kind but has no controller that acts on it: a request that nobody takes on within
`drain.TAKEN_ON_WITHIN` is followed by an eviction. Users who may write in the pod's namespace can change or delete a request but
not write its status, so they cannot use it to keep a pod that the Eviction API would evict.

Sources: the types of lifecycle.k8s.io/v1alpha1 in Kubernetes 1.37.2, KEP-4563.
"""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from enum import StrEnum

import msgspec

from draco.maintenance.taint_rules import MANAGED_BY
from draco.resources.api.core import Pod
from draco.resources.api.evictions import INTENT_EVICTION, EvictionRequest, EvictionRequestSpec, EvictionRequestTarget
from draco.resources.api.evictions import EvictionRequestPodReference as PodReference
from draco.resources.api.maintenance import DeviceMaintenance, DrainPolicy, MaintenancePhase
from draco.resources.api.meta import ObjectKey, ObjectMeta, is_true
from draco.resources.kinds import PODS
from draco.resources.names import DRACO_DOMAIN, LABEL_MANAGED_BY, DeviceKey

REQUESTER = f"{DRACO_DOMAIN}/maintenance"
"""Draco's name as a requester."""
_PREFIX = "draco-"


class RequestStanding(StrEnum):
    """What became of a request."""

    UNANSWERED = "Unanswered"
    """Nobody has taken it on yet."""
    TAKEN_ON = "TakenOn"
    """The cluster handles it."""
    GIVEN_UP = "GivenUp"
    """It has no effect: the cluster gave it up, or somebody changed, deleted or refused it."""


class RequestedEviction(msgspec.Struct, frozen=True, kw_only=True):
    """A pod with an EvictionRequest. `at` is by our own clock."""

    at: datetime
    standing: RequestStanding = RequestStanding.UNANSWERED


def request_key(pod: Pod) -> ObjectKey:
    """The key of this pod's request; a pod of the same name has another."""
    return ObjectKey(pod.metadata.namespace, f"{_PREFIX}{pod.metadata.uid}")


def pod_uid(request: EvictionRequest) -> str:
    """The UID of the pod that it targets."""
    target = request.spec.target.pod
    return target.uid if target else ""


def eviction_request_for(pod: Pod) -> EvictionRequest:
    """The EvictionRequest for the pod."""
    key, owner = request_key(pod), PODS.owner(pod.metadata, controller=None)
    return EvictionRequest(
        metadata=ObjectMeta(
            name=key.name, namespace=key.namespace, labels={LABEL_MANAGED_BY: MANAGED_BY}, owner_references=[owner]
        ),
        spec=_asked_for(pod),
    )


def _asked_for(pod: Pod) -> EvictionRequestSpec:
    reference = PodReference(name=pod.metadata.name, uid=pod.metadata.uid)
    return EvictionRequestSpec(target=EvictionRequestTarget(pod=reference), requester=REQUESTER, intent=INTENT_EVICTION)


def is_draco_request(request: EvictionRequest) -> bool:
    """Whether Draco made it; others are not touched."""
    return (
        request.spec.requester == REQUESTER
        and request.metadata.labels.get(LABEL_MANAGED_BY) == MANAGED_BY
        and request.metadata.name == f"{_PREFIX}{pod_uid(request)}"
    )


def standing_of(request: EvictionRequest, pod: Pod) -> RequestStanding:
    """What became of the request for this pod."""
    if request.spec != _asked_for(pod) or request.metadata.deletion_timestamp is not None:
        return RequestStanding.GIVEN_UP
    status = request.status
    if is_true(status.conditions, "Failed"):
        return RequestStanding.GIVEN_UP
    # The controller writes both, in no documented order.
    if status.observed_generation or status.conditions:
        return RequestStanding.TAKEN_ON
    return RequestStanding.UNANSWERED


def asks_by_request(maintenance: DeviceMaintenance) -> bool:
    """Whether to use EvictionRequests where they are served. They cannot carry a grace period; the Eviction API can."""
    drain = maintenance.spec.drain
    return drain.policy is not DrainPolicy.WAIT and drain.grace_period_seconds is None


def wants_gone(
    maintenance: DeviceMaintenance, held: Collection[DeviceKey], paused: Callable[[DeviceMaintenance], bool]
) -> bool:
    """Whether this maintenance is draining, with EvictionRequests, the users of these devices."""
    spec, status = maintenance.spec, maintenance.status
    return (
        status.phase is MaintenancePhase.DRAINING
        and asks_by_request(maintenance)
        and not (spec.cancelled or spec.finished)
        and maintenance.metadata.deletion_timestamp is None
        and any(each.key in held for each in status.devices)
        and not paused(maintenance)
    )


def is_wanted(
    pod: Pod | None,
    held: Collection[DeviceKey],
    maintenances: Iterable[DeviceMaintenance],
    paused: Callable[[DeviceMaintenance], bool],
) -> bool:
    """Whether the request for this pod (None: it is gone), which holds these devices, stays."""
    if pod is None or pod.has_ended:
        return False
    return any(wants_gone(each, held, paused) for each in maintenances)
