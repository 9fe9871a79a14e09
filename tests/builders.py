"""Builders of valid objects for tests. Arguments set only what a test is about.

Shared by all tests; extend it with builders and keyword arguments. UIDs follow from names, so equal calls give equal objects.
"""

import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from draco.agent.hardware.gpus import Gpu
from draco.mig.board import Board
from draco.resources.api.claims import (
    AllocationResult,
    CelSelector,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSelector,
    ExactDeviceRequest,
    OpaqueConfiguration,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from draco.resources.api.core import (
    Container,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
    PodResourceClaim,
    PodSchedulingGate,
    PodSchedulingGroup,
    PodSpec,
    PodStatus,
)
from draco.resources.api.draco import (
    BoardTable,
    GpuMig,
    GpuNode,
    GpuNodeSpec,
    GpuNodeStatus,
    GpuStatus,
    InstanceStatus,
    LayoutInstances,
    MigLayout,
    MigMode,
    MigPolicy,
    MigPolicySpec,
    MigProfile,
    WantedGpu,
)
from draco.resources.api.health import (
    FaultFamily,
    FaultOverride,
    GpuFaultStatus,
    HealthEffect,
    HealthPolicy,
    HealthPolicySpec,
    HealthRule,
)
from draco.resources.api.limits import DeviceAmounts, DeviceLimit, DeviceLimitSpec
from draco.resources.api.maintenance import (
    DeviceMaintenance,
    DeviceMaintenanceSpec,
    DeviceMaintenanceStatus,
    MaintainedDevice,
    MaintenancePhase,
    MaintenanceSelector,
)
from draco.resources.api.meta import Condition, LabelSelector, ObjectMeta, OwnerReference
from draco.resources.api.sharing import SharingMode, SharingPolicy, SharingPolicySpec
from draco.resources.api.slices import Device, DeviceAttribute, ResourcePool, ResourceSlice, ResourceSliceSpec
from draco.resources.api.taints import (
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    DeviceToleration,
)
from draco.resources.names import (
    ANNOTATION_POD_CLAIM,
    LABEL_HOSTNAME,
    NVIDIA_DEVICE_CLASS,
    NVIDIA_DRIVER,
    DeviceKey,
    GpuUuid,
)

MOMENT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def a_uid(*names: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, "/".join(names)))


def a_device_key(text: str) -> DeviceKey:
    """Parse "node/device" of NVIDIA's driver, or "driver/pool/device"."""
    parts = text.split("/")
    return DeviceKey(*parts) if len(parts) == 3 else DeviceKey(NVIDIA_DRIVER, parts[0], parts[1])


def a_node(name: str = "node-0", *, ready: bool = True, unschedulable: bool = False, hostname: str = "") -> Node:
    labels = {LABEL_HOSTNAME: hostname} if hostname else {}
    return Node(
        metadata=ObjectMeta(name=name, uid=a_uid("node", name), labels=labels),
        spec=NodeSpec(unschedulable=unschedulable),
        status=NodeStatus(conditions=[Condition(type="Ready", status="True" if ready else "False")]),
    )


def a_device(name: str = "gpu-0", *, product: str = "NVIDIA H100 80GB HBM3", **fields: Any) -> Device:
    return Device(name=name, attributes={"productName": DeviceAttribute(string=product)}, **fields)


def a_slice(
    node: str = "node-0",
    devices: Iterable[Device | str] = ("gpu-0", "gpu-1"),
    *,
    driver: str = NVIDIA_DRIVER,
    pool: str = "",
    name: str = "",
    generation: int = 1,
    of: int = 1,
    **spec: Any,
) -> ResourceSlice:
    """One slice of a pool of `of` slices; the pool is named after the node. For a pool of no node, pass node=""."""
    name = name or f"{node or pool}-{driver}-{generation}"
    return ResourceSlice(
        metadata=ObjectMeta(name=name, uid=a_uid("slice", name)),
        spec=ResourceSliceSpec(
            driver=driver,
            pool=ResourcePool(name=pool or node, generation=generation, resource_slice_count=of),
            node_name=node or None,
            devices=[a_device(device) if isinstance(device, str) else device for device in devices],
            **spec,
        ),
    )


def configured(claim: ResourceClaim, parameters: Any) -> ResourceClaim:
    """An allocated claim with an opaque configuration of its own."""
    assert claim.status.allocation is not None
    config = DeviceAllocationConfiguration(
        source="FromClaim", opaque=OpaqueConfiguration(driver=NVIDIA_DRIVER, parameters=parameters)
    )
    devices = msgspec.structs.replace(claim.status.allocation.devices, config=[config])
    allocation = msgspec.structs.replace(claim.status.allocation, devices=devices)
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=allocation))


