"""Placement: which GPU and start are chosen."""

import random
from collections.abc import Sequence

import pytest

from draco.mig.board import Board, Placement, Profile
from draco.mig.geometry import BoardPool, Choice, Geometry, State, geometry, largest_first
from draco.mig.known_boards import BOARDS
from tests.unit.mig.enumerated import plain

GRID = plain("H100-80GB")
MADE = geometry(GRID)


def profile(name: str, board: Board = GRID) -> Profile:
    [found] = [each for each in board.profiles if each.name == name]
    return found


def state(*written: str) -> State:
    """A GPU with these instances, such as `3g.40gb@4`."""
    return MADE.state_of(Placement(profile(name), int(start)) for name, start in (each.split("@") for each in written))


def crowded(board: Board, gpus: int, chance: random.Random) -> list[State]:
    made = geometry(board)
    states = [made.empty] * gpus
    for _ in range(gpus * 3):
        gpu = chance.randrange(gpus)
        if fitting := made.fits(states[gpu]):
            states[gpu] = made.add(states[gpu], chance.choice(fitting))
    return states


def first_best(made: Geometry, states: Sequence[State], wanted: Profile) -> Choice | None:
    """The same choice, made by ranking one GPU after the other."""
    ranked = [(best.cost, gpu, best) for gpu, each in enumerate(states) if (best := made.best(each, wanted))]
    _, gpu, least = min(ranked, key=lambda each: each[:2], default=(None, -1, None))
    return Choice(gpu, least.placement) if least else None


def test_a_claim_goes_where_least_is_lost() -> None:
    gpus = [state(), state("4g.40gb@0"), state("7g.80gb@0")]
    assert BoardPool(MADE, gpus).choose(profile("3g.40gb")) == Choice(1, Placement(profile("3g.40gb"), 4))
    assert BoardPool(MADE, gpus).choose(profile("7g.80gb")) == Choice(0, Placement(profile("7g.80gb"), 0))
    assert BoardPool(MADE, gpus[1:]).choose(profile("7g.80gb")) is None


def test_of_equal_losses_the_fuller_gpu_is_taken() -> None:
    """A 3g costs an empty GPU as much as one with a 3g."""
    gpus = [state(), state("3g.40gb@4")]
    assert BoardPool(MADE, gpus).choose(profile("3g.40gb")) == Choice(1, Placement(profile("3g.40gb"), 0))


def test_of_equal_losses_the_gpu_with_most_instances_is_taken_even_if_another_is_fuller() -> None:
    """The right half costs the same on both; the GPU with a single instance may be empty again soon."""
    gpus = [state("4g.40gb@0"), state("1g.10gb@0", "1g.10gb@1")]
    assert [MADE.rank(each, Placement(profile("3g.40gb"), 4)).loss for each in gpus] == [10, 10]
    assert BoardPool(MADE, gpus).choose(profile("3g.40gb")) == Choice(1, Placement(profile("3g.40gb"), 4))


@pytest.mark.parametrize("name", ["H100-80GB", "A30", "RTX-PRO-6000"])
def test_gpus_grouped_by_state_get_the_same_choice_as_one_by_one(name: str) -> None:
    board, chance = BOARDS[name], random.Random(3)
    made = geometry(board)
    pool = BoardPool(made, crowded(board, 40, chance))
    there: list[Choice] = []
    for _ in range(300):
        wanted = chance.choice(board.profiles)
        choice = pool.choose(wanted)
        assert choice == first_best(made, pool.states, wanted)
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
