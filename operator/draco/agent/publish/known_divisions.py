"""How the node's GPUs are divided, as far as it is known: also between two looks, and when nobody can look.

What claims have of a GPU stays published, and so do its counters, when it is absent, could not be looked at yet, or has just
left: the look that missed it comes before the view in which it is absent. Else it would be everybody's as a whole meanwhile.
"""

from collections.abc import Iterable, Mapping

import msgspec

from draco.agent.hardware.gpus import Gpu, GpuMigView
from draco.agent.mig.ownership import remains
from draco.agent.record.checkpoint import Checkpoint
from draco.resources.names import GpuUuid


class KnownDivisions:
    """Remembers what was known of the GPUs the last time."""

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
        """How a GPU is divided, as far as the record tells; None where it does not know its board."""
        known = self._record.known.get(gpu.uuid)
        board = gpu.board or (known.last.board if known and known.last else None)
        made = remains(msgspec.structs.replace(gpu, board=board), self._record.claims.values())
        return made if board is not None or gpu.absent else None


def _filled(division: GpuMigView, left: GpuMigView) -> GpuMigView:
    """The state of a GPU that could not be read, with what is known of it from before."""
    enabled = division.enabled or left.enabled
    return msgspec.structs.replace(division, capable=True, enabled=enabled, board=left.board, held=left.held)
