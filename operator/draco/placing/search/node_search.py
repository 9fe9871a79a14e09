"""The best devices of one node, applied to all nodes that are alike; the effort per node, and the fallback beyond it."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import msgspec

from draco.allocation.errors import AllocationError, SearchTooLong
from draco.allocation.fleet.counters import Counters
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.pools import Candidate, PoolView
from draco.allocation.search.allocate import result, would_get
from draco.allocation.search.attempt import Attempt, TakenDevice
from draco.allocation.search.requests import ExpandedClaim, Request, expand, matcher
from draco.placing.scoring.gpu_room import PublishedGpus
from draco.placing.scoring.judging import DevicePosition, NodeJudge, position_of
from draco.placing.scoring.score import PlacementScore
from draco.placing.search.node_kinds import NodeKinds
from draco.placing.search.set_search import Effort, SetSearch
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.draco import PlacementStrategy
from draco.resources.names import PoolKey, gpu_name

MAX_TRIES: Final = 4_000
"""Devices to try per node; after that, the best set so far is used."""
_LEAST_TRIES: Final = 200
MAX_STEPS: Final = 50_000
"""Limit of `allocate` when the search found nothing in time."""


class _Pick(msgspec.Struct, frozen=True, array_like=True):
    """One device of an answer: its request, and its index among the node's rows, or ~row."""

    claim: int
    request: int
    alternative: int
    place: int


class NodeAnswer(msgspec.Struct, frozen=True):
    """The best devices on nodes that are alike."""

    score: PlacementScore
    picks: tuple[_Pick, ...]


