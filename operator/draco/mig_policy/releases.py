"""Finds the idle claims that block a claim that a pod waits for.

Owns the search for the fewest of them, with the scheduler's own rules: without them the waiting claims must fit on a node that
the pod may use, and each of them must then find another place. A claim in use is never proposed. Idle instances without a claim
are no obstacle: they give way automatically.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, repeat

import msgspec

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.node_selection import selects
from draco.allocation.search.allocate import first_fitting, would_get
from draco.explanation.findings.node_rules import PodRules
from draco.resources.api.claims import AllocationResult, ResourceClaim, ResourceClaimStatus
from draco.resources.api.core import Node, Pod
from draco.resources.api.meta import ObjectKey

_MOVABLE = 16
"""The most idle claims that are tried for one pod."""
_ELSEWHERE = 32
"""Nodes on which another place is searched."""
_STEPS = 10_000
"""Devices that one search visits."""
_SEARCHES = 100
"""The most searches for one pod, a few milliseconds each."""


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
    fleet: Fleet, pod: Pod, claims: Sequence[ResourceClaim], movable: Mapping[ObjectKey, int]
) -> ClaimRelease | None:
    """The fewest idle claims without which the pod's claims fit; None if they fit already, or if that does not help.

    `movable` are the idle claims that may go, each with how many may go together. The fleet may be newer than `claims` and
    `movable`. Also None if nothing is found in `_SEARCHES` searches.
    """
    waiting = [claim for claim in claims if claim.status.allocation is None]
    if not waiting or not movable or any(fleet.state.held_by(each.metadata.key) for each in waiting):
        return None
    nodes = _open(fleet, pod, claims)
    if not nodes:
        return None
    search = _Search(fleet, waiting, nodes)
    if search.fits_now():
        return None
    candidates = [key for key in sorted(movable) if key in fleet.idle][:_MOVABLE]
    for gone in chain.from_iterable(combinations(candidates, count) for count in (1, 2)):
        if len(gone) > min(movable[each] for each in gone):
            continue
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
    """At most `_SEARCHES` searches for one pod.

    They modify the fleet's own state and restore it: copying the state of thousands of nodes would take longer.
    """

    def __init__(self, fleet: Fleet, waiting: Sequence[ResourceClaim], nodes: Mapping[str, Node]) -> None:
        self._fleet = fleet
        self._waiting = waiting
        self._nodes = nodes
        self._left = _SEARCHES

    def fits_now(self) -> bool:
        self._left -= 1
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
        if self._left == 0:
            return None
        self._left -= 1
        try:
            return would_get(self._fleet, node, claims, max_steps=_STEPS)
        except AllocationError:
            return None


def _open(fleet: Fleet, pod: Pod, claims: Sequence[ResourceClaim]) -> dict[str, Node]:
    """The nodes that the pod may use, and from which its allocated claims are accessible."""
    rules = PodRules(pod)
    allocated = [claim.status.allocation for claim in claims if claim.status.allocation is not None]
    bound = [each.node_selector for each in allocated if each.node_selector is not None]
    nodes = ((name, fleet.nodes[name]) for name in fleet.node_names)
    return {
        name: node for name, node in nodes if not rules.obstacles(node) and all(selects(each, node) for each in bound)
    }


def _node_names(fleet: Fleet, claim: ObjectKey) -> list[str]:
    rows = (row for device in fleet.state.held_by(claim) for row in fleet.inventory.rows(device))
    return sorted({fleet.inventory.node_of(row) for row in rows} - {""})


def _with(claim: ResourceClaim, result: AllocationResult | None) -> ResourceClaim:
    return msgspec.structs.replace(claim, status=ResourceClaimStatus(allocation=result))
