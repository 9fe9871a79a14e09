"""The whole fleet as the claims of one pod meet it: a verdict for each node, a finding for each device and request.

Owns the walk over nodes and pools, and what is known of devices that no node may reach. Puts nothing into words.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import repeat

import msgspec

from draco.allocation.allocate import allocate
from draco.allocation.errors import AllocationError, NodeError, SearchTooLong
from draco.allocation.fleet import Fleet
from draco.allocation.pools import Candidate, Entry, Pool, PoolView
from draco.explanation.model import Cause
from draco.explanation.verdicts import Ask, Finding, Judge
from draco.resources.claims import ResourceClaim
from draco.resources.core import Node
from draco.resources.names import DeviceKey, PoolKey

MAX_STEPS = 200_000
"""Devices that one search looks at before it is given up: some tenths of a second."""


class Tally(msgspec.Struct):
    """Devices with one finding."""

    devices: int = 0
    nodes: Counter[str] = msgspec.field(default_factory=Counter)
    """How many of them belong to each node; those that belong to none are left out."""
    examples: list[tuple[PoolView | None, Candidate]] = []


class Verdict(Enum):
    """What the allocator says of the claims on one node."""

    FITS = "fits"
    NONE = "none"
    BROKEN = "broken"
    TOO_LONG = "too long"
    ERROR = "error"


class Survey(msgspec.Struct):
    """What was found. `nodes` has the nodes that the pod may go to."""

    asks: list[Ask]
    tallies: list[dict[Finding, Tally]]
    """For each ask."""
    verdicts: dict[str, tuple[Verdict, str]] = {}
    free: list[Counter[str]] = []
    """For each ask, how many devices of each node would do, each on its own."""
    devices: int = 0


_EMPTY = PoolView(key=PoolKey("", ""))
_ORDER = {cause: place for place, cause in enumerate(Cause)}


_EMPTY = PoolView(key=PoolKey("", ""))
_ORDER = {cause: place for place, cause in enumerate(Cause)}
_Best = tuple[list[Finding], PoolView | None, Candidate]


def survey(fleet: Fleet, claims: Sequence[ResourceClaim], asks: list[Ask], open_nodes: Mapping[str, Node]) -> Survey:
    """Look at every node and device."""
    found = Survey(asks=asks, tallies=[{} for _ in asks], free=[Counter() for _ in asks], devices=len(fleet.inventory))
    judge = Judge(fleet.inventory.selectors, fleet.state)
    best: dict[int, _Best] = {}
    for name in fleet.node_names:
        if name in open_nodes:
            found.verdicts[name] = _verdict(fleet, fleet.nodes[name], claims)
        for view in _views(fleet, fleet.nodes[name]):
            for candidate in view.candidates:
                findings = [judge.finding(ask, view, candidate) for ask in asks]
                if name not in open_nodes:
                    findings = [_at_best(each, Cause.NODE_RULES) for each in findings]
                for free, each in zip(found.free, findings, strict=True):
                    free[name] += each.cause is Cause.FREE
                if candidate.row in best:
                    findings = [max(pair, key=_rank) for pair in zip(best[candidate.row][0], findings, strict=True)]
                best[candidate.row] = (findings, view, candidate)
    for pool in fleet.inventory.pools:
        _unreached(fleet, pool, judge, best, found)
    return found


def _unreached(fleet: Fleet, pool: Pool, judge: Judge, best: Mapping[int, _Best], found: Survey) -> None:
    newest = max(entry.spec.pool.generation for entry in pool.entries)
    for entry, place, row in _rows(pool):
        if row in best:
            _count(found, *best[row])
            continue
        candidate = _candidate(pool, entry, place)
        cause = _why_unreached(pool, entry, newest, fleet)
        findings = [_at_best(judge.finding(ask, _EMPTY, candidate), cause) for ask in found.asks]
        _count(found, findings, None, candidate)


def _count(found: Survey, findings: list[Finding], view: PoolView | None, candidate: Candidate) -> None:
    where = candidate.device.node_name or candidate.spec.node_name
    for tallies, finding in zip(found.tallies, findings, strict=True):
        tally = tallies.setdefault(finding, Tally(examples=[]))
        tally.devices += 1
        if where:
            tally.nodes[where] += 1
        tally.examples.append((view, candidate))


def _rank(finding: Finding) -> int:
    return _ORDER[finding.cause]


def _at_best(finding: Finding, cause: Cause) -> Finding:
    return finding if finding.cause is Cause.NOT_SELECTED else Finding(cause)


def _verdict(fleet: Fleet, node: Node, claims: Sequence[ResourceClaim]) -> tuple[Verdict, str]:
    try:
        results = allocate(
            fleet.inventory, fleet.state, node, claims, fleet.classes, share_ids=repeat(""), max_steps=MAX_STEPS
        )
    except NodeError as error:
        return Verdict.BROKEN, str(error)
    except SearchTooLong as error:
        return Verdict.TOO_LONG, str(error)
    except AllocationError as error:
        return Verdict.ERROR, str(error)
    return (Verdict.NONE if results is None else Verdict.FITS), ""


def _views(fleet: Fleet, node: Node) -> Sequence[PoolView]:
    try:
        return fleet.inventory.views(node)
    except AllocationError:
        return ()


def _rows(pool: Pool) -> Iterator[tuple[Entry, int, int]]:
    for entry in pool.entries:
        for place, row in enumerate(entry.rows):
            yield entry, place, row


def _candidate(pool: Pool, entry: Entry, place: int) -> Candidate:
    device = entry.spec.devices[place]
    key = DeviceKey(*pool.key, device.name)
    return Candidate(key, device, entry.rows[place], entry.spec, entry.taints[place], ())


def _why_unreached(pool: Pool, entry: Entry, newest: int, fleet: Fleet) -> Cause:
    """Why no node may reach a device: its pool, or else there is no such node."""
    if entry.spec.pool.generation < newest:
        return Cause.POOL_OBSOLETE
    current = [each for each in pool.entries if each.spec.pool.generation == newest]
    if len(current) != entry.spec.pool.resource_slice_count:
        return Cause.POOL_INCOMPLETE
    for node in fleet.nodes.values():
        view = pool.view(node)
        if view is not None and (view.incomplete or view.invalid):
            return Cause.POOL_INCOMPLETE if view.incomplete else Cause.POOL_INVALID
    return Cause.NO_NODE