def a_claim(
    name: str = "claim",
    *,
    namespace: str = "default",
    device_class: str = NVIDIA_DEVICE_CLASS,
    on: Iterable[str] = (),
    reserved_for: Iterable[str] = (),
    admin_access: bool | None = None,
    deleting: bool = False,
    tolerations: Iterable[DeviceToleration] = (),
    made_for: tuple[str, str] | None = None,
) -> ResourceClaim:
    """A claim for one device; allocated if `on` names devices as `a_device_key` reads them, reserved for the named pods.

    `made_for` is the pod for which it was made from a template, and the pod's name for the claim.
    """
    results = [
        DeviceRequestAllocationResult(
            request="gpu",
            driver=key.driver,
            pool=key.pool,
            device=key.device,
            admin_access=admin_access,
            tolerations=list(tolerations),
        )
        for key in map(a_device_key, on)
    ]
    exactly = ExactDeviceRequest(
        device_class_name=device_class, admin_access=admin_access, tolerations=list(tolerations)
    )
    return ResourceClaim(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=a_uid("claim", namespace, name),
            deletion_timestamp=MOMENT if deleting else None,
            **({} if made_for is None else _of_pod(namespace, *made_for)),
        ),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=[DeviceRequest(name="gpu", exactly=exactly)])),
        status=ResourceClaimStatus(
            allocation=AllocationResult(devices=DeviceAllocationResult(results=results)) if results else None,
            reserved_for=[
                ResourceClaimConsumerReference(resource="pods", name=pod, uid=a_uid("pod", namespace, pod))
                for pod in reserved_for
            ],
        ),
    )


def as_shares(claim: ResourceClaim, *share_ids: str, **consumed: str) -> ResourceClaim:
    """An allocated claim with shares of its devices, one result for each ID; `consumed` are their amounts."""
    assert claim.status.allocation is not None
    (result,) = claim.status.allocation.devices.results
    results = [msgspec.structs.replace(result, share_id=each, consumed_capacity=consumed) for each in share_ids]
    allocation = AllocationResult(devices=DeviceAllocationResult(results=results))
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=allocation))


def _of_pod(namespace: str, pod: str, entry: str) -> dict[str, Any]:
    uid = a_uid("pod", namespace, pod)
    owner = OwnerReference(api_version="v1", kind="Pod", name=pod, uid=uid, controller=True)
    return {"owner_references": [owner], "annotations": {ANNOTATION_POD_CLAIM: entry}}


def a_device_class(
    name: str = NVIDIA_DEVICE_CLASS, *, selector: str = f"device.driver == '{NVIDIA_DRIVER}'"
) -> DeviceClass:
    return DeviceClass(
        metadata=ObjectMeta(name=name, uid=a_uid("class", name)),
        spec=DeviceClassSpec(selectors=[DeviceSelector(cel=CelSelector(expression=selector))]),
    )


def a_pod(
    name: str = "pod",
    *,
    namespace: str = "default",
    node: str = "",
    claims: Iterable[str] = (),
    templates: Iterable[str] = (),
    annotations: Mapping[str, str] | None = None,
    gates: Iterable[str] = (),
    pod_group: str = "",
    status: PodStatus | None = None,
    **meta: Any,
) -> Pod:
    """A pod with one container that uses claims by name and from templates; its entries have the same names."""
    entries = [PodResourceClaim(name=claim, resource_claim_name=claim) for claim in claims]
    entries += [PodResourceClaim(name=template, resource_claim_template_name=template) for template in templates]
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=a_uid("pod", namespace, name),
            annotations=dict(annotations or {}),
            **meta,
        ),
        spec=PodSpec(
            node_name=node,
            containers=[Container(name="main")],
            resource_claims=entries,
            scheduling_gates=[PodSchedulingGate(name=each) for each in gates],
            scheduling_group=PodSchedulingGroup(pod_group_name=pod_group) if pod_group else None,
        ),
        status=status or PodStatus(),
    )


def a_rule(
    name: str = "rule",
    *,
    taint: str = "example.com/broken",
    effect: str = "NoSchedule",
    **selector: str,
) -> DeviceTaintRule:
    """A rule by driver, pool and device; with none of them it selects every device."""
    return DeviceTaintRule(
        metadata=ObjectMeta(name=name, uid=a_uid("rule", name)),
        spec=DeviceTaintRuleSpec(
            taint=DeviceTaint(key=taint, effect=effect), device_selector=DeviceTaintSelector(**selector)
        ),
    )


