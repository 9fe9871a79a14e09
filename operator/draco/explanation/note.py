"""The note of an Event: the decisive cause, then the one fix, then counts.

Owns what the paragraph says and what is left to `draco explain`. Decides nothing: the explanation already has the decisive cause
and the changes that help. `wording` phrases devices and nodes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from draco.explanation.allocated_note import NoteParts, of_allocated
from draco.explanation.model import (
    NOT_ELIGIBLE,
    UNDECISIVE,
    Cause,
    CauseCount,
    Explanation,
    NodeCause,
    NodeReason,
    PendingReason,
    Problem,
    ProblemKind,
    RequestExplanation,
    alternatives,
)
from draco.explanation.wording import added_up, capital, core_of_error, is_of_no_concern, node_text, together
from draco.resources.texts import agreeing, are, counted, listed, sentence, shortened

MAX_NOTE: Final = 1000
"""Somewhat below the limit of an Event's note; ordinary notes have at most 300 characters."""
_ROOM: Final = 300
_SAID: Final = 2
"""Causes of one request that are spelled out; more are only counted."""
_COUNTED: Final[Mapping[Cause, str]] = MappingProxyType(
    {
        Cause.NOT_SELECTED: "not selected",
        Cause.CONFIGURATION_REFUSED: "unable to have its configuration",
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


def _sentences(explanation: Explanation, said: NoteParts) -> str:
    said_too = ""
    if explanation.counted_on:  # Karpenter will not help, although it reports a place
        said_too = f"Karpenter ignores device taints and treats {explanation.counted_on} as free; it may not add a node"
    return " ".join(sentence(capital(each)) for each in (said.cause, said.fix, said_too) if each)


def _said(explanation: Explanation) -> NoteParts:
    if allocated := of_allocated(explanation):
        return allocated
    if explanation.reason in {
        PendingReason.CLAIM_MISSING,
        PendingReason.LIMIT_REACHED,
        PendingReason.CLAIM_DELETING,
        PendingReason.BYPASSES_SCHEDULER,
        PendingReason.GATED,
    }:
        return NoteParts(explanation.error, _untried(explanation))
    if explanation.fits:
        return _fits(explanation)
    if problem := _decisive_problem(explanation):
        about = problem.claim, problem.request
        asked = next((_counts(each) for each in explanation.requests if (each.claim, each.request) == about), "")
        fix = problem.remedy or _fix(explanation)
        return NoteParts(
            problem.text,
            _or_added(explanation, fix) if problem.kind is ProblemKind.TOO_MANY_DEVICES else fix,
            asked,
            names_subject=problem.names_subject or (not problem.remedy and _fix_names_subject(explanation)),
        )
    if explanation.error and explanation.reason is not PendingReason.POOL_BROKEN:
        cause = f"the scheduler gives up on every node: {core_of_error(explanation.error)}"
        # The error names the request, unless the search took too long.
        is_named = explanation.reason is not PendingReason.SEARCH_TOO_LONG
        return NoteParts(cause, _fix(explanation), names_subject=is_named)
    return _unfit(explanation)


def _fix(explanation: Explanation) -> str:
    """The change with which it would fit, or what to do if none can be tried; "" if nothing is known."""
    return explanation.nearest[0].text if explanation.nearest else _untried(explanation)


def _untried(explanation: Explanation) -> str:
    causes = [each for request in explanation.requests for each in request.causes]
    match explanation.reason:
        case PendingReason.CLAIM_DELETING:
            return "create it again when it is gone, unless a template makes it"
        case PendingReason.POOL_BROKEN:
            drivers = {pool.partition("/")[0] for each in causes for pool in each.pools}
            return f"check DRA driver {listed(sorted(drivers))}"
        case PendingReason.NO_NODE:
            gone = next(each for each in causes if each.cause is Cause.NO_NODE)
            nodes, its = ("node", "its") if gone.nodes == 1 else ("nodes", "their")
            names = listed(gone.node_names, total=gone.nodes)
            return f"start {nodes} {names} again, or delete {its} ResourceSlices" if names else ""
    return ""


def _fix_names_subject(explanation: Explanation) -> bool:
    return any(each.names_subject for each in explanation.nearest[:1])


def _or_added(explanation: Explanation, fix: str) -> str:
    """The fix, or the node to add, for whoever adds nodes (perhaps an autoscaler)."""
    if not explanation.unmet:
        return fix
    unmet = explanation.unmet[0]
    such = "such " if unmet.published else ""
    what = unmet.product or (f"{such}device" if unmet.count == 1 else f"{such}devices")
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
        PendingReason.CONFIGURATION_REFUSED,
        PendingReason.NOT_ENOUGH_ON_ONE_NODE,
        PendingReason.CAPACITY_SHORT,
        PendingReason.CONSTRAINT,
    }
)
"""Reasons behind which a problem of the claim may be."""


_NOT_DECISIVE: Final = UNDECISIVE | {ProblemKind.SELECTOR_ERRORS}
"""Problems that explain nothing unless they are fatal."""


