"""Compares allocations with the current state: what keeps a pod from using a device that its claim already has.

Owns the list of checks: node, driver, device, board, double allocation, taints, configuration. Kubernetes revokes an allocation
for none of these, so a pod that already has a node waits forever. Decides nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from draco.allocation.configurations import CLAIMS_OWN, refused
from draco.allocation.fleet.fleet import Fleet
from draco.explanation.findings.verdicts import Judge
from draco.explanation.model import ObstacleKind, UseObstacle
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.core import Node, Pod
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.taints import BLOCKING_EFFECTS
from draco.resources.names import ATTRIBUTE_PARENT_UUID, ATTRIBUTE_UUID, NVIDIA_DRIVER, DeviceKey, PoolKey
from draco.resources.texts import listed

_DELETE_POD: Final = "delete the pod, so that its claim is allocated again"
_BY_FORCE: Final = "delete the pod, by force if its machine is gone, so that its claim is allocated again"
_ONE_GOES: Final = "delete the pod of one of them, so that its claim is allocated again"


def obstacles(fleet: Fleet, claims: Sequence[ResourceClaim], pod: Pod | None) -> list[UseObstacle]:
    """The first obstacle of each device that the pod's claims have.

    Without a pod, or for a started pod, taints and configurations are no obstacles: containers have the devices already.
    """
    starts = pod is not None and pod.pending
    found = [
        obstacle
        for claim in claims
        for result in claim.results
        if (obstacle := next(_of_device(fleet, claim, result, pod, starts=starts), None)) is not None
    ]
    if starts:
        found += (each for claim in claims if (each := refused_configuration(claim)) is not None)
    return found


def _of_device(
    fleet: Fleet, claim: ResourceClaim, result: DeviceRequestAllocationResult, pod: Pod | None, *, starts: bool
) -> Iterator[UseObstacle]:
    device = f"{result.driver}/{result.pool}/{result.device}"

    def is_obstacle(kind: ObstacleKind, text: str, remedy: str) -> UseObstacle:
        return UseObstacle(kind=kind, claim=str(claim.metadata.key), device=device, text=text, remedy=remedy)

    node = _node_of(claim, pod)
    if node and node not in fleet.nodes:
        yield is_obstacle(ObstacleKind.NODE_GONE, f"node {node} does not exist any more", _DELETE_POD)
    pool = fleet.inventory.pool(PoolKey(result.driver, result.pool))
    if pool is None:
        where = f"on {node}" if node else f"in pool {result.pool}"
        text = f"driver {result.driver} publishes nothing {where} now"
        yield is_obstacle(ObstacleKind.DRIVER_SILENT, text, f"start the driver there, or {_DELETE_POD}")
    elif not (rows := fleet.inventory.rows(result.key)):
        names = sorted({each.name for entry in pool.entries for each in entry.spec.devices})
        there = f"; it has {listed(names)}" if names else ""
        text = f"driver {result.driver} does not publish {result.device} in pool {result.pool} any more{there}"
        yield is_obstacle(ObstacleKind.NOT_PUBLISHED, text, _DELETE_POD)
    else:
        if text := _other_board(fleet, claim, result.key, rows[0]):
            yield is_obstacle(ObstacleKind.OTHER_BOARD, text, _BY_FORCE)
        if not result.admin_access and (others := _others(fleet, claim, result)):
            text = f"{device} is allocated to {listed(others)} as well"
            yield is_obstacle(ObstacleKind.GIVEN_TWICE, text, _ONE_GOES)
        taints = _taints(fleet, result, rows[0])
        if starts and taints:
            text = f"{device} has been tainted with {' and '.join(taints)}"
            yield is_obstacle(ObstacleKind.TAINTED, text, f"lift the taint, or {_DELETE_POD}")


def _other_board(fleet: Fleet, claim: ResourceClaim, key: DeviceKey, row: int) -> str:
    """The text if the device's name now belongs to another board than the one on which the claim was prepared; else "".

    A new node with the name of a deleted one has devices of the same names.
    """
    then = next((each.board for each in claim.status.devices if (each.driver, each.pool, each.device) == key), "")
    [device] = (each for each in fleet.inventory.entry(row).spec.devices if each.name == key.device)
    now = device.text(ATTRIBUTE_PARENT_UUID, key.driver) or device.text(ATTRIBUTE_UUID, key.driver)
    if not then or not now or then == now:
        return ""
    return f"the claim was prepared on board {then}, and the device is now board {now}"


def _node_of(claim: ResourceClaim, pod: Pod | None) -> str:
    """The node that the device is or was on; "" if unknown or if there are several."""
    if pod is not None and pod.spec.node_name:
        return pod.spec.node_name
    selector = claim.status.allocation.node_selector if claim.status.allocation is not None else None
    if selector is None:
        return ""
    named = {
        value
        for term in selector.node_selector_terms
        for each in (*term.match_fields, *term.match_expressions)
        if each.operator == "In" and each.key in {"metadata.name", "kubernetes.io/hostname"} and len(each.values) == 1
        for value in each.values
    }
    return named.pop() if len(named) == 1 else ""


def _others(fleet: Fleet, claim: ResourceClaim, result: DeviceRequestAllocationResult) -> list[str]:
    """Other claims that hold this device, if one holds it exclusively, or overlapping partitions of its hardware."""
    both = fleet.holders(result.key) if fleet.state.holds(result.key) else ()
    found = {*both, *_of_same_hardware(fleet, result.key)} - {claim.metadata.key}
    return [str(each) for each in sorted(found)]


def _of_same_hardware(fleet: Fleet, device: DeviceKey) -> Iterator[ObjectKey]:
    """Holders of devices that draw from the same overdrawn counter as this device."""
    pool = fleet.inventory.pool(device.pool_key)
    if pool is None or not pool.has_counters or not pool.only_node:
        return
    view = pool.glance(Node(metadata=ObjectMeta(name=pool.only_node)))
    if view is None:
        return
    left = Judge(fleet.inventory.selectors, fleet.state).left(view)
    charges = {each.key: {place for place, _ in each.charges} for each in view.candidates}
    overdrawn = {place for place in charges.get(device, ()) if left[place] < 0}
    for key, places in charges.items() if overdrawn else ():
        if not places.isdisjoint(overdrawn):
            yield from fleet.holders(key)


def _taints(fleet: Fleet, result: DeviceRequestAllocationResult, row: int) -> list[str]:
    return [
        str(taint.identity)
        for taint in fleet.inventory.taints_of(row)
        if taint.effect in BLOCKING_EFFECTS and not any(each.tolerates(taint) for each in result.tolerations)
    ]


def refused_configuration(claim: ResourceClaim) -> UseObstacle | None:
    """The configuration of an allocated claim that Draco's agent refuses to prepare; None if there is none."""
    found = refused(claim, NVIDIA_DRIVER)
    if found is None:
        return None
    remedy = "make a new claim without it"
    if found.source != CLAIMS_OWN:
        remedy = "remove it there, or override it in a new claim"
    return UseObstacle(
        kind=ObstacleKind.CONFIGURATION_REFUSED, claim=str(claim.metadata.key), text=str(found), remedy=remedy
    )
