"""Groups of pods that are scheduled together, as Kubernetes has them since 1.36.

Owns the structs, scheduling.k8s.io: what Draco reads of them, which is the same in all versions, and PriorityClasses. Never
written.
"""

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import ObjectStruct


class GangSchedulingPolicy(ApiStruct, frozen=True, kw_only=True):
    """All or nothing: at least so many pods at once."""

    min_count: int = 1


class PodGroupSchedulingPolicy(ApiStruct, frozen=True, kw_only=True):
    """How the pods are scheduled; one by one, if there is no gang."""

    gang: GangSchedulingPolicy | None = None


class TopologyConstraint(ApiStruct, frozen=True, kw_only=True):
    """All pods on nodes with one value of this label."""

    key: str


class PodGroupSchedulingConstraints(ApiStruct, frozen=True, kw_only=True):
    """Where the pods may be with respect to each other."""

    topology: list[TopologyConstraint] = []


class PodGroupSpec(ApiStruct, frozen=True, kw_only=True):
    """What is wanted of the group."""

    scheduling_policy: PodGroupSchedulingPolicy = PodGroupSchedulingPolicy()
    scheduling_constraints: PodGroupSchedulingConstraints | None = None
    priority: int | None = None


class PodGroup(ObjectStruct, frozen=True, kw_only=True):
    """Pods that name it in spec.schedulingGroup belong to it."""

    spec: PodGroupSpec = PodGroupSpec()


class PriorityClass(ObjectStruct, frozen=True, kw_only=True):
    """How urgent those are that name it, and whether others leave for them: not with `preemption_policy` Never."""

    value: int
    global_default: bool = False
    preemption_policy: str = ""