def a_budget(
    name: str = "budget", *, namespace: str = "default", allows: int = 0, **labels: str
) -> PodDisruptionBudget:
    """A budget for the pods with these labels; without labels, for all pods of its namespace."""
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=name, namespace=namespace, uid=a_uid("budget", namespace, name)),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels=labels)),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allows),
    )


def a_maintenance(
    name: str = "swap-fan",
    *,
    phase: MaintenancePhase | None = None,
    devices: Iterable[str] = (),
    in_use: int | None = None,
    finished: bool = False,
    **selector: str,
) -> DeviceMaintenance:
    """A request with the devices it has found so far, named as `a_device_key` reads them."""
    found = [MaintainedDevice(driver=k.driver, pool=k.pool, device=k.device) for k in map(a_device_key, devices)]
    return DeviceMaintenance(
        metadata=ObjectMeta(name=name, uid=a_uid("maintenance", name), generation=1),
        spec=DeviceMaintenanceSpec(
            device_selector=msgspec.convert(selector, MaintenanceSelector), reason="fan replacement", finished=finished
        ),
        status=DeviceMaintenanceStatus(phase=phase, devices=found, device_count=len(found), in_use=in_use),
    )


def a_gpu_node(name: str = "node-0", *, gpus: Mapping[str, str] | int = 2, driver: str = NVIDIA_DRIVER) -> GpuNode:
    """A node's report: a number of healthy GPUs, or the health of each by device name."""
    health = {f"gpu-{index}": "Healthy" for index in range(gpus)} if isinstance(gpus, int) else gpus
    return GpuNode(
        metadata=ObjectMeta(name=name, uid=a_uid("gpunode", name)),
        status=GpuNodeStatus(
            driver=driver,
            gpus=[
                GpuStatus(device=device, uuid=f"GPU-{a_uid(name, device)}", minor=minor, health=state)
                for minor, (device, state) in enumerate(health.items())
            ],
        ),
    )


def called_lost(gpu_node: GpuNode) -> GpuNode:
    """A node whose agent is lost according to the operator."""
    ready = Condition(
        type="Ready", status="Unknown", reason="AgentLost", message="The agent has not renewed its lease."
    )
    return msgspec.structs.replace(gpu_node, status=msgspec.structs.replace(gpu_node.status, conditions=[ready]))


def a_fault(name: str = "Xid79", **fields: Any) -> GpuFaultStatus:
    """A fault of a GPU; an XID if its name says so."""
    code = int(name.removeprefix("Xid")) if name.startswith("Xid") else None
    family = FaultFamily.XID if code is not None else FaultFamily.THERMAL
    return GpuFaultStatus(**{"family": family, "name": name, "code": code, "first_seen": MOMENT, **fields})


def a_sick_node(
    name: str = "node-0",
    *gpus: Iterable[GpuFaultStatus],
    readable: bool = True,
    overrides: Iterable[FaultOverride] = (),
) -> GpuNode:
    """A node whose GPUs have these faults."""
    return GpuNode(
        metadata=ObjectMeta(name=name, uid=a_uid("gpunode", name), resource_version="1"),
        spec=GpuNodeSpec(health=list(overrides)),
        status=GpuNodeStatus(
            driver=NVIDIA_DRIVER,
            conditions=[Condition(type="Readable", status=str(readable))],
            gpus=[
                GpuStatus(
                    device=f"gpu-{minor}",
                    uuid=a_gpu_uuid(name, minor),
                    product_name="NVIDIA A100-SXM4-80GB",
                    minor=minor,
                    faults=list(faults),
                )
                for minor, faults in enumerate(gpus)
            ],
        ),
    )


def a_health_policy(name: str = "policy", *rules: HealthRule, created: datetime = MOMENT, **spec: Any) -> HealthPolicy:
    """A policy for every GPU, unless its spec says otherwise."""
    return HealthPolicy(
        metadata=ObjectMeta(name=name, uid=a_uid("healthpolicy", name), generation=1, creation_timestamp=created),
        spec=HealthPolicySpec(rules=list(rules), **spec),
    )


def a_health_rule(condition: str = "true", effect: str | None = None, **fields: Any) -> HealthRule:
    """A rule that is true of every fault, unless its condition says otherwise."""
    chosen = HealthEffect(effect) if effect else None
    return HealthRule(**{"name": "rule", "condition": condition, "effect": chosen, **fields})


def a_board_table(board: Board, name: str = "H100-80") -> BoardTable:
    """The board as an agent reports it."""
    profiles = [
        MigProfile(
            memory=f"{each.memory_mib}Mi",
            starts=list(each.starts),
            **{
                field: getattr(each, field) for field in each.__struct_fields__ if field not in {"memory_mib", "starts"}
            },
        )
        for each in board.profiles
    ]
    return BoardTable(name=name, profiles=profiles)


