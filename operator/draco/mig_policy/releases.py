"""Finds the idle claims that block a claim that a pod waits for.

Owns the search for the fewest of them, with the scheduler's own rules: without them the waiting claims must fit on a node that
the pod may use, and each of them must then find another place. A claim in use is never proposed. Idle instances without a claim
are no obstacle: they give way automatically.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, repeat

import msgspec

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.node_selection import selects
from draco.allocation.search.allocate import first_fitting, would_get
from draco.explanation.findings.placement import PodRules
from draco.resources.api.claims import AllocationResult, ResourceClaim, ResourceClaimStatus
from draco.resources.api.core import Node, Pod
from draco.resources.api.meta import ObjectKey

_MOVABLE = 16
"""The most idle claims that are tried for one pod."""
_ELSEWHERE = 32
"""Nodes on which another place is searched."""
_STEPS = 10_000
"""Devices that one search visits."""
_NODES = 256
"""Nodes per step of the test where the pod may go."""
_POOLS = 16
"""Pools per step of adding up counters."""

Steps = Generator[None, None, "ClaimRelease | None"]
"""A search in steps. Between steps the fleet is unchanged by the search, and may be changed by others."""


class Searches:
    """The budget of searches in one round, for any number of pods.

    Searches modify the fleet's own state and restore it before anybody else sees it: copying the state of thousands of nodes
    would take longer than most searches.
    """

    def __init__(self, fleet: Fleet, most: int) -> None:
        self.fleet = fleet
        self.left = most

    def take(self) -> bool:
        """Take one search; False if none is left."""
        self.left -= 1
        return self.left >= 0


class ClaimRelease(msgspec.Struct, frozen=True, kw_only=True):
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
) -> ClaimRelease | None:
    """The fewest idle claims without which the pod's claims fit; None if they fit already, or if that does not help.

    `movable` are the idle claims that may go, each with how many may go together. Also None once no search is left.
    """
    steps = release_steps(searches, pod, claims, movable)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: ClaimRelease | None = end.value
            return found


def release_steps(
    searches: Searches, pod: Pod, claims: Sequence[ResourceClaim], movable: Mapping[ObjectKey, int]
) -> Steps:
    """The same in steps, for a caller that must yield. Its result was true when tried, one step ago."""
    fleet = searches.fleet
    waiting = [claim for claim in claims if claim.status.allocation is None]
    if not waiting or not movable:
        return None
    nodes: dict[str, Node] = {}
    names = tuple(fleet.node_names)
    for start in range(0, len(names), _NODES):
        nodes |= _open(fleet, pod, claims, names[start : start + _NODES])
        yield
    if not nodes:
        searches.take()  # all nodes were tested, and thousands of such pods may wait
        return None
    for _ in range(0, len(names), _POOLS):
        if fleet.recount(_POOLS):
            break
        yield
    search = _Search(searches, waiting, nodes)
    if search.fits_now():
        return None
    candidates = list(islice(sorted(movable), _MOVABLE))
    for gone in chain.from_iterable(combinations(candidates, count) for count in (1, 2)):
        if len(gone) > min(movable[each] for each in gone):
            continue
        yield
        if any(fleet.state.held_by(each.metadata.key) for each in waiting):
            return None  # allocated meanwhile
        if any(each not in fleet.idle for each in gone):
            continue  # used or gone meanwhile
        node = search.fits_without(gone)
        if node is not None:
            return ClaimRelease(
                pod=pod.metadata.key,
                waiting=tuple(claim.metadata.key for claim in waiting),
                node=node,
                claims=gone,
                devices={
                    key: tuple(sorted(f"{each.device} of {each.pool}" for each in fleet.state.held_by(key)))
                    for key in gone
                },
            )
    return None


class _Search:
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
            return True  # releases do not fix what makes the scheduler fail
        return found is not None

    def fits_without(self, gone: Sequence[ObjectKey]) -> str | None:
        """A node where the waiting claims fit without `gone`, if those then fit somewhere; None if there is none."""
        homes = {key: _node_names(self._fleet, key) for key in gone}
        for key in gone:
            self._fleet.state.remove_claim(key)
        try:
            for name in sorted({name for names in homes.values() for name in names} & self._nodes.keys()):
                results = self._allocated(self._nodes[name], self._waiting)
                if results is not None and self._placed_again(homes, results):
                    return name
            return None
        finally:
            for key in gone:
                self._fleet.state.put_claim(self._fleet.claims[key])

    def _placed_again(self, homes: Mapping[ObjectKey, Sequence[str]], results: Sequence[AllocationResult]) -> bool:
        put = [_with(claim, result) for claim, result in zip(self._waiting, results, strict=True)]
        try:
            for claim in put:
                self._fleet.state.put_claim(claim)
            for key, home in homes.items():
                bare = _with(self._fleet.claims[key], None)
                place = next(
                    (found for node in self._anywhere(home) if (found := self._allocated(node, [bare])) is not None),
                    None,
                )
                if place is None:
                    return False
                put.append(_with(bare, place[0]))
                self._fleet.state.put_claim(put[-1])
            return True
        finally:
            for claim in put:
                self._fleet.state.remove_claim(claim.metadata.key)

    def _anywhere(self, home: Sequence[str]) -> Iterator[Node]:
        """Nodes where a claim may be placed again, its own first."""
        names = [*home, *(name for name in islice(self._fleet.node_names, _ELSEWHERE) if name not in home)]
        return (self._fleet.nodes[name] for name in names if name in self._fleet.nodes)

    def _allocated(self, node: Node, claims: Sequence[ResourceClaim]) -> list[AllocationResult] | None:
        if not self._searches.take():
            return None
        try:
            return would_get(self._fleet, node, claims, max_steps=_STEPS)
        except AllocationError:
            return None


def _open(fleet: Fleet, pod: Pod, claims: Sequence[ResourceClaim], names: Sequence[str]) -> dict[str, Node]:
    """The named nodes that the pod may use, and from which its allocated claims are accessible."""
    rules = PodRules(pod)
    allocated = [claim.status.allocation for claim in claims if claim.status.allocation is not None]
    bound = [each.node_selector for each in allocated if each.node_selector is not None]
    nodes = {name: fleet.nodes[name] for name in names if name in fleet.nodes}
    return {
        name: node
        for name, node in nodes.items()
        if not rules.obstacles(node) and all(selects(each, node) for each in bound)
    }


def _node_names(fleet: Fleet, claim: ObjectKey) -> list[str]:
    rows = (row for device in fleet.state.held_by(claim) for row in fleet.inventory.rows(device))
    return sorted({fleet.inventory.node_of(row) for row in rows} - {""})


def _with(claim: ResourceClaim, result: AllocationResult | None) -> ResourceClaim:
    return msgspec.structs.replace(claim, status=ResourceClaimStatus(allocation=result))
