"""Asking the cluster to make a pod leave: what an EvictionRequest says, what has become of it, and when it is withdrawn.

A request is one per pod, however many maintenances want that pod gone, and is named after the pod's UID: made twice, it is there
once. The pod owns it, so it goes with the pod. Deleting it withdraws it. It has no finalizer. Owns these rules.

Kubernetes 1.37 serves the kind and has no controller that acts on it: a request that nobody has taken on within
`drain.TAKEN_ON_WITHIN` is followed by an eviction. Those who may write in the pod's namespace may change or delete a request, but
not write its status, so by that they cannot keep a pod that the Eviction API would let go.

Sources: the types of lifecycle.k8s.io/v1alpha1 in Kubernetes 1.37.2, KEP-4563.
"""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from enum import StrEnum

import msgspec

from draco.maintenance.rules import MANAGED_BY
from draco.resources.api.core import Pod
from draco.resources.api.evictions import INTENT_EVICTION, EvictionRequest, EvictionRequestSpec, EvictionRequestTarget
from draco.resources.api.evictions import EvictionRequestPodReference as PodReference
from draco.resources.api.maintenance import DeviceMaintenance, DrainPolicy, MaintenancePhase
from draco.resources.api.meta import ObjectKey, ObjectMeta, is_true
from draco.resources.kinds import PODS
from draco.resources.names import DRACO_DOMAIN, LABEL_MANAGED_BY, DeviceKey

REQUESTER = f"{DRACO_DOMAIN}/maintenance"
"""By this name the cluster knows who wants a pod gone."""
_PREFIX = "draco-"


class RequestStanding(StrEnum):
    """What has become of a request."""

    UNANSWERED = "Unanswered"
    """Nobody has taken it on yet."""
    TAKEN_ON = "TakenOn"
    """The cluster sees to it."""
    GIVEN_UP = "GivenUp"
    """Nothing is to be expected of it: the cluster has given it up, or somebody has changed or refused it."""


class RequestedEviction(msgspec.Struct, frozen=True, kw_only=True):
    """A pod for which the cluster was asked. `at` is by our own clock."""

    at: datetime
    standing: RequestStanding = RequestStanding.UNANSWERED


def request_key(pod: Pod) -> ObjectKey:
    """Where the request for this very pod is."""
    return ObjectKey(pod.metadata.namespace, f"{_PREFIX}{pod.metadata.uid}")


def pod_uid(request: EvictionRequest) -> str:
    """The UID of the pod that it is for."""
    target = request.spec.target.pod
    return target.uid if target else ""


def eviction_request_for(pod: Pod) -> EvictionRequest:
    """What is made to have the pod leave."""
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
    """Whether Draco has made it: all others are not touched."""
    return (
        request.spec.requester == REQUESTER
        and request.metadata.labels.get(LABEL_MANAGED_BY) == MANAGED_BY
        and request.metadata.name == f"{_PREFIX}{pod_uid(request)}"
    )


def standing_of(request: EvictionRequest, pod: Pod) -> RequestStanding:
    """What has become of the request for this pod."""
    if request.spec != _asked_for(pod) or request.metadata.deletion_timestamp is not None:
        return RequestStanding.GIVEN_UP
    status = request.status
    if is_true(status.conditions, "Failed"):
        return RequestStanding.GIVEN_UP
    # It writes both; which comes first is not said.
    if status.observed_generation or status.conditions:
        return RequestStanding.TAKEN_ON
    return RequestStanding.UNANSWERED


def asks_by_request(maintenance: DeviceMaintenance) -> bool:
    """Whether it has the cluster make pods leave, where that is served. A grace period can be given to the Eviction API only."""
    drain = maintenance.spec.drain
    return drain.policy is not DrainPolicy.WAIT and drain.grace_period_seconds is None


def wants_gone(
    maintenance: DeviceMaintenance, held: Collection[DeviceKey], paused: Callable[[DeviceMaintenance], bool]
) -> bool:
    """Whether this maintenance is making those leave who hold these devices."""
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
    """Whether a request for this pod (None: it is gone), which holds these devices, is to stay."""
    if pod is None or pod.has_ended:
        return False
    return any(wants_gone(each, held, paused) for each in maintenances)
