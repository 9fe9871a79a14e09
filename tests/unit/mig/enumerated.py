"""What one or several GPUs can hold, found by exhaustive search, for comparison with the planner.

Uses nothing of the planner but its values; what is legal is decided by the simulator, unit by unit and engine by engine.
"""

from collections.abc import Iterable

from draco.mig.board import Board, Placement, Profile
from draco.mig.known_boards import BOARDS
from draco_local.simulator.gpus.mig_profiles import free_starts

Layout = frozenset[Placement]
Counts = tuple[int, ...]


def plain(name: str) -> Board:
    """A board with only the profiles without a suffix in their names: the grid that most literature covers."""
    return Board(tuple(profile for profile in BOARDS[name].profiles if not set("+-") & set(profile.name)))


def layouts(board: Board, table: Board) -> set[Layout]:
    """Every layout of one GPU that can be created instance by instance."""
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
    """The layouts with one more instance."""
    there = [Placement(rows[each.profile.name], each.start) for each in layout]
    for profile in board.profiles:
        for start in free_starts(table, rows[profile.name], there):
            yield layout | {Placement(profile, start)}


def maximal_layouts(found: set[Layout]) -> set[Layout]:
    """The layouts to which nothing can be added."""
    parts = {layout - {one} for layout in found for one in layout}
    return found - parts


def multiset(board: Board, layout: Layout) -> Counts:
    """The number of instances of each of the board's profiles."""
    return tuple(sum(each.profile == profile for each in layout) for profile in board.profiles)


def within(one: Counts, other: Counts) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def maximal(found: set[Counts]) -> set[Counts]:
    return {one for one in found if not any(one != other and within(one, other) for other in found)}


def table_of(name: str) -> Board:
    return BOARDS[name]
