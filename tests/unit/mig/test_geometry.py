"""Geometry: what fits on one GPU, compared with everything that can be created on the simulator's boards."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from draco.mig.board import Board, Placement, Profile
from draco.mig.geometry import Geometry, State, geometry, scarce
from draco.mig.known_boards import BOARDS
from tests.unit.mig.enumerated import Layout, layouts, maximal, maximal_layouts, multiset, plain, table_of

ALL = sorted(BOARDS)


def the_grid() -> tuple[Board, set[Layout]]:
    board = plain("H100-80GB")
    return board, layouts(board, table_of("H100-80GB"))


def placed(board: Board, *written: str) -> list[Placement]:
    """Placements from their text, such as `3g.40gb@4`."""
    found = []
    for each in written:
        name, _, start = each.partition("@")
        profile = board.profile(name)
        assert profile is not None
        found.append(Placement(profile, int(start)))
    return found


def reachable(made: Geometry) -> set[State]:
    """Every state that a GPU can reach."""
    met, left = {made.empty}, [made.empty]
    while left:
        state = left.pop()
        after = {made.add(state, placement) for placement in made.fits(state)} - met
        met |= after
        left += after
    return met


def test_the_grid_of_seven_slices_has_the_published_numbers_of_states_and_layouts() -> None:
    board, found = the_grid()
    assert len(found) == 723
    assert len(maximal_layouts(found)) == 78
    made = {multiset(board, layout) for layout in found}
    assert (len(made), len(maximal(made))) == (78, 28)
    masks = {state.mask for state in reachable(geometry(board))}
    assert len(masks) == 192
    assert masks == {geometry(board).state_of(layout).mask for layout in found}


def test_without_the_double_memory_profile_the_grid_has_nvidias_nineteen_layouts() -> None:
    board, found = the_grid()
    [double] = [profile for profile in board.profiles if profile.name == "1g.20gb"]
    without = {layout for layout in found if all(each.profile != double for each in layout)}
    assert len(maximal_layouts(without)) == 19


@pytest.mark.parametrize("name", ALL)
def test_every_state_says_of_each_placement_whether_it_can_be_made(name: str) -> None:
    board, made = BOARDS[name], geometry(BOARDS[name])
    found = layouts(board, table_of(name))
    for layout in found:
        state = made.state_of(layout)
        legal = {each for each in board.placements if layout | {each} in found and each not in layout}
        assert set(made.fits(state)) == legal
        assert {each for each in board.placements if made.fits_at(state, each)} == legal
    assert {made.state_of(layout) for layout in found} == reachable(made)


@pytest.mark.parametrize("name", ALL)
def test_room_is_the_most_of_one_profile_that_fits_beside_what_is_there(name: str) -> None:
    board, made = BOARDS[name], geometry(BOARDS[name])

    def most(state: State, profile: Profile) -> int:
        further = [each for each in made.fits(state) if each.profile == profile]
        return max((1 + most(made.add(state, each), profile) for each in further), default=0)

    for state in sorted(reachable(made))[::5]:
        assert {p.name: made.room(state, p) for p in board.profiles} == {p.name: most(state, p) for p in board.profiles}


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        *(("H100-80GB", ["ofa_engines"]), ("A100-40GB", ["ofa_engines"]), ("A30", ["ofa_engines"])),
        ("RTX-PRO-6000", ["ofa_engines", "decoders"]),
    ],
)
def test_only_engines_that_can_run_out_are_counted(name: str, counted: list[str]) -> None:
    assert [token.name for token in scarce(BOARDS[name])] == counted


def test_beside_all_media_engines_only_profiles_without_any_fit() -> None:
    board = BOARDS["RTX-PRO-6000"]
    made = geometry(board)
    beside = made.fits(made.state_of(placed(board, "1g.24gb+me.all@0")))
    assert {each.profile.name for each in beside} == {"1g.24gb-me", "2g.48gb-me"}


def test_numbers_that_contradict_the_promised_instances_are_not_used() -> None:
    """One board's listing says that two 3g need six of five decoders, although two are promised and were seen."""
    board = plain("A100-80GB")
    odd = Board(tuple(replace(p, decoders=3) if p.slices == 3 else p for p in board.profiles))
    assert scarce(odd) == ()


def test_promised_instances_limit_where_neither_units_nor_engines_do() -> None:
    small = Profile(id=1, name="1g", slices=1, size=1, starts=(0, 1, 2, 3), max_instances=2)
    board = Board((small, Profile(id=0, name="4g", slices=4, size=4, starts=(0,), max_instances=1)))
    made = geometry(board)
    assert made.room(made.empty, small) == 2
    assert made.fits(made.state_of([Placement(small, 0), Placement(small, 1)])) == ()


