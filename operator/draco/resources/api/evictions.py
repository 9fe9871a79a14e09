"""EvictionRequest: asks the cluster to evict a pod. `maintenance.draining` writes requests and interprets their status."""

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import Condition, ObjectStruct

INTENT_EVICTION = "Eviction"


class EvictionRequestPodReference(ApiStruct, frozen=True, kw_only=True):
    """One pod, by name and UID, in the request's namespace."""

    name: str
    uid: str


class EvictionRequestTarget(ApiStruct, frozen=True, kw_only=True):
    """What to evict. Targets of other kinds may be added upstream; Draco ignores them."""

    pod: EvictionRequestPodReference | None = None


class EvictionRequestSpec(ApiStruct, frozen=True, kw_only=True):
    """Requester and target. `intent` is Eviction or Withdrawn; everything else is immutable."""

    target: EvictionRequestTarget = EvictionRequestTarget()
    requester: str = ""
    intent: str = ""  # no default, because the API server requires it


class EvictionRequestStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the cluster's controller for these requests; empty without one."""

    conditions: list[Condition] = []
    observed_generation: int | None = None


class EvictionRequest(ObjectStruct, frozen=True, kw_only=True):
    """Served in lifecycle.k8s.io/v1alpha1 by Kubernetes 1.37 with the feature gate EvictionRequestAPI."""

    spec: EvictionRequestSpec = EvictionRequestSpec()
    status: EvictionRequestStatus = EvictionRequestStatus()
