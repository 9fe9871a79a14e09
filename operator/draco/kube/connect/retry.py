"""Retries: backoff, a bounded retry of one call, and an endless one.

Owns backoff with jitter, pauses by key without jitter, and the list of transient failures. After a Conflict the caller must read
again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

import structlog

from draco.kube.clock import Clock
from draco.kube.errors import ApiError, ServerError, TooManyRequests, Unreachable

log = structlog.get_logger()

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

TRANSIENT = (TooManyRequests, ServerError, Unreachable)
FORBIDDEN_S, FORBIDDEN_LONGEST_S = 5.0, 300.0
"""First and maximum backoff after a 403: a starting API server refuses everything, but a role must be fixed by a person."""


def doubling_s(base_s: float, times: int, cap_s: float) -> float:
    """`base_s` doubled `times` times, at most `cap_s`. The exponent is bounded: weeks of failures must not overflow a float."""
    return min(cap_s, base_s * 2.0 ** min(times, 60))


class Backoff:
    """Backoff that doubles from `base_s` to `cap_s`, shortened at random by up to half so that clients do not retry together."""

    def __init__(self, clock: Clock, *, base_s: float, cap_s: float) -> None:
        self._clock = clock
        self._base_s = base_s
        self._cap_s = cap_s
        self.failures = 0

    def next(self, *, at_least_s: float | None = None) -> float:
        """Seconds to wait after another failure, at least `at_least_s` (the server's Retry-After)."""
        full = doubling_s(self._base_s, self.failures, self._cap_s)
        self.failures += 1
        return max(full * (0.5 + self._clock.jitter() / 2), at_least_s or 0.0)

    def reset(self) -> None:
        """Start over after a success."""
        self.failures = 0


class Pause(NamedTuple):
    """The number of failures in a row, the last reason, and the end of the pause."""

    times: int
    why: str
    until_s: float


class Pauses(Generic[K]):
    """Backoff by key after failures: `first_s`, doubled each time, up to `longest_s`. The first `tolerated` failures start none.

    Without jitter, since these are one process's failures on separate keys. `monotonic` in seconds.
    """

    def __init__(self, monotonic: Callable[[], float], *, first_s: float, longest_s: float, tolerated: int = 0) -> None:
        self._monotonic = monotonic
        self._first_s = first_s
        self._longest_s = longest_s
        self._tolerated = tolerated
        self.by_key: dict[K, Pause] = {}

    def begin(self, key: K, why: str) -> float:
        """Start the key's next pause after a failure, and return the seconds.

        A current pause goes on unchanged: attempts that ran in parallel and failed together count as one failure.
        """
        if (left_s := self.left_s(key)) > 0:
            self.by_key[key] = self.by_key[key]._replace(why=why)
            return left_s
        return self.prolong(key, why)

    def prolong(self, key: K, why: str) -> float:
        """Start the key's next pause after a failure, even during a pause, and return the seconds."""
        times = self.by_key[key].times if key in self.by_key else 0
        doubled = times - self._tolerated
        pause_s = doubling_s(self._first_s, doubled, self._longest_s) if doubled >= 0 else 0.0
        self.by_key[key] = Pause(times + 1, why, self._monotonic() + pause_s)
        return pause_s

    def left_s(self, key: K) -> float:
        """Seconds left of the pause; 0 if the key may be tried."""
        found = self.by_key.get(key)
        return max(0.0, found.until_s - self._monotonic()) if found is not None else 0.0

    def next_s(self, since_s: float) -> float:
        """Seconds until the first pause ends, of those that had not ended at `since_s`; infinite without any.

        `since_s` is when the caller began to look. A pause that ended since then gives 0, since the caller still saw it.
        """
        now_s = self._monotonic()
        ends = (each.until_s for each in self.by_key.values() if each.until_s > since_s)
        return max(0.0, min(ends, default=float("inf")) - now_s)

    def forget(self, key: K) -> None:
        """Reset the key, which succeeded or is gone."""
        self.by_key.pop(key, None)


async def retry(
    call: Callable[[], Awaitable[R]],
    *,
    clock: Clock,
    attempts: int = 5,
    base_s: float = 0.2,
    cap_s: float = 5.0,
    longest_wait_s: float = 30.0,
) -> R:
    """Await `call()` up to `attempts` times while it fails with 429, 5xx or no answer, and return its result.

    Retry-After is honoured; if it exceeds `longest_wait_s`, the error is raised immediately. After Unreachable an attempt may
    have succeeded: a create can then return AlreadyExists, a delete NotFound. Not for evictions, where 429 means that a
    disruption budget forbids it.
    """
    backoff = Backoff(clock, base_s=base_s, cap_s=cap_s)
    while True:
        try:
            return await call()
        except TRANSIENT as error:
            pause_s = backoff.next(at_least_s=error.retry_after_s)
            if backoff.failures >= attempts or pause_s > longest_wait_s:
                raise
        await clock.sleep(pause_s)


async def persistently(event: str, attempt: Callable[[], Awaitable[R]], *, clock: Clock) -> R:
    """Retry forever, logging each failure as `event`."""
    backoff = Backoff(clock, base_s=0.5, cap_s=30.0)
    while True:
        try:
            return await attempt()
        except (OSError, ApiError) as error:
            pause_s = backoff.next(at_least_s=asked_to_wait_s(error))
            log.warning(event, error=str(error), again_in_s=round(pause_s, 1))
        await clock.sleep(pause_s)


async def attempted(event: str, call: Callable[[], Awaitable[R]], *, clock: Clock, within_s: float = 30.0) -> R | None:
    """Retry for up to `within_s`; log a failure as `event` and return None. For optional work."""
    try:
        async with asyncio.timeout(within_s):
            return await retry(call, clock=clock)
    except (ApiError, TimeoutError) as error:
        log.warning(event, error=str(error) or "no answer in time")
        return None


def asked_to_wait_s(error: Exception) -> float | None:
    """The Retry-After of an API error, in seconds; None for everything else."""
    return error.retry_after_s if isinstance(error, ApiError) else None