def _decisive_problem(explanation: Explanation) -> Problem | None:
    """The problem that alone explains it, preferably a fatal one; None if there is none.

    A selector that fails on devices in use only explains nothing yet.
    """
    decisive = [each for each in explanation.problems if each.fatal]
    if explanation.reason in _OF_THE_CLAIM:
        decisive += [each for each in explanation.problems if each.kind not in _NOT_DECISIVE]
    return next(iter(decisive), None)


def _unfit(explanation: Explanation) -> NoteParts:
    request = _decisive_request(explanation)
    names_subject = _fix_names_subject(explanation) or _nodes_name_subject(explanation)
    if request is None:
        return NoteParts(_nodes(explanation), _fix(explanation), names_subject=names_subject)
    if not request.devices:
        return NoteParts(
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
    elif explanation.reason is PendingReason.POOL_BROKEN and request.mode == "All":
        pools = sorted({pool for each in request.causes for pool in each.pools})
        broken = f"{agreeing(len(pools), 'pool', 'pools')} {listed(pools)} {are(len(pools))} incomplete or invalid"
        cause = f"{name} takes every device of a node, which fails while {broken}"
    elif request.most_free_on_one_node < request.wanted:
        wanted = counted(request.wanted, "device")
        cause = f"{name} wants {wanted} on one node, and no node has more than {request.most_free_on_one_node} free"
        counts = _counts(request)
    else:
        nodes = _nodes(explanation)
        cause, is_of_claim = nodes or _apart(explanation), is_of_claim and not nodes
        counts = _counts(request)
    return NoteParts(cause, _fix(explanation) or _split(explanation), counts, names_subject or is_of_claim)


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
        return f"{subject}: {'; '.join(_one(*each) for each in list(added_up(causes).items())[:_SAID])}"
    left = together(each for each in causes if each.cause is not Cause.NOT_SELECTED)
    selected = list(added_up(left).items())
    devices = request.selected
    if len(selected) == 1:
        who = (
            f"the only device that {name} selects is"
            if devices == 1
            else f"all {devices} devices that {name} selects are"
        )
        return f"{who} {selected[0][0]}"
    sentences = [_one(*each) for each in selected[:_SAID]]
    more = sum(devices for _, devices in selected[_SAID:])
    if more:
        sentences.append(f"{more} {are(more)} unavailable for other causes")
    return f"none of the {devices} devices that {name} selects is free: {'; '.join(sentences)}"


def _one(cause: str, devices: int) -> str:
    return f"{devices} {are(devices)} {cause}"


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
    said = [each for each in explanation.nodes if each.reason is not NodeReason.NO_DEVICES][:_SAID]
    first = next((each for each in said if each.reason is NodeReason.ALL_MODE), None)
    return "; ".join(node_text(each) + (_not_free(explanation, each) if each is first else "") for each in said)


def _not_free(explanation: Explanation, nodes: NodeCause) -> str:
    """What blocks devices for a request that wants all of a node; the numbers are those of all nodes, so they are said once."""
    blocking = [
        count
        for request in explanation.requests
        if request.mode == "All"
        for count in request.causes
        if count.cause not in {Cause.FREE, *NOT_ELIGIBLE} and not set(nodes.names).isdisjoint(count.node_names)
    ]
    found = [_one(*each) for each in added_up(blocking).items()]
    return f" ({listed(found, separator='; ')})" if found else ""


def _named(request: RequestExplanation, among: Sequence[RequestExplanation]) -> str:
    """The request's name, with its claim if there are several claims."""
    of_claim = f" of claim {request.claim.partition('/')[2]}" if _are_several_claims(among) else ""
    return f"request {request.request}{of_claim}"


def _are_several_claims(requests: Sequence[RequestExplanation]) -> bool:
    return len({each.claim for each in requests}) > 1


def _fits(explanation: Explanation) -> NoteParts:
    where = listed(explanation.fits_on, total=explanation.fits_on_total)
    cause = f"all claims can be allocated on {where}"
    if problem := next((each for each in explanation.problems if each.kind not in UNDECISIVE), None):
        cause = f"{cause}, and the pod will not start there: {problem.text}"
        return NoteParts(cause, problem.remedy, names_subject=problem.names_subject)
    if explanation.group:
        together = f"Draco allocates all of {explanation.group} or none of it"
        return NoteParts(
            f"the pod's own claims can be allocated on {where}, but {together}", "see the Event GroupWaiting"
        )
    if explanation.by_draco:
        return _fits_for_draco(explanation, cause)
    elsewhere = "the pod may wait for something other than devices: see its FailedScheduling Event"
    bug = "".join(
        f"; a bug of this Kubernetes version may matter: {each[:1].lower()}{each[1:]}"
        for each in explanation.upstream_bugs[:1]
    )
    if explanation.scheduler:
        return NoteParts(f"{cause}{bug}", "" if bug else elsewhere)
    if explanation.pod:
        return NoteParts(f"{cause}, and kube-scheduler has not decided yet{bug}")
    return NoteParts(f"{cause} as soon as a pod uses them{bug}")


def _fits_for_draco(explanation: Explanation, cause: str) -> NoteParts:
    if not explanation.ended:
        return NoteParts(f"{cause}, and Draco has not allocated its claims yet")
    return NoteParts(
        f"{cause}, but pod {explanation.ended} has ended, and while it exists Kubernetes deallocates the claim",
        "delete the pod, or have another one use the claim",
    )
