"""GPUs on which making instances fails again and again: when one is given a rest, and for how long.

One failure may be an accident, and is over with a clean list. A GPU that fails twice in a row looks as free as any other, and
the scheduler would send it one pod after the other: it is given a rest instead, each longer than the last, until something is
made on it. Owns the count and the times. What is not made meanwhile is the callers' to say.
"""

from collections.abc import Callable
from typing import NamedTuple

from draco.kube.connect.retry import doubling_s
from draco.resources.names import GpuUuid

_TOLERATED = 1
"""Failures in a row that may be an accident."""
_REST_S = 60.0
_LONGEST_S = 600.0


class _Series(NamedTuple):
    number: int
    last: str
    until_s: float


class Failures:
    """How often that was, by GPU, and until when it counts. `monotonic` in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._series: dict[GpuUuid, _Series] = {}

    def failed(self, uuid: GpuUuid, why: str) -> None:
        """NVML made nothing, for a reason that lies with the GPU; `why` is a sentence."""
        number = self._series[uuid].number + 1 if uuid in self._series else 1
        rest_s = doubling_s(_REST_S, number - _TOLERATED - 1, _LONGEST_S) if number > _TOLERATED else 0.0
        self._series[uuid] = _Series(number, why, self._monotonic() + rest_s)

    def over(self, uuid: GpuUuid) -> None:
        """Something was made on the GPU, or it is gone."""
        self._series.pop(uuid, None)

    def sentence(self, uuid: GpuUuid) -> str:
        """Why nothing new is to be placed on the GPU now; "" if it may be tried."""
        series = self._series.get(uuid)
        if series is None or self._monotonic() >= series.until_s:
            return ""
        return (
            f"Making instances on it failed {series.number} times in a row; look into the node's kernel log, and reset the GPU "
            f"if that helps. The last failure: {series.last} It is tried again after a while."
        )
