"""Explains why the claims of a pod are not allocated: the entry point of the package.

Owns the order of questions: what is allocated already, which nodes the pod may use, the allocator's verdict on each node, and the
obstacle of each device. Decides nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.rowwise import select
from draco.allocation.ownership.claims import as_judged, is_for_operator
from draco.allocation.ownership.gangs import gang_of, pod_group_of
from draco.allocation.search.requests import expand, matcher
from draco.allocation.search.upstream_bugs import AffectedArea, bugs_of
from draco.explanation.findings.allocated import allocated_claim, bypassing, is_full, missing, reaching, reason_of
from draco.explanation.findings.allocator_runs import AllocatorVerdict
from draco.explanation.findings.details import consumers_of
from draco.explanation.findings.emptied import emptied
from draco.explanation.findings.fleet_findings import FleetFinder, FleetFindings
from draco.explanation.findings.folding import folded
from draco.explanation.findings.held_allocations import obstacles
from draco.explanation.findings.joint_fit import fits_alone
from draco.explanation.findings.main_reason import MAX_NODES, device_causes, main_reason
from draco.explanation.findings.node_rules import nodes_for, unbound
from draco.explanation.findings.verdicts import constrained_requests
from draco.explanation.model import (
    UNDECISIVE,
    Explanation,
    NodeCause,
    NodeReason,
    PendingReason,
    ProblemKind,
    RequestExplanation,
)
from draco.explanation.note import cause_and_fix, with_summary
from draco.explanation.problems.claims import problems_of
from draco.explanation.remedies.counted_free import counted_on
from draco.explanation.remedies.nearest import nearest_misses
from draco.explanation.remedies.unmet import unmet_requests
from draco.explanation.selection import selection
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node, Pod
from draco.resources.api.taints import BLOCKING_EFFECTS
from draco.resources.names import SCHEDULING_GATE
from draco.resources.texts import listed

_WAITED_FOR: Final = frozenset(
    {
        PendingReason.IN_USE,
        PendingReason.COUNTERS_SHORT,
        PendingReason.CAPACITY_SHORT,
        PendingReason.CONSTRAINT,
        PendingReason.NOT_ENOUGH_ON_ONE_NODE,
        PendingReason.NOT_TOGETHER,
    }
)
"""Reasons that others' use of devices may cause."""
_THOUGH_IT_FITS: Final = UNDECISIVE | {ProblemKind.CONFIGURATION_REFUSED, ProblemKind.SHARES_REFUSED}
"""Problems of a claim that fits all the same."""
_OF_AMOUNTS: Final = frozenset({ProblemKind.TOO_MUCH_CAPACITY})
"""Problems that an emptied fleet has, too, with the change that would do."""
_MAX_ALONE: Final = 8
"""Kinds of nodes on which a request is tried alone."""


def explain(
    fleet: Fleet,
    claims: Sequence[ResourceClaim],
    *,
    pod: Pod | None = None,
    scheduler: str = "",
    ended: Pod | None = None,
    minor: int | None = None,
) -> Explanation:
    """Why the claims (all of a pod, or one) are not allocated; or that they can be, or are.

    Without a pod, one without node requirements and tolerations is assumed. `scheduler` is kube-scheduler's message about the
    pod. `ended` is a completed pod that used the claim and still exists, if no pod waits for it. With `minor`, known bugs of the
    scheduler of Kubernetes 1.`minor` are named if they concern such claims.
    """
    explanation = _explain(fleet, [as_judged(claim, fleet.classes) for claim in claims], pod)
    waiting = [claim for claim in claims if claim.status.allocation is None] or claims
    by_draco = any(is_for_operator(claim, fleet.classes) for claim in waiting)
    group = gang_of(pod) if pod is not None and by_draco else None
    explanation = replace(
        explanation,
        by_draco=by_draco,
        group="" if group is None else str(group),
        claims=[str(claim.metadata.key) for claim in claims],
        pod="" if pod is None else str(pod.metadata.key),
        node="" if pod is None else pod.spec.node_name,
        scheduler=scheduler,
        ended=str(ended.metadata.key) if ended is not None and by_draco else "",
        upstream_bugs=_bugs(fleet, claims, minor) if minor is not None else [],
        nodes_total=len(fleet.nodes),
        devices_total=len(fleet.inventory),
    )
    return with_summary(explanation)


