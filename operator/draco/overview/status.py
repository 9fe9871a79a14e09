"""The content of `draco status`: turns one snapshot into one `ClusterStatus`, for every driver's devices. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from draco.allocation.fleet.supply import Supply, SupplyState
from draco.limits.rules import read_amounts, use_text
from draco.maintenance.selecting.fleet import sick_devices
from draco.overview import status_schema as schema
from draco.overview.hardware_use import HardwareByPool
from draco.overview.maintenances import OUT_OF_SERVICE, budget_view, maintenance_view, message_of, phase_of
from draco.overview.snapshot import Snapshot, natural
from draco.overview.status_warnings import counted_as_free, warnings_of
from draco.overview.taint_rules import TaintedCluster, rule_views
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node, Pod
from draco.resources.api.draco import GpuNode, GpuStatus, MigMode, MigPolicy
from draco.resources.api.limits import DeviceLimit, LimitScope
from draco.resources.api.maintenance import OVER, DeviceMaintenance
from draco.resources.api.meta import ObjectKey, find_condition
from draco.resources.api.reservations import DeviceReservation
from draco.resources.api.sharing import SharingPolicy
from draco.resources.api.slices import Device, DeviceAttribute, Publication, publications
from draco.resources.names import CONDITION_READY, DeviceKey, PoolKey

_GOING = "It is being deleted."


def status_of(snapshot: Snapshot, *, server: str = "", namespace: str = "") -> schema.ClusterStatus:
    """The whole screen. `namespace` narrows the lists of claims and reservations; use of devices is always cluster-wide."""
    pools = dict(sorted(publications(snapshot.slices).items()))
    hardware = HardwareByPool(snapshot.slices)
    devices = _devices(snapshot, pools, hardware)
    claims = [claim for claim in snapshot.claims if not namespace or claim.metadata.namespace == namespace]
    by_name = {str(claim.metadata.key): claim for claim in snapshot.claims}
    waiting = _waiting(snapshot.pods)
    claim_list = sorted(
        (_claim(claim, waiting) for claim in claims), key=lambda view: (view.namespace, natural(view.name))
    )
    tainted = TaintedCluster(
        devices=[view.key for view in devices],
        hardware=hardware,
        claims=snapshot.claims,
        pods=snapshot.users,
        budgets=snapshot.budgets,
        spares_extended=snapshot.spares_extended,
    )
    return schema.ClusterStatus(
        server=server,
        namespace=namespace,
        devices=_device_counts(devices),
        claims=_claim_counts(claim_list),
        nodes=_nodes(snapshot.nodes, devices, snapshot.gpu_nodes),
        device_list=devices,
        claim_list=claim_list,
        taint_rules=rule_views(snapshot.rules, snapshot.maintenances, tainted),
        maintenance=[
            maintenance_view(item, by_name, snapshot.members)
            for item in sorted(snapshot.maintenances, key=lambda item: natural(item.metadata.name))
        ],
        budgets=[
            budget_view(each) for each in sorted(snapshot.maintenance_budgets, key=lambda each: each.metadata.name)
        ],
        mig_policies=[_policy(each) for each in sorted(snapshot.mig_policies, key=lambda each: each.metadata.name)],
        sharing_policies=[
            _sharing(each) for each in sorted(snapshot.sharing_policies, key=lambda each: each.metadata.name)
        ],
        limits=[_limit(each) for each in sorted(snapshot.limits, key=lambda each: each.metadata.name)],
        reservations=[
            _reservation(each)
            for each in sorted(snapshot.reservations, key=lambda each: each.metadata.key)
            if not namespace or each.metadata.namespace == namespace
        ],
        missing=list(snapshot.missing),
        warnings=[*warnings_of(snapshot, pools), *counted_as_free(snapshot.autoscalers, devices, claim_list)],
    )


def claim_state(claim: ResourceClaim) -> schema.ClaimState:
    """The claim's progress; deletion outranks the rest, and reserved implies allocated."""
    if claim.metadata.deletion_timestamp is not None:
        return schema.ClaimState.DELETING
    if claim.status.reserved_for:
        return schema.ClaimState.RESERVED
    return schema.ClaimState.PENDING if claim.status.allocation is None else schema.ClaimState.ALLOCATED


