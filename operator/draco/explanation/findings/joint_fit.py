"""Explains why devices that fit individually do not fit together on a node.

Asks the allocator about variants of the claims, to tell a constraint from counters and from requests that compete for devices:
one request alone, or without one constraint. One node per question.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.state import AllocatedState
from draco.allocation.search.allocate import would_get
from draco.explanation.model import NodeReason
from draco.explanation.selection import least, selection, with_devices
from draco.resources.api.claims import DeviceConstraint, DeviceRequest, ResourceClaim
from draco.resources.texts import counted, listed

MAX_STEPS: Final = 50_000


class Misfit(NamedTuple):
    """Why claims do not fit on a node that has enough devices for each request."""

    reason: NodeReason
    text: str
    names_subject: bool = False
    """Whether the text names claims."""


def why_not(fleet: Fleet, claims: Sequence[ResourceClaim], node: str) -> Misfit:
    """Find the misfit on this node."""
    free = [with_devices(claim, constraints=[]) for claim in claims]
    if any(claim.spec.devices.constraints for claim in claims) and _fits(fleet, free, node):
        return Misfit(
            NodeReason.CONSTRAINT,
            f"unable to meet the claim's constraints: among the free devices of one node, {_constraints(fleet, claims, node)}",
        )
    alone = [(claim, request) for claim in free for request in claim.spec.devices.requests]
    for claim, request in alone:
        if not _fits(fleet, [with_devices(claim, requests=[request])], node):
            if request.exactly is not None and request.exactly.allocation_mode == "All":
                return Misfit(
                    NodeReason.ALL_MODE,
                    f"unable to give request {request.name} every matching device: not all are free",
                )
            said = "short of shared counters: each free device fits alone, but not as many as requested"
            return Misfit(NodeReason.COUNTERS_SHORT, said)
    if len(claims) > 1 and all(_fits(fleet, [claim], node) for claim in claims):
        steps = [(claims[: number + 1], claim.metadata.name) for number, claim in enumerate(claims)]
        return Misfit(NodeReason.NOT_TOGETHER, _left_out(fleet, steps, node, "claim"), names_subject=True)
    of_several = len(claims) > 1
    names = [f"{each.name} of claim {claim.metadata.name}" if of_several else each.name for claim, each in alone]
    steps = [(_first(free, number), name) for number, name in enumerate(names)]
    return Misfit(NodeReason.NOT_TOGETHER, _left_out(fleet, steps, node, "request"), names_subject=of_several)


def _first(claims: Sequence[ResourceClaim], last: int) -> list[ResourceClaim]:
    """The claims with their requests up to number `last`, counted across all claims."""
    found: list[ResourceClaim] = []
    for claim in claims:
        requests = claim.spec.devices.requests[: last + 1]
        found += [with_devices(claim, requests=requests)] if requests else []
        last -= len(requests)
        if last < 0:
            break
    return found


def _left_out(fleet: Fleet, steps: Sequence[tuple[Sequence[ResourceClaim], str]], node: str, noun: str) -> str:
    """The first request or claim that no longer fits beside those before it."""
    names = [name for _, name in steps]
    last = next((number for number, (asked, _) in enumerate(steps) if not _fits(fleet, asked, node)), len(steps) - 1)
    before = listed(names[:last], rest=f"more {noun}s")
    if _selects_shared(fleet, steps[last][0], node):
        waits = _fits(fleet, steps[-1][0], node, AllocatedState())
        why = "other claims have shares of its devices, and " if waits else ""
        return f"too small: {why}beside {before} too little is left for {names[last]}"
    wanted = sum(_least(request) for claim in steps[last][0] for request in claim.spec.devices.requests)
    others = before if last == 1 else "the others"
    return (
        f"too small: {noun}s {before} and {names[last]} need {counted(wanted, 'device')} together, and beside {others} there is "
        f"none for {names[last]}"
    )


def _selects_shared(fleet: Fleet, claims: Sequence[ResourceClaim], node: str) -> bool:
    """Whether claims select devices of the node that may serve several requests."""
    views = fleet.inventory.views(fleet.nodes[node])
    shared = [each.row for view in views for each in view.candidates if each.device.allow_multiple_allocations]
    asked = [
        (claim, each) for claim in claims for request in claim.spec.devices.requests for _, each in request.alternatives
    ]
    return bool(shared) and any(
        selection(fleet, claim, fleet.classes[each.device_class_name], each).end[row]
        for claim, each in asked
        if each.device_class_name in fleet.classes
        for row in shared
    )


def fits_alone(fleet: Fleet, claim: ResourceClaim, request: str, nodes: Sequence[str]) -> bool:
    """Whether a request ("name" or "name/alternative") would fit on one of the nodes if it were the only one."""
    name, _, alternative = request.partition("/")
    asked = next(each for each in claim.spec.devices.requests if each.name == name)
    if alternative:
        only = [each for each in asked.first_available if each.name == alternative]
        asked = msgspec.structs.replace(asked, first_available=only)
    of_it = [each for each in claim.spec.devices.constraints if set(each.requests) <= {name, request}]
    alone = with_devices(claim, requests=[asked], constraints=of_it)
    return any(_fits(fleet, [alone], node) for node in nodes)


def _constraints(fleet: Fleet, claims: Sequence[ResourceClaim], node: str) -> str:
    """The constraints that block: each that lets the claims fit if it alone is removed, or all if there is none."""
    constraints = [
        (place, constraint) for place, claim in enumerate(claims) for constraint in claim.spec.devices.constraints
    ]
    guilty = [each for each in constraints if _fits(fleet, _without(claims, *each), node)]
    return " and ".join(
        dict.fromkeys(_demand(claims[place], constraint) for place, constraint in guilty or constraints)
    )


def _least(request: DeviceRequest) -> int:
    """The least number of devices that a request takes."""
    return min((least(asked) for _, asked in request.alternatives), default=0)


def _demand(claim: ResourceClaim, constraint: DeviceConstraint) -> str:
    names = {name.partition("/")[0] for name in constraint.requests}
    requests = [each for each in claim.spec.devices.requests if not names or each.name in names]
    counts = [
        max((asked.count for asked in (each.exactly, *each.first_available) if asked), default=1) for each in requests
    ]
    if constraint.match_attribute is not None:
        return f"no {sum(counts)} have the same {constraint.match_attribute}"
    return f"no {sum(counts)} have different {constraint.distinct_attribute}"


def _without(claims: Sequence[ResourceClaim], place: int, constraint: DeviceConstraint) -> list[ResourceClaim]:
    less = [each for each in claims[place].spec.devices.constraints if each is not constraint]
    return [*claims[:place], with_devices(claims[place], constraints=less), *claims[place + 1 :]]


def _fits(fleet: Fleet, claims: Sequence[ResourceClaim], node: str, state: AllocatedState | None = None) -> bool:
    try:
        return would_get(fleet, fleet.nodes[node], claims, max_steps=MAX_STEPS, state=state) is not None
    except AllocationError:
        return False
