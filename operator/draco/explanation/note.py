"""The note of an Event: the decisive cause, then the one fix, then counts.

Owns what the paragraph says and what is left to `draco explain`. Decides nothing: the explanation already has the decisive cause
and the changes that help. `wording` phrases devices and nodes.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec.structs import replace

from draco.explanation.model import (
    Cause,
    CauseCount,
    Explanation,
    NodeReason,
    PendingReason,
    Problem,
    ProblemKind,
    RequestExplanation,
    alternatives,
)
from draco.explanation.wording import capital, core_of_error, is_of_no_concern, node_text, together
from draco.resources.texts import NAMED, are, counted, listed, sentence, shortened

MAX_NOTE: Final = 1000
"""Somewhat below the limit of an Event's note; ordinary notes have at most 300 characters."""
_ROOM: Final = 300
_SAID: Final = 2
"""Causes of one request that are spelled out; more are only counted."""
_COUNTED: Final[Mapping[Cause, str]] = MappingProxyType(
    {
        Cause.NOT_SELECTED: "not selected",
        Cause.SELECTOR_FAILED: "with a selector error",
        Cause.POOL_OBSOLETE: "in an old slice",
        Cause.POOL_INCOMPLETE: "in an incomplete pool",
        Cause.POOL_INVALID: "in an invalid pool",
        Cause.NO_NODE: "without a node",
        Cause.NODE_RULES: "on nodes closed to the pod",
        Cause.IN_USE: "in use",
        Cause.TAINTED: "tainted",
        Cause.COUNTERS_SHORT: "short of counters",
        Cause.CAPACITY_SHORT: "short of capacity",
        Cause.CONSTRAINT: "without a compared attribute",
        Cause.FREE: "free",
    }
)


class _NoteParts(NamedTuple):
    """The parts of a summary. `counts` is "" if the cause has them; `names_subject`: a text names the pod or its own claim."""

    cause: str
    fix: str = ""
    counts: str = ""
    names_subject: bool = False


def with_summary(explanation: Explanation) -> Explanation:
    """The explanation with its summary, `names_subject` and `names_group`."""
    names_subject = explanation.names_subject
    if explanation.stays:
        text = f"Waiting does not help: {explanation.stays[:1].lower()}{explanation.stays[1:]}"
        asked = _decisive_request(explanation)
        counts = _counts(asked) if asked else ""
    else:
        said = _said(explanation)
        text, counts = _sentences(explanation, said), said.counts
        names_subject = names_subject or said.names_subject
    if counts and len(text) + len(counts) < _ROOM:
        text = f"{text} ({counts})"
    return replace(
        explanation,
        summary=shortened(text, MAX_NOTE),
        names_subject=names_subject,
        names_group=explanation.fits and bool(explanation.group),
    )


def cause_and_fix(explanation: Explanation) -> tuple[str, bool]:
    """The summary without counts, and whether it names the pod or one of its claims."""
    said = _said(explanation)
    return _sentences(explanation, said), said.names_subject


def _sentences(explanation: Explanation, said: _NoteParts) -> str:
    said_too = ""
    if explanation.counted_on:  # Karpenter will not help, although it reports a place
        said_too = f"Karpenter ignores device taints and treats {explanation.counted_on} as free; it may not add a node"
    return " ".join(sentence(capital(each)) for each in (said.cause, said.fix, said_too) if each)


def _said(explanation: Explanation) -> _NoteParts:
    allocated = _ALLOCATED.get(explanation.reason)
    if allocated is not None:  # all but one of these name the claim
        return allocated(explanation)._replace(names_subject=explanation.reason is not PendingReason.ALLOCATED)
    if explanation.reason in {
        PendingReason.CLAIM_MISSING,
        PendingReason.LIMIT_REACHED,
        PendingReason.CLAIM_DELETING,
        PendingReason.BYPASSES_SCHEDULER,
        PendingReason.GATED,
    }:
        return _NoteParts(explanation.error, _UNTRIED.get(explanation.reason, ""))
    if explanation.fits:
        return _fits(explanation)
    if problem := _decisive_problem(explanation):
        asked = next((_counts(each) for each in explanation.requests if each.request == problem.request), "")
        fix = problem.remedy or _fix(explanation)
        return _NoteParts(
            problem.text,
            _or_added(explanation, fix) if problem.kind is ProblemKind.TOO_MANY_DEVICES else fix,
            asked,
            names_subject=problem.names_subject or (not problem.remedy and _fix_names_subject(explanation)),
        )
    if explanation.error and explanation.reason is not PendingReason.POOL_BROKEN:
        cause = f"the scheduler gives up on every node: {core_of_error(explanation.error)}"
        # The error names the request, unless the search took too long.
        is_named = explanation.reason is not PendingReason.SEARCH_TOO_LONG
        return _NoteParts(cause, _fix(explanation), names_subject=is_named)
    return _unfit(explanation)


