"""Plans the spec of one GpuNode. Pure.

Owns the content of each field. `decided` lists the GPUs that the spec covers: while the agent has not reported a GPU, or the
operator does not know which GPUs Draco allocates, the agent keeps the previous spec. Lists are sorted, so equal plans give equal
specs.
"""

from collections.abc import Collection, Iterable, Sequence

from draco.allocation.fleet.hardware import PoolHardware
from draco.health.policy import MOST_OVERRIDES, in_order
from draco.maintenance.isolating.gpu_node_entries import isolated_gpus
from draco.mig_policy.promises import promises
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import (
    ClearedGpu,
    GpuNode,
    GpuNodeSpec,
    IsolatedGpu,
    PromisedDevice,
    RepairedGpu,
    WantedGpu,
)
from draco.resources.api.health import FaultOverride
from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.api.taints import DeviceTaintRule
from draco.sharing.decide import NodeForms

MOST_ISOLATED = 1024
"""The schema's maximum. Further requests do not become ready for work."""


def plan_spec(
    node: GpuNode,
    *,
    layout: Sequence[WantedGpu],
    promised: Sequence[PromisedDevice],
    forms: NodeForms,
    isolation: Sequence[IsolatedGpu],
    overrides: Sequence[FaultOverride],
    repaired: Sequence[RepairedGpu],
    handover: Collection[str] | None,
    cleared: Sequence[ClearedGpu] = (),
) -> GpuNodeSpec:
    """The wanted spec of `node`. `handover`: UUIDs of the GPUs that Draco allocates; None if not known yet."""
    is_known = bool(node.status.driver) and handover is not None
    spec = GpuNodeSpec(
        gpus=list(layout),
        promised=list(promised),
        shared=forms.shared,
        changing=forms.changing,
        cleared=list(cleared),
        isolated=sorted(isolation, key=_request_and_gpu)[:MOST_ISOLATED],
        health=in_order(overrides)[:MOST_OVERRIDES],
        repaired=list(repaired),
        operator_allocated=node.spec.operator_allocated if handover is None else list(handover),
        decided=sorted({each.uuid for each in node.status.gpus} - {""}) if is_known else node.spec.decided,
    )
    return sorted_spec(spec)


def promised_devices(
    node: GpuNode, layout: Iterable[WantedGpu], claims: Iterable[ResourceClaim]
) -> list[PromisedDevice]:
    """The node's devices that claims hold and `layout` would not keep published."""
    pool = node.pool
    held = {
        device.device: str(claim.metadata.key)
        for claim in claims
        for device in claim.devices_held
        if device.pool_key == pool
    }
    return promises(node, layout, held)


def isolation_of(
    node: GpuNode, requests: Iterable[tuple[DeviceMaintenance, Iterable[DeviceTaintRule]]], hardware: PoolHardware
) -> list[IsolatedGpu]:
    """What maintenance requests isolate on the node. Each request comes with its taint rules."""
    return [
        each
        for request, rules in requests
        for each in isolated_gpus(request, node.pool, hardware, rules, node.spec.isolated)
    ]


def overrides_of(node: GpuNode, decided: Sequence[FaultOverride], unseen: Collection[str]) -> list[FaultOverride]:
    """What HealthPolicies override on the node. Overrides of policies in `unseen` (not on our watch yet) are kept."""
    places = {(each.uuid, each.fault, each.instance) for each in decided}
    kept = [
        each
        for each in node.spec.health
        if each.policy in unseen and (each.uuid, each.fault, each.instance) not in places
    ]
    return [*decided, *kept]


def sorted_spec(spec: GpuNodeSpec) -> GpuNodeSpec:
    """The same spec with every list in the order of plans."""
    return GpuNodeSpec(
        gpus=sorted(spec.gpus, key=lambda each: each.uuid),
        promised=sorted(spec.promised, key=lambda each: each.device),
        shared=sorted(spec.shared, key=lambda each: each.uuid),
        changing=sorted(spec.changing),
        cleared=sorted(spec.cleared, key=lambda each: each.uuid),
        isolated=sorted(spec.isolated, key=_request_and_gpu),
        health=in_order(spec.health),
        repaired=sorted(spec.repaired, key=lambda each: each.uuid),
        operator_allocated=sorted(spec.operator_allocated),
        decided=sorted(spec.decided),
    )


def _request_and_gpu(each: IsolatedGpu) -> tuple[str, str]:
    return each.request, each.uuid
