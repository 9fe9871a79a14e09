"""Compares allocations with the current state: what keeps a pod from using a device that its claim already has.

Owns the list of checks: node, reach, driver, device, board, double allocation, taints, configuration. Kubernetes revokes an
allocation for none of these, so a pod that already has a node waits forever. Decides nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from draco.allocation.configurations import refused
from draco.allocation.exclusion import (
    SAME_SETTINGS,
    SAME_SETTINGS_ITSELF,
    ClaimedDevice,
    Exclusion,
    asked_settings,
    exclusion,
)
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.pools import SliceState
from draco.allocation.share_limits import allocated, refused_shares
from draco.explanation.findings.lifting import lifting
from draco.explanation.findings.node_rules import holds, selector_text
from draco.explanation.findings.verdicts import Judge
from draco.explanation.model import ObstacleKind, UseObstacle
from draco.explanation.problems.configurations import can, published
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.core import Node, Pod
from draco.resources.api.meta import ObjectKey, ObjectMeta, find_condition
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaint
from draco.resources.names import (
    CONDITION_READY,
    LABEL_HOSTNAME,
    NVIDIA_DRIVER,
    DeviceKey,
    PoolKey,
    read_partition_name,
)
from draco.resources.texts import listed

_BY_FORCE: Final = ", by force if its machine is gone"
_ONE_GOES: Final = "delete the pod of one of them, so that its claim is allocated again"


def obstacles(fleet: Fleet, claims: Sequence[ResourceClaim], pod: Pod | None) -> list[UseObstacle]:
    """The first obstacle of each device that the pod's claims have; of devices with the same one, only the first.

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
        found += (each for claim in claims if (each := refused_configuration(fleet, claim)) is not None)
    return list({(each.claim, each.text): each for each in reversed(found)}.values())[::-1]


def _of_device(
    fleet: Fleet, claim: ResourceClaim, result: DeviceRequestAllocationResult, pod: Pod | None, *, starts: bool
) -> Iterator[UseObstacle]:
    device = f"{result.driver}/{result.pool}/{result.device}"

    def is_obstacle(kind: ObstacleKind, text: str, remedy: str) -> UseObstacle:
        return UseObstacle(kind=kind, claim=str(claim.metadata.key), device=device, text=text, remedy=remedy)

    node, again = _node_of(fleet, claim, pod), _again(claim, pod)
    there = fleet.nodes.get(node)
    if node and there is None:
        yield is_obstacle(ObstacleKind.NODE_GONE, f"node {node} does not exist any more", again)
    selector = claim.status.allocation.node_selector if claim.status.allocation is not None else None
    if starts and there is not None and selector is not None and not holds(selector, there):
        text = f"only nodes with {selector_text(selector)} reach {device}, and the pod has the node {node}"
        remedy = "delete the pod, and make it again without spec.nodeName, or with a claim of its own"
        yield is_obstacle(ObstacleKind.OUT_OF_REACH, text, remedy)
    if starts and there is not None and not there.ready and find_condition(there.status.conditions, CONDITION_READY):
        text, remedy = f"node {node} is not Ready", f"repair the node, or {_again(claim, pod, _BY_FORCE)}"
        yield is_obstacle(ObstacleKind.NODE_NOT_READY, text, remedy)
    pool = fleet.inventory.pool(PoolKey(result.driver, result.pool))
    if pool is None:
        where = f"on {node}" if node else f"in pool {result.pool}"
        text = f"driver {result.driver} publishes nothing {where} now"
        yield is_obstacle(ObstacleKind.DRIVER_SILENT, text, f"start the driver there, or {again}")
    elif not (rows := _current(fleet, fleet.inventory.rows(result.key))):
        names = {fleet.inventory.key(row).device for entry in pool.entries for row in _current(fleet, entry.rows)}
        left = f"; it has {listed(sorted(names))}" if names else ""
        text = f"driver {result.driver} does not publish {result.device} in pool {result.pool} any more{left}"
        yield is_obstacle(ObstacleKind.NOT_PUBLISHED, text, again)
    else:
        if text := _other_board(fleet, claim, result.key, rows[0]):
            yield is_obstacle(ObstacleKind.OTHER_BOARD, text, _again(claim, pod, _BY_FORCE))
        if not result.admin_access and (others := _others(fleet, claim, result)):
            text = f"{device} is allocated to {listed(others)} as well"
            yield is_obstacle(ObstacleKind.GIVEN_TWICE, text, _ONE_GOES)
        taints = _taints(fleet, result, rows[0])
        if starts and taints:
            named = " and ".join(str(each.identity) for each in taints)
            end = lifting(taints)
            remedy = f"{end}{';' if end.startswith('wait') else ','} or {again}"
            yield is_obstacle(ObstacleKind.TAINTED, f"{device} has been tainted with {named}", remedy)


def _again(claim: ResourceClaim, pod: Pod | None, by_force: str = "") -> str:
    """How to have the claim allocated again: Kubernetes deallocates it when the last of its pods is gone."""
    users = sorted(each.name for each in claim.status.reserved_for if each.is_pod)
    if len(users) > 1:
        return f"delete all pods that use the claim ({listed(users)}){by_force}, so that it is allocated again"
    if users or pod is not None:
        return f"delete the pod{by_force}, so that its claim is allocated again"
    return "delete the claim and make it again: no pod uses it"


