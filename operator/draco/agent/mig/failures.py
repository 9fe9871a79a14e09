"""Backoff for GPUs on which creating instances fails repeatedly.

One failure may be an accident and is over after a clean list. A GPU that fails twice in a row still looks free, and the scheduler
would send it one pod after another, so it backs off, longer each time, until a creation succeeds. Owns the count and the times;
callers refuse work meanwhile.
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
    """Consecutive failures by GPU, and the end of each backoff. `monotonic` in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._series: dict[GpuUuid, _Series] = {}

    def failed(self, uuid: GpuUuid, why: str) -> None:
        """Count a failed creation that is the GPU's fault; `why` is a sentence."""
        number = self._series[uuid].number + 1 if uuid in self._series else 1
        rest_s = doubling_s(_REST_S, number - _TOLERATED - 1, _LONGEST_S) if number > _TOLERATED else 0.0
        self._series[uuid] = _Series(number, why, self._monotonic() + rest_s)

    def over(self, uuid: GpuUuid) -> None:
        """Reset the count: a creation succeeded, or the GPU is gone."""
        self._series.pop(uuid, None)

    def sentence(self, uuid: GpuUuid) -> str:
        """Why nothing may be placed on the GPU now; "" if it may."""
        series = self._series.get(uuid)
        if series is None or self._monotonic() >= series.until_s:
            return ""
        return (
            f"Creating instances on it failed {series.number} times in a row. Last failure: {series.last} The agent tries again "
            "later; look into the node's kernel log, and reset the GPU if necessary."
        )