_UNTRIED: Final[Mapping[PendingReason, str]] = MappingProxyType(
    {
        PendingReason.CLAIM_DELETING: "create it again when it is gone, unless a template makes it",
        PendingReason.POOL_BROKEN: "check the DRA driver that publishes it",
        PendingReason.NO_NODE: "start the node; if it does not come back, delete its ResourceSlices",
    }
)
"""What to do if no change can be tried."""


def _fix(explanation: Explanation) -> str:
    """The change with which it would fit; "" if none was found."""
    if explanation.nearest:
        return explanation.nearest[0].text
    return _UNTRIED.get(explanation.reason, "")


def _fix_names_subject(explanation: Explanation) -> bool:
    return any(each.names_subject for each in explanation.nearest[:1])


def _or_added(explanation: Explanation, fix: str) -> str:
    """The fix, or the node to add, for whoever adds nodes (perhaps an autoscaler)."""
    if not explanation.unmet:
        return fix
    unmet = explanation.unmet[0]
    what = unmet.product or ("such device" if unmet.count == 1 else "such devices")
    if unmet.profile:
        what = f"{'partition' if unmet.count == 1 else 'partitions'} of profile {unmet.profile}"
    added = f"add a node with {unmet.count} {what}"
    return f"{fix}, or {added}" if fix else added


_OF_THE_CLAIM: Final = frozenset(
    {
        PendingReason.CLASS_MISSING,
        PendingReason.INVALID,
        PendingReason.SELECTOR_ERROR,
        PendingReason.NOTHING_SELECTED,
        PendingReason.NOT_ENOUGH_ON_ONE_NODE,
        PendingReason.CAPACITY_SHORT,
        PendingReason.CONSTRAINT,
    }
)
"""Reasons behind which a problem of the claim may be."""


def _decisive_problem(explanation: Explanation) -> Problem | None:
    """The problem that alone explains it, preferably a fatal one; None if there is none."""
    if explanation.reason not in _OF_THE_CLAIM:
        return next((each for each in explanation.problems if each.fatal), None)
    return min(explanation.problems, key=lambda each: not each.fatal, default=None)


def _unfit(explanation: Explanation) -> _NoteParts:
    request = _decisive_request(explanation)
    names_subject = _fix_names_subject(explanation) or _nodes_name_subject(explanation)
    if request is None:
        return _NoteParts(_nodes(explanation), _fix(explanation), names_subject=names_subject)
    if not request.devices:
        return _NoteParts(
            "no DRA driver publishes any device", _or_added(explanation, "check that a driver runs on the nodes")
        )
    name = _named(request, explanation.requests)
    is_of_claim = _are_several_claims(explanation.requests)
    counts = ""
    if explanation.reason is PendingReason.NODE_RULES and explanation.nodes:
        cause = f"the pod cannot use the nodes that have devices for {name}: {_nodes(explanation)}"
    elif not request.free:
        cause = _none_free(request, name)
        names_subject = names_subject or _is_held_by_own(request, explanation)
    elif request.most_free_on_one_node < request.wanted:
        wanted = counted(request.wanted, "device")
        cause = f"{name} wants {wanted} on one node, and no node has more than {request.most_free_on_one_node} free"
        counts = _counts(request)
    else:
        nodes = _nodes(explanation)
        cause, is_of_claim = nodes or _apart(explanation), is_of_claim and not nodes
        counts = _counts(request)
    return _NoteParts(cause, _fix(explanation) or _split(explanation), counts, names_subject or is_of_claim)


def _nodes_name_subject(explanation: Explanation) -> bool:
    # A device that is not free may be held by another claim of the pod.
    has_devices = bool(explanation.allocated)
    return any(each.names_subject or (has_devices and each.reason is NodeReason.ALL_MODE) for each in explanation.nodes)


