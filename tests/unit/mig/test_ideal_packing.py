"""Packing: what fits on several GPUs, compared with all sums of what single GPUs can hold."""

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from draco.mig.board import Board, Profile
from draco.mig.ideal_packing import ClosedForm, packable, shape
from draco.mig.known_boards import BOARDS
from tests.unit.mig.enumerated import Counts, layouts, maximal, multiset, plain, table_of


def on_one(board: Board, name: str) -> set[Counts]:
    return {multiset(board, layout) for layout in layouts(board, table_of(name))}


def on_several(one: set[Counts], gpus: int) -> set[Counts]:
    sums = {tuple(0 for _ in next(iter(one)))}
    for _ in range(gpus):
        sums = {tuple(map(int.__add__, some, more)) for some in sums for more in one}
    return sums


def fits(board: Board, counts: Counts, gpus: int) -> bool:
    return packable(board, dict(zip(board.profiles, counts, strict=True)), gpus)


def wrong_at_the_border(board: Board, fitting: set[Counts], gpus: int, tried: list[Counts]) -> list[Counts]:
    """Counts with a wrong answer, among those tried and those with one more instance."""
    more = [(*c[:i], c[i] + 1, *c[i + 1 :]) for c in tried for i in range(len(c))]
    return [each for each in (*tried, *more) if fits(board, each, gpus) != (each in fitting)]


def test_each_board_has_the_shape_its_table_gives_it() -> None:
    shapes = {name: shape(board) for name, board in BOARDS.items()}
    nested = {"A30", "RTX-PRO-6000"}
    assert shapes == {name: ClosedForm.NESTED if name in nested else ClosedForm.SEVEN_SLICES for name in BOARDS}


@pytest.mark.exhaustive
@pytest.mark.parametrize("gpus", [1, 2])
def test_the_closed_form_of_seven_slices_is_right_for_every_count_on_one_and_two_gpus(gpus: int) -> None:
    board = plain("H100-80GB")
    fitting = on_several(on_one(board, "H100-80GB"), gpus)
    most = [max(each[index] for each in fitting) + 2 for index in range(len(board.profiles))]
    assert [c for c in product(*map(range, most)) if fits(board, c, gpus) != (c in fitting)] == []


def test_the_closed_form_of_seven_slices_is_right_at_the_border_on_three_gpus() -> None:
    board = plain("A100-80GB")
    fitting = on_several(on_one(board, "A100-80GB"), 3)
    assert wrong_at_the_border(board, fitting, 3, sorted(fitting)) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "gpus", "sample"),
    [
        *(("H100-80GB", 1, 1), ("H100-80GB", 2, 1), ("H100-80GB", 3, 4), ("A30", 1, 1), ("A30", 2, 1), ("A30", 3, 1)),
        *(("RTX-PRO-6000", 1, 1), ("RTX-PRO-6000", 2, 16), ("RTX-PRO-6000", 3, 400)),
    ],
)
def test_with_media_engines_the_answer_is_right_at_the_border(name: str, gpus: int, sample: int) -> None:
    board = BOARDS[name]
    fitting = on_several(on_one(board, name), gpus)
    assert wrong_at_the_border(board, fitting, gpus, sorted(fitting)[::sample]) == []


def test_one_gpu_gives_one_of_its_accelerator_even_if_more_small_instances_fit() -> None:
    board = BOARDS["H100-80GB"]
    counts = {"4g.40gb": 2, "3g.40gb": 1, "1g.10gb+me": 2}
    made = {profile: counts[profile.name] for profile in board.profiles if profile.name in counts}
    assert not packable(board, made, 2)
    assert packable(board, made, 3)


