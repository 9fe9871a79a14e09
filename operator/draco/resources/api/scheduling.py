"""PodGroups (since Kubernetes 1.36; the fields read are the same in all versions), and PriorityClasses. Never written."""

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import ObjectStruct


class GangSchedulingPolicy(ApiStruct, frozen=True, kw_only=True):
    """All or nothing: at least this many pods together."""

    min_count: int = 1


class PodGroupSchedulingPolicy(ApiStruct, frozen=True, kw_only=True):
    """How the pods are scheduled; without a gang, one by one."""

    gang: GangSchedulingPolicy | None = None


class TopologyConstraint(ApiStruct, frozen=True, kw_only=True):
    """All pods on nodes with the same value of this label."""

    key: str


class PodGroupSchedulingConstraints(ApiStruct, frozen=True, kw_only=True):
    """Constraints between the nodes of the pods."""

    topology: list[TopologyConstraint] = []


class PodGroupSpec(ApiStruct, frozen=True, kw_only=True):
    """What is wanted of the group."""

    scheduling_policy: PodGroupSchedulingPolicy = PodGroupSchedulingPolicy()
    scheduling_constraints: PodGroupSchedulingConstraints | None = None
    priority: int | None = None


class PodGroup(ObjectStruct, frozen=True, kw_only=True):
    """A group of pods; they name it in spec.schedulingGroup."""

    spec: PodGroupSpec = PodGroupSpec()


class PriorityClass(ObjectStruct, frozen=True, kw_only=True):
    """A priority, and whether its pods preempt others: not with `preemption_policy` Never."""

    value: int
    global_default: bool = False
    preemption_policy: str = ""
