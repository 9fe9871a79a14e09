"""The simulator's MIG tables as the planner sees a board, for planning capacity without having the GPUs.

Owns the translation only. Product code on a cluster never comes here: it plans from what NVML reports.
"""

from collections.abc import Mapping
from types import MappingProxyType

from draco.mig.board import Board, Profile
from draco.simulator.boards_mig import MIG_BY_BOARD, MigTable


def board_of(table: MigTable) -> Board:
    """The same table as NVML would report it to the planner."""
    return Board(
        tuple(
            Profile(
                id=each.id,
                name=each.name,
                slices=each.slices,
                size=each.size,
                starts=each.starts,
                max_instances=each.max_instances,
                memory_mib=each.memory_mib,
                multiprocessors=each.multiprocessors,
                copy_engines=each.copy_engines,
                decoders=each.decoders,
                encoders=each.encoders,
                jpeg_engines=each.jpegs,
                ofa_engines=each.ofas,
            )
            for each in table.profiles
        )
    )


BOARDS: Mapping[str, Board] = MappingProxyType({name: board_of(table) for name, table in MIG_BY_BOARD.items()})
"""The boards by name."""
