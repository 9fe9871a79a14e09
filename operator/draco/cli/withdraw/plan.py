"""Plans a withdrawal: what Draco wrote into the cluster, and how to take back each part.

Owns the list of everything that operator and agents write outside of Draco's own kinds, and how such writes are recognised: by
label and name, by a condition's reason, by an annotation that records what was set, or by managedFields. Objects of Draco's own
kinds stay, and so does what a person asked for (a rule of `draco taint add`) or a pod uses (an allocated claim). Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from draco.agent.publish.slices import slice_name
from draco.allocation.ownership.claims import is_for_operator
from draco.allocation.ownership.holds import releasing
from draco.maintenance.draining.eviction_requests import is_draco_request
from draco.maintenance.isolating.node_conditions import REASON, TYPES
from draco.maintenance.taint_rules import is_draco_own, maintained_device, maintenance_uid
from draco.resources.api.base import ApiStruct
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Lease, Node, Pod
from draco.resources.api.evictions import EvictionRequest
from draco.resources.api.jobs import Job
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import (
    CLAIMS,
    DEVICE_RESERVATIONS,
    EVICTION_REQUESTS,
    JOBS,
    LEASES,
    NODES,
    PODS,
    SLICES,
    Kind,
)
from draco.resources.names import (
    FIELD_MANAGER_AGENT,
    FIELD_MANAGER_OPERATOR,
    LABEL_AGENT_LEASE,
    LABEL_MAINTENANCE,
    LABEL_RESERVATION,
    OPERATOR_LEASE,
    SCHEDULING_GATE,
    DeviceKey,
    gpu_name,
)
from draco.resources.texts import counted, listed

DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"
_NAMED: Final = 3
"""Objects that a sentence names; the rest are counted."""


class FieldManager(ApiStruct, frozen=True, kw_only=True):
    """An entry of metadata.managedFields."""

    manager: str = ""
    subresource: str = ""


class ManagedMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata with managedFields."""

    managed_fields: list[FieldManager] = []


class ManagedClaim(ResourceClaim, frozen=True, kw_only=True):
    """A claim with managedFields."""

    metadata: ManagedMeta = ManagedMeta()


MANAGED_CLAIMS: Final = Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True, ManagedClaim)


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What was read. Leases are those of Draco's namespace, Jobs those of `job_namespace` ("" if Draco runs none)."""

    job_namespace: str = ""
    slices: Sequence[ResourceSlice] = ()
    rules: Sequence[DeviceTaintRule] = ()
    rule_kind: Kind[DeviceTaintRule] | None = None
    nodes: Sequence[Node] = ()
    claims: Sequence[ManagedClaim] = ()
    classes: Sequence[DeviceClass] = ()
    pods: Sequence[Pod] = ()
    eviction_requests: Sequence[EvictionRequest] = ()
    jobs: Sequence[Job] = ()
    leases: Sequence[Lease] = ()


class Reversal(msgspec.Struct, frozen=True, kw_only=True):
    """One write. Without `patch` and `manager` the object is deleted.

    A merge `patch` applies only to the version that was read; a `manager` gives up all status fields that it owns.
    """

    kind: Kind[Any]
    meta: ObjectMeta
    done: str
    patch: Mapping[str, Any] | None = None
    manager: str = ""

    def __str__(self) -> str:
        return f"{self.kind.kind.lower()}/{self.meta.key} {self.done}"


class WithdrawalPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The writes in order, the devices that they make available to claims again, and a sentence about each thing that stays."""

    reversals: tuple[Reversal, ...] = ()
    isolated: tuple[DeviceKey, ...] = ()
    stays: tuple[str, ...] = ()


def plan(found: Written) -> WithdrawalPlan:
    """Plan the withdrawal. Slices are deleted before the rules that keep claims off their devices."""
    reversals = [*_slices(found), *_rules(found), *_of_pods(found), *_claims(found), *_nodes(found), *_own(found)]
    return WithdrawalPlan(
        reversals=tuple(reversals),
        isolated=tuple(sorted(_isolated(found))),
        stays=tuple(_stays(found)),
    )


def is_agents(item: ResourceSlice) -> bool:
    """Whether an agent of Draco published it; other plugins of the same driver name their slices differently."""
    node, index = item.spec.node_name, item.metadata.name[-3:]
    if not node or item.spec.pool.name != node or not index.isdecimal():
        return False
    return item.metadata.name == slice_name(node, item.spec.driver, int(index))


def _isolated(found: Written) -> set[DeviceKey]:
    """Devices in maintenance, each isolated by its own rule or by its agent."""
    by_rules = {maintained_device(rule) for rule in found.rules if maintenance_uid(rule)}
    by_agents = {
        DeviceKey(each.spec.driver, each.spec.pool.name, gpu_name(device.name))
        for each in filter(is_agents, found.slices)
        for device in each.spec.devices
        if any(taint.is_of_maintenance for taint in device.taints)
    }
    return {device for device in by_rules if device} | by_agents


def _slices(found: Written) -> Iterator[Reversal]:
    return (_deleted(SLICES, each.metadata) for each in found.slices if is_agents(each))


def _rules(found: Written) -> Iterator[Reversal]:
    if found.rule_kind is not None:
        for rule in found.rules:
            if is_draco_own(rule):
                yield _deleted(found.rule_kind, rule.metadata)


def _of_pods(found: Written) -> Iterator[Reversal]:
    for pod in found.pods:
        gates = pod.spec.scheduling_gates
        if any(each.name == SCHEDULING_GATE for each in gates):
            others = [msgspec.to_builtins(each) for each in gates if each.name != SCHEDULING_GATE]
            patch = {"spec": {"schedulingGates": others or None}}
            yield Reversal(kind=PODS, meta=pod.metadata, done=f"without scheduling gate {SCHEDULING_GATE}", patch=patch)
    for request in found.eviction_requests:
        if is_draco_request(request) and request.metadata.deletion_timestamp is None:
            yield _deleted(EVICTION_REQUESTS, request.metadata)


def _claims(found: Written) -> Iterator[Reversal]:
    classes = {each.metadata.name: each for each in found.classes}
    for claim in found.claims:
        meta = claim.metadata
        of_job = LABEL_MAINTENANCE in meta.labels and meta.namespace == found.job_namespace
        if (of_job or _is_reservations(claim)) and not claim.status.reserved_for:
            if meta.deletion_timestamp is None:
                yield _deleted(CLAIMS, meta)
            continue
        if any(each.manager == FIELD_MANAGER_AGENT and each.subresource == "status" for each in meta.managed_fields):
            yield Reversal(kind=CLAIMS, meta=meta, done="without its devices' states", manager=FIELD_MANAGER_AGENT)
        if claim.waits and DELETE_PROTECTION in meta.finalizers and is_for_operator(claim, classes):
            others = [each for each in meta.finalizers if each != DELETE_PROTECTION]
            patch = {"metadata": {"finalizers": others or None}}
            yield Reversal(kind=CLAIMS, meta=meta, done=f"without finalizer {DELETE_PROTECTION}", patch=patch)


def _nodes(found: Written) -> Iterator[Reversal]:
    for node in found.nodes:
        if change := releasing(node.metadata.annotations):
            patch = {"metadata": {"annotations": change}}
            yield Reversal(kind=NODES, meta=node.metadata, done="without annotations against scale-down", patch=patch)
        if any(each.reason == REASON and each.type in TYPES for each in node.status.conditions):
            done = "without conditions of maintenance"
            yield Reversal(kind=NODES, meta=node.metadata, done=done, manager=FIELD_MANAGER_OPERATOR)


def _own(found: Written) -> Iterator[Reversal]:
    for job in found.jobs:
        if LABEL_MAINTENANCE in job.metadata.labels and job.metadata.deletion_timestamp is None:
            yield _deleted(JOBS, job.metadata)
    for lease in found.leases:
        if lease.metadata.name == OPERATOR_LEASE or LABEL_AGENT_LEASE in lease.metadata.labels:
            yield _deleted(LEASES, lease.metadata)


def _is_reservations(claim: ResourceClaim) -> bool:
    owner = claim.metadata.controller
    return LABEL_RESERVATION in claim.metadata.labels and owner is not None and owner.kind == DEVICE_RESERVATIONS.kind


def _deleted(kind: Kind[Any], meta: ObjectMeta) -> Reversal:
    return Reversal(kind=kind, meta=meta, done="deleted")


def _stays(found: Written) -> Iterator[str]:
    pools = {(each.spec.driver, each.spec.pool.name) for each in found.slices if is_agents(each)}
    used = [each.metadata for each in found.claims if each.status.reserved_for and _holds(each, pools)]
    if used:
        yield (
            f"{counted(len(used), 'claim')} of running pods keep their GPUs ({_some(used)}): without an agent kubelet cannot "
            "stop these pods; delete them first, or install another agent."
        )
    idle = [each.metadata for each in found.claims if not each.status.reserved_for and _holds(each, pools)]
    if idle:
        yield (
            f"{counted(len(idle), 'claim')} without a pod keep the GPUs that they have ({_some(idle)}): delete those that nobody "
            "needs."
        )
    made = [each.metadata for each in found.rules if not is_draco_own(each)]
    if made:
        yield f"{counted(len(made), 'DeviceTaintRule')} that people made stay ({_some(made)}): see them with `draco taint list`."


def _holds(claim: ResourceClaim, pools: set[tuple[str, str]]) -> bool:
    return not _is_reservations(claim) and any((each.driver, each.pool) in pools for each in claim.devices_held)


def _some(metas: Iterable[ObjectMeta]) -> str:
    return listed(sorted(str(each.key) for each in metas), _NAMED)
