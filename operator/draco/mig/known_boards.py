"""MIG profiles and placements of NVIDIA's boards, from `known_boards.toml`.

Owns the reading only. The tables are for capacity planned without having the GPUs (`draco simulate mig`), and for simulated GPUs.
Nothing that runs in a cluster plans from them: it reads NVML, and `draco_local.simulator.compare` holds these tables against it.
"""

import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from draco.mig.board import Board, Profile


class _Table(msgspec.Struct):
    columns: list[str]
    boards: dict[str, list[list[Any]]]


def _read() -> dict[str, Board]:
    table = msgspec.toml.decode(pkgutil.get_data(__package__, "known_boards.toml") or b"", type=_Table)
    rows = {name: [dict(zip(table.columns, row, strict=True)) for row in rows] for name, rows in table.boards.items()}
    return {name: Board(msgspec.convert(each, tuple[Profile, ...])) for name, each in rows.items()}


BOARDS: Mapping[str, Board] = MappingProxyType(_read())
"""The boards by name."""
