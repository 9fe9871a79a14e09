"""Boards of nodes as the planner knows them.

Owns the way from a table in a GpuNode to a board: equal tables make equal boards, which share all that is worked out for them.
"""

from collections.abc import Mapping
from functools import lru_cache

from draco.mig.board import Board, Profile
from draco.resources.api.draco import BoardTable, GpuNode, MigProfile
from draco.resources.quantity import Quantity, QuantityError


def boards_of(node: GpuNode) -> dict[str, Board]:
    """The node's boards by the names that its GPUs call them."""
    return {table.name: board_of(table) for table in node.status.boards}


def board_of(table: BoardTable) -> Board:
    """One table as a board: the same object for equal tables, since thousands of nodes report the same few."""
    return _shared(Board(tuple(_profile(row) for row in table.profiles)))


@lru_cache(maxsize=256)
def _shared(board: Board) -> Board:
    return board


def profile_names(boards: Mapping[str, Board]) -> list[str]:
    """Every profile that one of the boards has, smallest first."""
    profiles = {profile.name: profile for board in boards.values() for profile in board.profiles}
    return [each.name for each in sorted(profiles.values(), key=lambda each: (each.size, each.slices, each.name))]


def _profile(row: MigProfile) -> Profile:
    return Profile(
        id=row.id,
        name=row.name,
        slices=row.slices,
        size=row.size,
        starts=tuple(sorted(row.starts)),
        max_instances=row.max_instances or len(row.starts),
        memory_mib=_mebibytes(row.memory),
        multiprocessors=row.multiprocessors,
        copy_engines=row.copy_engines,
        decoders=row.decoders,
        encoders=row.encoders,
        jpeg_engines=row.jpeg_engines,
        ofa_engines=row.ofa_engines,
    )


@lru_cache(maxsize=1024)
def _mebibytes(text: str) -> int:
    try:
        return Quantity.parse(text).value() >> 20 if text else 0
    except QuantityError:
        return 0
