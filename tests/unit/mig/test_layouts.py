"""Layouts: which can exist on a board, and what is said about those that cannot."""

import pytest

from draco.mig.board import Board, Placement
from draco.mig.geometry import geometry
from draco.mig.known_boards import BOARDS
from draco.mig.layouts import LayoutError, resolve
from draco.resources.api.draco import LayoutInstances
from tests.unit.mig.enumerated import layouts, multiset, plain, table_of

H100 = BOARDS["H100-80GB"]


def items(*written: str) -> list[LayoutInstances]:
    """Items from `3 x 1g.10gb` or `3g.40gb@4`."""
    found = []
    for each in written:
        number, _, name = each.rpartition(" x ")
        name, _, start = name.partition("@")
        found.append(LayoutInstances(profile=name, count=int(number or 1), start=int(start) if start else None))
    return found


def shown(*written: str, board: Board = H100, present: tuple[Placement, ...] = ()) -> list[str]:
    return [str(each) for each in resolve(board, items(*written), present)]


@pytest.mark.parametrize(
    ("written", "placements"),
    [
        (["7 x 1g.10gb"], [f"1g.10gb@{start}" for start in range(7)]),
        (["2g.20gb", "3g.40gb"], ["2g.20gb@0", "3g.40gb@4"]),
        (["3 x 2g.20gb", "1g.20gb"], ["2g.20gb@0", "2g.20gb@2", "2g.20gb@4", "1g.20gb@6"]),
        (["3g.40gb@0", "3g.40gb"], ["3g.40gb@0", "3g.40gb@4"]),
        (["1g.10gb"], ["1g.10gb@6"]),
        ([], []),
    ],
)
def test_a_layout_gets_placements_that_leave_most(written: list[str], placements: list[str]) -> None:
    assert shown(*written) == placements


def test_instances_that_are_there_stay_where_they_are() -> None:
    [small] = [profile for profile in H100.profiles if profile.name == "1g.10gb"]
    assert shown("2 x 1g.10gb", present=(Placement(small, 3),)) == ["1g.10gb@2", "1g.10gb@3"]


@pytest.mark.parametrize("name", ["H100-80GB", "A30"])
def test_exactly_the_layouts_that_can_be_made_are_legal(name: str) -> None:
    board = plain(name)
    legal = {multiset(board, layout) for layout in layouts(board, table_of(name))}
    more = {(*each[:at], each[at] + 1, *each[at + 1 :]) for each in legal for at in range(len(each))}
    told = {counts: outcome(board, counts) for counts in (legal | more) if any(counts)}
    assert {counts for counts, (placed, _) in told.items() if placed} == {counts for counts in legal if any(counts)}
    for counts, (placed, nearest) in told.items():
        assert exists(board, placed or nearest)
        assert not placed or multiset(board, frozenset(placed)) == counts


def outcome(board: Board, counts: tuple[int, ...]) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
    """The placements it resolves to and (); or () and the nearest ones."""
    try:
        return resolve(
            board, [LayoutInstances(profile=p.name, count=n) for p, n in zip(board.profiles, counts, strict=True) if n]
        ), ()
    except LayoutError as error:
        return (), error.nearest


