"""Lines for a terminal: an explanation for people who want to know it all.

Owns the layout; the sentences are `wording`'s. Wraps and colours nothing: that is whoever prints them.
"""

from collections.abc import Iterator

from draco.explanation.model import AllocatedClaim, DeviceVerdict, Explanation, RequestExplanation
from draco.explanation.wording import node_text, problem_text
from draco.resources.english import listed


def report(told: Explanation) -> list[str]:
    """The whole explanation, line by line; indented by two blanks for each level."""
    return list(_lines(told))


def _lines(told: Explanation) -> Iterator[str]:
    yield told.summary
    for claim in told.allocated:
        yield from _allocated(claim)
    for request in told.requests:
        yield from _request(request)
    if told.nodes:
        yield from ("", f"Nodes, {told.nodes_total} in all")
        if told.fits_on:
            yield f"  would do: {listed(told.fits_on, total=told.fits_on_total)}"
        yield from (f"  {node_text(cause)}" for cause in told.nodes)
    if told.problems:
        yield from ("", "Problems")
        yield from (f"  {problem_text(problem)}" for problem in told.problems)
    if told.nearest:
        yield from ("", "Any one of these would do")
        yield from (f"  {miss.text}" + (f" (on node {miss.node})" if miss.node else "") for miss in told.nearest)
    if told.upstream_bugs:
        yield from ("", "Known bugs of the scheduler that may matter")
        yield from (f"  {bug}" for bug in told.upstream_bugs)
    if told.devices:
        yield from ("", "Devices")
        yield from (f"  {_device(verdict)}" for verdict in told.devices)


def _request(request: RequestExplanation) -> Iterator[str]:
    wanted = "every device of one node" if request.mode == "All" else f"{request.wanted} on one node"
    yield from ("", f"Request {request.request} of claim {request.claim}: class {request.device_class}, {wanted}")
    for count in request.causes:
        yield f"  {count.devices:>6} {count.text}"
    if request.free and request.best_node and request.most_free_on_one_node < request.wanted:
        yield f"  most on one node: {request.most_free_on_one_node}, on {request.best_node}"


def _allocated(claim: AllocatedClaim) -> Iterator[str]:
    yield from ("", f"Claim {claim.claim} is allocated: {listed(claim.devices)}")
    if claim.nodes:
        yield f"  reached from: {claim.nodes}"
    yield f"  reserved for: {listed(claim.consumers) if claim.consumers else 'nobody'}"
    if claim.waiting_for:
        yield f"  waits for: {', '.join(claim.waiting_for)}"
    if claim.failed:
        yield f"  failed: {', '.join(claim.failed)}"


def _device(verdict: DeviceVerdict) -> str:
    return f"{verdict.device} for request {verdict.request}: {verdict.text}"