def _explain(fleet: Fleet, claims: Sequence[ResourceClaim], pod: Pod | None) -> Explanation:
    allocated = [allocated_claim(claim) for claim in claims if claim.status.allocation is not None]
    hopeless = _hopeless(fleet, claims, pod)
    if hopeless is not None:
        return replace(hopeless, allocated=allocated)
    nodes = nodes_for(fleet, pod)
    reach = reaching(claims, nodes.open)
    elsewhere = [*_out_of_reach(nodes.open, reach), *nodes.causes]
    waiting = [claim for claim in claims if claim.status.allocation is None]
    if not waiting or any(is_full(claim, pod) for claim in claims):
        found = obstacles(fleet, claims, pod) if not waiting else []
        unusable = bool(found) and (pod is None or pod.pending)
        reason = reason_of(claims, allocated, pod, unusable=unusable, reach=bool(reach) or pod is None)
        closed = elsewhere if reason is PendingReason.BOUND_ELSEWHERE else []
        return Explanation(
            reason=reason,
            allocated=allocated,
            nodes=closed,
            obstacles=found,
            room_on=_room_for(fleet, claims, pod) if unusable else [],
        )
    if not reach and nodes.open:
        return Explanation(reason=PendingReason.BOUND_ELSEWHERE, allocated=allocated, nodes=elsewhere)
    explanation = _of_waiting(fleet, waiting, reach)
    if explanation.fits:
        return replace(explanation, allocated=allocated)
    if explanation.reason in _WAITED_FOR:
        explanation = _with_what_stays(fleet, waiting, reach, explanation)
    return replace(
        explanation,
        allocated=allocated,
        nodes=[*explanation.nodes, *elsewhere],
        nearest=explanation.nearest or nearest_misses(fleet, claims, pod),
        unmet=unmet_requests(fleet, waiting) if explanation.requests and not explanation.error else [],
        counted_on=counted_on(fleet, claims, pod, explanation.requests),
    )


def _room_for(fleet: Fleet, claims: Sequence[ResourceClaim], pod: Pod | None) -> list[str]:
    """The nodes on which the claims would fit beside what they hold now, if they were allocated again."""
    anew = [replace(each, status=replace(each.status, allocation=None, reserved_for=[])) for each in claims]
    return _of_waiting(fleet, anew, nodes_for(fleet, None if pod is None else unbound(pod)).open).fits_on


def _hopeless(fleet: Fleet, claims: Sequence[ResourceClaim], pod: Pod | None) -> Explanation | None:
    """What keeps the scheduler from looking for devices at all; None if nothing does."""
    gone, names_subject = missing(fleet, claims, pod)
    if gone:
        return Explanation(reason=PendingReason.CLAIM_MISSING, error=gone, names_subject=names_subject)
    deleted = [str(claim.metadata.key) for claim in claims if claim.metadata.deletion_timestamp is not None]
    if deleted and (pod is None or not pod.spec.node_name):  # kubelet starts a pod with such a claim
        users = sorted({user for claim in claims if str(claim.metadata.key) in deleted for user in consumers_of(claim)})
        until = f", which ends when nobody uses it any more ({listed(users)})" if users else ""
        error = f"claim {' and '.join(deleted)} is being deleted{until}"
        return Explanation(reason=PendingReason.CLAIM_DELETING, error=error, names_subject=True)
    waiting = [claim for claim in claims if claim.status.allocation is None]
    if pod is not None and pod.spec.node_name and waiting:
        error = bypassing(fleet, waiting, pod.spec.node_name)
        return Explanation(reason=PendingReason.BYPASSES_SCHEDULER, error=error)
    if pod is not None and pod.waits and pod.spec.scheduling_gates and (error := _gated(fleet, claims, pod)):
        return Explanation(reason=PendingReason.GATED, error=error, names_subject=True)
    return None


