"""The best place for claims in the whole fleet, among all that `allocate` would accept. Must run in a worker.

Owns the choice of the node, and the cache for claims placed one after another: nodes that are alike are searched once, and again
only when their use changes. Change the fleet's claims only with `put` and `remove`; call `forget` after any other change.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Self

import msgspec
from cachetools import LRUCache

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.search.allocate import would_get
from draco.placing.scoring.gpu_room import PublishedGpus
from draco.placing.scoring.score import ALONE, NodeRanking, PlacementScore, RankedNode, RestOfGroup, why_worse
from draco.placing.search.node_search import MAX_STEPS, NodeAnswer, NodeSearch
from draco.placing.search.set_search import Effort
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectKey
from draco.resources.names import PoolKey

MAX_TRIES_IN_ALL: Final = 60_000
"""Per call: when used up, remaining nodes are searched with little effort."""
_MAX_QUESTIONS: Final = 64
_KEPT_QUESTIONS: Final = 4
_MAX_ANSWERS: Final = 4_096
"""Per question: nodes get new kinds as their use changes."""
_MAX_POSSIBLE: Final = 1024


class RunnerUp(msgspec.Struct, frozen=True, kw_only=True):
    """The second-best place, and why it lost, in one sentence."""

    node: str
    devices: tuple[str, ...]
    score: PlacementScore
    why: str

    def __str__(self) -> str:
        return f"{', '.join(self.devices) or 'nothing'} on {self.node}: {self.why}"


class BestPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen place: a result per claim, in order. No runner-up in a group, whose influence scores do not show."""

    node: str
    results: list[AllocationResult]
    score: PlacementScore
    runner_up: RunnerUp | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices."""
        return tuple(each.device for one in self.results for each in one.devices.results)

    def __str__(self) -> str:
        return f"{', '.join(self.devices) or 'nothing'} on {self.node} ({self.score})"


class BestPlacer:
    """Places claims one after another. Not thread-safe."""

    def __init__(self, fleet: Fleet, *, share_ids: Iterator[str]) -> None:
        """`share_ids` gives a new identifier for each share of a device."""
        self.fleet = fleet
        self.possible: LRUCache[bytes, None] = LRUCache(_MAX_POSSIBLE)
        """Digests of groups that fit once enough of Draco's claims end, for the rest of the fleet as it is."""
        self._share_ids = share_ids
        self._spread: frozenset[PoolKey] = frozenset()
        self._gpus = PublishedGpus()
        self._questions: dict[bytes, _Question] = {}
        self._before: dict[ObjectKey, ResourceClaim | None] | None = None
        """Within `as_if`: the claims that changed, as they were."""

    @contextmanager
    def as_if(self, *, spread: Collection[PoolKey] = ()) -> Iterator[Self]:
        """This placer; all its changes are undone at the end. Nodes of the pools in `spread` are filled evenly."""
        if self._spread != frozenset(spread):
            self._spread = frozenset(spread)
            self._questions.clear()
        before = self._before = {}
        try:
            yield self
        finally:
            self._before = None
            for key, claim in before.items():
                self._set(key, claim)
            # A question that is not worth keeping might be answered otherwise by a new search.
            recent = list(self._questions.items())[-_KEPT_QUESTIONS:]
            self._questions = {asked: each for asked, each in recent if each.is_worth_keeping}

    def best(
        self,
        claims: Sequence[ResourceClaim],
        nodes: Mapping[str, Node],
        *,
        beside: Sequence[ResourceClaim] = (),
        rest: RestOfGroup = ALONE,
    ) -> BestPlacement | None:
        """The best place for the claims together on one of the nodes; None if they fit on none.

        Devices near those of `beside`, allocated claims of the same pod, are preferred. Among nodes that differ only in use, a
        member gets one that suits the `rest` of its group. An AllocationError on one node only rules it out; it is raised if
        nothing fits.
        """
        namespaces = [
            each.metadata.namespace for each in claims
        ]  # errors name claims, which other namespaces must not read
        asked = msgspec.msgpack.encode((namespaces, [each.spec for each in claims], [each.results for each in beside]))
        question = self._questions.pop(asked, None)
        if question is None:
            if len(self._questions) >= _MAX_QUESTIONS:
                self._questions.clear()
            search = NodeSearch(self.fleet, self._gpus, claims, beside, self._spread)
            question = _Question(self.fleet, search, self._spread)
        self._questions[asked] = question  # most recently used last
        return question.best(claims, nodes, self._share_ids, rest)

    def put(self, claim: ResourceClaim) -> None:
        """Add or replace the claim, allocated or not."""
        self._set(claim.metadata.key, claim)

    def remove(self, key: ObjectKey) -> None:
        """Remove the claim, if known."""
        self._set(key, None)

    def forget(self) -> None:
        """Drop the caches after a change of anything but claims."""
        self._gpus = PublishedGpus()
        self._questions.clear()
        self.possible.clear()

    def _set(self, key: ObjectKey, claim: ResourceClaim | None) -> None:
        fleet = self.fleet
        if self._before is not None:
            self._before.setdefault(key, fleet.claims.get(key))
        held = fleet.state.held_by(key)
        if claim is None:
            fleet.remove_claim(key)
        else:
            fleet.put_claim(claim)
        if not self._questions:
            return
        devices = held | fleet.state.held_by(key)
        changed = {fleet.inventory.node_of(row) for each in devices for row in fleet.inventory.rows(each)}
        for question in self._questions.values() if changed else ():
            question.forget(changed)


