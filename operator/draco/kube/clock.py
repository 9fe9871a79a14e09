"""Time and randomness as an argument, instead of calls to the operating system.

Owns the Clock protocol and the real one. Tests bring their own.
"""

import asyncio
import random
import sys
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time. `monotonic` measures durations, `now` is for people and programs, `jitter` spreads actions."""

    def now(self) -> datetime:
        """The time of day, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...

    def jitter(self) -> float:
        """A random float in [0, 1)."""
        ...


class SystemClock:
    """The machine's clock. Monotonic time includes suspension on Linux, so a lease that expired meanwhile is seen."""

    def now(self) -> datetime:
        """The time of day, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        if sys.platform == "linux":
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)

    def jitter(self) -> float:
        """A random float in [0, 1)."""
        return random.random()  # noqa: S311 - spreads retries, guards nothing


async def wait_for(event: asyncio.Event, clock: Clock, seconds: float | None) -> None:
    """Return when `event` is set or after `seconds` (None: never), whichever comes first."""
    waits: list[asyncio.Task[object]] = [asyncio.create_task(event.wait())]
    if seconds is not None:
        waits.append(asyncio.create_task(clock.sleep(seconds)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
