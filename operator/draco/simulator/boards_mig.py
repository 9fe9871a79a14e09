"""MIG profiles and placements of the simulator's boards, as NVML reports them.

Owns the tables only. Nothing may plan from them: planners read NVML, and `draco.simulator.compare` reads both.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class MigTable(msgspec.Struct, frozen=True, kw_only=True):
    """All GPU instance profiles of one board."""

    units: int


MIG_BY_BOARD: Mapping[str, MigTable] = MappingProxyType(
    {
        "A100-40GB": MigTable(units=8),
        "A100-80GB": MigTable(units=8),
        "H100-80GB": MigTable(units=8),
        "H200-141GB": MigTable(units=8),
        "B200": MigTable(units=8),
        "A30": MigTable(units=4),
        "RTX-PRO-6000": MigTable(units=12),
    }
)