def exists(board: Board, placements: tuple[Placement, ...]) -> bool:
    """Whether it can be created instance by instance."""
    made = geometry(board)
    state = made.empty
    for each in placements:
        if not made.fits_at(state, each):
            return False
        state = made.add(state, each)
    return bool(placements)


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (
            ["4 x 2g.20gb"],
            (
                "4 x 2g.20gb do not fit on a GPU, which holds at most 3; "
                "the nearest that can exist is 3 x 2g.20gb, 1 x 1g.20gb"
            ),
        ),
        (
            ["2 x 3g.40gb", "1g.10gb"],
            (
                "2 x 3g.40gb, 1 x 1g.10gb together take 9 memory units, and a GPU has 8; "
                "the nearest that can exist is 2 x 3g.40gb"
            ),
        ),
        (
            ["4g.40gb", "4 x 1g.10gb"],
            (
                "1 x 4g.40gb, 4 x 1g.10gb do not fit beside each other, wherever they start; "
                "the nearest that can exist is 1 x 4g.40gb, 3 x 1g.10gb"
            ),
        ),
        (
            ["3g.40gb@0", "4g.40gb"],
            (
                "3g.40gb at 0, 1 x 4g.40gb overlap where they are to start; "
                "the nearest that can exist is 4g.40gb at 0, 3g.40gb at 4"
            ),
        ),
        (
            ["2 x 4g.40gb"],
            (
                "2 x 4g.40gb do not fit on a GPU, which holds at most 1; "
                "the nearest that can exist is 1 x 4g.40gb, 1 x 3g.40gb"
            ),
        ),
        (
            ["1000000 x 1g.10gb"],
            "1000000 x 1g.10gb do not fit on a GPU, which holds at most 7; the nearest that can exist is 7 x 1g.10gb",
        ),
        (
            ["2 x 4g.40gb", "2 x 1g.10gb+me"],  # the message is about the first profile that is too many
            (
                "2 x 4g.40gb do not fit on a GPU, which holds at most 1; "
                "the nearest that can exist is 1 x 4g.40gb, 1 x 2g.20gb, 1 x 1g.10gb+me"
            ),
        ),
        (
            ["2 x 1g.10gb+me", "2 x 4g.40gb"],
            (
                "2 x 1g.10gb+me do not fit on a GPU, which holds at most 1; "
                "the nearest that can exist is 1 x 4g.40gb, 1 x 2g.20gb, 1 x 1g.10gb+me"
            ),
        ),
        (
            ["4g.40gb", "6 x 1g.10gb"],  # more units before more instances
            (
                "1 x 4g.40gb, 6 x 1g.10gb together take 10 memory units, and a GPU has 8; "
                "the nearest that can exist is 1 x 4g.40gb, 3 x 1g.10gb"
            ),
        ),
        (["3g.40gb@2"], "3g.40gb cannot start at 2: it starts at 0 or 4, 0 is nearest"),
        (["2 x 1g.10gb@3"], "2 x 1g.10gb cannot all start at 3: give each its own start"),
        (
            ["1g.10gb@3", "1g.10gb@3"],
            "2 x 1g.10gb at 3 overlap where they are to start; the nearest that can exist is 1g.10gb at 2, 1g.10gb at 3",
        ),
        (["0 x 1g.10gb"], "count of 1g.10gb is 0: it must be at least 1"),
        (
            ["1g.5gb"],
            (
                "there is no profile 1g.5gb on this board; the nearest that can exist is 1 x 1g.10gb (the board has 1g.10gb, "
                "1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb)"
            ),
        ),
        (
            ["1g.5gb", "2g.20gb", "3g.41gb", "1g.5gb"],
            (
                "there is no profile 1g.5gb or 3g.41gb on this board; the nearest that can exist is 1 x 3g.40gb, 1 x 2g.20gb, "
                "2 x 1g.10gb (the board has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb)"
            ),
        ),
        (
            ["9g.5gb"],
            (
                "there is no profile 9g.5gb on this board (the board has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, "
                "4g.40gb, 7g.80gb)"
            ),
        ),
    ],
)
def test_a_layout_that_cannot_exist_is_told_why_and_what_comes_nearest(written: list[str], sentence: str) -> None:
    with pytest.raises(LayoutError) as told:
        resolve(H100, items(*written))
    assert str(told.value) == sentence


@pytest.mark.parametrize(
    ("board", "written", "nearest"),
    [
        (
            "A100-40GB",
            ["2 x 1g.10gb", "2g.20gb", "3g.40gb"],
            "1 x 3g.20gb, 1 x 2g.10gb, 2 x 1g.5gb",
        ),  # the board has a 1g.10gb
        ("A30", ["2 x 1g.10gb", "2g.20gb", "3g.40gb"], "1 x 2g.12gb, 2 x 1g.6gb"),  # the board has nothing like a 3g
        ("A30", ["3g.40gb", "3g.40gb"], ""),
        ("H200-141GB", ["3g.40gb@4", "4 x 1g.10gb"], "1 x 3g.71gb, 4 x 1g.18gb"),
        ("H200-141GB", ["1g.20gb", "1g.10gb+me"], "1 x 1g.35gb, 1 x 1g.18gb+me"),
        ("B200", ["1g.24gb", "1g.46gb"], "1 x 1g.45gb, 1 x 1g.23gb"),  # of no known board
        ("RTX-PRO-6000", ["2g.20gb", "2g.20gb"], "2 x 2g.48gb"),
        ("H100-80GB", ["7g.79gb", "1g.9gb"], "1 x 7g.80gb"),
        ("H200-141GB", ["MIG 3g.40gb", "4 x MIG 1g.10gb"], "1 x 3g.71gb, 4 x 1g.18gb"),
    ],
)
def test_a_layout_of_another_board_is_told_as_this_one_has_it(board: str, written: list[str], nearest: str) -> None:
    with pytest.raises(LayoutError) as told:
        resolve(BOARDS[board], items(*written))
    advice = str(told.value).partition("; the nearest that can exist is ")[2]
    assert advice.partition(" (the board has ")[0] == nearest


def test_a_profile_as_nvidia_smi_writes_it_is_told_how_to_write() -> None:
    for written in ("MIG 1g.10gb", "1G.10GB"):
        with pytest.raises(
            LayoutError, match=rf"no profile {written} on this board, write 1g\.10gb \(the board has 1g\.10gb, "
        ):
            resolve(H100, [LayoutInstances(profile=written)])


def test_engines_are_told_where_they_and_not_the_units_are_too_few() -> None:
    with pytest.raises(LayoutError, match="together need 5 decoders, and a GPU has 4"):
        resolve(BOARDS["RTX-PRO-6000"], items("1g.24gb+me.all", "1g.24gb"))
    with pytest.raises(LayoutError, match="together need 2 optical flow accelerators, and a GPU has 1"):
        resolve(BOARDS["RTX-PRO-6000"], items("1g.24gb+me", "1g.24gb+me.all"))
