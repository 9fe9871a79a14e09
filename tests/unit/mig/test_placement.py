"""Placement: which GPU and start, and in which order a scheduler that takes the first should meet the devices."""

import random

import pytest

from draco.mig.board import Board, Placement, Profile
from draco.mig.geometry import State, geometry
from draco.mig.placement import Choice, Pool, choose, cost_of_order, largest_first, publishing_order
from draco.simulator.planner_boards import BOARDS
from tests.unit.mig.enumerated import plain

GRID = plain("H100-80GB")
MADE = geometry(GRID)


def profile(name: str, board: Board = GRID) -> Profile:
    [found] = [each for each in board.profiles if each.name == name]
    return found


def state(*written: str) -> State:
    """A GPU with these instances: `3g.40gb@4`."""
    return MADE.state_of(Placement(profile(name), int(start)) for name, start in (each.split("@") for each in written))


def crowded(board: Board, gpus: int, chance: random.Random) -> list[State]:
    made = geometry(board)
    states = [made.empty] * gpus
    for _ in range(gpus * 3):
        gpu = chance.randrange(gpus)
        if fitting := made.fits(states[gpu]):
            states[gpu] = made.add(states[gpu], chance.choice(fitting))
    return states


def test_a_claim_goes_where_least_is_lost() -> None:
    gpus = [state(), state("4g.40gb@0"), state("7g.80gb@0")]
    assert choose(MADE, gpus, profile("3g.40gb")) == Choice(1, Placement(profile("3g.40gb"), 4))
    assert choose(MADE, gpus, profile("7g.80gb")) == Choice(0, Placement(profile("7g.80gb"), 0))
    assert choose(MADE, gpus[1:], profile("7g.80gb")) is None


def test_of_equal_losses_the_fuller_gpu_is_taken() -> None:
    gpus = [state("7g.80gb@0"), state(), state("4g.40gb@0", "2g.20gb@4")]
    choice = choose(MADE, gpus, profile("1g.10gb"))
    assert choice is not None
    assert (choice.gpu, choice.start) == (2, 6)


@pytest.mark.parametrize("name", ["H100-80GB", "A30", "RTX-PRO-6000"])
def test_gpus_grouped_by_state_get_the_same_choice_as_one_by_one(name: str) -> None:
    board, chance = BOARDS[name], random.Random(3)
    made = geometry(board)
    pool = Pool(made, crowded(board, 40, chance))
    there: list[Choice] = []
    for _ in range(300):
        wanted = chance.choice(board.profiles)
        choice = pool.choose(wanted)
        assert choice == choose(made, pool.states, wanted)
        assert pool.room(wanted) == sum(made.room(each, wanted) for each in pool.states)
        if choice is not None:
            pool.put(choice)
            there.append(choice)
        if there and chance.random() < 0.4:
            pool.take(there.pop(chance.randrange(len(there))))


def test_several_are_placed_largest_first() -> None:
    assert [each.name for each in largest_first(GRID.profiles)] == [
        *("7g.80gb", "4g.40gb", "3g.40gb", "2g.20gb", "1g.20gb", "1g.10gb")
    ]


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_every_placement_of_every_gpu_is_published_once(name: str) -> None:
    board = BOARDS[name]
    states = crowded(board, 8, random.Random(5))
    order = publishing_order(geometry(board), states)
    assert len(order) == len(set(order))
    assert set(order) == {Choice(gpu, placement) for gpu in range(8) for placement in board.placements}


def test_a_scheduler_that_takes_the_first_that_fits_takes_what_the_rule_would() -> None:
    chance = random.Random(11)
    for _ in range(50):
        states = crowded(GRID, 8, chance)
        order = publishing_order(MADE, states)
        for wanted in GRID.profiles:
            first = next(
                (c for c in order if c.placement.profile == wanted and MADE.fits_at(states[c.gpu], c.placement)), None
            )
            assert first == choose(MADE, states, wanted)


def test_an_order_that_became_stale_still_packs_more_of_the_same() -> None:
    order = publishing_order(MADE, [state(), state()])
    small = [(each.gpu, each.start) for each in order if each.placement.profile.name == "1g.10gb"]
    assert small[:7] == [(0, 6), (0, 5), (0, 4), (0, 3), (0, 2), (0, 1), (0, 0)]


def test_profiles_are_published_from_small_to_large() -> None:
    names = list(dict.fromkeys(each.placement.profile.name for each in publishing_order(MADE, [state()])))
    assert names == ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]


def test_what_is_taken_now_is_published_last_and_best_start_first() -> None:
    order = publishing_order(MADE, [state("4g.40gb@0"), state("7g.80gb@0")])
    threes = [(each.gpu, each.start) for each in order if each.placement.profile.name == "3g.40gb"]
    assert threes == [(0, 4), (1, 4), (0, 0), (1, 0)]


def test_an_order_costs_nothing_while_it_is_fresh_and_something_when_a_better_place_came_up() -> None:
    before = [state("4g.40gb@0"), state()]
    order = publishing_order(MADE, before)
    assert cost_of_order(MADE, before, order) == 0
    after = [state(), state("4g.40gb@0", "2g.20gb@4")]
    assert cost_of_order(MADE, after, order) > 0
    assert cost_of_order(MADE, after, publishing_order(MADE, after)) == 0


def test_what_fits_nowhere_costs_nothing_in_any_order() -> None:
    full = [state("7g.80gb@0")]
    assert cost_of_order(MADE, full, []) == 0
