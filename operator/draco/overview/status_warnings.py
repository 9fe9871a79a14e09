"""Warnings of `draco status`: what makes the screen unreliable, and problems that no table shows."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from draco.allocation.fleet.fleet import Fleet
from draco.explanation.findings.held_allocations import obstacles
from draco.maintenance.taint_rules import fenced_node
from draco.overview import status_schema as schema
from draco.overview.installation import troubles
from draco.overview.maintenances import pause_warning
from draco.overview.snapshot import Snapshot, natural
from draco.resources.api.claims import AllocatedDeviceStatus
from draco.resources.api.core import Node
from draco.resources.api.draco import GpuNode
from draco.resources.api.health import FaultFamily
from draco.resources.api.meta import ObjectKey, find_condition, is_true
from draco.resources.api.slices import Publication, by_pool, strangers
from draco.resources.api.taints import DeviceTaintSelector
from draco.resources.names import CONDITION_READY, Autoscaler, PoolKey, gpu_name
from draco.resources.texts import agreeing, counted, listed, them

_WHY_FREE = {
    Autoscaler.KARPENTER: "it knows no taints of devices",
    Autoscaler.CLUSTER_AUTOSCALER: "it reads no taint rules, and expects the taints of slices on new nodes of the kind",
}


def counted_as_free(
    autoscalers: Iterable[Autoscaler], devices: Iterable[schema.DeviceView], claims: Iterable[schema.ClaimView]
) -> Iterator[str]:
    """Why an autoscaler may not add a node: pods wait, and tainted devices look free to it."""
    pods = {pod for claim in claims if claim.state is schema.ClaimState.PENDING for pod in claim.waiting}
    kept_off = {schema.DeviceState.TAINTED, schema.DeviceState.MAINTENANCE}
    idle = [each for each in devices if each.state in kept_off and not (each.claims or each.claims_on_parts)]
    for name in autoscalers if pods and idle else ():
        yield (
            f"{counted(len(pods), 'pod')} {agreeing(len(pods), 'waits', 'wait')} for devices, and {name} may add no node: "
            f"{counted(len(idle), 'tainted device')} ({listed(f'{each.device} of {each.pool}' for each in idle)}) "
            f"{agreeing(len(idle), 'looks', 'look')} free to it, because {_WHY_FREE[name]}. `draco explain` says what a pod "
            f"lacks; add a node yourself, or return {them(len(idle))} to service."
        )


def _unpublished_pools(snapshot: Snapshot, pools: Mapping[PoolKey, Sequence[Publication]]) -> Iterator[str]:
    """Unpublished pools of other drivers whose devices claims hold. No object says which drivers a node has."""
    ours = {node.pool for node in snapshot.gpu_nodes}
    held: dict[PoolKey, set[str]] = defaultdict(set)
    for claim in snapshot.claims:
        for result in claim.results:
            held[result.key.pool_key].add(str(claim.metadata.key))
    for key in sorted(held.keys() - pools.keys() - ours):
        claims = sorted(held[key])
        yield (
            f"Pool {key} is not published, and {counted(len(claims), 'claim')} ({listed(claims)}) "
            f"{agreeing(len(claims), 'has', 'have')} devices of it: see the log of driver {key.driver} there; the API server "
            "may refuse its slices."
        )


def warnings_of(snapshot: Snapshot, pools: Mapping[PoolKey, Sequence[Publication]]) -> list[str]:
    """All warnings."""
    known = {node.metadata.name for node in snapshot.nodes}
    paused = pause_warning(snapshot.maintenance_budgets)
    warnings = [
        *snapshot.unread,
        *filter(None, [paused]),
        *(said for _, said in troubles(snapshot.leaders, snapshot.gpu_nodes)),
    ]
    parts = by_pool(snapshot.slices)
    for key, published in pools.items():
        warnings += [
            f"Pool {key} is incomplete: {len(each.slices)} of {each.slices[0].spec.pool.resource_slice_count} slices; the "
            "scheduler allocates nothing from it until its driver has published the rest."
            for each in published
            if not each.complete
        ]
        nodes = {item.spec.node_name for each in published for item in each.slices if item.spec.node_name}
        warnings += [
            f"Pool {key} of node {key.pool} is published for {item.spec.audience} too, by slice {item.metadata.name}: where both "
            "have a device of the same name, only one of the two can be allocated. Delete that slice and find out who writes it."
            for item in sorted(strangers(parts[key]), key=lambda item: item.metadata.name)
        ]
        warnings += [
            f"Pool {key} is published for node {name}, which does not exist." for name in sorted(nodes - known)
        ]
    warnings += _unpublished_pools(snapshot, pools)
    warnings += [
        f"Node {node} is fenced: its agent does not renew its lease, so no new claim gets a GPU there. See the agent's pod."
        for node in sorted(filter(None, map(fenced_node, snapshot.rules)))
    ]
    warnings += _unpublished_nodes(snapshot)
    warnings += _cannot_start(snapshot)
    warnings += _left_by_other_boards(snapshot)
    warnings += [
        f"DeviceTaintRule {rule.metadata.name} has an empty selector: it taints every device of the cluster."
        for rule in snapshot.rules
        if rule.spec.device_selector == DeviceTaintSelector()
    ]
    warnings += [
        f"DeviceTaintRule {rule.metadata.name} {rule.spec.without_selector}. Name driver, pool and device, or delete it."
        for rule in snapshot.rules
        if rule.spec.without_selector
    ]
    return warnings


def _left_by_other_boards(snapshot: Snapshot) -> Iterator[str]:
    """Pods on a GPU whose device or node name now belongs to other hardware; no controller ends them.

    A lost GPU is not reported here: its agent knows, and says what to do.
    """
    nodes = {node.metadata.name: node for node in snapshot.nodes}
    reports = {
        PoolKey(each.status.driver, each.metadata.name): each
        for each in snapshot.gpu_nodes
        if is_true(each.status.conditions, CONDITION_READY)
    }
    for claim in sorted(snapshot.claims, key=lambda each: each.metadata.key):
        users = [consumer.name for consumer in claim.status.reserved_for if consumer.is_pod]
        for entry in claim.status.devices if users else ():
            report = reports.get(PoolKey(entry.driver, entry.pool))
            if report is not None and (where := _another_now(entry, report, nodes.get(entry.pool))):
                pods, space = sorted(users, key=natural), claim.metadata.namespace
                yield (
                    f"{agreeing(len(pods), 'Pod', 'Pods')} {listed(f'{space}/{pod}' for pod in pods)} got GPU {entry.board} "
                    f"{where}. Delete {them(len(pods))}, by force if {agreeing(len(pods), 'it does', 'they do')} not end: "
                    f"`kubectl delete pod -n {space} {' '.join(pods)} --force --grace-period=0`."
                )
                break


def _another_now(entry: AllocatedDeviceStatus, report: GpuNode, node: Node | None) -> str:
    """The text if another board or machine now has the name of the claim's GPU; else ""."""
    there = {gpu.uuid: gpu for gpu in report.status.gpus}
    if not entry.board or node is None:
        return ""
    known = there.get(entry.board)
    if known is not None and not any(fault.family is FaultFamily.LOST for fault in known.faults):
        return ""
    prepared = find_condition(entry.conditions, CONDITION_READY)
    since = None if prepared is None else prepared.last_transition_time
    made = node.metadata.creation_timestamp
    if since is not None and made is not None and since < made:
        return f"of an earlier machine called {entry.pool}; another one has that name now"
    name = gpu_name(entry.device)
    now = next((gpu.uuid for gpu in report.status.gpus if gpu.device == name), entry.board)
    return f"as {name} of {entry.pool}, which is GPU {now} now" if now != entry.board else ""


