"""Findings, folded into counts that people can read.

Owns the order of causes, and which selectors, values, holders, taints and shortages are told of many devices. Counts only.
"""

from collections import Counter
from typing import Any, Final

import msgspec

from draco.allocation.fleet import Fleet
from draco.explanation.model import Cause, CauseCount, Holder, RequestExplanation, SelectorRef, TaintSeen
from draco.explanation.survey import Survey, Tally
from draco.explanation.verdicts import Ask, Finding
from draco.explanation.wording import cause_text
from draco.resources.claims import ResourceClaim

MAX_LISTED: Final = 5
USEFUL: Final = (
    Cause.SELECTOR_FAILED,
    Cause.IN_USE,
    Cause.TAINTED,
    Cause.COUNTERS_SHORT,
    Cause.CAPACITY_SHORT,
    Cause.CONSTRAINT,
    Cause.NODE_RULES,
    Cause.POOL_INCOMPLETE,
    Cause.POOL_INVALID,
    Cause.POOL_OBSOLETE,
    Cause.NO_NODE,
    Cause.NOT_SELECTED,
    Cause.FREE,
)
"""The order in which causes are told: what was nearest to being had comes first."""


def folded(fleet: Fleet, found: Survey) -> list[RequestExplanation]:
    """Each request with its counts."""
    return [_request(fleet, found, number, ask) for number, ask in enumerate(found.asks)]


def _request(fleet: Fleet, found: Survey, number: int, ask: Ask) -> RequestExplanation:
    counts = [_count(fleet, ask, finding, tally) for finding, tally in found.tallies[number].items()]
    most, best = max(((group.free[number], group.names[0]) for group in found.groups), default=(0, ""))
    return RequestExplanation(
        claim=str(ask.claim.metadata.key),
        request=ask.request.name,
        device_class=ask.request.asked.device_class_name,
        mode=ask.request.asked.allocation_mode,
        wanted=ask.wanted,
        admin_access=ask.request.admin_access,
        devices=found.devices,
        causes=sorted(counts, key=lambda count: (USEFUL.index(count.cause), -count.devices)),
        free=sum(tally.devices for finding, tally in found.tallies[number].items() if finding.cause is Cause.FREE),
        most_free_on_one_node=most,
        best_node=best if most else "",
    )


def _count(fleet: Fleet, ask: Ask, finding: Finding, tally: Tally) -> CauseCount:
    count = CauseCount(
        cause=finding.cause,
        devices=tally.devices,
        nodes=tally.nodes,
        text="",
        example=str(tally.examples[0][1].key),
        node_names=tally.names(MAX_LISTED),
        **_details(fleet, ask, finding, tally),
    )
    return msgspec.structs.replace(count, text=cause_text(count))


def _details(fleet: Fleet, ask: Ask, finding: Finding, tally: Tally) -> dict[str, Any]:
    devices = [candidate for _, candidate in tally.examples]
    told: dict[str, Any] = {}
    match finding:
        case Finding(Cause.NOT_SELECTED, int(place)):
            told = {"selector": selector_ref(ask, place)}
        case Finding(Cause.SELECTOR_FAILED, (int(place), str(error))):
            told = {"selector": selector_ref(ask, place), "error": error}
        case Finding(Cause.IN_USE):
            keys = Counter(key for candidate in devices for key in fleet.holders(candidate.key))
            holders = [holder(fleet.claims[key], number) for key, number in keys.most_common(MAX_LISTED)]
            told = {"holders": holders, "holders_total": len(keys)}
        case Finding(Cause.TAINTED, tuple(taints)):
            told = {"taints": [TaintSeen(taint=taint_text(*taint)) for taint in taints]}
        case Finding(Cause.CONSTRAINT, str(attribute)):
            told = {"constraint": attribute}
        case Finding(Cause.POOL_INCOMPLETE | Cause.POOL_INVALID | Cause.POOL_OBSOLETE):
            pools = {f"{candidate.key.driver}/{candidate.key.pool}" for candidate in devices}
            told = {"pools": sorted(pools)[:MAX_LISTED]}
    return told


def selector_ref(ask: Ask, place: int) -> SelectorRef:
    """The selector at that place among all of the request."""
    source, index, selector = ask.selectors[place]
    return SelectorRef(source=source, index=index, expression=selector.cel.expression if selector.cel else "")


def holder(claim: ResourceClaim, devices: int = 1) -> Holder:
    """A claim that holds devices."""
    consumers = [f"{each.resource.removesuffix('s')} {each.name}" for each in claim.status.reserved_for]
    return Holder(claim=str(claim.metadata.key), consumers=consumers[:MAX_LISTED], idle=not consumers, devices=devices)


def taint_text(key: str, value: str, effect: str) -> str:
    """A taint as kubectl writes it."""
    return f"{key}={value}:{effect}" if value else f"{key}:{effect}"