@st.composite
def unknown_boards(draw: st.DrawFn) -> Board:
    """Arbitrary tables: any sizes and starts, some with an accelerator of which there are only one or two."""
    units = draw(st.integers(3, 6))
    profiles = [Profile(id=0, name="whole", slices=units, size=units, starts=(0,), max_instances=1, ofa_engines=2)]
    for index in range(1, draw(st.integers(1, 3)) + 1):
        size = draw(st.integers(1, units))
        starts = draw(st.sets(st.integers(0, units - size), min_size=1))
        name, media = f"profile-{index}", draw(st.integers(0, 1))
        most = 1 if media else units
        profiles.append(
            Profile(
                id=index, name=name, slices=1, size=size, starts=tuple(starts), max_instances=most, ofa_engines=media
            )
        )
    return Board(tuple(profiles))


@settings(max_examples=60, deadline=None)
@given(unknown_boards(), st.integers(1, 3), st.randoms(use_true_random=False))
def test_boards_never_met_before_are_searched_exactly(board: Board, gpus: int, chance: random.Random) -> None:
    fitting = on_several(multisets_unit_by_unit(board), gpus)
    tried = chance.sample(sorted(fitting), min(40, len(fitting)))
    assert wrong_at_the_border(board, fitting, gpus, tried) == []


def test_the_grid_of_seven_slices_with_two_of_an_accelerator_is_answered_exactly() -> None:
    """The closed form handles one accelerator; here, two go to one GPU."""
    grid = plain("H100-80GB")
    rare = Profile(id=20, name="1g+me", slices=1, size=1, starts=tuple(range(7)), max_instances=2, ofa_engines=1)
    kept = [replace(each, ofa_engines=2 if each.size == 8 else 0) for each in grid.profiles if each.slices in (3, 7)]
    board = Board((*kept, rare))
    assert shape(board) is ClosedForm.SEVEN_SLICES
    fitting = on_several(multisets_unit_by_unit(board), 2)
    assert wrong_at_the_border(board, fitting, 2, sorted(fitting)) == []


def test_units_that_suffice_are_not_enough_where_sizes_do_not_divide_each_other() -> None:
    sizes = {6: 4, 10: 2, 15: 1}
    profiles = {
        size: Profile(
            id=size, name=str(size), slices=1, size=size, starts=tuple(range(0, 30, size)), max_instances=30 // size
        )
        for size in sizes
    }
    board = Board(tuple(profiles.values()))
    wanted = {profiles[size]: number for size, number in sizes.items()}
    assert sum(size * number for size, number in sizes.items()) < 2 * board.units
    assert not packable(board, wanted, 2)
    assert packable(board, wanted, 3)


def multisets_unit_by_unit(board: Board) -> set[Counts]:
    """Everything that one GPU can hold, by trying all placements in order, with sets of units."""
    found: set[Counts] = set()

    def grow(made: Counts, taken: frozenset[int], first: int) -> None:
        found.add(made)
        placements = board.placements
        for index in range(first, len(placements)):
            each = placements[index]
            at = board.profiles.index(each.profile)
            more = (*made[:at], made[at] + 1, *made[at + 1 :])
            media = sum(p.ofa_engines * n for p, n in zip(board.profiles, more, strict=True))
            enough = all(n <= p.max_instances for p, n in zip(board.profiles, more, strict=True))
            if taken.isdisjoint(each.units) and media <= 2 and enough:
                grow(more, taken | set(each.units), index + 1)

    grow((0,) * len(board.profiles), frozenset(), 0)
    return found


def test_a_thousand_gpus_are_answered_without_deep_recursion() -> None:
    board = BOARDS["RTX-PRO-6000"]
    media = {profile: 250 for profile in board.profiles if "+me" in profile.name}
    rest = {profile: 100 for profile in board.profiles if "+me" not in profile.name}
    assert packable(board, media, 1000)
    needed = 3 * 250 + 2 * 100  # each +me and each whole board needs a GPU of its own
    assert packable(board, media | rest, needed)
    assert not packable(board, media | rest, needed - 1)


def test_the_maximal_counts_of_the_grid_are_the_published_number() -> None:
    assert len(maximal(on_one(plain("B200"), "B200"))) == 28