def _cannot_start(snapshot: Snapshot) -> Iterator[str]:
    """Bound pods whose claims have a device that they cannot use."""
    claims = {claim.metadata.key: claim for claim in snapshot.claims}
    bound = {
        pod.metadata.key: (pod, [claims[key] for key in pod.claims if key in claims])
        for pod in snapshot.pods
        if pod.pending and pod.spec.node_name
    }
    pools = {result.key.pool_key for _, held in bound.values() for claim in held for result in claim.results}
    if not pools:
        return
    names = {pod.spec.node_name for pod, _ in bound.values()}
    fleet = Fleet.of(
        slices=[each for each in snapshot.slices if each.pool in pools],
        rules=snapshot.rules,
        nodes=[each for each in snapshot.nodes if each.metadata.name in names],
        claims=[each for each in snapshot.claims if any(result.key.pool_key in pools for result in each.results)],
    )
    stuck: dict[tuple[str, str, str], list[ObjectKey]] = defaultdict(list)
    for key, (pod, held) in sorted(bound.items()):
        for each in obstacles(fleet, held, pod)[:1]:
            stuck[pod.spec.node_name, each.text, each.remedy].append(key)
    for (node, text, remedy), (first, *rest) in stuck.items():
        same = f" The same holds for {listed(rest)}." if rest else ""
        yield f"Pod {first} cannot start on {node}: {text}; {remedy}.{same}"


def _unpublished_nodes(snapshot: Snapshot) -> Iterator[str]:
    """Nodes that publish no GPU, with the reason given by the agent, or by the operator in its place."""
    publishing = {item.spec.node_name for item in snapshot.slices if item.spec.devices}
    for gpu_node in sorted(snapshot.gpu_nodes, key=lambda each: natural(each.metadata.name)):
        name, count = gpu_node.metadata.name, len(gpu_node.status.gpus)
        ready = find_condition(gpu_node.status.conditions, CONDITION_READY)
        if ready is None or ready.status == "True" or name in publishing:
            continue
        lacking = f"none of its {counted(count, 'GPU')} is published" if count else "no GPU of it is published"
        yield f"Node {name}: {lacking}. {ready.message}".rstrip()