def _gated(fleet: Fleet, claims: Sequence[ResourceClaim], pod: Pod) -> str:
    """The scheduling gate that blocks the pod; "" for Draco's own while a claim is still to be allocated."""
    others = [gate.name for gate in pod.spec.scheduling_gates if gate.name != SCHEDULING_GATE]
    if others:
        return (
            f"pod {pod.metadata.name} has the scheduling gate {others[0]}: kube-scheduler ignores the pod until the controller "
            "that set the gate removes it"
        )
    dracos = [claim for claim in claims if is_for_operator(claim, fleet.classes)]
    if any(claim.status.allocation is None for claim in dracos):
        return ""
    if pod_group := pod_group_of(pod):
        return (
            f"pod {pod.metadata.name} has the scheduling gate {SCHEDULING_GATE}: if the chart's value operator.allocate is true, "
            f"Draco removes it when as many pods of {pod_group} as start together have their devices"
        )
    if dracos:
        return ""
    return (
        f"pod {pod.metadata.name} has the scheduling gate {SCHEDULING_GATE}, and Draco allocates none of its claims: Draco "
        "removes the gate if the chart's value operator.allocate is true"
    )


def _of_waiting(fleet: Fleet, claims: Sequence[ResourceClaim], nodes: Mapping[str, Node]) -> Explanation:
    """The explanation of unallocated claims on these nodes."""
    try:
        match = matcher(fleet.inventory.selectors, Node())
        expanded = [expand(claim, fleet.classes, (), match) for claim in claims]
    except AllocationError as error:
        reason = PendingReason.CLASS_MISSING if _lacks_class(fleet, claims) else PendingReason.INVALID
        return Explanation(reason=reason, error=str(error), problems=problems_of(fleet, claims))
    found = FleetFinder(fleet, claims, constrained_requests(expanded), nodes).findings()
    requests = folded(fleet, found)
    fits_on = sorted(name for group in found.groups if group.verdict is AllocatorVerdict.FITS for name in group.names)
    errors = [
        group.error for group in found.groups if group.verdict in {AllocatorVerdict.ERROR, AllocatorVerdict.TOO_LONG}
    ]
    fits = bool(fits_on) and not errors
    causes = [] if fits else device_causes(fleet, claims, found, requests)
    return Explanation(
        reason=PendingReason.FITS if fits else main_reason(found, requests, causes),
        fits=fits,
        fits_on=fits_on[:MAX_NODES],
        fits_on_total=len(fits_on),
        error=errors[0] if errors else "",
        requests=_with_fits_alone(fleet, found, requests, fits=fits),
        nodes=causes,
        problems=[each for each in problems_of(fleet, claims) if not fits or each.kind in _THOUGH_IT_FITS],
    )


def _with_what_stays(
    fleet: Fleet, claims: Sequence[ResourceClaim], nodes: Mapping[str, Node], explanation: Explanation
) -> Explanation:
    """The explanation with the cause that would remain if all devices in use were free, because that one decides what helps."""
    if explanation.error or any(each.fatal and each.kind not in _OF_AMOUNTS for each in explanation.problems):
        return explanation  # this cause does not depend on who has the devices
    if (alone := emptied(fleet, claims, nodes)) is None:
        return explanation
    left = _of_waiting(alone, claims, alone.nodes)
    if left.fits or left.error:
        return explanation
    # A selector that fails on devices in use is told as such: it keeps nothing from fitting now.
    problems = [each for each in left.problems if each.kind is not ProblemKind.SELECTOR_ERRORS]
    left = replace(left, nearest=nearest_misses(alone, claims), problems=problems)
    stays, names_subject = cause_and_fix(left)
    return replace(explanation, reason=left.reason, stays=stays, nearest=left.nearest, names_subject=names_subject)


