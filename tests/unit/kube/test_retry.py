"""When a call is retried, and after how long."""

from collections.abc import Iterator

import pytest

from draco.kube.connect.retry import Backoff, Pauses, doubling_s, persistently, retry
from draco.kube.errors import ApiError, Conflict, NotFound, ServerError, TooManyRequests, Unreachable
from tests.doubles.clock import ManualClock


class Sleepless:
    """A clock that records how long it was asked to sleep."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def now(self):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    def monotonic(self) -> float:
        return sum(self.pauses)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def jitter(self) -> float:
        return 0.5


class Call:
    """Fails with each of these errors in turn, then succeeds."""

    def __init__(self, *errors: ApiError) -> None:
        self._errors: Iterator[ApiError] = iter(errors)
        self.count = 0

    async def __call__(self) -> str:
        self.count += 1
        if error := next(self._errors, None):
            raise error
        return "done"


OVERLOADED = TooManyRequests(429, "TooManyRequests", "slow down")
BROKEN = ServerError(500, "InternalError", "oops")


@pytest.mark.parametrize("error", [OVERLOADED, BROKEN, Unreachable("gone")])
async def test_a_passing_failure_is_tried_again(error: ApiError) -> None:
    call, clock = Call(error, error), Sleepless()
    assert await retry(call, clock=clock) == "done"
    assert call.count == 3
    assert 0.1 <= clock.pauses[0] <= 0.2
    assert 0.2 <= clock.pauses[1] <= 0.4


@pytest.mark.parametrize("error", [Conflict(409, "Conflict", "changed"), NotFound(404, "NotFound", "gone")])
async def test_a_failure_that_will_not_pass_is_raised_at_once(error: ApiError) -> None:
    call, clock = Call(error), Sleepless()
    with pytest.raises(type(error)):
        await retry(call, clock=clock)
    assert call.count == 1


async def test_the_last_failure_is_raised_after_the_last_attempt() -> None:
    call, clock = Call(*[BROKEN] * 10), Sleepless()
    with pytest.raises(ServerError):
        await retry(call, clock=clock, attempts=4)
    assert call.count == 4
    assert len(clock.pauses) == 3


async def test_what_the_server_asks_for_is_the_least() -> None:
    call, clock = Call(TooManyRequests(429, "TooManyRequests", "slow down", 7.0)), Sleepless()
    await retry(call, clock=clock)
    assert clock.pauses == [7.0]


async def test_a_server_that_asks_for_too_much_is_not_waited_for() -> None:
    call, clock = Call(TooManyRequests(429, "TooManyRequests", "slow down", 3600.0)), Sleepless()
    with pytest.raises(TooManyRequests):
        await retry(call, clock=clock, longest_wait_s=30)
    assert clock.pauses == []


def test_pauses_double_up_to_the_cap_and_differ_between_clients() -> None:
    one, other = (Backoff(ManualClock(seed=seed), base_s=1, cap_s=10) for seed in "ab")
    mine, theirs = [one.next() for _ in range(8)], [other.next() for _ in range(8)]
    for number, pause in enumerate(mine):
        full = min(10, 2**number)
        assert full / 2 <= pause <= full
    assert mine != theirs


def test_a_failure_that_lasts_for_ever_does_not_overflow() -> None:
    backoff = Backoff(ManualClock(), base_s=1, cap_s=10)
    assert max(backoff.next() for _ in range(5000)) <= 10


def test_after_a_success_pauses_start_from_the_beginning() -> None:
    backoff = Backoff(ManualClock(), base_s=1, cap_s=100)
    for _ in range(7):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 1


async def test_what_nothing_can_be_done_without_is_tried_until_it_works() -> None:
    call, clock = Call(*[BROKEN, NotFound(404, "NotFound", "gone")] * 20), Sleepless()
    assert await persistently("it.failed", call, clock=clock) == "done"
    assert call.count == 41
    assert max(clock.pauses) <= 30


async def test_a_mistake_of_ours_is_not_tried_again_for_ever() -> None:
    async def mistaken() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - its kind is all there is
        await persistently("it.failed", mistaken, clock=Sleepless())


@pytest.mark.parametrize(("times", "pause_s"), [(0, 5.0), (1, 10.0), (4, 60.0), (1_000_000, 60.0)])
def test_a_pause_doubles_up_to_its_cap_however_long_a_failure_lasts(times: int, pause_s: float) -> None:
    assert doubling_s(5.0, times, 60.0) == pause_s


async def test_a_key_that_fails_again_and_again_is_left_alone_ever_longer_and_no_other_key_is() -> None:
    clock = ManualClock()
    pauses: Pauses[str] = Pauses(clock.monotonic, first_s=5, longest_s=60)
    for pause_s in (5, 10, 20, 40, 60):
        await clock.advance(pauses.left_s("a"))
        assert pauses.begin("a", "no") == pause_s
    pauses.begin("b", "never")
    assert (pauses.left_s("a"), pauses.left_s("b"), pauses.left_s("c"), pauses.next_s(clock.monotonic())) == (
        60,
        5,
        0,
        5,
    )
    await clock.advance(5)
    assert (pauses.left_s("b"), pauses.next_s(clock.monotonic())) == (0, 55)
    assert {key: each.why for key, each in pauses.by_key.items()} == {"a": "no", "b": "never"}
    for _ in range(2000):  # as after weeks
        await clock.advance(60)
        assert pauses.begin("a", "no") == 60


async def test_a_pause_that_has_ended_since_somebody_looked_is_one_to_look_again_for() -> None:
    """The key was in its pause when somebody looked, so nobody else looks at it when the pause ends."""
    clock = ManualClock()
    pauses: Pauses[str] = Pauses(clock.monotonic, first_s=5, longest_s=60)
    pauses.begin("a", "no")
    await clock.advance(4)
    looked_s = clock.monotonic()
    assert pauses.left_s("a") == 1
    await clock.advance(3)
    assert pauses.next_s(looked_s) == 0
    assert pauses.next_s(clock.monotonic()) == float("inf")


async def test_failures_of_one_moment_are_one() -> None:
    """Otherwise, four workers that lack the same right would reach the longest pause immediately."""
    clock = ManualClock()
    pauses: Pauses[None] = Pauses(clock.monotonic, first_s=5, longest_s=300)
    for pause_s in (5, 10):
        assert [pauses.begin(None, why) for why in ("one", "another")] == [pause_s, pause_s]
        assert pauses.by_key[None].why == "another"
        await clock.advance(1)
        assert pauses.begin(None, "late") == pause_s - 1
        await clock.advance(pause_s - 1)


async def test_a_key_that_was_forgotten_begins_from_the_beginning() -> None:
    clock = ManualClock()
    pauses: Pauses[str] = Pauses(clock.monotonic, first_s=5, longest_s=60)
    pauses.begin("a", "no")
    await clock.advance(5)
    pauses.begin("a", "no")
    pauses.forget("a")
    assert (pauses.left_s("a"), pauses.next_s(clock.monotonic()), pauses.begin("a", "no")) == (0, float("inf"), 5)


async def test_failures_that_are_tolerated_begin_no_pause_and_one_during_a_pause_can_begin_the_next() -> None:
    clock = ManualClock()
    pauses: Pauses[str] = Pauses(clock.monotonic, first_s=60, longest_s=600, tolerated=1)
    assert [pauses.prolong("a", "no") for _ in range(7)] == [0, 60, 120, 240, 480, 600, 600]
    assert (pauses.by_key["a"].times, pauses.left_s("a")) == (7, 600)
    pauses.forget("a")
    assert (pauses.begin("a", "no"), pauses.left_s("a"), pauses.begin("a", "no")) == (0, 0, 60)
