"""How many idle instances are kept ahead of claims, and on which GPUs."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draco.mig.board import Placement
from draco.mig.geometry import geometry
from draco.mig.known_boards import BOARDS
from draco.mig_policy.warm_ahead import WarmDemand, WarmGpu, ahead_text, beside_fixed, spread
from draco.resources.api.draco import ProfileCount

H100 = BOARDS["H100-80GB"]
SMALL = "1g.10gb"


def a_demand(*, limit: int = 8, standing: int = 0) -> WarmDemand:
    return WarmDemand(window_s=600, lead_s=15, limit=limit, now_s=0, standing=standing)


def a_gpu(name: str, *claims: str, usable: bool = True, **rest: Any) -> WarmGpu:
    """A GPU with claims on placements such as "1g.10gb@4"."""
    placements = []
    for text in claims:
        profile, start = text.split("@")
        found = H100.profile(profile)
        assert found is not None
        placements.append(Placement(found, int(start)))
    return WarmGpu(uuid=name, board=H100, state=geometry(H100).state_of(placements), usable=usable, **rest)


def shares(
    gpus: Sequence[WarmGpu], wanted: Mapping[str, int], limits: Mapping[str, int]
) -> Mapping[str, Mapping[str, int]]:
    return spread(gpus, wanted, limits).by_gpu


def test_as_many_are_wanted_as_are_taken_while_new_ones_are_made() -> None:
    demand = a_demand()
    assert demand.wanted(0) == 0
    for second in range(0, 600, 6):
        demand.take(second)
    assert (demand.per_minute(599), demand.wanted(599)) == (10, 3)


def test_what_fell_is_let_go_only_after_a_whole_window() -> None:
    demand = a_demand()
    for _ in range(100):
        demand.take(10)
    assert demand.wanted(20) == 3
    assert [demand.wanted(at) for at in (619, 700)] == [3, 0]
    assert [a_demand(standing=2).wanted(at) for at in (1, 599, 601)] == [2, 2, 0]


def test_what_stands_is_kept_for_a_window_by_whoever_leads_next() -> None:
    demand = a_demand(standing=5)
    assert [demand.wanted(at) for at in (1, 300, 599, 601)] == [5, 5, 5, 0]


@given(st.lists(st.floats(0, 5000), max_size=300), st.integers(1, 4), st.integers(0, 20))
def test_nothing_raises_it_beyond_the_limit(taken: list[float], limit: int, standing: int) -> None:
    demand = a_demand(limit=limit, standing=standing)
    for at in sorted(taken):
        demand.take(at)
        assert demand.wanted(at) <= limit


@given(st.integers(2, 120), st.floats(0, 1))
def test_steady_demand_never_lets_go_of_what_it_wants_once(every_s: int, phase: float) -> None:
    demand = a_demand(limit=100)
    seen = []
    for step in range(3 * 600 // every_s + 2):
        at = (step + phase) * every_s
        demand.take(at)
        seen.append(demand.wanted(at))
    assert seen == sorted(seen)


def test_what_is_wanted_goes_where_it_costs_least() -> None:
    gpus = [a_gpu("empty"), a_gpu("used", "1g.10gb@6")]
    assert shares(gpus, {SMALL: 1}, {SMALL: 8}) == {"used": {SMALL: 1}}


def test_what_stands_stays_as_long_as_it_has_room() -> None:
    stands = {SMALL: 2}
    assert shares([a_gpu("a", stands=stands), a_gpu("b", "1g.10gb@6")], {SMALL: 2}, {SMALL: 8}) == {"a": stands}
    full = a_gpu("a", "7g.80gb@0", stands=stands)
    assert shares([full, a_gpu("b")], {SMALL: 2}, {SMALL: 8}) == {"b": stands}


def test_a_gpu_that_no_claim_can_get_keeps_none() -> None:
    assert shares([a_gpu("a", usable=False, stands={SMALL: 1})], {SMALL: 1}, {SMALL: 1}) == {}


def test_none_is_added_before_what_it_would_be_too_much_with_is_gone() -> None:
    gone = a_gpu("a", "7g.80gb@0", idle={SMALL: 2}, stands={SMALL: 2})
    assert shares([gone, a_gpu("b")], {SMALL: 2}, {SMALL: 3}) == {"b": {SMALL: 1}}


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans()), min_size=1, max_size=5), st.integers(1, 6)
)
def test_all_that_stands_and_comes_is_within_the_limit(gpus: list[tuple[int, int, bool]], limit: int) -> None:
    made = [
        a_gpu(str(index), usable=usable, stands={SMALL: stands}, idle={SMALL: idle})
        for index, (stands, idle, usable) in enumerate(gpus)
    ]
    given = shares(made, {SMALL: limit}, {SMALL: limit})
    before = sum(max(each.stands[SMALL], each.idle[SMALL]) for each in made)
    after = sum(max(each.stands[SMALL], each.idle[SMALL], given.get(each.uuid, {}).get(SMALL, 0)) for each in made)
    assert sum(each[SMALL] for each in given.values()) <= limit
    assert after <= max(before, limit)


def test_what_has_room_nowhere_stays_where_it_stands() -> None:
    full = a_gpu("a", "7g.80gb@0", stands={SMALL: 2})
    found = spread([full, a_gpu("b", "7g.80gb@0")], {SMALL: 2}, {SMALL: 8})
    assert (found.by_gpu, found.with_room) == ({"a": {SMALL: 2}}, {SMALL: 0})
    assert shares([full], {SMALL: 1}, {SMALL: 8}) == {"a": {SMALL: 1}}


def test_what_would_be_too_much_lets_go_first_and_comes_then() -> None:
    full, free = a_gpu("a", "7g.80gb@0", stands={SMALL: 2}), a_gpu("b")
    assert shares([full, free], {SMALL: 2}, {SMALL: 2}) == {}
    assert shares([a_gpu("a", "7g.80gb@0"), free], {SMALL: 2}, {SMALL: 2}) == {"b": {SMALL: 2}}


def test_what_has_just_become_free_is_left_to_claims() -> None:
    before = a_gpu("b", "7g.80gb@0").state
    full = a_gpu("a", "7g.80gb@0", stands={SMALL: 1})
    assert shares([full, a_gpu("b", lately=before)], {SMALL: 1}, {SMALL: 8}) == {"a": {SMALL: 1}}
    assert shares([full, a_gpu("b", lately=a_gpu("b").state)], {SMALL: 1}, {SMALL: 8}) == {"b": {SMALL: 1}}


def test_fixed_instances_count_as_taken_where_they_are_and_where_they_will_be() -> None:
    shape, large = geometry(H100), H100.profile("3g.40gb")
    assert large is not None
    fixed = [ProfileCount(profile="3g.40gb", count=1), ProfileCount(profile="of another board", count=1)]
    there = beside_fixed(H100, shape.empty, [Placement(large, 0)], fixed)
    assert there == shape.state_of([Placement(large, 0)])
    assert beside_fixed(H100, shape.empty, [], fixed).instances == 1
    assert beside_fixed(H100, there, [Placement(large, 4)], []) == there


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ((3, 3, 8, 12.4), "Wants 3 idle 1g.10gb ready (at most 8) as claims take 12 a minute."),
        (
            (3, 1, 8, 0.5),
            "Wants 3 idle 1g.10gb ready (at most 8) as claims take 0.5 a minute, but there is room for 1.",
        ),
        ((0, 0, 8, 0), "Wants 0 idle 1g.10gb ready (at most 8) as claims take 0 a minute."),
    ],
)
def test_the_numbers_are_said(figures: tuple[int, int, int, float], said: str) -> None:
    assert ahead_text(SMALL, *figures) == said
