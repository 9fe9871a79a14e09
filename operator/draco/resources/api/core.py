"""Pods, PodDisruptionBudgets, nodes, Events and Leases, as far as Draco reads and writes them.

The Lease is complete, so that it can be written back whole. events.k8s.io/v1 serves the same Events with other field names.
"""

from datetime import datetime

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import (
    Condition,
    LabelSelector,
    NodeSelector,
    ObjectKey,
    ObjectStruct,
    find_condition,
    is_true,
)
from draco.resources.names import SCHEDULING_GATE


class PodResourceClaim(ApiStruct, frozen=True, kw_only=True):
    """A claim the pod uses, by name or through a template."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class ContainerClaim(ApiStruct, frozen=True, kw_only=True):
    """A pod's claim that a container uses: one of its requests, or all."""

    name: str
    request: str = ""


class ResourceRequirements(ApiStruct, frozen=True, kw_only=True):
    """Quantities by resource name, and claims."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}
    claims: list[ContainerClaim] = []


class Container(ApiStruct, frozen=True, kw_only=True):
    """A container's name and resources."""

    name: str
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str = ""
    """An init container with Always is a sidecar."""


class NodeAffinity(ApiStruct, frozen=True, kw_only=True):
    """Node rules of a pod."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(ApiStruct, frozen=True, kw_only=True):
    """Only node affinity matters for device allocation."""

    node_affinity: NodeAffinity | None = None


class Toleration(ApiStruct, frozen=True, kw_only=True):
    """A pod's toleration of node taints."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class EvictionResponder(ApiStruct, frozen=True, kw_only=True):
    """Handles a pod's eviction, from Kubernetes 1.37 with the feature gate EvictionRequestAPI."""

    name: str


class PodSchedulingGate(ApiStruct, frozen=True, kw_only=True):
    """Keeps a pod from being scheduled until it is removed."""

    name: str


class PodSchedulingGroup(ApiStruct, frozen=True, kw_only=True):
    """The pod's PodGroup, since Kubernetes 1.36."""

    pod_group_name: str = ""


class PodSpec(ApiStruct, frozen=True, kw_only=True):
    """Fields that decide where a pod runs and which claims it uses."""

    node_name: str = ""
    scheduler_name: str = ""
    containers: list[Container] = []
    init_containers: list[Container] = []
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    resource_claims: list[PodResourceClaim] = []
    eviction_responders: list[EvictionResponder] = []
    priority: int = 0
    preemption_policy: str = ""
    """Never: the pod does not preempt others; "" means PreemptLowerPriority."""
    scheduling_gates: list[PodSchedulingGate] = []
    scheduling_group: PodSchedulingGroup | None = None


class PodResourceClaimStatus(ApiStruct, frozen=True, kw_only=True):
    """The claim made for a pod from a template."""

    name: str
    resource_claim_name: str | None = None


class PodExtendedResourceClaimStatus(ApiStruct, frozen=True, kw_only=True):
    """The claim the scheduler made for extended resources."""

    resource_claim_name: str = ""


class PodStatus(ApiStruct, frozen=True, kw_only=True):
    """Phase, conditions and the names of generated claims."""

    phase: str = ""
    start_time: datetime | None = None
    conditions: list[Condition] = []
    resource_claim_statuses: list[PodResourceClaimStatus] = []
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None


