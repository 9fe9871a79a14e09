"""Repair: the fewest moves of idle instances that make room for a blocked one, compared with trying all."""

import random
from collections.abc import Sequence
from itertools import combinations

import pytest

from draco.mig.board import Board, Placement, Profile
from draco.mig.geometry import Choice, Geometry, State, geometry
from draco.mig.known_boards import BOARDS
from draco.mig.repair import PlacedInstance, RepairPlan, plan_repair
from tests.unit.mig.enumerated import plain

GRID = plain("H100-80GB")
MADE = geometry(GRID)
Gpus = Sequence[Sequence[PlacedInstance]]


def profile(name: str, board: Board = GRID) -> Profile:
    [found] = [each for each in board.profiles if each.name == name]
    return found


def gpu(**holds: str) -> list[PlacedInstance]:
    """A GPU with its instances, movable or fixed, such as `movable="3g.40gb@0 1g.10gb@6"`."""
    return [
        PlacedInstance(Placement(profile(name), int(start)), hold == "movable")
        for hold, written in holds.items()
        for name, start in (each.split("@") for each in written.split())
    ]


def plan(gpus: Gpus, wanted: str, max_moves: int = 2) -> RepairPlan | None:
    return plan_repair(MADE, gpus, profile(wanted), max_moves)


def states(made: Geometry, gpus: Gpus) -> list[State]:
    return [made.state_of(held.placement for held in there) for there in gpus]


def places(made: Geometry, now: list[State], profiles: list[Profile]) -> bool:
    """Whether all of them can be placed."""
    if not profiles:
        return True
    first, *rest = profiles
    for index, state in enumerate(now):
        for placement in made.fits(state):
            if placement.profile == first:
                after = [*now[:index], made.add(state, placement), *now[index + 1 :]]
                if places(made, after, rest):
                    return True
    return False


def fewest_moves(made: Geometry, gpus: Gpus, wanted: Profile) -> int | None:
    """By exhaustive search: moves out up to two instances, and checks whether the wanted one and these then fit."""
    movable = [(index, held) for index, there in enumerate(gpus) for held in there if held.movable]
    for moves in range(3):
        for out in combinations(movable, moves):
            now = states(made, gpus)
            for index, held in out:
                now[index] = made.remove(now[index], held.placement)
            needed = [held.placement.profile for _, held in out]
            if places(made, now, [wanted, *needed]):
                return moves
    return None


def carried_out(made: Geometry, gpus: Gpus, found: RepairPlan) -> list[State]:
    """The states after a plan, each step of which must be possible."""
    now = states(made, gpus)
    movable = {Choice(index, held.placement) for index, there in enumerate(gpus) for held in there if held.movable}
    for move in found.moves:
        assert move.source in movable
        now[move.source.gpu] = made.remove(now[move.source.gpu], move.source.placement)
    for choice in [*(move.to for move in found.moves), found.wanted]:
        assert made.fits_at(now[choice.gpu], choice.placement)
        now[choice.gpu] = made.add(now[choice.gpu], choice.placement)
    return now


def crowded(board: Board, gpus: int, chance: random.Random) -> list[list[PlacedInstance]]:
    made = geometry(board)
    there: list[list[PlacedInstance]] = [[] for _ in range(gpus)]
    for held in there:
        while chance.random() < 0.85 and (fitting := made.fits(made.state_of(each.placement for each in held))):
            held.append(PlacedInstance(chance.choice(fitting), chance.random() < 0.5))
    return there


@pytest.mark.parametrize(("name", "gpus", "tries"), [("H100-80GB", 2, 60), ("H100-80GB", 4, 40), ("A30", 4, 60)])
def test_a_plan_is_found_whenever_two_moves_are_enough_and_takes_the_fewest(name: str, gpus: int, tries: int) -> None:
    board, chance = BOARDS[name], random.Random(gpus)
    made, needed = geometry(board), set()
    for _ in range(tries):
        there = crowded(board, gpus, chance)
        for wanted in board.profiles:
            found, fewest = plan_repair(made, there, wanted), fewest_moves(made, there, wanted)
            assert (None if found is None else len(found.moves)) == fewest
            if found is not None:
                assert found.wanted.placement.profile == wanted
                carried_out(made, there, found)
            needed.add(fewest)
    assert needed == {None, 0, 1, 2}


