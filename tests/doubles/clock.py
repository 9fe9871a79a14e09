"""A clock that a test moves."""

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta
from random import Random

TURNS = 20
"""How often the event loop turns after each step of time, so that woken tasks can do their work."""


class ManualClock:
    """Time stands still until `advance`. Implements the product's Clock; the same `seed` gives the same jitter."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC), *, seed: object = 1) -> None:
        self._start = start
        self.jitter = Random(str(seed)).random
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), waiter))
        await waiter

    @property
    def wakes_s(self) -> list[float]:
        """In how many seconds each sleeper wakes."""
        return [due - self._elapsed for due, _, waiter in self._sleepers if not waiter.done()]

    @property
    def next_wake_s(self) -> float | None:
        """In how many seconds the next sleeper wakes; None when nobody sleeps."""
        return min(self.wakes_s, default=None)

    async def advance(self, seconds: float) -> None:
        """Let this many seconds pass, waking each sleeper in order at its time."""
        await self._settle()
        target = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, waiter = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, due)
            if not waiter.done():
                waiter.set_result(None)
            await self._settle()
        self._elapsed = target
        await self._settle()

    def put_right(self, by: timedelta) -> None:
        """Set the time of day; monotonic time does not change."""
        self._start += by

    def pass_without_a_turn(self, seconds: float) -> None:
        """Let time pass without waking anyone, as work does that blocks the event loop."""
        self._elapsed += seconds

    async def _settle(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)


class WorkClock:
    """Each reading advances the time by `each_s`, as if work had been done since the last one. Sleeping is not supported."""

    def __init__(self, each_s: float, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.each_s = each_s
        self._start = start
        self.jitter = Random(1).random
        self._elapsed = 0.0

    def now(self) -> datetime:
        return self._start

    def monotonic(self) -> float:
        self._elapsed += self.each_s
        return self._elapsed

    def stall(self, seconds: float) -> None:
        """Let time pass, as if the machine had stalled."""
        self._elapsed += seconds

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps by this clock")
