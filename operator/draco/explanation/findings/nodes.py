"""Why the nodes to which the pod may go do not do, and which reason that gives the whole.

Owns the telling apart of nodes with too few devices from those with enough that do not go together, and the choice of the main
reason. The devices are counted elsewhere.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from draco.allocation.fleet.fleet import Fleet
from draco.explanation.findings.allocator_runs import Verdict
from draco.explanation.findings.fleet_findings import Group, Survey
from draco.explanation.findings.together import why_not
from draco.explanation.model import Cause, NodeCause, NodeReason, Reason, RequestExplanation
from draco.resources.api.claims import ResourceClaim

MAX_NODES: Final = 10
"""Nodes that are named."""
_ASKED_ABOUT: Final = 5
"""Kinds of nodes about which the allocator is asked more."""
_GAVE_UP: Final = frozenset({Verdict.ERROR, Verdict.TOO_LONG})
_REASONS: Final[Mapping[Cause, Reason]] = {
    Cause.NOT_SELECTED: Reason.NOTHING_SELECTED,
    Cause.POOL_OBSOLETE: Reason.POOL_BROKEN,
    Cause.POOL_INCOMPLETE: Reason.POOL_BROKEN,
    Cause.POOL_INVALID: Reason.POOL_BROKEN,
    Cause.NO_NODE: Reason.NO_NODE,
    Cause.NODE_RULES: Reason.NODE_RULES,
    Cause.IN_USE: Reason.IN_USE,
    Cause.SELECTOR_FAILED: Reason.SELECTOR_ERROR,
    Cause.TAINTED: Reason.TAINTED,
    Cause.COUNTERS_SHORT: Reason.COUNTERS_SHORT,
    Cause.CAPACITY_SHORT: Reason.CAPACITY_SHORT,
    Cause.CONSTRAINT: Reason.CONSTRAINT,
}
_OF_NODES: Final[Mapping[NodeReason, Reason]] = {
    NodeReason.CONSTRAINT: Reason.CONSTRAINT,
    NodeReason.COUNTERS_SHORT: Reason.COUNTERS_SHORT,
    NodeReason.NOT_TOGETHER: Reason.NOT_TOGETHER,
}


def device_causes(
    fleet: Fleet, claims: Sequence[ResourceClaim], found: Survey, requests: Sequence[RequestExplanation]
) -> list[NodeCause]:
    """The causes of all nodes on which the claims do not fit, the nearest to fitting first."""
    groups = [group for group in found.groups if group.verdict is not Verdict.FITS]
    groups.sort(key=lambda group: (lacking(group, found, requests) is not None, -sum(group.free), group.names[0]))
    told: dict[tuple[NodeReason, str, str], NodeCause] = {}
    asked = 0
    for group in groups:
        few = lacking(group, found, requests)
        request, free, wanted = "", 0, 0
        if group.verdict in _GAVE_UP:
            reason, text = NodeReason.ERROR, "rejected by kube-scheduler with an error"
        elif group.verdict is Verdict.BROKEN and few is None:
            reason, text = NodeReason.POOL_BROKEN, "without usable devices: a pool there is invalid"
        elif few is not None:
            request, free, wanted = requests[few].request, group.free[few], requests[few].wanted
            reason, text = _too_few(free, wanted)
        elif asked < _ASKED_ABOUT:
            asked += 1
            reason, text = why_not(fleet, claims, group.names[0])
        else:
            reason, text = NodeReason.NOT_TOGETHER, "unable to serve all requests together"
        key = (reason, text, request)
        names = sorted([*group.names, *(told[key].names if key in told else ())])[:MAX_NODES]
        count = len(group.names) + (told[key].nodes if key in told else 0)
        told[key] = NodeCause(
            reason=reason, text=text, nodes=count, names=names, request=request, free=free, wanted=wanted
        )
    return sorted(told.values(), key=lambda cause: cause.reason is NodeReason.NO_DEVICES)


def _too_few(free: int, wanted: int) -> tuple[NodeReason, str]:
    if not free:
        return NodeReason.NO_DEVICES, "without a free device that the request selects"
    return NodeReason.NOT_ENOUGH, f"short of devices: {wanted} wanted, {free} free"


def lacking(group: Group, found: Survey, requests: Sequence[RequestExplanation]) -> int | None:
    """The first request for which the nodes have too few devices, whatever its alternative; None if there is none."""
    alternatives: dict[tuple[int, str], list[int]] = {}
    for number, ask in enumerate(found.asks):
        alternatives.setdefault((ask.number, ask.request.base), []).append(number)
    for numbers in alternatives.values():
        if all(group.free[number] < requests[number].wanted for number in numbers):
            return max(numbers, key=lambda number: group.free[number])
    return None


def main_reason(found: Survey, requests: Sequence[RequestExplanation], nodes: Sequence[NodeCause]) -> Reason:
    """Why the claims fit nowhere, in one word."""
    if any(group.verdict is Verdict.TOO_LONG for group in found.groups):
        return Reason.SEARCH_TOO_LONG
    causes = {count.cause for request in requests for count in request.causes}
    if any(group.verdict is Verdict.ERROR for group in found.groups):
        if Cause.SELECTOR_FAILED in causes:
            return Reason.SELECTOR_ERROR
        is_broken = any(ask.all_mode for ask in found.asks) and causes & {Cause.POOL_INCOMPLETE, Cause.POOL_INVALID}
        return Reason.POOL_BROKEN if is_broken else Reason.INVALID
    if not found.devices:
        return Reason.NO_DEVICES
    return _of_requests(found, requests) or _of_nodes(requests, nodes)


def _of_requests(found: Survey, requests: Sequence[RequestExplanation]) -> Reason | None:
    """The reason of the first request that no node could meet."""
    alternatives: dict[tuple[int, str], list[RequestExplanation]] = {}
    for ask, request in zip(found.asks, requests, strict=True):
        alternatives.setdefault((ask.number, ask.request.base), []).append(request)
    for each in alternatives.values():
        if all(not request.free for request in each):
            return most_common(max(each, key=lambda request: request.selected))
        if all(request.most_free_on_one_node < request.wanted for request in each):
            return Reason.NOT_ENOUGH_ON_ONE_NODE
    return None


def _of_nodes(requests: Sequence[RequestExplanation], nodes: Sequence[NodeCause]) -> Reason:
    """The reason of the nodes that have enough, each request for itself."""
    reasons = [cause.reason for cause in nodes]
    if NodeReason.ALL_MODE in reasons:
        of_all = next(request for request in requests if request.mode == "All")
        return most_common(of_all)
    found = [_OF_NODES[reason] for reason in reasons if reason in _OF_NODES]
    if not found and NodeReason.POOL_BROKEN in reasons:
        return Reason.POOL_BROKEN
    return found[0] if found else Reason.NOT_TOGETHER


def most_common(request: RequestExplanation) -> Reason:
    """What most of the devices have in their way that a request selects; that it selects none, if so."""
    counts: dict[Reason, int] = {}
    for count in request.causes:
        if count.cause not in {Cause.FREE, Cause.NOT_SELECTED}:
            reason = _REASONS[count.cause]
            counts[reason] = counts.get(reason, 0) + count.devices
    return max(counts, key=lambda reason: counts[reason]) if counts else Reason.NOTHING_SELECTED