class Pod(ObjectStruct, frozen=True, kw_only=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def claims(self) -> list[ObjectKey]:
        """Its claims: by name, from templates, or from the scheduler for extended resources."""
        made = {status.name: status.resource_claim_name for status in self.status.resource_claim_statuses}
        names = [claim.resource_claim_name or made.get(claim.name) for claim in self.spec.resource_claims]
        found = [ObjectKey(self.metadata.namespace, name) for name in names if name]
        return found + ([self.extended_resource_claim] if self.extended_resource_claim else [])

    @property
    def extended_resource_claim(self) -> ObjectKey | None:
        """The claim that the scheduler made for its extended resources; None without one."""
        made = self.status.extended_resource_claim_status
        return (
            ObjectKey(self.metadata.namespace, made.resource_claim_name) if made and made.resource_claim_name else None
        )

    @property
    def is_over(self) -> bool:
        """Whether it is being deleted or has ended."""
        return self.metadata.deletion_timestamp is not None or self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether all its containers have ended for good. A pod being deleted runs until then."""
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def scheduled(self) -> Condition | None:
        """The PodScheduled condition, written by kube-scheduler; None without one."""
        return find_condition(self.status.conditions, "PodScheduled")

    @property
    def is_refused(self) -> bool:
        """Whether kube-scheduler has found no node for it."""
        said = self.scheduled
        return said is not None and said.status == "False" and said.reason != "SchedulingGated"

    @property
    def pending(self) -> bool:
        """Whether none of its containers has started and it is not being deleted."""
        return self.metadata.deletion_timestamp is None and self.status.phase in {"", "Pending"}

    @property
    def waits(self) -> bool:
        """Whether it is pending without a node."""
        return self.pending and not self.spec.node_name

    @property
    def is_gated_by_others(self) -> bool:
        """Whether a scheduling gate other than Draco's holds it."""
        return any(gate.name != SCHEDULING_GATE for gate in self.spec.scheduling_gates)


class PodDisruptionBudgetSpec(ApiStruct, frozen=True, kw_only=True):
    """Pods it covers (none without a selector), and how many must stay, or may go: "50%" or a number."""

    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class PodDisruptionBudgetStatus(ApiStruct, frozen=True, kw_only=True):
    """Allowed evictions now, and the numbers behind them."""

    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0


class PodDisruptionBudget(ObjectStruct, frozen=True, kw_only=True):
    """The Eviction API checks it before it evicts a pod."""

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class NodeTaint(ApiStruct, frozen=True, kw_only=True):
    """A taint on a node."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(ApiStruct, frozen=True, kw_only=True):
    """Cordon and taints of a node."""

    unschedulable: bool = False
    taints: list[NodeTaint] = []


class NodeStatus(ApiStruct, frozen=True, kw_only=True):
    """Conditions only."""

    conditions: list[Condition] = []


class Node(ObjectStruct, frozen=True, kw_only=True):
    """A node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Whether the Ready condition is True."""
        return is_true(self.status.conditions, "Ready")


class NodeCapacity(ApiStruct, frozen=True, kw_only=True):
    """Capacity and allocatable resources of a node, as quantities."""

    allocatable: dict[str, str] = {}
    capacity: dict[str, str] = {}


class NodeResources(ObjectStruct, frozen=True, kw_only=True):
    """A node as its own agent reads it."""

    status: NodeCapacity = NodeCapacity()


class ObjectReference(ApiStruct, frozen=True, kw_only=True):
    """A reference to an object of any kind; `namespace` is "" for cluster-scoped ones."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    field_path: str = ""


class EventSeries(ApiStruct, frozen=True, kw_only=True):
    """How often it happened, and when last (MicroTime text)."""

    count: int
    last_observed_time: str


class Event(ObjectStruct, frozen=True, kw_only=True):
    """An Event, or a series of equal ones. `event_time` is a MicroTime text; `type` is Normal or Warning."""

    involved_object: ObjectReference | None = None
    reason: str = ""
    message: str = ""
    type: str
    action: str = ""
    event_time: str | None = None
    series: EventSeries | None = None
    reporting_component: str = ""
    reporting_instance: str = ""


class LeaseSpec(ApiStruct, frozen=True, kw_only=True):
    """Times are MicroTime texts (see `meta.micro_time`); without a holder it is free."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(ObjectStruct, frozen=True, kw_only=True):
    """A lease."""

    spec: LeaseSpec = LeaseSpec()
