"""Which claims that nobody uses stand in the way of one that a pod waits for.

Owns the search for the fewest of them, tried out with the scheduler's own rules: without them the waiting claims must fit on a
node that the pod may go to, and each of them must then find another place. Nothing that a pod uses is ever proposed. Idle
instances that no claim holds are no obstacle: they give way by themselves.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, combinations, islice, repeat

import msgspec

from draco.allocation.allocate import allocate
from draco.allocation.errors import AllocationError
from draco.allocation.fitting import first_fitting
from draco.allocation.fleet import Fleet
from draco.allocation.node_selection import selects
from draco.allocation.state import AllocatedState
from draco.explanation.placement import PodRules
from draco.resources.claims import AllocationResult, ResourceClaim, ResourceClaimStatus
from draco.resources.core import Node, Pod
from draco.resources.meta import ObjectKey

_MOVABLE = 16
"""Idle claims that are looked at for one pod."""
_ELSEWHERE = 32
"""Nodes on which another place is looked for."""
_STEPS = 10_000
"""Devices that one search looks at."""


class Searches:
    """The searches that may still be made in one go, for any number of pods, while the fleet stays as it is."""

    def __init__(self, fleet: Fleet, most: int) -> None:
        self.fleet = fleet
        self.left = most

    @cached_property
    def state(self) -> AllocatedState:
        """What claims hold; whoever changes it puts it back."""
        return AllocatedState.of(self.fleet.claims.values())

    def take(self) -> bool:
        """Take one search, if there is one left."""
        self.left -= 1
        return self.left >= 0


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """Idle claims that would have to go for a pod's claims to fit on a node. `devices` are what the idle claims hold there."""

    pod: ObjectKey
    waiting: tuple[ObjectKey, ...]
    node: str
    claims: tuple[ObjectKey, ...]
    devices: Mapping[ObjectKey, tuple[str, ...]]

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.waiting))} fits on {self.node} without {', '.join(map(str, self.claims))}"


def plan_release(
    searches: Searches, pod: Pod, claims: Sequence[ResourceClaim], movable: Mapping[ObjectKey, int]
) -> Release | None:
    """The fewest idle claims without which the pod's claims fit; None if they fit as things are, or if that does not help.

    `movable` are the idle claims that may go, each with how many may go at once. None as well once no search is left.
    """
    fleet = searches.fleet
    waiting = [claim for claim in claims if claim.status.allocation is None]
    if not waiting or not movable:
        return None
    nodes = {node.metadata.name: node for node in _open(fleet, pod, claims)}
    if not nodes:
        searches.take()  # all nodes were asked, and thousands of such pods may wait
        return None
    search = _Search(searches, waiting, nodes)
    if search.fits_now():
        return None
    candidates = list(islice(sorted(movable), _MOVABLE))
    for gone in chain.from_iterable(combinations(candidates, count) for count in (1, 2)):
        if len(gone) <= min(movable[each] for each in gone):
            node = search.fits_without(gone)
            if node is not None:
                return Release(
                    pod=pod.metadata.key,
                    waiting=tuple(claim.metadata.key for claim in waiting),
                    node=node,
                    claims=gone,
                    devices={key: _devices(fleet, key) for key in gone},
                )
    return None


class _Search:
    """Tries of one pod's claims on the nodes it may go to."""

    def __init__(self, searches: Searches, waiting: Sequence[ResourceClaim], nodes: Mapping[str, Node]) -> None:
        self._searches = searches
        self._fleet = searches.fleet
        self._waiting = waiting
        self._nodes = nodes

    def fits_now(self) -> bool:
        if not self._searches.take():
            return True
        try:
            found = first_fitting(
                self._fleet, self._waiting, self._nodes.values(), share_ids=repeat(""), max_steps=_STEPS
            )
        except AllocationError:
            return True  # what makes the scheduler give up is not mended by moves
        return found is not None

    def fits_without(self, gone: Sequence[ObjectKey]) -> str | None:
        """A node where the waiting claims fit if these were gone, and these somewhere afterwards."""
        for key in gone:
            self._searches.state.remove_claim(key)
        try:
            for node in self._nodes_of(gone):
                results = self._allocated(node, self._waiting)
                if results is not None and self._placed_again(gone, results):
                    return node.metadata.name
            return None
        finally:
            for key in gone:
                self._searches.state.put_claim(self._fleet.claims[key])

    def _placed_again(self, gone: Sequence[ObjectKey], results: Sequence[AllocationResult]) -> bool:
        put = [_with(claim, result) for claim, result in zip(self._waiting, results, strict=True)]
        try:
            for claim in put:
                self._searches.state.put_claim(claim)
            for key in gone:
                bare = _with(self._fleet.claims[key], None)
                place = next(
                    (found for node in self._anywhere(key) if (found := self._allocated(node, [bare])) is not None),
                    None,
                )
                if place is None:
                    return False
                put.append(_with(bare, place[0]))
                self._searches.state.put_claim(put[-1])
            return True
        finally:
            for claim in put:
                self._searches.state.remove_claim(claim.metadata.key)

    def _nodes_of(self, claims: Sequence[ObjectKey]) -> list[Node]:
        """The nodes of what the claims hold, those to which the pod may go."""
        names = {name for key in claims for name in _node_names(self._fleet, key)}
        return [self._nodes[name] for name in sorted(names) if name in self._nodes]

    def _anywhere(self, claim: ObjectKey) -> Iterator[Node]:
        """Where the claim may be placed again: where it was first."""
        own = _node_names(self._fleet, claim)
        names = [*own, *(name for name in islice(self._fleet.node_names, _ELSEWHERE) if name not in own)]
        return (self._fleet.nodes[name] for name in names if name in self._fleet.nodes)

    def _allocated(self, node: Node, claims: Sequence[ResourceClaim]) -> list[AllocationResult] | None:
        if not self._searches.take():
            return None
        try:
            return allocate(
                self._fleet.inventory,
                self._searches.state,
                node,
                claims,
                self._fleet.classes,
                share_ids=repeat(""),
                max_steps=_STEPS,
            )
        except AllocationError:
            return None


def _open(fleet: Fleet, pod: Pod, claims: Sequence[ResourceClaim]) -> Iterator[Node]:
    """The nodes to which the pod may go, and from which it reaches what it has already."""
    rules = PodRules(pod)
    allocated = [claim.status.allocation for claim in claims if claim.status.allocation is not None]
    bound = [each.node_selector for each in allocated if each.node_selector is not None]
    for name in fleet.node_names:
        node = fleet.nodes[name]
        if not rules.obstacles(node) and all(selects(each, node) for each in bound):
            yield node


def _node_names(fleet: Fleet, claim: ObjectKey) -> list[str]:
    rows = (row for device in fleet.state.held_by(claim) for row in fleet.inventory.rows(device))
    return sorted({fleet.inventory.node_of(row) for row in rows} - {""})


def _devices(fleet: Fleet, claim: ObjectKey) -> tuple[str, ...]:
    return tuple(sorted(f"{each.device} of {each.pool}" for each in fleet.state.held_by(claim)))


def _with(claim: ResourceClaim, result: AllocationResult | None) -> ResourceClaim:
    return msgspec.structs.replace(claim, status=ResourceClaimStatus(allocation=result))