def a_mig_instance(text: str, *, size: int = 1, **fields: Any) -> InstanceStatus:
    """An instance, from "1g.10gb@4"."""
    profile, start = text.split("@")
    return InstanceStatus(profile=profile, start=int(start), size=size, **fields)


def a_mig_node(
    name: str = "node-0",
    *,
    gpus: int | Iterable[GpuMig | None] = 2,
    board: Board | None = None,
    wanted: Iterable[WantedGpu] = (),
    driver: str = NVIDIA_DRIVER,
    **status: Any,
) -> GpuNode:
    """A node whose agent reports partitions: a number of GPUs with MIG off, or the given ones. MIG mode needs no reset."""
    migs = [GpuMig(capable=True)] * gpus if isinstance(gpus, int) else list(gpus)
    tables = [a_board_table(board)] if board else []
    return GpuNode(
        metadata=ObjectMeta(name=name, uid=a_uid("gpunode", name), resource_version="1"),
        spec=GpuNodeSpec(gpus=list(wanted)),
        status=GpuNodeStatus(
            driver=driver,
            boards=tables,
            gpus=[
                GpuStatus(
                    device=f"gpu-{minor}",
                    uuid=a_gpu_uuid(name, minor),
                    minor=minor,
                    architecture="Hopper",
                    mig=msgspec.structs.replace(mig, board=tables[0].name if tables else "") if mig else None,
                )
                for minor, mig in enumerate(migs)
            ],
            **status,
        ),
    )


def a_gpu_uuid(node: str, minor: int) -> str:
    return f"GPU-{a_uid(node, f'gpu-{minor}')}"


def a_mig_policy(
    name: str = "policy", *, mode: MigMode = MigMode.DYNAMIC, created: datetime = MOMENT, **spec: Any
) -> MigPolicy:
    """A policy for every GPU, unless its spec says otherwise."""
    return MigPolicy(
        metadata=ObjectMeta(name=name, uid=a_uid("migpolicy", name), generation=1, creation_timestamp=created),
        spec=MigPolicySpec(mode=mode, **spec),
    )


def a_sharing_policy(
    name: str = "policy", *, mode: SharingMode = SharingMode.MEMORY, created: datetime = MOMENT, **spec: Any
) -> SharingPolicy:
    """A policy that shares every GPU by memory, unless its spec says otherwise."""
    return SharingPolicy(
        metadata=ObjectMeta(name=name, uid=a_uid("sharingpolicy", name), generation=1, creation_timestamp=created),
        spec=SharingPolicySpec(mode=mode, **spec),
    )


def a_static_policy(name: str = "policy", *instances: str, created: datetime = MOMENT, **spec: Any) -> MigPolicy:
    """A policy with one layout of such instances: "3g.40gb", "3g.40gb@4", "7x1g.10gb"."""
    items = [_layout_instances(text) for text in instances]
    layout = MigLayout(name="layout", instances=items)
    return a_mig_policy(name, mode=MigMode.STATIC, created=created, layouts=[layout], layout="layout", **spec)


def _layout_instances(text: str) -> LayoutInstances:
    profile, _, start = text.partition("@")
    count, times, rest = profile.partition("x")
    if times and count.isdigit():
        return LayoutInstances(profile=rest, count=int(count))
    return LayoutInstances(profile=profile, start=int(start) if start else None)


def a_gpu(minor: int = 0, **fields: Any) -> Gpu:
    """An H100; its UUID follows from its minor number unless it is given."""
    plain: dict[str, Any] = {
        "uuid": GpuUuid(f"GPU-{a_uid('gpu', str(minor))}"),
        "index": minor,
        "minor": minor,
        "product_name": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "compute_major": 9,
        "compute_minor": 0,
        "memory_bytes": 81559 << 20,
        "pci_bus_id": f"0000:{0x1B + minor:02x}:00.0",
    }
    return Gpu(**{**plain, **fields})


def a_limit(name: str = "limit", *, tenant: str = "", **spec: Any) -> DeviceLimit:
    """A DeviceLimit for namespaces with the label tenant, or for all. Keyword arguments are fields of the spec and its limits."""
    amounts = {field: spec.pop(field) for field in ("devices", "memory", "memory_slices", "gpu_share") if field in spec}
    selector = LabelSelector(match_labels={"tenant": tenant}) if tenant else None
    return DeviceLimit(
        metadata=ObjectMeta(name=name, uid=a_uid("limit", name), generation=1),
        spec=DeviceLimitSpec(namespace_selector=selector, limits=DeviceAmounts(**amounts), **spec),
    )
