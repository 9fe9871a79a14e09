"""The best place in a fleet, compared with every possible place."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, count, product
from math import comb
from typing import Any

import msgspec
import pytest

from draco.allocation.errors import AllocationError, NodeError
from draco.allocation.fleet.counters import Counters
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.pools import Candidate, PoolView
from draco.allocation.search.allocate import allocate
from draco.allocation.search.attempt import Attempt
from draco.allocation.search.requests import ExpandedClaim, Request, expand, matcher
from draco.placing.groups.group import allocated
from draco.placing.scoring.gpu_room import PublishedGpus
from draco.placing.scoring.judging import NodeJudge
from draco.placing.scoring.score import PlacementScore
from draco.placing.search.best import BestPlacement
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.draco import PlacementStrategy
from draco.resources.names import PoolKey
from tests.doubles.placing import a_placer
from tests.unit.allocation.worlds import a_world, put

MANY = 2_000
"""More sets of devices than this, and a world is skipped."""


STEPS = 20_000


class TooMany(Exception):
    """There are too many sets to compare."""


def every_score(
    fleet: Fleet, claims: Sequence[ResourceClaim], node: Node, spread: frozenset[PoolKey] = frozenset()
) -> Iterator[PlacementScore]:
    """The score of every set of devices that could be allocated to the claims on the node. Raises AllocationError."""
    views = fleet.inventory.views(node)
    match = matcher(fleet.inventory.selectors, node)
    expanded = [expand(claim, fleet.classes, views, match) for claim in claims]
    candidates = [each for view in views for each in view.candidates]
    usable = [each for each in candidates if _is_usable(expanded, each)]
    packs = PlacementStrategy.PACK
    strategy = PlacementStrategy.SPREAD if any(PoolKey(*each.key[:2]) in spread for each in usable) else packs
    judge = NodeJudge(views, fleet.state, usable, gpus=PublishedGpus(), beside=(), strategy=strategy)
    slots = [(index, alternatives) for index, claim in enumerate(expanded) for alternatives in claim.requests]
    for vector in product(*(range(len(alternatives)) for _, alternatives in slots)):
        chosen = [(index, each[number]) for (index, each), number in zip(slots, vector, strict=True)]
        selected = [[each for each in usable if request.selects(each)] for _, request in chosen]
        size = 1
        for (_, request), devices in zip(chosen, selected, strict=True):
            size *= 1 if request.all_devices is not None else comb(len(devices), request.count)
        if size > MANY:
            raise TooMany
        options = [
            [tuple(request.all_devices)]
            if request.all_devices is not None
            else list(combinations(devices, request.count))
            for (_, request), devices in zip(chosen, selected, strict=True)
        ]
        for sets in product(*options):
            attempt = Attempt(expanded, fleet.state, Counters(views, fleet.state))
            if all(
                _takes(attempt, index, request, each)
                for (index, request), devices in zip(chosen, sets, strict=True)
                for each in devices
            ) and not any(request.all_devices == [] for _, request in chosen):
                taken = [each for trials in attempt.trials for each in trials]
                if all(len(trials) <= 32 for trials in attempt.trials):
                    yield judge.score(taken, vector)
            for trials in reversed(attempt.trials):
                for each in reversed(list(trials)):
                    attempt.undo(each)


def _is_usable(claims: Sequence[ExpandedClaim], candidate: Candidate) -> bool:
    requests = [request for claim in claims for alternatives in claim.requests for request in alternatives]
    return any(request.selects(candidate) and request.tolerates(candidate) for request in requests)


def _takes(attempt: Attempt, index: int, request: Request, candidate: Candidate) -> bool:
    if request.all_devices is not None:
        return attempt.must(index, request, candidate) is not None
    return attempt.may(index, request, candidate) is not None


def only(views: Sequence[PoolView], placement: BestPlacement) -> list[PoolView]:
    """The pools with only the devices of a placement as candidates; the others still count for counters."""
    keys = {each.key for result in placement.results for each in result.devices.results}
    return [
        msgspec.structs.replace(
            view,
            candidates=[each for each in view.candidates if each.key in keys],
            others=[*view.others, *((each.key, each.charges) for each in view.candidates if each.key not in keys)],
        )
        for view in views
    ]


def names(results: Sequence[AllocationResult]) -> list[tuple[str, ...]]:
    return sorted(each.key for result in results for each in result.devices.results)


def a_random_world(seed: int) -> tuple[Fleet, list[ResourceClaim]]:
    objects, names = a_world(random.Random(seed))
    fleet = Fleet()
    put_ = [put(fleet, each) for each in objects]
    claims = {str(each.metadata.key): each for each in put_ if isinstance(each, ResourceClaim)}
    return fleet, [claims[name] for name in names]


def some_first(parts: int) -> list[Any]:
    """All parts; only the first two run with the fast tests."""
    return [0, 1, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in range(2, parts))]


@pytest.mark.parametrize("part", some_first(8))
def test_no_place_is_better_than_the_best(part: int) -> None:
    compared = placed = 0
    for seed in range(part * 60, part * 60 + 60):
        fleet, claims = a_random_world(seed)
        scores: list[tuple[PlacementScore, str]] = []
        try:
            for name, node in sorted(fleet.nodes.items()):
                scores += [(each, name) for each in every_score(fleet, claims, node)]
            best = a_placer(fleet).best(claims, fleet.nodes)
        except (AllocationError, TooMany):
            continue
        compared += 1
        assert (best is None) == (not scores), seed
        if best is not None:
            placed += 1
            assert (best.score, best.node) == min(scores), seed
    assert compared >= 20
    assert placed >= 5


@pytest.mark.parametrize("part", some_first(4))
def test_what_is_found_is_what_the_allocator_would_give_if_there_were_nothing_else(part: int) -> None:
    placed = 0
    for seed in range(10_000 + part * 60, 10_060 + part * 60):
        fleet, claims = a_random_world(seed)
        verdicts: dict[str, object] = {}
        for name, node in fleet.nodes.items():
            try:
                verdicts[name] = allocate(
                    fleet.inventory, fleet.state, node, claims, fleet.classes,
                    share_ids=map(str, count()), max_steps=STEPS,
                )  # fmt: skip
            except NodeError:
                verdicts[name] = None
            except AllocationError as error:
                verdicts[name] = error
        try:
            best = a_placer(fleet).best(claims, fleet.nodes)
        except AllocationError:
            assert not any(isinstance(each, list) for each in verdicts.values()), seed
            assert any(isinstance(each, AllocationError) for each in verdicts.values()), seed
            continue
        assert (best is not None) >= any(isinstance(each, list) for each in verdicts.values()), seed
        if best is None:
            continue
        placed += 1
        node = fleet.nodes[best.node]
        again = allocate(
            fleet.inventory, fleet.state, node, claims, fleet.classes, share_ids=map(str, count()),
            views=only(fleet.inventory.views(node), best),
        )  # fmt: skip
        assert again is not None, seed
        assert set(names(again)) <= set(names(best.results)), seed
    assert placed >= 10


def test_claims_placed_one_after_the_other_go_where_a_new_placer_would_put_them() -> None:
    for seed in range(40):
        fleet, claims = a_random_world(seed)
        placer = a_placer(fleet)
        try:
            for turn in range(6):
                best = placer.best(claims, fleet.nodes)
                fresh = a_placer(fleet).best(claims, fleet.nodes)
                assert str(best) == str(fresh), (seed, turn)
                if best is None:
                    break
                for claim, result in zip(claims, best.results, strict=True):
                    meta = msgspec.structs.replace(claim.metadata, name=f"{claim.metadata.name}-{turn}")
                    placer.put(allocated(msgspec.structs.replace(claim, metadata=meta), result))
        except AllocationError:
            continue
