"""A clock that a test moves."""

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta
from random import Random

TURNS = 20
"""How often the event loop turns after each step of time, for what was woken to do its work."""


class ManualClock:
    """Time stands still until `advance`. Implements the product's Clock; its chance is the same for the same `seed`."""

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
        """Let so many seconds pass, waking sleepers in order, each at its time."""
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
        """As when the time of day is put right: nothing passes by the monotonic clock."""
        self._start += by

    def pass_without_a_turn(self, seconds: float) -> None:
        """As work does that holds the event loop: time passes, and nobody wakes."""
        self._elapsed += seconds

    async def _settle(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)


class WorkClock:
    """Time goes on by as much each time somebody looks, as if there were work to do between two looks. Nobody sleeps by it."""

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
        """The machine stands still for so long."""
        self._elapsed += seconds

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps by this clock")
