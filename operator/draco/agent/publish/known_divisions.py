"""The known division of the node's GPUs, also when they cannot be read.

What claims have of a GPU stays published, with its counters, while the GPU is absent, not read yet, or has just left (the reading
that misses it precedes the view in which it is absent). Otherwise the whole GPU would look free meanwhile.
"""

from collections.abc import Iterable, Mapping

import msgspec

from draco.agent.hardware.gpus import Gpu, GpuMigView
from draco.agent.mig.ownership import remains
from draco.agent.record.checkpoint import Checkpoint
from draco.resources.names import GpuUuid


class KnownDivisions:
    """Remembers the last known divisions."""

    def __init__(self, record: Checkpoint) -> None:
        self._record = record
        self._before: Mapping[GpuUuid, GpuMigView] = {}

    def of(self, gpus: Iterable[Gpu], divisions: Mapping[GpuUuid, GpuMigView]) -> Mapping[GpuUuid, GpuMigView]:
        """How each of these GPUs is divided; `divisions` as of the last look."""
        found = {}
        for gpu in gpus:
            division = divisions.get(gpu.uuid)
            if division is None and not gpu.absent:
                division = self._before.get(gpu.uuid)
            if (division is None or division.board is None) and (left := self._remains(gpu)):
                division = left if division is None else _filled(division, left)
            if division is not None:
                found[gpu.uuid] = division
        self._before = found
        return found

    def _remains(self, gpu: Gpu) -> GpuMigView | None:
        known = self._record.known.get(gpu.uuid)
        board = gpu.board or (known.last.board if known and known.last else None)
        made = remains(msgspec.structs.replace(gpu, board=board), self._record.claims.values())
        return made if board is not None or gpu.absent else None


def _filled(division: GpuMigView, left: GpuMigView) -> GpuMigView:
    enabled = division.enabled or left.enabled
    return msgspec.structs.replace(division, capable=True, enabled=enabled, board=left.board, held=left.held)
