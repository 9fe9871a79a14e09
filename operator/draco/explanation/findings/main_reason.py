"""Explains why the nodes that a pod may use do not fit (too few devices, or not together), and derives the main reason."""

from collections.abc import Mapping, Sequence
from typing import Final

from draco.allocation.fleet.fleet import Fleet
from draco.explanation.findings.allocator_runs import AllocatorVerdict
from draco.explanation.findings.fleet_findings import FleetFindings, NodeGroup
from draco.explanation.findings.joint_fit import why_not
from draco.explanation.model import (
    NOT_ELIGIBLE,
    Cause,
    NodeCause,
    NodeReason,
    PendingReason,
    RequestExplanation,
    alternatives,
)
from draco.resources.api.claims import ResourceClaim

MAX_NODES: Final = 10
"""Nodes that are named; the rest are counted."""
_ASKED_ABOUT: Final = 5
"""Kinds of nodes about which the allocator is asked in detail."""
_IN_NOBODYS_WAY: Final = NOT_ELIGIBLE | {Cause.FREE}
_GAVE_UP: Final = frozenset({AllocatorVerdict.ERROR, AllocatorVerdict.TOO_LONG})
_REASONS: Final[Mapping[Cause, PendingReason]] = {
    Cause.POOL_OBSOLETE: PendingReason.POOL_BROKEN,
    Cause.POOL_INCOMPLETE: PendingReason.POOL_BROKEN,
    Cause.POOL_INVALID: PendingReason.POOL_BROKEN,
    Cause.NO_NODE: PendingReason.NO_NODE,
    Cause.NODE_RULES: PendingReason.NODE_RULES,
    Cause.IN_USE: PendingReason.IN_USE,
    Cause.SELECTOR_FAILED: PendingReason.SELECTOR_ERROR,
    Cause.TAINTED: PendingReason.TAINTED,
    Cause.COUNTERS_SHORT: PendingReason.COUNTERS_SHORT,
    Cause.CAPACITY_SHORT: PendingReason.CAPACITY_SHORT,
    Cause.CONSTRAINT: PendingReason.CONSTRAINT,
}
_OF_NODES: Final[Mapping[NodeReason, PendingReason]] = {
    NodeReason.CONSTRAINT: PendingReason.CONSTRAINT,
    NodeReason.COUNTERS_SHORT: PendingReason.COUNTERS_SHORT,
    NodeReason.NOT_TOGETHER: PendingReason.NOT_TOGETHER,
}


def device_causes(
    fleet: Fleet, claims: Sequence[ResourceClaim], found: FleetFindings, requests: Sequence[RequestExplanation]
) -> list[NodeCause]:
    """The causes of all nodes on which the claims do not fit, the closest to fitting first."""
    groups = [group for group in found.groups if group.verdict is not AllocatorVerdict.FITS]
    groups.sort(key=lambda group: (lacking(group, requests) is not None, -sum(group.free), group.names[0]))
    causes: dict[tuple[NodeReason, str, str], NodeCause] = {}
    asked = 0
    for group in groups:
        few = lacking(group, requests)
        request, free, wanted, names_subject = "", 0, 0, False
        if group.verdict in _GAVE_UP:
            reason, text = NodeReason.ERROR, "rejected by kube-scheduler with an error"
        elif group.verdict is AllocatorVerdict.BROKEN and few is None:
            reason, text = NodeReason.POOL_BROKEN, "without usable devices: a pool there is invalid"
        elif few is not None:
            request, free, wanted = requests[few].request, group.free[few], requests[few].wanted
            reason, text = NodeReason.NOT_ENOUGH, f"short of devices: {wanted} wanted, {free} free"
            if not free:
                reason, text = NodeReason.NO_DEVICES, "without a free device that the request selects"
        elif asked < _ASKED_ABOUT:
            asked += 1
            reason, text, names_subject = why_not(fleet, claims, group.names[0])
        else:
            reason, text = NodeReason.NOT_TOGETHER, "unable to serve all requests together"
        key = (reason, text, request)
        names = sorted([*group.names, *(causes[key].names if key in causes else ())])[:MAX_NODES]
        count = len(group.names) + (causes[key].nodes if key in causes else 0)
        causes[key] = NodeCause(
            reason=reason,
            text=text,
            nodes=count,
            names=names,
            request=request,
            free=free,
            wanted=wanted,
            names_subject=names_subject,
        )
    return sorted(causes.values(), key=lambda cause: cause.reason is NodeReason.NO_DEVICES)


def lacking(group: NodeGroup, requests: Sequence[RequestExplanation]) -> int | None:
    """The first request with too few devices on these nodes in every alternative; None if there is none."""
    for numbers in alternatives(requests):
        if all(group.free[number] < requests[number].wanted for number in numbers):
            return max(numbers, key=lambda number: group.free[number])
    return None


def main_reason(
    found: FleetFindings, requests: Sequence[RequestExplanation], nodes: Sequence[NodeCause]
) -> PendingReason:
    """The main reason why the claims fit nowhere."""
    if any(group.verdict is AllocatorVerdict.TOO_LONG for group in found.groups):
        return PendingReason.SEARCH_TOO_LONG
    causes = {count.cause for request in requests for count in request.causes}
    if any(group.verdict is AllocatorVerdict.ERROR for group in found.groups):
        if Cause.SELECTOR_FAILED in causes:
            return PendingReason.SELECTOR_ERROR
        is_broken = any(constrained.all_mode for constrained in found.requests) and causes & {
            Cause.POOL_INCOMPLETE,
            Cause.POOL_INVALID,
        }
        return PendingReason.POOL_BROKEN if is_broken else PendingReason.INVALID
    if not found.devices:
        return PendingReason.NO_DEVICES
    return _of_requests(requests) or _of_nodes(requests, nodes)


def _of_requests(requests: Sequence[RequestExplanation]) -> PendingReason | None:
    """The reason of the first request that no node could meet; None if there is none."""
    for numbers in alternatives(requests):
        each = [requests[number] for number in numbers]
        if all(not request.free for request in each):
            return most_common(max(each, key=lambda request: request.selected))
        if all(request.most_free_on_one_node < request.wanted for request in each):
            return PendingReason.NOT_ENOUGH_ON_ONE_NODE
    return None


def _of_nodes(requests: Sequence[RequestExplanation], nodes: Sequence[NodeCause]) -> PendingReason:
    """The reason of the nodes that have enough devices for each request alone."""
    reasons = [cause.reason for cause in nodes]
    if NodeReason.ALL_MODE in reasons:
        of_all = next(request for request in requests if request.mode == "All")
        return most_common(of_all)
    found = [_OF_NODES[reason] for reason in reasons if reason in _OF_NODES]
    if not found and NodeReason.POOL_BROKEN in reasons:
        return PendingReason.POOL_BROKEN
    return found[0] if found else PendingReason.NOT_TOGETHER


def most_common(request: RequestExplanation) -> PendingReason:
    """What blocks most of the eligible devices; if there are none, whether a selector or a configuration leaves none."""
    counts: dict[PendingReason, int] = {}
    for count in request.causes:
        if count.cause not in _IN_NOBODYS_WAY:
            reason = _REASONS[count.cause]
            counts[reason] = counts.get(reason, 0) + count.devices
    if counts:
        return max(counts, key=lambda reason: counts[reason])
    is_refused = any(each.cause is Cause.CONFIGURATION_REFUSED for each in request.causes)
    return PendingReason.CONFIGURATION_REFUSED if is_refused else PendingReason.NOTHING_SELECTED