def _product(attributes: Mapping[str, DeviceAttribute]) -> str:
    """The device's product name, "" if its driver publishes none; the attribute may have the driver's domain."""
    for wanted in ("productName", "product", "model"):
        for name, attribute in attributes.items():
            if name.rpartition("/")[2] == wanted and isinstance(attribute.value, str):
                return attribute.value
    return ""


def _devices(
    snapshot: Snapshot, pools: Mapping[PoolKey, Sequence[Publication]], hardware: HardwareByPool
) -> list[schema.DeviceView]:
    holders: dict[DeviceKey, list[str]] = defaultdict(list)
    for claim in snapshot.claims:
        for held in claim.devices_held:
            holders[held].append(str(claim.metadata.key))
    # Requests that isolate a device override those that only wait for it.
    maintained = {
        device.key: item
        for isolates in (False, True)
        for item in snapshot.maintenances
        if (phase_of(item) in OUT_OF_SERVICE) is isolates and phase_of(item) not in OVER
        for device in item.status.devices
    }
    reports = {
        DeviceKey(node.status.driver, node.metadata.name, gpu.device): gpu
        for node in snapshot.gpu_nodes
        for gpu in node.status.gpus
    }
    by_parts, blocked = hardware.used(holders)
    nodes = {node.metadata.name: node for node in snapshot.nodes}
    sick = sick_devices(snapshot.gpu_nodes)
    supply = Supply(rules=snapshot.rules, claims=snapshot.claims, nodes=nodes, sick=sick)
    views = []
    for pool, published in pools.items():
        for item in {id(item): item for each in published for item in each.slices}.values():
            for device in item.spec.devices:
                key = DeviceKey(pool.driver, pool.pool, device.name)
                node = item.spec.node_name or device.node_name or ""
                views.append(
                    _device(
                        key,
                        device,
                        node=node,
                        supply=supply,
                        claims=sorted(holders.get(key, [])),
                        claims_on_parts=by_parts.get(key, []),
                        blocked=key in blocked,
                        request=maintained.get(key),
                        report=reports.get(key),
                    )
                )
    return sorted(views, key=lambda view: (natural(view.node), view.driver, view.pool, natural(view.device)))


def _device(
    key: DeviceKey,
    device: Device,
    *,
    node: str,
    supply: Supply,
    claims: list[str],
    claims_on_parts: list[str],
    blocked: bool,
    request: DeviceMaintenance | None,
    report: GpuStatus | None,
) -> schema.DeviceView:
    taints, obstacles = supply.taints(key, device), supply.obstacles(key, device, node)
    if request and phase_of(request) in OUT_OF_SERVICE:
        state = schema.DeviceState.MAINTENANCE
    elif SupplyState.UNHEALTHY in obstacles:
        state = schema.DeviceState.UNHEALTHY
    elif not obstacles.isdisjoint({SupplyState.NODE_MISSING, SupplyState.NODE_NOT_READY}):
        state = schema.DeviceState.OFFLINE
    elif SupplyState.TAINTED in obstacles:
        state = schema.DeviceState.TAINTED
    elif SupplyState.IN_USE in obstacles or claims_on_parts:
        state = schema.DeviceState.IN_USE
    elif blocked:
        state = schema.DeviceState.BLOCKED
    else:  # devices of a cordoned node are useless to new pods too
        state = schema.DeviceState.OFFLINE if obstacles else schema.DeviceState.FREE
    return schema.DeviceView(
        driver=key.driver,
        pool=key.pool,
        device=key.device,
        node=node,
        product=_product(device.attributes) or (report.product_name if report else ""),
        state=state,
        claims=claims,
        claims_on_parts=claims_on_parts,
        taints=sorted({str(taint.identity) for taint in taints}),
        maintenance=request.metadata.name if request else "",
        maintenance_phase=phase_of(request).value if request else "",
        health=report.health if report else "",
        message=report.message if report else "",
    )


def _device_counts(devices: Iterable[schema.DeviceView]) -> schema.DeviceCounts:
    by_state = Counter(view.state for view in devices)
    counts = {state.name.lower(): by_state[state] for state in schema.DeviceState}
    return schema.DeviceCounts(total=by_state.total(), **counts)


def _claim_counts(claims: Sequence[schema.ClaimView]) -> schema.ClaimCounts:
    by_state = Counter(view.state for view in claims)
    counts = {state.name.lower(): by_state[state] for state in schema.ClaimState}
    unused = sum(1 for view in claims if view.state is schema.ClaimState.PENDING and not view.waiting)
    return schema.ClaimCounts(total=len(claims), unused=unused, **counts)


