"""The best place for claims in the whole fleet, of all that `allocate` would let them have.

Owns the choice of the node, and what is remembered between claims that are placed one after the other: nodes that are alike are
searched once, and again only when what is in use there changes. While a placer is in use, the fleet must not change but by `put`
and `remove`.
Evaluates what tenants write, so it belongs into a worker.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from draco.allocation.errors import AllocationError, SearchTooLong
from draco.allocation.fleet.counters import Counters
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.pools import Candidate, PoolView
from draco.allocation.search.allocate import result, would_get
from draco.allocation.search.attempt import Attempt, TakenDevice
from draco.allocation.search.requests import ExpandedClaim, Request, expand, matcher
from draco.placing.scoring.distance import DevicePosition, position_of
from draco.placing.scoring.gpu_room import PublishedGpus
from draco.placing.scoring.judging import NodeJudge
from draco.placing.scoring.ranking import ALONE, Company, NodeRanking, RankedNode
from draco.placing.scoring.score import PlacementScore, why_worse
from draco.placing.search.node_kinds import NodeKinds
from draco.placing.search.set_search import Effort, SetSearch
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.draco import PlacementStrategy
from draco.resources.api.meta import ObjectKey
from draco.resources.names import DeviceKey, PoolKey, gpu_name

MAX_TRIES: Final = 4_000
"""Devices that are tried for one node: then the best set so far is taken."""
MAX_TRIES_IN_ALL: Final = 60_000
"""For one call: once they are used up, nodes that were not searched yet are given little effort."""
_LEAST_TRIES: Final = 200
_MAX_STEPS: Final = 50_000
"""Of `allocate`, where the search found nothing in time."""
_MAX_QUESTIONS: Final = 64
_KEPT_QUESTIONS: Final = 4
_MAX_ANSWERS: Final = 4_096
"""Of one question: nodes get ever new kinds, as what is in use there changes."""


class RunnerUp(msgspec.Struct, frozen=True, kw_only=True):
    """The next best place, and in one sentence why it lost."""

    node: str
    devices: tuple[str, ...]
    score: PlacementScore
    why: str

    def __str__(self) -> str:
        return f"{', '.join(self.devices) or 'nothing'} on {self.node}: {self.why}"


class BestPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The place chosen: a result for each claim, in their order.

    A place in company has no runner-up: its others decided as well, which scores do not tell.
    """

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
    """Places claims one after the other. Not for several threads."""

    def __init__(self, fleet: Fleet, *, share_ids: Iterator[str], spread: Collection[PoolKey] = ()) -> None:
        """`share_ids` gives a fresh identifier for each share of a device; `spread` are pools whose nodes are filled evenly."""
        self._fleet = fleet
        self._share_ids = share_ids
        self._spread = frozenset(spread)
        self._gpus = PublishedGpus()
        self._questions: dict[bytes, _Question] = {}

    def best(
        self,
        claims: Sequence[ResourceClaim],
        nodes: Mapping[str, Node],
        *,
        beside: Sequence[ResourceClaim] = (),
        company: Company = ALONE,
    ) -> BestPlacement | None:
        """The best place for the claims together on one of the nodes; None if they fit on none.

        `beside` are allocated claims of the same pod: their devices are to be near. Of nodes that are as good but for their use,
        a group in whose `company` they are gets one that suits it. An error on one node only rules that node out; if nothing
        fits and there was one, it is raised. Raises AllocationError.
        """
        namespaces = [
            each.metadata.namespace for each in claims
        ]  # an error names claims, which are nobody else's to read
        asked = msgspec.msgpack.encode((namespaces, [each.spec for each in claims], [each.results for each in beside]))
        question = self._questions.pop(asked, None)
        if question is None:
            if len(self._questions) >= _MAX_QUESTIONS:
                self._questions.clear()
            question = _Question(self._fleet, self._gpus, claims, beside, self._spread)
        self._questions[asked] = question  # what was asked last is last
        return question.best(claims, nodes, self._share_ids, company)

    def put(self, claim: ResourceClaim) -> None:
        """Have the claim count as it is now, allocated or not."""
        before = self._fleet.state.held_by(claim.metadata.key)
        self._fleet.put_claim(claim)
        self._forget(before | self._fleet.state.held_by(claim.metadata.key))

    def remove(self, key: ObjectKey) -> None:
        """Have the claim count no more."""
        before = self._fleet.state.held_by(key)
        self._fleet.remove_claim(key)
        self._forget(before)

    def tidy(self) -> None:
        """Remember only the last questions, without those for which a fresh search might find something else."""
        recent = list(self._questions.items())[-_KEPT_QUESTIONS:]
        self._questions = {asked: each for asked, each in recent if each.is_worth_keeping}

    def _forget(self, devices: Iterable[DeviceKey]) -> None:
        changed = {self._fleet.inventory.node_of(row) for each in devices for row in self._fleet.inventory.rows(each)}
        for question in self._questions.values() if changed else ():
            question.forget(changed)


