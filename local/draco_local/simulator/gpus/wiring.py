"""How the GPUs of a simulated node are wired: switches by their board, bridges between pairs of cards, a fabric of several nodes.

Owns which NVLinks a GPU has and where they end, and changing that by hand. What NVML says of it is in `nvml.links`.
"""

import uuid
from pathlib import Path

from draco_local.simulator.gpus.boards import BoardError, board_named
from draco_local.simulator.gpus.gpu_state import GpuState
from draco_local.simulator.gpus.state import mutate


def links_of(gpu: GpuState) -> int:
    """How many NVLinks a GPU has: none where they are off. A card that takes a bridge has some while it has one."""
    if not gpu.nvlink:
        return 0
    board = board_named(gpu.board)
    return board.nvlinks or (board.bridge_links if gpu.bridged_to else 0)


def bridge_pairs(path: Path) -> None:
    """Put a bridge on the first two GPUs of the node, on the next two, and so on; an odd one is left without.

    BoardError for a board that takes none.
    """
    with mutate(path) as state:
        for one, other in zip(state.gpus[::2], state.gpus[1::2], strict=False):
            if not board_named(one.board).bridge_links:
                raise BoardError(f"No NVLink bridge fits on board {one.board}.")
            one.bridged_to, other.bridged_to = other.uuid, one.uuid


def join_fabric(path: Path, *, cluster: uuid.UUID, clique: int, joined: bool = True) -> None:
    """Make the node's GPUs part of an NVLink fabric of several nodes. Unless `joined`, they are still joining."""
    with mutate(path) as state:
        for gpu in state.gpus:
            gpu.cluster, gpu.clique, gpu.joined = str(cluster), clique, joined
