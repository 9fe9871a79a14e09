"""EvictionRequest: asking the cluster to make a pod leave, rather than evicting it oneself.

Owns the struct only. What a request says, and what its status means, is `maintenance.draining`'s to know.
"""

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import Condition, ObjectStruct

INTENT_EVICTION = "Eviction"


class EvictionRequestPodReference(ApiStruct, frozen=True, kw_only=True):
    """One very pod, of the request's namespace."""

    name: str
    uid: str


class EvictionRequestTarget(ApiStruct, frozen=True, kw_only=True):
    """Who is to leave. Targets of other kinds may come; they are not ours."""

    pod: EvictionRequestPodReference | None = None


class EvictionRequestSpec(ApiStruct, frozen=True, kw_only=True):
    """Who wants whom gone. `intent` is Eviction or Withdrawn; all else never changes."""

    target: EvictionRequestTarget = EvictionRequestTarget()
    requester: str = ""
    intent: str = ""  # no default that means something: the API server wants it written


class EvictionRequestStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the cluster's controller of such requests; empty where there is none."""

    conditions: list[Condition] = []
    observed_generation: int | None = None


class EvictionRequest(ObjectStruct, frozen=True, kw_only=True):
    """Served in lifecycle.k8s.io/v1alpha1 by Kubernetes 1.37 with the feature gate EvictionRequestAPI."""

    spec: EvictionRequestSpec = EvictionRequestSpec()
    status: EvictionRequestStatus = EvictionRequestStatus()
