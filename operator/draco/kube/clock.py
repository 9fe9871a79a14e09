"""Time and chance as an argument: what code below `kube` and above it asks instead of the operating system.

Owns the Clock protocol and the real one. Tests bring their own.
"""

import asyncio
import random
import sys
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time. `monotonic` measures durations; `now` is for what people and other programs read.

    `jitter` spreads what must not happen everywhere at once.
    """

    def now(self) -> datetime:
        """The time of day, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return when so many seconds have passed."""
        ...

    def jitter(self) -> float:
        """A random float in [0, 1)."""
        ...


class SystemClock:
    """The machine's clock. Its monotonic time goes on while the machine is suspended, where the system can tell (Linux).

    What must have happened by some time elsewhere, such as a lease that has run out, is then seen after a resume.
    """

    def now(self) -> datetime:
        """The time of day, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        if sys.platform == "linux":
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return when so many seconds have passed."""
        await asyncio.sleep(seconds)

    def jitter(self) -> float:
        """A random float in [0, 1)."""
        return random.random()  # noqa: S311 - spreads retries, guards nothing


async def wait_for(event: asyncio.Event, clock: Clock, seconds: float | None) -> None:
    """Return when `event` is set or so many seconds have passed (never, if None), whichever comes first."""
    waits: list[asyncio.Task[object]] = [asyncio.create_task(event.wait())]
    if seconds is not None:
        waits.append(asyncio.create_task(clock.sleep(seconds)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