class NodeSearch:
    """Searches nodes for claims of one pod."""

    def __init__(
        self,
        fleet: Fleet,
        gpus: PublishedGpus,
        claims: Sequence[ResourceClaim],
        beside: Sequence[ResourceClaim],
        spread: frozenset[PoolKey],
    ) -> None:
        self._fleet = fleet
        self._gpus = gpus
        self._claims = claims
        self._spread = spread
        self._beside = [position for claim in beside for position in _positions(fleet, claim)]
        self._shared_claims = [
            expand(claim, fleet.classes, (), matcher(fleet.inventory.selectors, Node())) for claim in claims
        ]
        self._per_node = any(
            request.asked.allocation_mode == "All"
            for claim in self._shared_claims
            for alternatives in claim.requests
            for request in alternatives
        ) or any(True for _ in fleet.inventory.per_device_rows)
        self.kinds = NodeKinds(fleet, self._shared_claims, spread, near=bool(self._beside))

    def search(self, node: Node, effort: Effort) -> NodeAnswer | AllocationError | None:
        """The best devices; None if the claims do not fit; or the error. Uses up the effort, beyond which nodes get little."""
        try:
            return self._searched(node, effort)
        except AllocationError as error:
            return self._as_allocated(node, error)

    def next_best(self, node: Node, best: NodeAnswer, effort: Effort) -> NodeAnswer | None:
        """The best other set of devices on the node; None if there is none."""
        try:
            return self._searched(node, effort, [frozenset(self._rows(node.metadata.name, best))])
        except AllocationError:
            return None

    def results(self, node: Node, answer: NodeAnswer, share_ids: Iterator[str]) -> list[AllocationResult] | None:
        """The results of an answer on this node; None if it does not apply there."""
        views = self._fleet.inventory.views(node)
        claims = self._expanded(node, views)
        rows = self._rows(node.metadata.name, answer)
        wanted = frozenset(rows)
        by_row = {each.row: each for view in views for each in view.candidates if each.row in wanted}
        attempt = Attempt(claims, self._fleet.state, Counters(views, self._fleet.state))
        try:
            for pick, row in zip(answer.picks, rows, strict=True):
                candidate = by_row.get(row)
                request = claims[pick.claim].requests[pick.request][pick.alternative]
                if candidate is None or _take(attempt, pick.claim, request, candidate) is None:
                    return None
            alternatives = iter(answer.score.alternatives)
            return [
                result(claim, [each[next(alternatives)] for each in claim.requests], trials, node, share_ids)
                for claim, trials in zip(claims, attempt.trials, strict=True)
            ]
        finally:
            for trials in reversed(attempt.trials):
                for taken in reversed(list(trials)):
                    attempt.undo(taken)

    def names(self, name: str, answer: NodeAnswer) -> tuple[str, ...]:
        """The names of the devices on this node."""
        return tuple(self._fleet.inventory.key(row).device for row in self._rows(name, answer))

    def _searched(self, node: Node, effort: Effort, avoid: Collection[frozenset[int]] = ()) -> NodeAnswer | None:
        fleet = self._fleet
        views = fleet.inventory.views(node)
        claims = self._expanded(node, views)
        usable = [each for view in views for each in view.candidates if self.kinds.is_usable(each, node)]
        judge = self._judge(views, usable)
        tries = min(MAX_TRIES, max(_LEAST_TRIES, effort.left))
        here = Effort(tries)
        ascending = sorted(usable, key=lambda each: (judge.alone(each), each.key))
        if not avoid and self.kinds.is_single and not any(each.device.allow_multiple_allocations for each in usable):
            return self._single(node, views, ascending, judge)
        search = SetSearch(
            claims,
            ascending,
            Attempt(claims, fleet.state, Counters(views, fleet.state)),
            judge,
            here,
            alike=(lambda each: each.row) if avoid else self.kinds.alike(judge),
            avoid=avoid,
        )
        found = search.run()
        effort.left -= tries - here.left
        if found is not None:
            return self._as_answer(node, claims, found.taken, found.score)
        if here.left <= 0 and not avoid:
            raise SearchTooLong("no devices were found for the claims in time")
        return None

    def _single(
        self, node: Node, views: Sequence[PoolView], ascending: Sequence[Candidate], judge: NodeJudge
    ) -> NodeAnswer | None:
        """The best device if one is requested: the full score decides among those that cost least alone."""
        claims = self._shared_claims
        request = claims[0].requests[0][0]
        attempt = Attempt(claims, self._fleet.state, Counters(views, self._fleet.state))
        best: tuple[PlacementScore, TakenDevice] | None = None
        least = None
        for candidate in ascending:
            if best is not None and judge.alone(candidate) != least:
                break
            if self._fleet.state.holds(candidate.key):
                continue
            taken = attempt.may(0, request, candidate)
            if taken is None:
                continue
            attempt.undo(taken)
            score = judge.score([taken], (0,))
            if best is None or score < best[0]:
                best, least = (score, taken), judge.alone(candidate)
        return None if best is None else self._as_answer(node, claims, [best[1]], best[0])

    def _as_allocated(self, node: Node, error: AllocationError) -> NodeAnswer | AllocationError | None:
        """The result of `allocate`, when the search did not finish."""
        try:
            results = would_get(self._fleet, node, self._claims, max_steps=MAX_STEPS)
            if results is None:
                return None if isinstance(error, SearchTooLong) else error
            return self._from_results(node, results)
        except AllocationError as failed:
            return failed

    def _from_results(self, node: Node, results: Sequence[AllocationResult]) -> NodeAnswer | None:
        views = self._fleet.inventory.views(node)
        claims = self._expanded(node, views)
        by_key = {each.key: each for view in views for each in view.candidates}
        attempt = Attempt(claims, self._fleet.state, Counters(views, self._fleet.state))
        alternatives: list[int] = []
        for number, (claim, one) in enumerate(zip(claims, results, strict=True)):
            got = {each.request for each in one.devices.results}
            for requests in claim.requests:
                chosen = next((place for place, each in enumerate(requests) if each.name in got), 0)
                alternatives.append(chosen)
                request = requests[chosen]
                for each in one.devices.results:
                    if each.request == request.name and _take(attempt, number, request, by_key[each.key]) is None:
                        return None
        taken = [each for trials in attempt.trials for each in trials]
        judge = self._judge(views, [each.candidate for each in taken])
        return self._as_answer(node, claims, taken, judge.score(taken, tuple(alternatives)))

    def _judge(self, views: Sequence[PoolView], usable: Sequence[Candidate]) -> NodeJudge:
        spread = any(each.key.pool_key in self._spread for each in usable)
        strategy = PlacementStrategy.SPREAD if spread else PlacementStrategy.PACK
        return NodeJudge(views, self._fleet.state, usable, gpus=self._gpus, beside=self._beside, strategy=strategy)

    def _expanded(self, node: Node, views: Sequence[PoolView]) -> Sequence[ExpandedClaim]:
        if not self._per_node:
            return self._shared_claims
        match = matcher(self._fleet.inventory.selectors, node)
        return [expand(claim, self._fleet.classes, views, match) for claim in self._claims]

    def _as_answer(
        self, node: Node, claims: Sequence[ExpandedClaim], taken: Sequence[TakenDevice], score: PlacementScore
    ) -> NodeAnswer:
        places = {row: place for place, row in enumerate(self._fleet.inventory.nodes[node.metadata.name])}
        numbers = {
            id(request): (number, alternative)
            for claim in claims
            for number, alternatives in enumerate(claim.requests)
            for alternative, request in enumerate(alternatives)
        }
        picks = [
            _Pick(each.claim, *numbers[id(each.request)], places.get(each.candidate.row, ~each.candidate.row))
            for each in taken
        ]
        return NodeAnswer(
            score, tuple(sorted(picks, key=lambda each: (each.claim, each.request, each.place < 0, abs(each.place))))
        )

    def _rows(self, name: str, answer: NodeAnswer) -> list[int]:
        rows = self._fleet.inventory.nodes[name]
        return [rows[each.place] if each.place >= 0 else ~each.place for each in answer.picks]


def _take(attempt: Attempt, claim: int, request: Request, candidate: Candidate) -> TakenDevice | None:
    if request.all_devices is not None:
        return attempt.must(claim, request, candidate)
    return attempt.may(claim, request, candidate)


def _positions(fleet: Fleet, claim: ResourceClaim) -> Iterator[DevicePosition]:
    for each in claim.results:
        for row in fleet.inventory.rows(each.key)[:1]:
            device = fleet.inventory.columns.devices[row]
            if device is not None:
                yield position_of(each.driver, each.pool, gpu_name(each.device), device)