def _is_held_by_own(request: RequestExplanation, explanation: Explanation) -> bool:
    """Whether another claim of the pod may be named as holding the request's devices, or a share of them."""
    return any(
        (count.shortage is not None and bool(explanation.allocated))
        or any(holder.claim in explanation.claims for holder in count.holders)
        for count in request.causes
    )


def _split(explanation: Explanation) -> str:
    """What helps if each request fits alone but not all together."""
    if explanation.reason is not PendingReason.NOT_TOGETHER:
        return ""
    fewer = "ask for less, or " if _nodes(explanation) else ""
    return f"{fewer}use several pods with a claim each"


def _apart(explanation: Explanation) -> str:
    """The text for requests that each fit, but on different nodes."""
    requests = explanation.requests
    places = [f"{_named(each, requests)} fits on {each.best_node}" for each in requests if each.best_node]
    return f"no node has devices for all requests: {', '.join(places)}"


def _decisive_request(explanation: Explanation) -> RequestExplanation | None:
    """The first request that no node can meet, else the first; of its alternatives, the one that selects most."""
    requests = [[explanation.requests[number] for number in each] for each in alternatives(explanation.requests)]
    short = (each for each in requests if all(one.most_free_on_one_node < one.wanted for one in each))
    decisive = next(short, requests[0] if requests else [])
    return max(decisive, key=lambda request: request.selected, default=None)


def _none_free(request: RequestExplanation, name: str) -> str:
    """The devices that the request selects, by cause."""
    causes = _of_concern(request)
    if {each.cause for each in causes} == {Cause.NOT_SELECTED}:
        any_of = "the only device" if request.devices == 1 else f"any of the {request.devices} devices"
        subject = f"{name} does not select {any_of}"
        return f"{subject}: {'; '.join(_one(each) for each in causes[:_SAID])}"
    selected = together(each for each in causes if each.cause is not Cause.NOT_SELECTED)
    devices = request.selected
    if len(selected) == 1:
        who = (
            f"the only device that {name} selects is"
            if devices == 1
            else f"all {devices} devices that {name} selects are"
        )
        return f"{who} {selected[0].text}"
    sentences = [_one(each) for each in selected[:_SAID]]
    more = sum(each.devices for each in selected[_SAID:])
    if more:
        sentences.append(f"{more} {are(more)} unavailable for other causes")
    return f"none of the {devices} devices that {name} selects is free: {'; '.join(sentences)}"


def _one(count: CauseCount) -> str:
    return f"{count.devices} {are(count.devices)} {count.text}"


def _of_concern(request: RequestExplanation) -> Sequence[CauseCount]:
    """The causes, without devices that the class is not meant for, unless that leaves none."""
    return [each for each in request.causes if not is_of_no_concern(each)] or request.causes


def _counts(request: RequestExplanation) -> str:
    """Devices by cause: "16 devices: 14 free, 2 in use"; "" if the cause says it all."""
    counts: Counter[str] = Counter()
    causes = _of_concern(request)
    if not request.free and len({each.cause for each in causes}) == 1:
        return ""
    for each in causes:
        counts[_COUNTED[each.cause]] += each.devices
    return f"{counted(counts.total(), 'device')}: {', '.join(f'{number} {what}' for what, number in counts.items())}"


def _nodes(explanation: Explanation) -> str:
    sentences = [node_text(each) for each in explanation.nodes if each.reason is not NodeReason.NO_DEVICES]
    return "; ".join(sentences[:_SAID])


def _named(request: RequestExplanation, among: Sequence[RequestExplanation]) -> str:
    """The request's name, with its claim if there are several claims."""
    of_claim = f" of claim {request.claim.partition('/')[2]}" if _are_several_claims(among) else ""
    return f"request {request.request}{of_claim}"


def _are_several_claims(requests: Sequence[RequestExplanation]) -> bool:
    return len({each.claim for each in requests}) > 1


