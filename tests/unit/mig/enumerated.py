"""What one and several GPUs can hold, found by trying everything: what the planner is held against.

Uses nothing of the planner but its values; legality is the simulator's, unit by unit and engine by engine.
"""

from collections.abc import Iterable

from draco.mig.board import Board, Placement, Profile
from draco.mig.known_boards import BOARDS
from draco_local.simulator.gpus.mig_profiles import free_starts

Layout = frozenset[Placement]
Counts = tuple[int, ...]


def plain(name: str) -> Board:
    """A board with only the profiles whose names have no suffix: the grid most literature counts."""
    return Board(tuple(profile for profile in BOARDS[name].profiles if not set("+-") & set(profile.name)))


def layouts(board: Board, table: Board) -> set[Layout]:
    """Every layout of one GPU that can be made instance by instance."""
    rows = {row.name: row for row in table.profiles}
    found: set[Layout] = set()
    left: list[Layout] = [frozenset()]
    while left:
        layout = left.pop()
        if layout not in found:
            found.add(layout)
            left += grown(board, table, rows, layout)
    return found


def grown(board: Board, table: Board, rows: dict[str, Profile], layout: Layout) -> Iterable[Layout]:
    """The layouts with one instance more."""
    there = [Placement(rows[each.profile.name], each.start) for each in layout]
    for profile in board.profiles:
        for start in free_starts(table, rows[profile.name], there):
            yield layout | {Placement(profile, start)}


def maximal_layouts(found: set[Layout]) -> set[Layout]:
    """Those to which nothing can be added."""
    parts = {layout - {one} for layout in found for one in layout}
    return found - parts


def multiset(board: Board, layout: Layout) -> Counts:
    """How many of each of the board's profiles."""
    return tuple(sum(each.profile == profile for each in layout) for profile in board.profiles)


def within(one: Counts, other: Counts) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def maximal(found: set[Counts]) -> set[Counts]:
    return {one for one in found if not any(one != other and within(one, other) for other in found)}


def table_of(name: str) -> Board:
    return BOARDS[name]
