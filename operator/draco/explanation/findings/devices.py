"""Judges every device individually: detail that is computed only on request.

Owns the list of verdicts on devices. Judges as the counts of an explanation do.
"""

from collections.abc import Sequence
from typing import Any

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.pools import Candidate, PoolView
from draco.allocation.ownership.claims import as_judged
from draco.allocation.search.requests import expand, matcher
from draco.explanation.findings.allocated import reaching
from draco.explanation.findings.details import (
    MAX_LISTED,
    capacity_shortage,
    counter_shortage,
    holder,
    newer_elsewhere,
    selector_ref,
    taint_seen,
    values_seen,
)
from draco.explanation.findings.fleet_findings import FleetFinder
from draco.explanation.findings.placement import nodes_for
from draco.explanation.findings.verdicts import ConstrainedRequest, DeviceFinding, Judge, constrained_requests
from draco.explanation.model import Cause, CauseCount, DeviceVerdict
from draco.explanation.wording import cause_text
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node, Pod


def device_verdicts(fleet: Fleet, claims: Sequence[ResourceClaim], *, pod: Pod | None = None) -> list[DeviceVerdict]:
    """Why each device is not for each request of the claims that are not allocated; none if they ask for what is not there."""
    waiting = [as_judged(claim, fleet.classes) for claim in claims if claim.status.allocation is None]
    try:
        expanded = [expand(claim, fleet.classes, (), matcher(fleet.inventory.selectors, Node())) for claim in waiting]
    except AllocationError:
        return []
    may_go = reaching(claims, nodes_for(fleet, pod).open)
    requests = constrained_requests(expanded)
    telling = _Telling(fleet)
    details = [
        telling.verdict(constrained, view, candidate, finding)
        for view, candidate, findings in FleetFinder(fleet, waiting, requests, may_go).devices()
        for constrained, finding in zip(requests, findings, strict=True)
    ]
    return sorted(details, key=lambda each: (each.device, each.claim, each.request))


class _Telling:
    """Puts findings into structs."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._judge = Judge(fleet.inventory.selectors, fleet.state)

    def verdict(
        self, constrained: ConstrainedRequest, view: PoolView, candidate: Candidate, finding: DeviceFinding
    ) -> DeviceVerdict:
        """One device and one request."""
        parts = self._parts(constrained, view, candidate, finding)
        as_count = CauseCount(
            cause=finding.cause,
            devices=1,
            nodes=1,
            text="",
            holders_total=len(parts.get("holders", ())),
            pools=[f"{candidate.key.driver}/{candidate.key.pool}"],
            newer=newer_elsewhere(self._fleet, candidate) if finding.cause is Cause.POOL_OBSOLETE else "",
            constraint=str(finding.respect) if finding.cause is Cause.CONSTRAINT else "",
            **parts,
        )
        return DeviceVerdict(
            device=str(candidate.key),
            node=candidate.device.node_name or candidate.spec.node_name or "",
            claim=str(constrained.claim.metadata.key),
            request=constrained.request.name,
            cause=finding.cause,
            text=cause_text(as_count),
            binding_conditions=candidate.device.binding_conditions,
            **parts,
        )

    def _parts(
        self, constrained: ConstrainedRequest, view: PoolView, candidate: Candidate, finding: DeviceFinding
    ) -> dict[str, Any]:
        """What belongs to the cause."""
        fleet = self._fleet
        details: dict[str, Any] = {}
        match finding:
            case DeviceFinding(Cause.NOT_SELECTED, int(place)):
                selector = selector_ref(constrained, place)
                details = {"selector": selector, "values": values_seen([candidate], selector.expression)}
            case DeviceFinding(Cause.SELECTOR_FAILED, (int(place), str(error))):
                selector = selector_ref(constrained, place)
                values = values_seen([candidate], selector.expression)
                details = {"selector": selector, "error": error, "values": values}
            case DeviceFinding(Cause.IN_USE):
                claims = [fleet.claims[key] for key in fleet.holders(candidate.key) if key in fleet.claims]
                details = {"holders": [holder(claim) for claim in claims[:MAX_LISTED]]}
            case DeviceFinding(Cause.TAINTED, tuple(taints)):
                details = {"taints": [taint_seen(fleet, candidate, taint) for taint in taints]}
            case DeviceFinding(Cause.COUNTERS_SHORT):
                details = {"shortage": counter_shortage(fleet, self._judge, view, candidate)}
            case DeviceFinding(Cause.CAPACITY_SHORT, ("", str(error))):
                details = {"error": error}
            case DeviceFinding(Cause.CAPACITY_SHORT, (str(name), str(how))):
                details = {"shortage": capacity_shortage(fleet, constrained, candidate, name, how)}
        return details
