"""Judges every device individually, by the same rules as an explanation's counts. Computed only on request."""

from collections.abc import Sequence
from typing import Any

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.pools import Candidate
from draco.allocation.ownership.claims import as_judged
from draco.allocation.search.requests import expand, matcher
from draco.explanation.findings.allocated import reaching
from draco.explanation.findings.details import DeviceDetails, newer_elsewhere
from draco.explanation.findings.fleet_findings import FleetFinder
from draco.explanation.findings.node_rules import nodes_for
from draco.explanation.findings.verdicts import ConstrainedRequest, DeviceFinding, constrained_requests
from draco.explanation.model import Cause, CauseCount, DeviceVerdict
from draco.explanation.wording import cause_text
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node, Pod


def device_verdicts(fleet: Fleet, claims: Sequence[ResourceClaim], *, pod: Pod | None = None) -> list[DeviceVerdict]:
    """Why each device is unsuitable for each request of the unallocated claims; empty if a claim cannot be expanded."""
    waiting = [as_judged(claim, fleet.classes) for claim in claims if claim.status.allocation is None]
    try:
        expanded = [expand(claim, fleet.classes, (), matcher(fleet.inventory.selectors, Node())) for claim in waiting]
    except AllocationError:
        return []
    may_go = reaching(claims, nodes_for(fleet, pod).open)
    requests = constrained_requests(expanded)
    details = DeviceDetails(fleet)
    verdicts = [
        _verdict(fleet, details.of(constrained, view, candidate, finding), constrained, candidate, finding)
        for view, candidate, findings in FleetFinder(fleet, waiting, requests, may_go).devices()
        for constrained, finding in zip(requests, findings, strict=True)
    ]
    return sorted(verdicts, key=lambda each: (each.device, each.claim, each.request))


def _verdict(
    fleet: Fleet,
    details: dict[str, Any],
    constrained: ConstrainedRequest,
    candidate: Candidate,
    finding: DeviceFinding,
) -> DeviceVerdict:
    as_count = CauseCount(
        cause=finding.cause,
        devices=1,
        nodes=1,
        text="",
        holders_total=len(details.get("holders", ())),
        pools=[f"{candidate.key.driver}/{candidate.key.pool}"],
        newer=newer_elsewhere(fleet, candidate) if finding.cause is Cause.POOL_OBSOLETE else "",
        constraint=str(finding.respect) if finding.cause is Cause.CONSTRAINT else "",
        **details,
    )
    return DeviceVerdict(
        device=str(candidate.key),
        node=candidate.device.node_name or candidate.spec.node_name or "",
        claim=str(constrained.claim.metadata.key),
        request=constrained.request.name,
        cause=finding.cause,
        text=cause_text(as_count),
        binding_conditions=candidate.device.binding_conditions,
        **details,
    )