def test_nothing_is_moved_for_what_fits() -> None:
    found = plan([gpu(movable="3g.40gb@4"), gpu()], "7g.80gb")
    assert found is not None
    assert (found.moves, found.wanted.gpu) == ((), 1)


def test_what_is_in_use_stays() -> None:
    assert plan([gpu(fixed="1g.10gb@6"), gpu(fixed="1g.10gb@0")], "7g.80gb") is None


def test_an_idle_instance_makes_way_for_a_whole_gpu() -> None:
    found = plan([gpu(movable="1g.10gb@6"), gpu(fixed="4g.40gb@0")], "7g.80gb")
    assert str(found) == "1g.10gb@6 of GPU 0 to GPU 1 start 6; then 7g.80gb@0 on GPU 0"


def test_one_may_make_way_for_another_that_makes_way() -> None:
    """The 3g must leave for the 7g, but only fits where a 1g leaves, which then goes to a GPU without room for a 3g."""
    there = [
        gpu(movable="3g.40gb@4"),
        gpu(fixed="4g.40gb@0", movable="1g.10gb@4"),
        gpu(fixed="4g.40gb@0 2g.20gb@4"),
    ]
    found = plan(there, "7g.80gb")
    assert found is not None
    assert [(move.source.gpu, move.to.gpu) for move in found.moves] == [(0, 1), (1, 2)]


def test_an_idle_instance_is_found_behind_gpus_that_look_alike_and_are_in_use() -> None:
    found = plan([*[gpu(fixed="1g.10gb@6")] * 3, gpu(movable="1g.10gb@6")], "7g.80gb")
    assert found is not None
    assert found.wanted.gpu == 3


def test_of_two_that_move_the_first_leaves_the_only_place_to_the_second() -> None:
    """Both GPUs have room for a 1g; one of them has none for a second accelerator."""
    board = BOARDS["H100-80GB"]

    def there(**holds: str) -> list[PlacedInstance]:
        return [
            PlacedInstance(Placement(profile(name, board), int(start)), hold == "movable")
            for hold, written in holds.items()
            for name, start in (each.split("@") for each in written.split())
        ]

    gpus = [
        there(fixed="3g.40gb@0", movable="1g.10gb@4 1g.10gb+me@5"),
        there(fixed="4g.40gb@0 1g.10gb@4 1g.10gb@5"),
        there(fixed="4g.40gb@0 1g.10gb+me@4 1g.10gb@5"),
    ]
    found = plan_repair(geometry(board), gpus, profile("3g.40gb", board), 2)
    assert found is not None
    assert {str(move.source.placement): move.to.gpu for move in found.moves} == {
        "1g.10gb@4": 2,
        "1g.10gb+me@5": 1,
    }


def test_an_instance_that_finds_no_other_place_stays() -> None:
    assert plan([gpu(movable="1g.10gb@6"), gpu(fixed="7g.80gb@0")], "7g.80gb") is None


def test_no_more_is_moved_than_permitted() -> None:
    there = [gpu(movable="1g.10gb@6 1g.10gb@0"), gpu(fixed="4g.40gb@0")]
    assert plan(there, "7g.80gb", 1) is None
    assert plan(there, "7g.80gb", 0) is None
    found = plan(there, "7g.80gb", 2)
    assert found is not None
    assert len(found.moves) == 2


def test_of_ways_with_as_many_moves_the_one_that_leaves_most_is_taken() -> None:
    """Either half of the first GPU could be freed for the 3g; the right half leaves more."""
    found = plan([gpu(movable="1g.10gb@0 1g.10gb@5", fixed=""), gpu(fixed="4g.40gb@0 2g.20gb@4")], "3g.40gb")
    assert found is not None
    assert (found.wanted.start, len(found.moves)) == (4, 1)


def test_of_ways_that_cost_as_much_the_one_on_the_fuller_gpu_is_taken() -> None:
    there = [gpu(movable="3g.40gb@0"), gpu(fixed="1g.20gb@6 1g.10gb@5", movable="3g.40gb@0 1g.10gb@4")]
    assert str(plan(there, "4g.40gb")) == "3g.40gb@0 of GPU 1 to GPU 0 start 4; then 4g.40gb@0 on GPU 1"
