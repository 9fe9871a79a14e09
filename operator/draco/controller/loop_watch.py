"""The event loop: measures how long it is blocked, and splits long work so that other tasks can run.

Owns the measurement: a task that sleeps and records how late it wakes up. Nothing else can tell that a lease, probe or watch had
to wait, since these are blocked, too. Long blocks are logged: a replica that loses its lease to one ends, and its metrics with
it. Also owns how long work may run without yielding; callers handle what changes in between.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import structlog

from draco.controller.metrics import OperatorMetrics
from draco.kube.clock import Clock

log = structlog.get_logger(__name__)

_EVERY_S = 0.02
_REMEMBERED_S = 60.0
_LONG_S: Final = 1.0
"""A longer block is logged: a few of these in a row lose the lease."""
_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")


def starved_s() -> float | None:
    """Seconds this thread was runnable without a processor since it began; None if the kernel does not tell."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


class LoopWatch:
    """The longest block of the last minute, in wall time and in this thread's CPU time.

    CPU time is the operator's own work. Wall time is longer if the machine was busy. A long block is logged with the seconds that
    the thread was runnable without a processor.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        processor_s: Callable[[], float] = time.thread_time,
        starved_s: Callable[[], float | None] = starved_s,
    ) -> None:
        self._clock = clock
        self._processor_s = processor_s
        self._starved_s = starved_s
        self._holds: deque[tuple[float, float, float]] = deque()

    async def run(self) -> NoReturn:
        """Measure until cancelled."""
        while True:
            began_s, began_cpu_s, began_starved_s = self._clock.monotonic(), self._processor_s(), self._starved_s()
            await self._clock.sleep(_EVERY_S)
            now_s = self._clock.monotonic()
            late_s = max(0.0, now_s - began_s - _EVERY_S)
            cpu_s = min(late_s, self._processor_s() - began_cpu_s)
            if late_s >= _LONG_S and late_s >= self.longest_s:
                log.warning(
                    "loop.held",
                    seconds=round(late_s, 2),
                    processor_s=round(cpu_s, 2),
                    starved_s=_between(began_starved_s, self._starved_s()),
                )
            self._holds.append((now_s, late_s, cpu_s))
            while self._holds[0][0] < now_s - _REMEMBERED_S:
                self._holds.popleft()

    @property
    def longest_s(self) -> float:
        """The longest block in wall time."""
        return max((late_s for _, late_s, _ in self._holds), default=0.0)

    @property
    def longest_work_s(self) -> float:
        """The longest block in CPU time."""
        return max((cpu_s for _, _, cpu_s in self._holds), default=0.0)


def _between(began_s: float | None, ended_s: float | None) -> float | None:
    return None if began_s is None or ended_s is None else round(ended_s - began_s, 2)


def register_loop(metrics: OperatorMetrics, watch: LoopWatch) -> None:
    """Export how long the loop was blocked."""
    metrics.on_scrape(
        "draco_event_loop_longest_hold_seconds",
        "The longest that other work waited for the event loop in the last minute: wall-clock time, and the operator's "
        "CPU time in it (for the rest, the machine gave the operator no CPU).",
        ["by"],
        lambda: {"clock": watch.longest_s, "processor": watch.longest_work_s},
    )


TURN_S = 0.005
"""Time after which work yields to probes, watches and the lease."""


class CooperativeWork:
    """Work that yields between its parts once they have taken long enough. The first turn begins immediately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before_s = 0.0
        self._spent_s = 0.0
        self._began_s = clock.monotonic()

    @property
    def work_s(self) -> float:
        """Time worked so far. A turn counts at most `TURN_S`: more is a delay by the machine and would mislead callers."""
        return self._before_s + min(TURN_S, self._clock.monotonic() - self._began_s)

    @property
    def spent_s(self) -> float:
        """Wall time so far, without the time of other tasks."""
        return self._spent_s + self._clock.monotonic() - self._began_s

    async def pause(self) -> None:
        """Yield the loop if the turn is over."""
        took_s = self._clock.monotonic() - self._began_s
        if took_s < TURN_S:
            return
        self._before_s += TURN_S
        self._spent_s += took_s
        await asyncio.sleep(0)
        self._began_s = self._clock.monotonic()