class _Question:
    """One question and the answers of all nodes searched for it."""

    def __init__(self, fleet: Fleet, search: NodeSearch, spread: frozenset[PoolKey]) -> None:
        self._fleet = fleet
        self._search = search
        self._spread = spread
        self._answers: dict[object, NodeAnswer | AllocationError | None] = {}
        self._known: dict[str, NodeAnswer | AllocationError | None] = {}
        self._ranking = NodeRanking()
        self._effort = Effort(0)
        self._has_failed = False

    @property
    def is_worth_keeping(self) -> bool:
        """Whether no search was cut short and no error is cached; errors name the claims of the first caller."""
        return self._effort.left > 0 and not self._has_failed

    def forget(self, nodes: Iterable[str]) -> None:
        """Forget these nodes, whose use has changed; "" means devices of several nodes."""
        if "" in nodes:
            self._known.clear()
            self._ranking.clear()
            self._answers.clear()
        for name in nodes:
            self._known.pop(name, None)
            self._ranking.remove(name)
            self._search.kinds.forget(name)

    def best(
        self, claims: Sequence[ResourceClaim], nodes: Mapping[str, Node], share_ids: Iterator[str], rest: RestOfGroup
    ) -> BestPlacement | None:
        self._effort = Effort(MAX_TRIES_IN_ALL)
        for name in nodes.keys() - self._known.keys():
            self._learn(name, self._answer(nodes[name]))
        while True:
            first = self._ranking.first(nodes, rest, self._is_spread)
            if first is None:
                self._raise(claims, nodes)
                return None
            score, name = first
            answer = self._known[name]
            if not isinstance(answer, NodeAnswer):
                raise TypeError("only what fits has a place in the order")
            try:
                results = self._search.results(nodes[name], answer, share_ids)
            except AllocationError as error:
                self._relearn(name, error)
                continue
            if results is None:  # the nodes were not alike after all
                self._relearn(name, self._search.search(nodes[name], self._effort))
                continue
            runner_up = None if any(rest) else self._runner_up(first, answer, nodes)
            return BestPlacement(node=name, results=results, score=score, runner_up=runner_up)

    def _runner_up(self, best: RankedNode, answer: NodeAnswer, nodes: Mapping[str, Node]) -> RunnerUp | None:
        second = next((each for each in self._ranking.in_order(nodes) if each.name != best.name), None)
        name = second.name if second else best.name
        other = self._known[name] if second else self._search.next_best(nodes[name], answer, self._effort)
        if not isinstance(other, NodeAnswer):
            return None
        said_of_use = self._said_of_use(other.score, best.score, name)
        return RunnerUp(
            node=name,
            devices=self._search.names(name, other),
            score=other.score,
            why=why_worse(other.score, best.score, spread=said_of_use),
        )

    def _learn(self, name: str, answer: NodeAnswer | AllocationError | None) -> None:
        self._known[name] = answer
        self._has_failed |= isinstance(answer, AllocationError)
        if isinstance(answer, NodeAnswer):
            self._ranking.add(answer.score, name)

    def _relearn(self, name: str, answer: NodeAnswer | AllocationError | None) -> None:
        self._ranking.remove(name)
        self._learn(name, answer)

    def _raise(self, claims: Sequence[ResourceClaim], nodes: Mapping[str, Node]) -> None:
        """Raise the error of the first node by name that has one, with the names of these claims."""
        for name in sorted(nodes):
            known = self._known[name]
            if isinstance(known, AllocationError) and known.fatal:
                would_get(self._fleet, nodes[name], claims, max_steps=MAX_STEPS)
                raise known

    def _answer(self, node: Node) -> NodeAnswer | AllocationError | None:
        kinds = self._search.kinds
        kind = kinds.kind(node.metadata.name)
        if kind is None:
            return self._search.search(node, self._effort)
        if kind not in self._answers:
            if len(self._answers) >= _MAX_ANSWERS:
                self._answers.clear()
            fits = kinds.may_fit(node.metadata.name)
            self._answers[kind] = self._search.search(node, self._effort) if fits else None
        return self._answers[kind]

    def _is_spread(self, node: str) -> bool:
        return bool(self._spread) and any(pool in self._spread for pool in self._fleet.inventory.pools_on(node))

    def _said_of_use(self, score: PlacementScore, best: PlacementScore, node: str) -> str:
        if self._is_spread(node):
            return f"More GPUs of its node are in use, and claims are to be spread: {score.crowding} instead of {best.crowding}."
        return ""