def _current(fleet: Fleet, rows: Sequence[int]) -> list[int]:
    """The rows without those of slices that their pool's newest generation has replaced."""
    states = fleet.inventory.slice_states
    return [row for row in rows if states[row] != SliceState.OBSOLETE]


def _other_board(fleet: Fleet, claim: ResourceClaim, key: DeviceKey, row: int) -> str:
    """The text if the device's name now belongs to another board than the one on which the claim was prepared; else "".

    A new node with the name of a deleted one has devices of the same names.
    """
    then = next((each.board for each in claim.status.devices if (each.driver, each.pool, each.device) == key), "")
    [device] = (each for each in fleet.inventory.entry(row).spec.devices if each.name == key.device)
    now = device.gpu_uuid(key.driver)
    if not then or not now or then == now:
        return ""
    return f"the claim was prepared on board {then}, and the device is now board {now}"


def _node_of(fleet: Fleet, claim: ResourceClaim, pod: Pod | None) -> str:
    """The node that the device is or was on; "" if unknown or if there are several.

    A label is not the node's name, so it can name a node that exists, and none that is gone.
    """
    if pod is not None and pod.spec.node_name:
        return pod.spec.node_name
    selector = claim.status.allocation.node_selector if claim.status.allocation is not None else None
    if selector is None:
        return ""
    wanted = {
        (each.key, value)
        for term in selector.node_selector_terms
        for each in (*term.match_fields, *term.match_expressions)
        if each.operator == "In" and each.key in {"metadata.name", LABEL_HOSTNAME} and len(each.values) == 1
        for value in each.values
    }
    if len(wanted) != 1:
        return ""
    [(key, value)] = wanted
    if key != LABEL_HOSTNAME:
        return value
    labelled = [name for name, node in fleet.nodes.items() if node.metadata.labels.get(LABEL_HOSTNAME) == value]
    return labelled[0] if len(labelled) == 1 else ""


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


def _taints(fleet: Fleet, result: DeviceRequestAllocationResult, row: int) -> list[DeviceTaint]:
    return [
        taint
        for taint in fleet.inventory.taints_of(row)
        if taint.effect in BLOCKING_EFFECTS and not any(each.tolerates(taint) for each in result.tolerations)
    ]


def _refused_shares(fleet: Fleet, claim: ResourceClaim) -> UseObstacle | None:
    """The shares of an allocated claim that Draco's agent refuses to prepare together; None if there are none."""
    found = refused_shares(allocated(claim, NVIDIA_DRIVER, lambda result: published(fleet, result.key)))
    if found is None:
        return None
    name, remedy = str(claim.metadata.key), f"make a new claim: {found.remedy}"
    return UseObstacle(kind=ObstacleKind.SHARES_REFUSED, claim=name, text=found.why, remedy=remedy)


def refused_configuration(fleet: Fleet, claim: ResourceClaim) -> UseObstacle | None:
    """The configuration of an allocated claim that Draco's agent refuses to prepare, alone or beside others; None without."""
    found = refused(claim, NVIDIA_DRIVER, lambda result, attribute: can(fleet, result.key, attribute))
    if found is None:
        return _other_settings(fleet, claim) or _refused_shares(fleet, claim)
    return UseObstacle(
        kind=ObstacleKind.CONFIGURATION_REFUSED,
        claim=str(claim.metadata.key),
        text=str(found),
        remedy=found.remedy_once_allocated,
    )


def _other_settings(fleet: Fleet, claim: ResourceClaim) -> UseObstacle | None:
    """A share of a device that another claim shares with another time slice or MPS."""
    for result in (each for each in claim.results if each.driver == NVIDIA_DRIVER and each.share_id):
        others = [claim, *(fleet.claims[each] for each in fleet.holders(result.key) if each != claim.metadata.key)]
        for other in (each for each in others if refused(each, NVIDIA_DRIVER) is None):
            for held in (each for each in other.results if each.key == result.key):
                if (found := _compared((claim, result), (other, held))) is not None:
                    name = "" if other is claim else str(other.metadata.key)
                    return UseObstacle(
                        kind=ObstacleKind.CONFIGURATION_REFUSED,
                        claim=str(claim.metadata.key),
                        text=found.difference(name),
                        remedy=SAME_SETTINGS if name else SAME_SETTINGS_ITSELF,
                    )
    return None


def _compared(*uses: tuple[ResourceClaim, DeviceRequestAllocationResult]) -> Exclusion | None:
    found = [
        ClaimedDevice(
            gpu=result.pool,
            device=result.device,
            units=None if read_partition_name(result.device) is None else 1,
            is_share=bool(result.share_id),
            is_admin=bool(result.admin_access),
            settings=settings,
        )
        for claim, result in uses
        if (settings := asked_settings(claim, result)) is not None
    ]
    return exclusion(*found) if len(found) == len(uses) else None
