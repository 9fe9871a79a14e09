"""Kinds of nodes: nodes that are alike for a question, so that one of them is searched for all.

Two nodes are alike if they have the same devices in the same order, as far as requests, counters, links and distances distinguish
them, with the same use. A node for which more matters has no kind.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Final

from draco.allocation.fleet.columns import attribute_key
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.node_rows import SHARED, NodeProfile, likeness
from draco.allocation.fleet.pools import Candidate, is_device_for
from draco.allocation.fleet.rowwise import Codes, combine, number, packed, unpacked
from draco.allocation.search.candidates import tolerated
from draco.allocation.search.constraints import attribute_of
from draco.allocation.search.requests import ExpandedClaim, Request
from draco.cel.errors import CompileError
from draco.cel.paths import AttributePath
from draco.placing.scoring.judging import NodeJudge
from draco.resources.api.core import Node
from draco.resources.names import (
    ATTRIBUTE_CLIQUE_ID,
    ATTRIBUTE_CLUSTER_UUID,
    ATTRIBUTE_NVLINK_PEERS,
    STANDARD_NUMA_NODE,
    STANDARD_PCIE_ROOT,
    PoolKey,
)

NOT_USABLE, USABLE, FAILS = 0, 1, 2
"""Of a row: whether a request selects and tolerates the device, or a selector fails on it."""
_IDS: Final = frozenset(
    each.rpartition("/")[2] for each in (ATTRIBUTE_NVLINK_PEERS, STANDARD_NUMA_NODE, STANDARD_PCIE_ROOT)
)
_PATTERNS: Final = frozenset({ATTRIBUTE_CLUSTER_UUID, ATTRIBUTE_CLIQUE_ID})


class NodeKinds:
    """The kinds of nodes for some claims. `near`: distances matter even for one device."""

    def __init__(
        self, fleet: Fleet, claims: Sequence[ExpandedClaim], spread: frozenset[PoolKey], *, near: bool
    ) -> None:
        self._fleet = fleet
        self._spread = spread
        requests = [request for claim in claims for alternatives in claim.requests for request in alternatives]
        self._usable = [_usable(fleet, request) for request in requests]
        rows = fleet.inventory.columns.rows
        combined = combine([number(each, (NOT_USABLE, USABLE, FAILS)) for each in self._usable] or [bytes(rows)])
        self._codes = combined.codes
        some = [any(each[row] for each in self._usable) for row in combined.rows]
        self._some = combined.paint(some)
        self._is_odd = self._odd_rows()
        self._shared_matters = any(self._some[row] for row in fleet.inventory.nodes[SHARED])
        several = near or sum(max(each.count for each in one) for claim in claims for one in claim.requests) > 1
        everything = any(each.asked.allocation_mode == "All" for each in requests)
        self._whatever = bool(fleet.inventory.has_invalid_node_selectors) or any(
            self._some[row] for row in fleet.inventory.per_device_rows
        )
        self.is_single = (
            len(requests) == len(claims) == 1 and requests[0].count == 1
            and not (everything or requests[0].admin_access or self._whatever)
        )  # fmt: skip
        """Whether one device without alternatives is requested."""
        self._compared = _compared(claims)
        amounts = {
            name.rpartition("/")[2]
            for each in requests
            if each.asked.capacity is not None
            for name in each.asked.capacity.requests
        }
        self._asks_amounts = bool(amounts)
        self._columns = [
            (columns, path.id in _PATTERNS)
            for path in sorted(fleet.inventory.columns.paths)
            if (path.kind == "attributes" and path.id in (_IDS | _PATTERNS if several or everything else {_LINKS}))
            or (path.kind == "capacity" and path.id in amounts)
            if (columns := fleet.inventory.columns.peek(path)) is not None and any(columns)
        ]
        self._known_constraints = self._constraint_columns()
        self._static: dict[str, Hashable] = {}
        self._held: dict[str, NodeProfile] = {}

    def is_usable(self, candidate: Candidate, node: Node) -> bool:
        """Whether a request selects and tolerates the device and it is for the node, or a selector fails on it."""
        if not self._some[candidate.row]:
            return False
        if not candidate.spec.per_device_node_selection:
            return True
        return any(each[candidate.row] == FAILS for each in self._usable) or is_device_for(candidate.device, node)

    def forget(self, name: str) -> None:
        """Forget the use of a node, which has changed."""
        self._held.pop(name, None)

    def kind(self, name: str) -> Hashable | None:
        """Equal for nodes that are alike now; None for a node without a kind."""
        if self._whatever or self._shared_matters:
            return None
        static = self._static.get(name)
        if static is None:
            static = self._static[name] = self._static_kind(name)
        if static == name:
            return None
        return static, self._held_on(name)

    def may_fit(self, name: str) -> bool:
        """Whether the node has any usable device."""
        if not self._usable:
            return True
        return any(self._fleet.inventory.nodes.read(name, self._some))

    def alike(self, judge: NodeJudge) -> Callable[[Candidate], Hashable]:
        """Return a function whose result is equal for interchangeable devices."""
        rooms: dict[int, Hashable] = {}

        def of_room(candidate: Candidate) -> Hashable:
            room = judge.room_of[candidate.row]
            if id(room) not in rooms:
                state = room.state if room.table is not None else room.in_use
                table = id(room.table) if room.table is not None else None
                rooms[id(room)] = (table, state, tuple([self._alone(judge, each) for each in room.candidates]))
            return rooms[id(room)]

        def alike(candidate: Candidate) -> Hashable:
            if self._fleet.by_amount[candidate.row]:
                return candidate.row
            room = judge.room_of[candidate.row]
            if room.table is None and not room.solid:
                return candidate.row
            return of_room(candidate), room.placement(candidate), self._alone(judge, candidate)

        return alike

    def _alone(self, judge: NodeJudge, candidate: Candidate) -> Hashable:
        at = judge.position(candidate)
        compared = tuple([_attribute(candidate, name) for name in self._compared])
        capacity = candidate.device.capacity if self._asks_amounts else {}
        return (
            at.driver,
            self._codes[candidate.row],
            compared,
            (at.root, at.numa, at.fabric, at.peers and at.peers | {at.name}),
            tuple([(name, each.value) for name, each in sorted(capacity.items())]),
        )

    def _held_on(self, name: str) -> NodeProfile:
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = self._fleet.inventory.nodes.read(name, self._fleet.held)
        return held

    def _static_kind(self, name: str) -> Hashable:
        fleet = self._fleet
        inventory = fleet.inventory
        read = inventory.nodes.read
        if self._is_odd is not None and any(read(name, self._is_odd)):
            return name
        if self._known_constraints is None:
            return name
        uses: list[Hashable] = []
        spread = False
        others = inventory.others
        for pool in inventory.pools_on(name):
            if pool in others:
                return name
            use = fleet.drawn(pool)
            uses.append(None if use is None else (id(use.shape), id(use.left)))
            spread = spread or pool in self._spread
        drawing = any(each is not None for each in uses)
        columns = tuple(
            [likeness(read(name, codes)) if pattern else read(name, codes) for codes, pattern in self._columns]
        )
        compared = tuple([likeness(read(name, codes)) for codes in self._known_constraints])
        return (
            read(name, self._codes), tuple(uses), self._held_on(name) if drawing else None, spread, columns, compared
        )  # fmt: skip

    def _odd_rows(self) -> bytes | None:
        """1 for each row that has no kind: devices shared by capacity, or on which a selector fails."""
        fleet = self._fleet
        odd = packed(fleet.by_amount) & packed(self._some)
        for each in self._usable:
            if FAILS in each:
                odd |= packed(each.translate(_IS_FAILS))
        return unpacked(odd, fleet.inventory.columns.rows) if odd else None

    def _constraint_columns(self) -> list[Codes] | None:
        found: list[Codes] = []
        for name in self._compared:
            domain, slash, identifier = name.partition("/")
            column = (
                self._fleet.inventory.columns.peek(AttributePath("attributes", domain, identifier)) if slash else None
            )
            if column is None:
                return None
            found.append(column)
        return found


_LINKS: Final = ATTRIBUTE_NVLINK_PEERS.rpartition("/")[2]
_IS_FAILS: Final = bytes(mark == FAILS for mark in range(256))


def _compared(claims: Sequence[ExpandedClaim]) -> list[str]:
    return sorted(
        {
            each.match_attribute or each.distinct_attribute or ""
            for claim in claims
            for each in claim.claim.spec.devices.constraints
        }
    )


def _attribute(candidate: Candidate, name: str) -> Hashable | None:
    """The value that a constraint compares; a list equals nothing else."""
    found = attribute_of(candidate.device, candidate.key.driver, name)
    if found is None:
        return None
    key = attribute_key(found)
    return ("list", candidate.row) if key is None else key


def _usable(fleet: Fleet, request: Request) -> bytes:
    """By row: NOT_USABLE, USABLE or FAILS."""
    rows = fleet.inventory.columns.rows
    selected = packed(fleet.inventory.columns.live)
    failing = 0
    for _, _, selector in request.selectors:
        try:
            scan = fleet.inventory.selectors.scan(selector.cel.expression if selector.cel is not None else "")
        except CompileError:
            failing |= selected
            selected = 0
            break
        failing |= selected & scan.failing
        selected &= scan.selected
    usable = selected & packed(tolerated(fleet, request.asked.tolerations))
    return unpacked(usable + 2 * failing, rows)
