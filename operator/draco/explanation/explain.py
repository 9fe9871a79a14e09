"""Why the claims of a pod are not allocated: the front door.

Owns the order of questions: what is allocated already, where the pod may go, what the allocator says of each node, what stands
in the way of each device. Decides nothing by itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from draco.allocation.errors import AllocationError
from draco.allocation.fleet import Fleet
from draco.allocation.requests import expand, matcher
from draco.explanation.folding import folded
from draco.explanation.model import Cause, Explanation, NodeCause, NodeReason, Reason, RequestExplanation
from draco.explanation.placement import node_causes
from draco.explanation.survey import Survey, survey
from draco.explanation.trying import Verdict
from draco.explanation.verdicts import asks_of
from draco.explanation.wording import summary
from draco.resources.claims import ResourceClaim
from draco.resources.core import Node, Pod

MAX_NODES: Final = 10
"""Nodes that are named."""


def explain(
    fleet: Fleet, claims: Sequence[ResourceClaim], *, pod: Pod | None = None, scheduler: str = ""
) -> Explanation:
    """Why the claims (all of a pod, or one) are not allocated, or that they can be, or are.

    Without a pod the claims are looked at as those of one that asks nothing of its node. `scheduler` is what kube-scheduler says.
    """
    told = _explain(fleet, claims, pod)
    told = _with(told, claims=[str(claim.metadata.key) for claim in claims], pod=_name(pod), scheduler=scheduler)
    return _with(told, summary=summary(told))


def _explain(fleet: Fleet, claims: Sequence[ResourceClaim], pod: Pod | None) -> Explanation:
    waiting = [claim for claim in claims if claim.status.allocation is None]
    if not waiting:
        return Explanation(reason=Reason.ALLOCATED, summary="")
    match = matcher(fleet.inventory.selectors, Node())
    try:
        expanded = [expand(claim, fleet.classes, (), match) for claim in waiting]
    except AllocationError as error:
        reason = Reason.CLASS_MISSING if _lacks_class(fleet, waiting) else Reason.INVALID
        return Explanation(reason=reason, error=str(error), summary="")
    closed = node_causes(fleet, pod)
    open_nodes = {name: fleet.nodes[name] for name in fleet.node_names if name not in closed}
    found = survey(fleet, waiting, asks_of(expanded), open_nodes)
    requests = folded(fleet, found)
    fits_on = sorted(name for group in found.groups if group.verdict is Verdict.FITS for name in group.names)
    errors = [group.error for group in found.groups if group.verdict in {Verdict.ERROR, Verdict.TOO_LONG}]
    fits = bool(fits_on) and not errors
    nodes = [] if fits else [*_device_causes(found, requests), *_rule_causes(closed)]
    return Explanation(
        reason=Reason.FITS if fits else _reason(found, requests, errors),
        summary="",
        fits=fits,
        fits_on=fits_on[:MAX_NODES],
        fits_on_total=len(fits_on),
        error=errors[0] if errors else "",
        nodes_total=len(fleet.nodes),
        devices_total=found.devices,
        requests=requests,
        nodes=nodes,
    )


def _lacks_class(fleet: Fleet, claims: Sequence[ResourceClaim]) -> bool:
    requests = [request for claim in claims for request in claim.spec.devices.requests]
    asked = [each.device_class_name for request in requests for each in request.first_available]
    asked += [request.exactly.device_class_name for request in requests if request.exactly is not None]
    return any(name not in fleet.classes for name in asked)


def _reason(found: Survey, requests: Sequence[RequestExplanation], errors: Sequence[str]) -> Reason:
    if any(group.verdict is Verdict.TOO_LONG for group in found.groups):
        return Reason.SEARCH_TOO_LONG
    if errors:
        failed = any(count.cause is Cause.SELECTOR_FAILED for request in requests for count in request.causes)
        return Reason.SELECTOR_ERROR if failed else Reason.INVALID
    if not found.devices:
        return Reason.NO_DEVICES
    for request in requests:
        if not request.free:
            return _main(request)
        if request.most_free_on_one_node < request.wanted:
            return Reason.NOT_ENOUGH_ON_ONE_NODE
    return Reason.NOT_TOGETHER


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


def _main(request: RequestExplanation) -> Reason:
    """The reason of a request for which no device is free: what most of the devices have that it selects."""
    counts: dict[Reason, int] = {}
    for count in request.causes:
        reason = _REASONS[count.cause]
        counts[reason] = counts.get(reason, 0) + count.devices * (reason is not Reason.NOTHING_SELECTED)
    return max(counts, key=lambda reason: counts[reason]) if counts else Reason.NO_DEVICES


def _device_causes(found: Survey, requests: Sequence[RequestExplanation]) -> list[NodeCause]:
    """Why nodes to which the pod may go do not do."""
    causes = []
    for group in found.groups:
        if group.verdict is Verdict.FITS:
            continue
        reason, request, free, wanted = NodeReason.NOT_TOGETHER, "", 0, 0
        if group.verdict in {Verdict.ERROR, Verdict.TOO_LONG}:
            reason = NodeReason.ERROR
        elif group.verdict is Verdict.BROKEN:
            reason = NodeReason.POOL_BROKEN
        else:
            for number, each in enumerate(requests):
                if group.free[number] < each.wanted:
                    free, wanted = group.free[number], each.wanted
                    reason, request = NodeReason.NOT_ENOUGH if free else NodeReason.NO_DEVICES, each.request
                    break
        causes.append(
            NodeCause(
                reason=reason,
                text=_node_words(reason, free, wanted),
                nodes=len(group.names),
                names=sorted(group.names)[:MAX_NODES],
                request=request,
                free=free,
                wanted=wanted,
            )
        )
    return sorted(causes, key=lambda cause: (cause.reason is NodeReason.NO_DEVICES, -cause.free))


def _node_words(reason: NodeReason, free: int, wanted: int) -> str:
    match reason:
        case NodeReason.NOT_ENOUGH:
            return f"{free} free and selected, {wanted} wanted"
        case NodeReason.NO_DEVICES:
            return "nothing free that is selected"
        case NodeReason.POOL_BROKEN:
            return "invalid pools"
        case NodeReason.ERROR:
            return "the scheduler gives up"
    return "enough devices, but not together"


def _rule_causes(closed: Mapping[str, NodeCause]) -> list[NodeCause]:
    different = {id(cause): cause for cause in closed.values()}
    return sorted(different.values(), key=lambda cause: -cause.nodes)


def _name(pod: Pod | None) -> str:
    return "" if pod is None else str(pod.metadata.key)


def _with(told: Explanation, **fields: Any) -> Explanation:
    return msgspec.structs.replace(told, **fields)
