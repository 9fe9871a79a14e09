"""MIG profiles and placements of NVIDIA's boards, from `known_boards.toml`.

Owns the reading only. The tables serve planning without GPUs (`draco simulate mig`, `draco autoscale template`) and simulated
GPUs. Clusters plan from NVML's report instead; `draco_local.simulator.compare` checks these tables against it.
"""

import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from draco.mig.board import Board, Profile


class BoardModel(msgspec.Struct, frozen=True):
    """A GPU model as NVML names it, divisible or not. `compute_capability` is `major.minor`."""

    product_name: str
    architecture: str
    compute_capability: str
    memory_mib: int
    nvswitch: bool = False
    """Whether switches connect the GPUs of one server."""


class _Table(msgspec.Struct):
    columns: list[str]
    models: dict[str, BoardModel]
    boards: dict[str, list[list[Any]]]


def _boards(table: _Table) -> dict[str, Board]:
    rows = {name: [dict(zip(table.columns, row, strict=True)) for row in rows] for name, rows in table.boards.items()}
    return {name: Board(msgspec.convert(each, tuple[Profile, ...])) for name, each in rows.items()}


_TABLE = msgspec.toml.decode(pkgutil.get_data(__package__, "known_boards.toml") or b"", type=_Table)
BOARDS: Mapping[str, Board] = MappingProxyType(_boards(_TABLE))
"""The boards that can be divided, by name."""
MODELS: Mapping[str, BoardModel] = MappingProxyType(_TABLE.models)
"""All known models, by name."""
