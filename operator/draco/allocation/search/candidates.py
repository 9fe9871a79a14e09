"""On which nodes claims may fit, found by scanning all devices: those with enough free devices that a request accepts.

Rules out only nodes for which `allocate` returns None, so never a node on which allocation may raise an error.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from draco.allocation.fleet.capacity import Arithmetic
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.node_rows import SHARED
from draco.allocation.fleet.rowwise import BYTES, combine, packed, unpacked
from draco.allocation.search.requests import ExpandedClaim, Request, expand, matcher
from draco.cel.errors import CompileError
from draco.resources.api.claims import MAX_RESULTS, ExactDeviceRequest, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.taints import DeviceToleration, TaintIdentity

MANY: Final = 512
"""With more candidate devices than this, nodes are checked one by one, as one of the first will fit."""


_NEGATIVE: Final = bytes(value == Arithmetic.NEGATIVE for value in range(BYTES))
_ANY_TROUBLE: Final = bytes(value != Arithmetic.SAFE for value in range(BYTES))


class RequestDemand(msgspec.Struct, frozen=True, eq=False):
    """A request's need: at least `count` of the rows with 1 in `rows`."""

    rows: bytes
    count: int


class Candidates:
    """The nodes to search: `name in candidates`. Valid until the fleet changes."""

    def __init__(self, fleet: Fleet, wanted: Sequence[RequestDemand], risky: bytes | None) -> None:
        self._nodes: Final = fleet.inventory.nodes
        self._wanted: Final = wanted
        self._risky: Final = risky
        self._few: Final = self._find_few(fleet)

    def __contains__(self, node: str) -> bool:
        return node in self._few if self._few is not None else self._must_ask(node)

    def among(self, names: Sequence[str]) -> Iterable[str]:
        """Those of the sorted names, in order."""
        if self._few is None or len(self._few) > len(names):
            return filter(self.__contains__, names)
        return [name for name in sorted(self._few) if _has(names, name)]

    def _find_few(self, fleet: Fleet) -> Collection[str] | None:
        """The nodes, if going through the candidate devices is faster than going through nodes; else None."""
        scarce = min(self._wanted, key=lambda each: each.rows.count(1))
        start = [scarce.rows] if self._risky is None else [scarce.rows, self._risky]
        if any(rows.count(1) > MANY for rows in start):
            return None
        names = {name for rows in start for name in fleet.inventory.nodes.of(rows)}
        return {name for name in names if name != SHARED and self._must_ask(name)}

    def _must_ask(self, node: str) -> bool:
        read = self._nodes.read
        if all(sum(read(node, each.rows)) >= each.count for each in self._wanted):
            return True
        return self._risky is not None and any(read(node, self._risky))


def candidates(fleet: Fleet, claims: Sequence[ResourceClaim]) -> Candidates | None:
    """The nodes where `allocate` may succeed or raise; None if that may be any. Raises AllocationError that all nodes would."""
    if fleet.inventory.has_invalid_node_selectors or not all(map(_asks_for_numbers, claims)):
        return None
    match = matcher(fleet.inventory.selectors, Node())
    expanded = [expand(claim, fleet.classes, (), match) for claim in claims]
    if not _is_plain(expanded):
        return None
    try:
        wanted, risky = _look(fleet, expanded)
    except CompileError:  # reported when the first device is searched
        return None
    shared = fleet.inventory.nodes[SHARED]
    if risky is not None and any(risky[row] for row in shared):
        return None
    # Selectors are evaluated before node selection, so such devices can fail on nodes they are not for.
    if risky is not None and any(risky[row] for row in fleet.inventory.per_device_rows):
        return None
    on_each = [RequestDemand(each.rows, each.count - sum(each.rows[row] for row in shared)) for each in wanted]
    scarce = [each for each in on_each if each.count > 0]
    return Candidates(fleet, scarce, risky) if scarce else None


def _asks_for_numbers(claim: ResourceClaim) -> bool:
    """Whether each request wants a number of devices for exclusive or shared use, so that a node with fewer is ruled out."""
    return not any(
        asked.allocation_mode == "All" or (isinstance(asked, ExactDeviceRequest) and asked.admin_access)
        for asked in claim.spec.asked
    )


def _is_plain(claims: Sequence[ExpandedClaim]) -> bool:
    """Whether a search can fail only on devices, not on requested amounts or counts."""
    each = [request for claim in claims for alternatives in claim.requests for request in alternatives]
    return (
        bool(each)
        and not any(amount.startswith("-") for request in each for amount in _amounts(request).values())
        and all(
            sum(max(each.count for each in alternatives) for alternatives in claim.requests) <= MAX_RESULTS
            for claim in claims
        )
    )


def _amounts(request: Request) -> Mapping[str, str]:
    return request.asked.capacity.requests if request.asked.capacity is not None else {}


def _look(fleet: Fleet, claims: Sequence[ExpandedClaim]) -> tuple[list[RequestDemand], bytes | None]:
    """The demand of each request, and the devices on which a search may fail. Raises CompileError."""
    rows = fleet.inventory.columns.rows
    requests = [alternatives for claim in claims for alternatives in claim.requests]
    asks_amounts = any(_amounts(request) for alternatives in requests for request in alternatives)
    trouble = fleet.arithmetic.translate(_ANY_TROUBLE if asks_amounts else _NEGATIVE)
    risky = fleet.free & packed(trouble) if 1 in trouble else 0
    wanted = []
    for alternatives in requests:
        usable = 0
        for request in alternatives:
            selected = fleet.free
            for _, _, selector in request.selectors:
                scan = fleet.inventory.selectors.scan(selector.cel.expression if selector.cel is not None else "")
                risky |= selected & scan.failing
                selected &= scan.selected
            usable |= selected & fleet.enough & packed(tolerated(fleet, request.asked.tolerations))
        wanted.append(RequestDemand(unpacked(usable, rows), min(request.count for request in alternatives)))
    return wanted, unpacked(risky, rows) if risky else None


def tolerated(fleet: Fleet, tolerations: Sequence[DeviceToleration], lifted: Collection[TaintIdentity] = ()) -> bytes:
    """1 for each row without a blocking taint, except taints that the request tolerates and `lifted` ones."""
    inventory = fleet.inventory
    combined = combine([inventory.taints.numbered()])
    return combined.paint(
        [
            all(
                taint.identity in lifted or any(each.tolerates(taint) for each in tolerations)
                for taint in (inventory.taints_of(row) if inventory.taints.codes[row] else ())
            )
            for row in combined.rows
        ]
    )


def _has(names: Sequence[str], name: str) -> bool:
    place = bisect_left(names, name)
    return place < len(names) and names[place] == name