def _fits(explanation: Explanation) -> _NoteParts:
    where = listed(explanation.fits_on, total=explanation.fits_on_total)
    cause = f"all claims can be allocated on {where}"
    if explanation.problems:
        problem = explanation.problems[0]
        cause = f"{cause}, and the pod will not start there: {problem.text}"
        return _NoteParts(cause, problem.remedy, names_subject=problem.names_subject)
    if explanation.group:
        together = f"Draco allocates all of {explanation.group} or none of it"
        return _NoteParts(
            f"the pod's own claims can be allocated on {where}, but {together}", "see the Event GroupWaiting"
        )
    if explanation.by_draco:
        return _fits_for_draco(explanation, cause)
    elsewhere = "the pod may wait for something other than devices: see its FailedScheduling Event"
    bug = "".join(f"; a bug of this Kubernetes version may matter: {each}" for each in explanation.upstream_bugs[:1])
    if explanation.scheduler:
        return _NoteParts(f"{cause}{bug}", "" if bug else elsewhere)
    if explanation.pod:
        return _NoteParts(f"{cause}, and kube-scheduler has not decided yet{bug}")
    return _NoteParts(f"{cause} as soon as a pod uses them{bug}")


def _fits_for_draco(explanation: Explanation, cause: str) -> _NoteParts:
    if not explanation.ended:
        return _NoteParts(f"{cause}, and Draco has not allocated its claims yet")
    return _NoteParts(
        f"{cause}, but pod {explanation.ended} has ended, and while it exists Kubernetes deallocates the claim",
        "delete the pod, or have another one use the claim",
    )


def _unusable(explanation: Explanation) -> _NoteParts:
    first = explanation.obstacles[0]
    device = f" {first.device}" if first.device and first.device not in first.text else ""
    cause = f"claim {first.claim} is allocated{device}, but {first.text}"
    more = len(explanation.obstacles) - 1
    room = f" (there is room on {listed(explanation.room_on)})" if first.device and explanation.room_on else ""
    return _NoteParts(cause, f"{first.remedy}{room}", f"{counted(more, 'more obstacle')}" if more else "")


def _allocated(explanation: Explanation) -> _NoteParts:
    devices = listed([device for claim in explanation.allocated for device in claim.devices])
    if explanation.node:  # kubelet may still be preparing the devices
        where = f"all claims are allocated ({devices}), and the pod has its node, {explanation.node}"
        return _NoteParts(where, "if it does not start, see its Events")
    if explanation.pod:
        said = "see the pod's FailedScheduling Event" if explanation.scheduler else ""
        return _NoteParts(f"all claims are allocated ({devices}), and kube-scheduler has not bound the pod yet", said)
    used = any(claim.consumers for claim in explanation.allocated)
    return _NoteParts(f"the claim is allocated ({devices}), and {'no pod waits for it' if used else 'no pod uses it'}")


def _binding(explanation: Explanation) -> _NoteParts:
    failed = [f"{claim.claim} ({', '.join(claim.failed)})" for claim in explanation.allocated if claim.failed]
    if failed:
        return _NoteParts(f"a device could not be made ready: {listed(failed)}; kube-scheduler allocates another")
    waiting = [
        f"{claim.claim} ({', '.join(claim.waiting_for)})" for claim in explanation.allocated if claim.waiting_for
    ]
    return _NoteParts(f"the driver is making the allocated devices ready: {listed(waiting)}")


def _elsewhere(explanation: Explanation) -> _NoteParts:
    bound = [f"{claim.claim} ({claim.nodes})" for claim in explanation.allocated if claim.nodes]
    nodes = "; ".join(node_text(each) for each in explanation.nodes[:NAMED])
    cause = f"the claim's devices are on nodes that the pod cannot use: {listed(bound)}{f'; {nodes}' if nodes else ''}"
    return _NoteParts(cause, "give the pod a claim of its own, or permit it these nodes")


def _full(explanation: Explanation) -> _NoteParts:
    claims = [f"{claim.claim} has {counted(len(claim.consumers), 'user')}" for claim in explanation.allocated]
    cause = f"the claim already has its maximum number of users: {listed(claims)}"
    return _NoteParts(cause, "give the pod a claim of its own")


_ALLOCATED: Final[Mapping[PendingReason, Callable[[Explanation], _NoteParts]]] = MappingProxyType(
    {
        PendingReason.ALLOCATED: _allocated,
        PendingReason.DEVICE_UNUSABLE: _unusable,
        PendingReason.WAITING_FOR_BINDING: _binding,
        PendingReason.BOUND_ELSEWHERE: _elsewhere,
        PendingReason.RESERVED_BY_OTHERS: _full,
    }
)
