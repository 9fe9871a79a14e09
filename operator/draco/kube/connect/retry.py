"""Trying again: how long to wait, a bounded retry of one call, and one without end.

Owns backoff with jitter, pauses by key without it, and the list of failures worth a retry. A Conflict is not among them: it needs
a fresh look, which is the caller's.
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
"""Failures that may pass on their own."""
FORBIDDEN_S, FORBIDDEN_LONGEST_S = 5.0, 300.0
"""How soon to try again what was refused with 403, and then later each time, up to the second: an API server that has just
started refuses all, and a role is mended by a person."""


def doubling_s(base_s: float, times: int, cap_s: float) -> float:
    """`base_s`, doubled so many times, and at most `cap_s`.

    The exponent is bounded so that a failure that lasts for weeks does not overflow a float.
    """
    return min(cap_s, base_s * 2.0 ** min(times, 60))


class Backoff:
    """Waiting times that double from `base_s` up to `cap_s`, each shortened at random by up to half.

    The jitter keeps many clients that failed together from coming back together.
    """

    def __init__(self, clock: Clock, *, base_s: float, cap_s: float) -> None:
        self._clock = clock
        self._base_s = base_s
        self._cap_s = cap_s
        self.failures = 0

    def next(self, *, at_least_s: float | None = None) -> float:
        """Seconds to wait after one more failure; never less than what the server asked for (`at_least_s`)."""
        full = doubling_s(self._base_s, self.failures, self._cap_s)
        self.failures += 1
        return max(full * (0.5 + self._clock.jitter() / 2), at_least_s or 0.0)

    def reset(self) -> None:
        """Start over, after a success."""
        self.failures = 0


class Pause(NamedTuple):
    """How often something failed in a row, why it did last, and until when it is left alone."""

    times: int
    why: str
    until_s: float


class Pauses(Generic[K]):
    """What failed, by key, each left alone for a while: `first_s`, and twice as long each time, up to `longest_s`.

    Without jitter, as these are the failures of one process, each of its own key. Those that were tried at the same time and
    failed together are one failure.
    """

    def __init__(self, clock: Clock, *, first_s: float, longest_s: float) -> None:
        self._clock = clock
        self._first_s = first_s
        self._longest_s = longest_s
        self.by_key: dict[K, Pause] = {}

    def begin(self, key: K, why: str) -> float:
        """Leave the key alone, as it failed once more. Returns for how many seconds.

        A pause that has not ended yet goes on, and is no longer for it.
        """
        if (left_s := self.left_s(key)) > 0:
            self.by_key[key] = self.by_key[key]._replace(why=why)
            return left_s
        times = self.by_key[key].times if key in self.by_key else 0
        pause_s = doubling_s(self._first_s, times, self._longest_s)
        self.by_key[key] = Pause(times + 1, why, self._clock.monotonic() + pause_s)
        return pause_s

    def left_s(self, key: K) -> float:
        """For how many more seconds; 0 where it may be tried now."""
        found = self.by_key.get(key)
        return max(0.0, found.until_s - self._clock.monotonic()) if found is not None else 0.0

    def next_s(self, since_s: float) -> float:
        """In how many seconds the first pause ends of those that had not ended at `since_s`; infinite where there is none.

        `since_s` is when the caller began to look, by the monotonic clock. What he found in a pause then may be out of it by
        now, so 0 for such a one: otherwise nobody would look again.
        """
        now_s = self._clock.monotonic()
        ends = (each.until_s for each in self.by_key.values() if each.until_s > since_s)
        return max(0.0, min(ends, default=float("inf")) - now_s)

    def forget(self, key: K) -> None:
        """The key is fine, or gone: its next pause is the first again."""
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

    Retry-After is honoured; when the server asks for more than `longest_wait_s`, the error is raised at once. After
    Unreachable the first attempt may have been carried out: a create can come back as AlreadyExists, a delete as NotFound.
    Not for evictions: there, 429 means that a disruption budget says no.
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
    """Until it works; each failure is logged as `event`. For what there is nothing better to do than to try again."""
    backoff = Backoff(clock, base_s=0.5, cap_s=30.0)
    while True:
        try:
            return await attempt()
        except (OSError, ApiError) as error:
            pause_s = backoff.next(at_least_s=asked_to_wait_s(error))
            log.warning(event, error=str(error), again_in_s=round(pause_s, 1))
        await clock.sleep(pause_s)


async def attempted(event: str, call: Callable[[], Awaitable[R]], *, clock: Clock, within_s: float = 30.0) -> R | None:
    """Retry for so many seconds and no longer; a failure is logged as `event` and gives None. For what can be done without."""
    try:
        async with asyncio.timeout(within_s):
            return await retry(call, clock=clock)
    except (ApiError, TimeoutError) as error:
        log.warning(event, error=str(error) or "no answer in time")
        return None


def asked_to_wait_s(error: Exception) -> float | None:
    """Return the Retry-After of an API error, in seconds; None for everything else."""
    return error.retry_after_s if isinstance(error, ApiError) else None