class _Pick(msgspec.Struct, frozen=True, array_like=True):
    """One device of an answer: for which request, and the place of its row among the node's, or the row itself."""

    claim: int
    request: int
    alternative: int
    place: int


class _Answer(msgspec.Struct, frozen=True):
    """The best devices on nodes that are alike."""

    score: PlacementScore
    picks: tuple[_Pick, ...]


class _Question:
    """What is asked for, and the answers of all nodes that were asked."""

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
        self._kinds = NodeKinds(fleet, self._shared_claims, spread, near=bool(self._beside))
        self._answers: dict[object, _Answer | AllocationError | None] = {}
        self._known: dict[str, _Answer | AllocationError | None] = {}
        self._ranking = NodeRanking()
        self._effort = Effort(0)
        self._has_failed = False

    @property
    def is_worth_keeping(self) -> bool:
        """Whether nothing was cut short, and no error is remembered: it would name the claims that were asked about first."""
        return self._effort.left > 0 and not self._has_failed

    def forget(self, nodes: Iterable[str]) -> None:
        """What is in use on these nodes has changed; on devices of no one node, if "" is one of them."""
        if "" in nodes:
            self._known.clear()
            self._ranking.clear()
            self._answers.clear()
        for name in nodes:
            self._known.pop(name, None)
            self._ranking.remove(name)
            self._kinds.forget(name)

    def best(
        self, claims: Sequence[ResourceClaim], nodes: Mapping[str, Node], share_ids: Iterator[str], company: Company
    ) -> BestPlacement | None:
        """The best place on one of the nodes."""
        self._effort = Effort(MAX_TRIES_IN_ALL)
        for name in nodes.keys() - self._known.keys():
            self._learn(name, self._answer(nodes[name]))
        while True:
            first = self._ranking.first(nodes, company, self._is_spread)
            if first is None:
                self._raise(claims, nodes)
                return None
            score, name = first
            answer = self._known[name]
            if not isinstance(answer, _Answer):
                raise TypeError("only what fits has a place in the order")
            try:
                results = self._results(nodes[name], answer, share_ids)
            except AllocationError as error:
                self._relearn(name, error)
                continue
            if results is None:  # nodes that were taken to be alike are not
                self._relearn(name, self._search(nodes[name]))
                continue
            runner_up = None if any(company) else self._runner_up(first, answer, nodes)
            return BestPlacement(node=name, results=results, score=score, runner_up=runner_up)

    def _runner_up(self, best: RankedNode, answer: _Answer, nodes: Mapping[str, Node]) -> RunnerUp | None:
        second = next((each for each in self._ranking.in_order(nodes) if each.name != best.name), None)
        return self._other_node(second, best.score, nodes) if second else self._other_devices(nodes[best.name], answer)

    def _learn(self, name: str, answer: "_Answer | AllocationError | None") -> None:
        self._known[name] = answer
        self._has_failed |= isinstance(answer, AllocationError)
        if isinstance(answer, _Answer):
            self._ranking.add(answer.score, name)

    def _relearn(self, name: str, answer: "_Answer | AllocationError | None") -> None:
        self._ranking.remove(name)
        self._learn(name, answer)

    def _raise(self, claims: Sequence[ResourceClaim], nodes: Mapping[str, Node]) -> None:
        """Raise the error of the first node by name that had one, in words about these claims."""
        for name in sorted(nodes):
            known = self._known[name]
            if isinstance(known, AllocationError) and known.fatal:
                would_get(self._fleet, nodes[name], claims, max_steps=_MAX_STEPS)
                raise known

    def _answer(self, node: Node) -> "_Answer | AllocationError | None":
        kind = self._kinds.kind(node.metadata.name)
        if kind is None:
            return self._search(node)
        if kind not in self._answers:
            if len(self._answers) >= _MAX_ANSWERS:
                self._answers.clear()
            self._answers[kind] = self._search(node) if self._kinds.may_fit(node.metadata.name) else None
        return self._answers[kind]

    def _search(self, node: Node) -> "_Answer | AllocationError | None":
        try:
            return self._searched(node, ())
        except AllocationError as error:
            return self._as_allocated(node, error)

    def _searched(self, node: Node, avoid: Collection[frozenset[int]]) -> _Answer | None:
        fleet = self._fleet
        views = fleet.inventory.views(node)
        claims = self._expanded(node, views)
        usable = [each for view in views for each in view.candidates if self._kinds.is_usable(each, node)]
        judge = self._judge(views, usable)
        tries = min(MAX_TRIES, max(_LEAST_TRIES, self._effort.left))
        effort = Effort(tries)
        ascending = sorted(usable, key=lambda each: (judge.alone(each), each.key))
        if not avoid and self._kinds.is_single and not any(each.device.allow_multiple_allocations for each in usable):
            return self._single(node, views, ascending, judge)
        search = SetSearch(
            claims,
            ascending,
            Attempt(claims, fleet.state, Counters(views, fleet.state)),
            judge,
            effort,
            alike=(lambda each: each.row) if avoid else self._kinds.alike(judge),
            avoid=avoid,
        )
        found = search.run()
        self._effort.left -= tries - effort.left
        if found is not None:
            return self._as_answer(node, claims, found.taken, found.score)
        if effort.left <= 0 and not avoid:
            raise SearchTooLong("no devices were found for the claims in time")
        return None

    def _single(
        self, node: Node, views: Sequence[PoolView], ascending: Sequence[Candidate], judge: NodeJudge
    ) -> _Answer | None:
        """The best of all devices where one is asked for: of those that cost least alone, what counts further decides."""
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

    def _as_allocated(self, node: Node, error: AllocationError) -> "_Answer | AllocationError | None":
        """What `allocate` finds, where the search did not come to its end."""
        try:
            results = would_get(self._fleet, node, self._claims, max_steps=_MAX_STEPS)
            if results is None:
                return None if isinstance(error, SearchTooLong) else error
            return self._from_results(node, results)
        except AllocationError as failed:
            return failed

    def _from_results(self, node: Node, results: Sequence[AllocationResult]) -> _Answer | None:
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
        spread = any(PoolKey(each.key.driver, each.key.pool) in self._spread for each in usable)
        strategy = PlacementStrategy.SPREAD if spread else PlacementStrategy.PACK
        return NodeJudge(views, self._fleet.state, usable, gpus=self._gpus, beside=self._beside, strategy=strategy)

    def _expanded(self, node: Node, views: Sequence[PoolView]) -> Sequence[ExpandedClaim]:
        if not self._per_node:
            return self._shared_claims
        match = matcher(self._fleet.inventory.selectors, node)
        return [expand(claim, self._fleet.classes, views, match) for claim in self._claims]

    def _as_answer(
        self, node: Node, claims: Sequence[ExpandedClaim], taken: Sequence[TakenDevice], score: PlacementScore
    ) -> _Answer:
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
        return _Answer(
            score, tuple(sorted(picks, key=lambda each: (each.claim, each.request, each.place < 0, abs(each.place))))
        )

    def _rows(self, name: str, answer: _Answer) -> list[int]:
        rows = self._fleet.inventory.nodes[name]
        return [rows[each.place] if each.place >= 0 else ~each.place for each in answer.picks]

    def _results(self, node: Node, answer: _Answer, share_ids: Iterator[str]) -> list[AllocationResult] | None:
        """The results of an answer on this very node; None if that is not possible there."""
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

    def _other_node(self, second: RankedNode, best: PlacementScore, nodes: Mapping[str, Node]) -> RunnerUp | None:
        score, name = second
        answer = self._known[name]
        if not isinstance(answer, _Answer):
            return None
        return RunnerUp(
            node=nodes[name].metadata.name,
            devices=self._names(name, answer),
            score=score,
            why=why_worse(score, best, spread=self._said_of_use(score, best, name)),
        )

    def _other_devices(self, node: Node, best: _Answer) -> RunnerUp | None:
        """The next best devices of the only node there is."""
        name = node.metadata.name
        try:
            answer = self._searched(node, [frozenset(self._rows(name, best))])
        except AllocationError:
            return None
        if answer is None:
            return None
        return RunnerUp(
            node=name,
            devices=self._names(name, answer),
            score=answer.score,
            why=why_worse(answer.score, best.score, spread=self._said_of_use(answer.score, best.score, name)),
        )

    def _is_spread(self, node: str) -> bool:
        return bool(self._spread) and any(pool in self._spread for pool in self._fleet.inventory.pools_on(node))

    def _said_of_use(self, score: PlacementScore, best: PlacementScore, node: str) -> str:
        if self._is_spread(node):
            return f"More GPUs of its node are in use, and claims are to be spread: {score.crowding} instead of {best.crowding}."
        return ""

    def _names(self, name: str, answer: _Answer) -> tuple[str, ...]:
        return tuple(self._fleet.inventory.key(row).device for row in self._rows(name, answer))


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