def _nodes(
    nodes: Iterable[Node], devices: Iterable[schema.DeviceView], gpu_nodes: Iterable[GpuNode]
) -> list[schema.NodeView]:
    reporting = {each.metadata.name: each for each in gpu_nodes}
    by_node: dict[str, list[schema.DeviceView]] = defaultdict(list)
    for view in devices:
        by_node[view.node].append(view)
    known = {node.metadata.name: node for node in nodes}
    views = []
    for name in sorted({*known, *by_node, *reporting}, key=natural):
        node, gpu_node = known.get(name), reporting.get(name)
        views.append(
            schema.NodeView(
                name=name,
                ready=node.ready if node else name == "",
                schedulable=not node.spec.unschedulable if node else name == "",
                devices=_device_counts(by_node.get(name, [])),
                gpus=len(gpu_node.status.gpus) if gpu_node else None,
                agent=_agent_trouble(gpu_node) if gpu_node else "",
            )
        )
    return views


def _agent_trouble(gpu_node: GpuNode) -> str:
    """Why the node's agent does not work, in one word; "" if it does, or has not reported yet."""
    ready = find_condition(gpu_node.status.conditions, CONDITION_READY)
    return ready.reason or ready.status if ready is not None and ready.status != "True" else ""


def _waiting(pods: Iterable[Pod]) -> dict[ObjectKey, list[str]]:
    """The names of waiting pods, by the claims they use."""
    waiting: dict[ObjectKey, list[str]] = defaultdict(list)
    for pod in pods:
        if pod.waits:
            for claim in pod.claims:
                waiting[claim].append(pod.metadata.name)
    return waiting


def _claim(claim: ResourceClaim, waiting: Mapping[ObjectKey, list[str]]) -> schema.ClaimView:
    state = claim_state(claim)
    return schema.ClaimView(
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        state=state,
        devices=[str(result.key) for result in claim.results],
        consumers=[
            consumer.name if consumer.resource == "pods" else f"{consumer.resource}/{consumer.name}"
            for consumer in claim.status.reserved_for
        ],
        waiting=sorted(waiting.get(claim.metadata.key, []), key=natural) if state is schema.ClaimState.PENDING else [],
    )


def _policy(policy: MigPolicy) -> schema.PolicyView:
    status = policy.status
    return schema.PolicyView(
        name=policy.metadata.name,
        mode=policy.spec.mode.value,
        layout=policy.spec.layout if policy.spec.mode is MigMode.STATIC else "",
        gpus=status.gpus or 0,
        applied=status.applied or 0,
        changing=status.changing or 0,
        failed=status.failed or 0,
        message=_GOING if policy.metadata.deletion_timestamp is not None else message_of(policy),
    )


def _sharing(policy: SharingPolicy) -> schema.SharingView:
    status = policy.status
    return schema.SharingView(
        name=policy.metadata.name,
        mode=policy.spec.mode.value,
        gpus=status.gpus or 0,
        shared=status.shared or 0,
        waiting=status.waiting or 0,
        failed=status.failed or 0,
        message=_GOING if policy.metadata.deletion_timestamp is not None else message_of(policy),
    )


def _limit(limit: DeviceLimit) -> schema.LimitView:
    """One limit, with the use of the namespace that is closest to it, or of all namespaces together."""
    status, permitted = limit.status, read_amounts(limit.spec.limits)
    nearest = next(iter(status.namespaces), None) if limit.spec.per is LimitScope.NAMESPACE else None
    used = nearest.used if nearest else status.used
    return schema.LimitView(
        name=limit.metadata.name,
        per=limit.spec.per.value,
        namespaces=status.selected or 0,
        nearest=nearest.namespace if nearest else "",
        used=use_text(read_amounts(used), permitted) if used else "",
        waiting=status.waiting or 0,
        message=message_of(limit),
    )


def _reservation(reservation: DeviceReservation) -> schema.ReservationView:
    spec, status = reservation.spec, reservation.status
    expires_at = status.expires_at or spec.expires_at
    return schema.ReservationView(
        namespace=reservation.metadata.namespace,
        name=reservation.metadata.name,
        count=spec.count,
        reserved=status.reserved or 0,
        in_use=status.in_use or 0,
        expires_at=expires_at.isoformat() if expires_at else "",
        message=message_of(reservation),
    )