def _with_fits_alone(
    fleet: Fleet, found: FleetFindings, requests: Sequence[RequestExplanation], *, fits: bool
) -> list[RequestExplanation]:
    """The requests, with whether each would fit if it were the only one."""
    tested = []
    for number, (constrained, request) in enumerate(zip(found.requests, requests, strict=True)):
        groups = [group for group in found.groups if group.free[number] >= constrained.wanted]
        groups.sort(key=lambda group: group.free[number], reverse=True)
        nodes = [group.names[0] for group in groups[:_MAX_ALONE]]
        alone = (fits and len(requests) == 1) or fits_alone(fleet, constrained.claim, request.request, nodes)
        tested.append(replace(request, fits_alone=alone))
    return tested


def _out_of_reach(may_go: Mapping[str, Node], reach: Mapping[str, Node]) -> list[NodeCause]:
    names = sorted(may_go.keys() - reach.keys()) if reach is not may_go else []
    if not names:
        return []
    text = "unable to use the devices already allocated"
    return [NodeCause(reason=NodeReason.ALLOCATION, text=text, nodes=len(names), names=names[:MAX_NODES])]


def _lacks_class(fleet: Fleet, claims: Sequence[ResourceClaim]) -> bool:
    requests = [request for claim in claims for request in claim.spec.devices.requests]
    return any(asked.device_class_name not in fleet.classes for each in requests for _, asked in each.alternatives)


def _bugs(fleet: Fleet, claims: Sequence[ResourceClaim], minor: int) -> list[str]:
    """Scheduler bugs of the release that refuse such claims on such devices although they fit."""
    used = _areas(fleet, claims)
    return [bug.what for bug in bugs_of(minor) if bug.concerns(used)]


def _areas(fleet: Fleet, claims: Sequence[ResourceClaim]) -> set[AffectedArea]:
    requests = [request for claim in claims for request in claim.spec.devices.requests]
    asked = [each for request in requests for each in (request.exactly, *request.first_available) if each]
    draws = _draw_from_counters(fleet, claims)
    concerned = {
        AffectedArea.SHARED_COUNTERS: draws,
        AffectedArea.SAME_POOL_NAMES: draws and _two_drivers_name_a_pool_alike(fleet),
        AffectedArea.LIST_ATTRIBUTES: fleet.inventory.columns.irregular,  # mostly, irregular devices are those with lists
        AffectedArea.SEVERAL_CLAIMS: len(claims) > 1,
        AffectedArea.NAMES_TWICE: bool(+fleet.inventory.columns.twice),
        AffectedArea.RULE_WITHOUT_SELECTOR: any(
            rule.spec.without_selector and rule.spec.taint.effect in BLOCKING_EFFECTS
            for rule in fleet.inventory.wide_rules
        ),
        AffectedArea.CONSTRAINTS: any(claim.spec.devices.constraints for claim in claims),
        AffectedArea.ALL_MODE: any(each.allocation_mode == "All" for each in asked),
        AffectedArea.CONSUMABLE_CAPACITY: any(each.capacity is not None for each in asked),
        AffectedArea.ADMIN_ACCESS: any(each.exactly is not None and each.exactly.admin_access for each in requests),
    }
    return {area for area, is_so in concerned.items() if is_so}


def _two_drivers_name_a_pool_alike(fleet: Fleet) -> bool:
    names = [pool.key.pool for pool in fleet.inventory.pools]
    return len(set(names)) < len(names)


def _draw_from_counters(fleet: Fleet, claims: Sequence[ResourceClaim]) -> bool:
    """Whether any device selected for the claims draws from shared counters."""
    drawing = bytes(fleet.inventory.drawing)
    if 1 not in drawing:
        return False
    return any(
        1 in select([selection(fleet, claim, device_class, asked).end, drawing])
        for claim in claims
        for request in claim.spec.devices.requests
        for _, asked in request.alternatives
        if (device_class := fleet.classes.get(asked.device_class_name)) is not None
    )