def test_of_what_is_overdrawn_nothing_more_fits_and_the_rest_is_none_the_worse() -> None:
    """A driver may have more instances than it promised, if a number is wrong or its version has changed."""
    small = Profile(id=1, name="1g", slices=1, size=1, starts=(0, 1, 2, 3), max_instances=2)
    other = Profile(id=2, name="1g+me", slices=1, size=1, starts=(3,), max_instances=1)
    made = geometry(Board((small, other, Profile(id=0, name="4g", slices=4, size=4, starts=(0,), max_instances=1))))
    overdrawn = made.state_of(Placement(small, start) for start in range(3))
    assert made.room(overdrawn, small) == 0
    assert made.fits(overdrawn) == (Placement(other, 3),)


def test_engines_are_not_counted_where_no_profile_has_all_of_them() -> None:
    """The total is known from the profile that takes the whole board."""
    two = Profile(id=1, name="2g", slices=2, size=2, starts=(0,), max_instances=1, decoders=1)
    one = Profile(id=2, name="1g", slices=1, size=1, starts=(2,), max_instances=1, decoders=1)
    made = geometry(Board((two, one)))
    assert made.fits(made.state_of([Placement(two, 0)])) == (Placement(one, 2),)


def test_a_placement_that_the_board_does_not_have_never_fits() -> None:
    board = plain("H100-80GB")
    made = geometry(board)
    assert made.fits_at(made.empty, *placed(board, "2g.20gb@2"))
    assert not made.fits_at(made.empty, *placed(board, "2g.20gb@1"))


def test_capability_counts_each_profile_as_if_it_came_alone() -> None:
    made = geometry(plain("H100-80GB"))
    assert made.capability(made.empty) == 7 * 1 + 4 * 1 + 3 * 2 + 2 * 3 + 1 * 4 + 1 * 7


def test_profiles_of_one_size_are_no_variants_if_they_differ_in_slices_or_in_starts() -> None:
    one = Profile(id=1, name="1g", slices=1, size=2, starts=(0, 2), max_instances=2)
    two = Profile(id=2, name="2g", slices=2, size=2, starts=(0, 2), max_instances=2)
    left = Profile(id=3, name="2g.left", slices=2, size=2, starts=(0,), max_instances=1)
    made = geometry(Board((one, two, left, Profile(id=0, name="4g", slices=4, size=4, starts=(0,), max_instances=1))))
    assert made.capability(made.empty) == 2 * 1 + 2 * 2 + 1 * 2 + 1 * 4


@pytest.mark.parametrize("name", ALL)
def test_variants_with_other_engines_do_not_count_again(name: str) -> None:
    full, grid = geometry(BOARDS[name]), geometry(plain(name))
    assert full.capability(full.empty) == grid.capability(grid.empty)
    assert {grid.capability(State(state.mask, (), state.instances)) for state in reachable(full)} == {
        grid.capability(state) for state in reachable(grid)
    }


@pytest.mark.parametrize(
    ("there", "wanted", "start"),
    [
        ([], "3g.40gb", 4),  # the half with one slice less
        ([], "1g.10gb", 6),  # beside the unit that nothing else can use
        ([], "1g.20gb", 6),
        ([], "2g.20gb", 4),
        (["1g.10gb@6"], "1g.10gb", 5),  # keeps whole halves free
        (["3g.40gb@4"], "1g.10gb", 3),
    ],
)
def test_a_placement_takes_least_of_what_could_still_come(there: list[str], wanted: str, start: int) -> None:
    board = plain("H100-80GB")
    made = geometry(board)
    [profile] = [each for each in board.profiles if each.name == wanted]
    best = made.best(made.state_of(placed(board, *there)), profile)
    assert best is not None
    assert best.placement.start == start


def test_room_is_kept_only_for_the_profiles_that_are_wanted() -> None:
    board = plain("H100-80GB")
    two = board.profile("2g.20gb")
    made = geometry(board, frozenset({"2g.20gb"}))
    assert two is not None
    assert made.capability(made.empty) == 6
    assert made.rank(made.empty, *placed(board, "1g.10gb@6")).loss == 0
    assert made.rank(made.empty, *placed(board, "1g.10gb@5")).loss == 2


def test_equal_tables_share_one_geometry() -> None:
    again = Board(tuple(map(replace, BOARDS["A30"].profiles)))
    assert again is not BOARDS["A30"]
    assert geometry(again) is geometry(BOARDS["A30"])


@given(st.sampled_from(ALL), st.randoms(use_true_random=False))
def test_taking_an_instance_away_undoes_putting_it(name: str, chance: random.Random) -> None:
    made: Geometry = geometry(BOARDS[name])
    path = [made.empty]
    there: list[Placement] = []
    while made.fits(path[-1]) and chance.random() < 0.8:
        there.append(chance.choice(made.fits(path[-1])))
        path.append(made.add(path[-1], there[-1]))
    while there:
        state = made.remove(path.pop(), there.pop())
        assert state == path[-1]
