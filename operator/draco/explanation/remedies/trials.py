"""Tries changes: runs the allocator with one change to the claims, a node or the cluster.

Owns the choice of the few nodes worth trying, and the limit on tries. Nodes with more suitable devices are tried first; this
ranking never decides what is reported.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from itertools import islice, tee
from typing import Final, TypeAlias

import msgspec

from draco.allocation.errors import AllocationError, SearchTooLong
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.node_rows import SHARED, NodeProfile
from draco.allocation.fleet.pools import PoolView, SliceState
from draco.allocation.fleet.rowwise import Combined, combine, number, select
from draco.allocation.fleet.state import AllocatedState
from draco.allocation.search.allocate import would_get
from draco.allocation.search.candidates import tolerated
from draco.explanation.findings.node_rules import PodRules, holds, nodes_for
from draco.explanation.problems.published import PublishedNames
from draco.explanation.selection import Asked, Selection, count, first_rows, least, selection
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Node, Pod
from draco.resources.api.meta import ObjectKey

MAX_TRIES: Final = 150
"""Most searches for one set of claims."""
_LONG: Final = 15
"""Tries that one overlong search counts as."""
MAX_STEPS: Final = 10_000
"""Most devices that one search looks at."""
NODES: Final = 5
"""Nodes on which one change is tried."""
_SHARING: Final = 2_000
"""Most nodes without devices of their own that are tried."""
_FEW: Final = 200
"""Up to this number of devices, their nodes are looked up one by one."""
_AT_ONCE: Final = 500
"""Nodes looked at before it is clear whether more are needed."""
_CURRENT: Final = bytes(code == SliceState.CURRENT for code in range(256))
_Asked: TypeAlias = tuple[tuple[tuple[ObjectKey, str], int, bytes], ...]
"""For each alternative: its request, the wanted number of devices, and the suitable rows."""


class RequestCandidates(msgspec.Struct, frozen=True, eq=False):
    """One request or alternative, and its suitable rows."""

    claim: ResourceClaim
    request: str
    """Its own name; alternatives share it."""
    name: str
    """Its name in results."""
    called: str
    """Its name for people, with that of its claim if there are several claims."""
    asked: Asked
    selection: Selection
    tolerated: bytes
    """1 for each row without untolerated taints."""

    @property
    def wanted(self) -> int:
        """The least number of devices that it takes."""
        return least(self.asked)

    @property
    def admin(self) -> bool:
        """Whether it may have devices in use."""
        return bool(getattr(self.asked, "admin_access", False))


class Trials:
    """Tries for the unallocated claims of one pod."""

    def __init__(self, fleet: Fleet, claims: Sequence[ResourceClaim], pod: Pod | None) -> None:
        self.fleet = fleet
        self.own: Final = {claim.metadata.key for claim in claims}
        self.claims: Final = [claim for claim in claims if claim.status.allocation is None]
        self.rules: Final = PodRules(pod)
        self.tolerated_keys: Final = {each.key for each in pod.spec.tolerations} if pod is not None else set()
        self._nodes = nodes_for(fleet, pod)
        self.published: Final = PublishedNames(fleet.inventory.columns)
        self.tries = 0
        self._ranked: dict[_Asked, Iterator[str]] = {}
        self._usable: dict[int, bytes] = {}
        selectors = [claim.status.allocation.node_selector for claim in claims if claim.status.allocation is not None]
        self._bound = [selector for selector in selectors if selector is not None]
        self.unheld: Final = fleet.unheld
        self.slice_states: Final = fleet.inventory.slice_states.translate(_CURRENT)
        self.requests: Final = list(self.requests_of(self.claims))

    @property
    def are_several(self) -> bool:
        """Whether there are several claims to allocate, so that texts about requests name them."""
        return len(self.claims) > 1

    def requests_of(self, claims: Sequence[ResourceClaim]) -> Iterator[RequestCandidates]:
        """The requests of claims whose class exists, alternatives one by one."""
        for claim in claims:
            for request in claim.spec.devices.requests:
                for name, asked in request.alternatives:
                    device_class = self.fleet.classes.get(asked.device_class_name)
                    if device_class is not None:
                        chain = selection(self.fleet, claim, device_class, asked)
                        fine = tolerated(self.fleet, asked.tolerations)
                        called = f"{name} of claim {claim.metadata.name}" if self.are_several else name
                        yield RequestCandidates(claim, request.name, name, called, asked, chain, fine)

    def free(self, request: RequestCandidates, *marks: bytes) -> bytes:
        """1 for each row of a sound pool that has all these marks; rows that claims hold count only for admin access."""
        held = [] if request.admin else [self.unheld]
        return select([self.slice_states, *held, *marks])

    def usable(self, request: RequestCandidates) -> bytes:
        """1 for each row that suits the request unchanged, apart from counters and constraints."""
        known = self._usable.get(id(request))
        if known is None or request not in self.requests:
            known = self._usable[id(request)] = self.free(request, request.selection.eligible, request.tolerated)
        return known

    @cached_property
    def _open(self) -> Collection[str]:
        there = self._nodes.open
        return {name for name, node in there.items() if self.reaches(node)} if self._bound else there.keys()

    @property
    def is_any_closed(self) -> bool:
        """Whether some node is closed to the pod by its rules, or cannot reach its allocated devices."""
        return len(self._open) < len(self.fleet.nodes)

    def may_go(self, node: Node) -> bool:
        """Whether the pod may use the node and reach its allocated devices there."""
        return node.metadata.name in self._open

    def reaches(self, node: Node) -> bool:
        """Whether the pod's allocated devices are reachable from the node."""
        return all(holds(selector, node) for selector in self._bound)

    def nodes(
        self,
        marks: Sequence[tuple[RequestCandidates, bytes]],
        where: Callable[[Node], bool] | None = None,
        most: int = NODES,
    ) -> list[Node]:
        """The nodes closest to having the wanted number of marked rows. `where` filters nodes."""
        where = where or self.may_go
        asked = tuple(
            [((request.claim.metadata.key, request.request), request.wanted, rows) for request, rows in marks]
        )
        # Keep one copy of the iterator at its start, so that ranked nodes are not computed again.
        names, self._ranked[asked] = tee(self._ranked.get(asked) or self._rank(asked))
        nodes = (self.fleet.nodes[name] for name in names if name in self.fleet.nodes)
        return list(islice(filter(where, nodes), most))

    def likely_nodes(self, where: Callable[[Node], bool] | None = None, most: int = NODES) -> list[Node]:
        """The nodes closest to having suitable devices, without any change."""
        return self.nodes([(request, self.usable(request)) for request in self.requests], where, most)

    def _rank(self, asked: _Asked) -> Iterator[str]:
        """Node names, ranked by how many wanted rows they have; nodes with only shared devices come last.

        Nodes that have everything are yielded before the others are ranked, because the first ones are mostly enough.
        """
        nodes = self.fleet.inventory.nodes
        marked = combine([number(rows, (0, 1)) for _, _, rows in asked])
        most: dict[tuple[ObjectKey, str], int] = {}
        for request, wanted, _ in asked:
            most[request] = max(most.get(request, 0), wanted)
        all_of_it = sum(most.values())
        by_worth: dict[int, list[str]] = {}
        candidates = iter(sorted(self._nodes_with(asked)))
        while some := list(islice(candidates, _AT_ONCE)):
            have_all: list[str] = []
            for profile, names in nodes.profiles(marked.codes, some).items():
                worth = _worth(asked, marked, profile)
                by_worth.setdefault(worth, []).extend(names)
                have_all += names if worth == all_of_it else []
            yield from sorted(have_all)
        by_worth.pop(0, None)
        for worth in sorted(by_worth.keys() - {all_of_it}, reverse=True):
            yield from sorted(by_worth[worth])
        if any(any(nodes.read(SHARED, rows)) for _, _, rows in asked):
            worthy = {name for names in by_worth.values() for name in names}
            yield from (name for name in islice(self.fleet.node_names, _SHARING) if name not in worthy)

    def _nodes_with(self, asked: _Asked) -> Collection[str]:
        """The nodes that may have some of the wanted rows."""
        if sum(count(rows) for _, _, rows in asked) > _FEW:
            return self.fleet.node_names
        found = {row for _, _, rows in asked for row in first_rows(rows, _FEW)}
        return set(map(self.fleet.inventory.node_of, found)) - {SHARED}

    def fits(
        self,
        node: Node,
        claims: Sequence[ResourceClaim] | None = None,
        *,
        views: Sequence[PoolView] | None = None,
        without: ObjectKey | None = None,
    ) -> list[AllocationResult] | None:
        """The allocator's answer for a node with these claims, these pools, or without another claim; None for any failure."""
        if self.tries >= MAX_TRIES:
            return None
        self.tries += 1
        try:
            return self.found(node, claims, views=views, without=without)
        except SearchTooLong:
            self.tries += _LONG
            return None

    def found(
        self,
        node: Node,
        claims: Sequence[ResourceClaim] | None = None,
        *,
        views: Sequence[PoolView] | None = None,
        without: ObjectKey | None = None,
        max_steps: int = MAX_STEPS,
    ) -> list[AllocationResult] | None:
        """The same regardless of MAX_TRIES. Raises SearchTooLong if the search is given up."""
        wanted = self.claims if claims is None else claims
        try:
            here = self.fleet.inventory.views(node) if views is None else views
            state = None if without is None else self._state_without(here, without)
            return would_get(self.fleet, node, wanted, max_steps=max_steps, state=state, views=here)
        except SearchTooLong:
            raise
        except AllocationError:
            return None

    def _state_without(self, views: Sequence[PoolView], without: ObjectKey) -> AllocatedState:
        """The allocations in these pools, without those of one claim."""
        keys = [candidate.key for view in views for candidate in view.candidates]
        keys += [key for view in views for key, _ in view.others]
        holders = {holder for key in keys for holder in self.fleet.state.holders(key)}
        return AllocatedState.of(self.fleet.claims[holder] for holder in sorted(holders - {without}))


def _worth(asked: _Asked, marked: Combined, profile: NodeProfile) -> int:
    """How many of the wanted devices a node of this profile has."""
    codes = Counter(profile)
    worth_of: dict[tuple[ObjectKey, str], int] = {}
    for request, wanted, rows in asked:
        there = sum(codes[code] for code, row in enumerate(marked.rows) if rows[row])
        worth_of[request] = max(worth_of.get(request, 0), min(wanted, there))
    return sum(worth_of.values())
