"""Claims that need no search: allocated, missing or being deleted; and what still blocks their pod. Reads status only."""

from collections.abc import Mapping, Sequence
from typing import Final

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.ownership.claims import is_for_operator
from draco.explanation.findings.details import consumers_of
from draco.explanation.findings.node_rules import holds, selector_text
from draco.explanation.model import AllocatedClaim, PendingReason
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.core import Node, Pod
from draco.resources.names import LABEL_HOSTNAME

MAX_CONSUMERS: Final = 256
"""Most consumers of one claim; the API's limit."""


def missing(fleet: Fleet, claims: Sequence[ResourceClaim], pod: Pod | None) -> tuple[str, bool]:
    """The pod's missing claims, in words, and whether one is named that belongs to this pod alone."""
    if pod is None:
        return "", False
    known = {claim.metadata.key for claim in claims} | fleet.claims.keys()
    gone = [key for key in pod.claims if key not in known]
    said = [f"ResourceClaim {key} does not exist" for key in gone]
    made = {status.name for status in pod.status.resource_claim_statuses}
    said += [
        f"the ResourceClaim for {entry.name} has not been created yet from ResourceClaimTemplate "
        f"{pod.metadata.namespace}/{entry.resource_claim_template_name}"
        for entry in pod.spec.resource_claims
        if entry.resource_claim_template_name and entry.name not in made
    ]
    named = {entry.resource_claim_name for entry in pod.spec.resource_claims}
    return "; ".join(said), any(key.name not in named for key in gone)


def bypassing(fleet: Fleet, waiting: Sequence[ResourceClaim], node: str) -> str:
    """The message about a pod that sets spec.nodeName; it depends on who allocates the waiting claims."""
    by_draco = all(is_for_operator(claim, fleet.classes) for claim in waiting)
    why = "and Draco allocates" if by_draco else "so it bypasses kube-scheduler, which allocates"
    there = fleet.nodes.get(node)
    label = there.metadata.labels.get(LABEL_HOSTNAME, "") if there is not None else ""
    unique = sum(each.metadata.labels.get(LABEL_HOSTNAME) == label for each in fleet.nodes.values()) == 1
    instead = (
        f"nodeSelector: {{{LABEL_HOSTNAME}: {label}}}"
        if label and unique
        else "a node affinity with matchFields metadata.name"
    )
    return (
        f"the pod sets spec.nodeName: {node}, {why} devices only to pods that have no node yet; "
        f"write {instead} instead of nodeName"
    )


def allocated_claim(claim: ResourceClaim) -> AllocatedClaim:
    """The explanation's entry for an allocated claim. Raises TypeError if it is not allocated."""
    allocation = claim.status.allocation
    if allocation is None:
        raise TypeError(f"claim {claim.metadata.key} is not allocated")
    results = allocation.devices.results
    waiting, failed = [], []
    for result in results:
        true = _true_conditions(claim, result)
        waiting += [f"{result.device}: {each}" for each in result.binding_conditions if each not in true]
        failed += [f"{result.device}: {each}" for each in result.binding_failure_conditions if each in true]
    return AllocatedClaim(
        claim=str(claim.metadata.key),
        devices=[f"{result.driver}/{result.pool}/{result.device}" for result in results],
        consumers=consumers_of(claim),
        waiting_for=waiting,
        failed=failed,
        nodes=selector_text(allocation.node_selector) if allocation.node_selector is not None else "",
    )


def _true_conditions(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> set[str]:
    wanted = (result.driver, result.pool, result.device, result.share_id)
    return {
        condition.type
        for device in claim.status.devices
        if (device.driver, device.pool, device.device, device.share_id) == wanted
        for condition in device.conditions
        if condition.status == "True"
    }


def reaching(claims: Sequence[ResourceClaim], nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """The nodes from which the devices of all allocated claims are reachable."""
    selectors = [claim.status.allocation.node_selector for claim in claims if claim.status.allocation is not None]
    bound = [selector for selector in selectors if selector is not None]
    if not bound:
        return nodes
    return {name: node for name, node in nodes.items() if all(holds(selector, node) for selector in bound)}


def is_full(claim: ResourceClaim, pod: Pod | None) -> bool:
    """Whether the claim has its maximum number of users, and the pod is not one of them."""
    users = {each.uid for each in claim.status.reserved_for}
    return pod is not None and len(claim.status.reserved_for) >= MAX_CONSUMERS and pod.metadata.uid not in users


def reason_of(
    claims: Sequence[ResourceClaim],
    allocated: Sequence[AllocatedClaim],
    pod: Pod | None,
    *,
    unusable: bool,
    reach: bool,
) -> PendingReason:
    """Why a pod waits although all its claims are allocated."""
    if any(is_full(claim, pod) for claim in claims):
        return PendingReason.RESERVED_BY_OTHERS
    if any(each.failed or each.waiting_for for each in allocated):
        return PendingReason.WAITING_FOR_BINDING
    if unusable:
        return PendingReason.DEVICE_UNUSABLE
    return PendingReason.ALLOCATED if reach else PendingReason.BOUND_ELSEWHERE
