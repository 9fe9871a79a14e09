"""The laws of the work queue."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from draco.kube.errors import ApiError, Conflict, TooManyRequests
from draco.kube.queue import Reconcile, WorkQueue, run_workers
from tests.doubles.clock import ManualClock

log = structlog.get_logger()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> WorkQueue[str]:
    return WorkQueue(clock=clock, base_s=1.0, cap_s=60.0)


@asynccontextmanager
async def working(queue: WorkQueue[str], reconcile: Reconcile[str], workers: int = 2) -> AsyncIterator[None]:
    task = asyncio.create_task(run_workers(queue, reconcile, workers=workers, log=log))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


class Reconciler:
    """Records its runs; a run lasts until the test ends it."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.running: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    async def __call__(self, key: str) -> None:
        assert key not in self.running
        self.runs.append(key)
        self.running.append(key)
        await self._ends.setdefault(key, asyncio.Event()).wait()
        self.running.remove(key)

    def end(self, key: str) -> None:
        self._ends.pop(key).set()


async def test_a_key_added_twice_is_worked_on_once(queue: WorkQueue[str]) -> None:
    queue.add("a")
    queue.add("a")
    assert queue.depth == 1
    assert await queue.get() == "a"
    assert queue.depth == 0


async def test_keys_come_in_the_order_they_were_added(queue: WorkQueue[str]) -> None:
    for key in "cab":
        queue.add(key)
    assert [await queue.get() for _ in range(3)] == ["c", "a", "b"]


async def test_a_key_is_never_reconciled_twice_at_once(queue: WorkQueue[str], clock: ManualClock) -> None:
    reconciler = Reconciler()
    async with working(queue, reconciler, workers=3):
        queue.add("a")
        await clock.advance(0)
        queue.add("a")
        queue.add("b")
        await clock.advance(0)
        assert reconciler.running == ["a", "b"]
        reconciler.end("a")
        await clock.advance(0)
        assert reconciler.runs == ["a", "b", "a"]
        reconciler.end("a")
        reconciler.end("b")


async def test_a_key_added_while_it_is_worked_on_is_worked_on_once_more(
    queue: WorkQueue[str], clock: ManualClock
) -> None:
    reconciler = Reconciler()
    async with working(queue, reconciler):
        queue.add("a")
        await clock.advance(0)
        for _ in range(5):
            queue.add("a")
        reconciler.end("a")
        await clock.advance(0)
        reconciler.end("a")
        await clock.advance(0)
    assert reconciler.runs == ["a", "a"]


async def test_a_key_whose_time_comes_while_it_is_worked_on_waits_for_the_end(
    queue: WorkQueue[str], clock: ManualClock
) -> None:
    reconciler = Reconciler()
    async with working(queue, reconciler):
        queue.add("a")
        queue.add_after("a", 5)
        await clock.advance(6)
        assert reconciler.runs == ["a"]
        reconciler.end("a")
        await clock.advance(0)
        assert reconciler.runs == ["a", "a"]
        reconciler.end("a")


async def test_a_delayed_key_comes_at_its_time_and_not_before(queue: WorkQueue[str], clock: ManualClock) -> None:
    runs: list[tuple[str, float]] = []

    async def reconcile(key: str) -> None:
        runs.append((key, clock.monotonic()))

    async with working(queue, reconcile):
        queue.add_after("late", 20)
        queue.add_after("soon", 10)
        await clock.advance(30)
    assert runs == [("soon", 10), ("late", 20)]


@pytest.mark.parametrize("delays", [(30, 10), (10, 30)])
async def test_the_earliest_of_several_delays_counts(
    queue: WorkQueue[str], clock: ManualClock, delays: tuple[float, float]
) -> None:
    runs: list[float] = []

    async def reconcile(key: str) -> None:
        runs.append(clock.monotonic())

    async with working(queue, reconcile):
        for delay in delays:
            queue.add_after("a", delay)
        await clock.advance(60)
    assert runs == [10]


async def test_a_delay_that_is_set_while_workers_sleep_for_a_later_one_is_not_missed(
    queue: WorkQueue[str], clock: ManualClock
) -> None:
    runs: list[tuple[str, float]] = []

    async def reconcile(key: str) -> None:
        runs.append((key, clock.monotonic()))

    async with working(queue, reconcile):
        queue.add_after("a", 50)
        await clock.advance(10)
        queue.add_after("b", 5)
        await clock.advance(10)
    assert runs == [("b", 15)]


async def test_an_immediate_add_leaves_a_delayed_one_standing(queue: WorkQueue[str], clock: ManualClock) -> None:
    """Unless the reconciler then asks for no further look."""
    runs: list[float] = []

    async def reconcile(key: str) -> float:
        runs.append(clock.monotonic())
        return 30

    async with working(queue, reconcile):
        queue.add_after("a", 10)
        queue.add("a")
        await clock.advance(20)
    assert runs == [0, 10]


async def test_a_reconciler_may_ask_to_look_again(queue: WorkQueue[str], clock: ManualClock) -> None:
    runs: list[float] = []

    async def reconcile(key: str) -> float | None:
        runs.append(clock.monotonic())
        return 7 if len(runs) < 3 else None

    async with working(queue, reconcile):
        queue.add("a")
        await clock.advance(100)
    assert runs == [0, 7, 14]


async def test_a_failing_key_comes_back_after_growing_pauses_and_others_are_not_held_up(
    queue: WorkQueue[str], clock: ManualClock
) -> None:
    runs: list[tuple[str, float]] = []

    async def reconcile(key: str) -> None:
        runs.append((key, clock.monotonic()))
        if key == "bad":
            raise RuntimeError("no")

    with capture_logs() as logs:
        async with working(queue, reconcile, workers=1):
            queue.add("bad")
            queue.add("good")
            await clock.advance(40)
    times = [at for key, at in runs if key == "bad"]
    assert runs[1] == ("good", 0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(pauses) >= 4
    for number, pause in enumerate(pauses):
        assert 2**number / 2 <= pause <= 2**number
    failures = [entry for entry in logs if entry["event"] == "reconcile.failed"]
    assert failures[0]["key"] == "bad"
    assert failures[0]["exc_info"]


async def test_a_success_makes_the_next_failure_start_from_the_shortest_pause(queue: WorkQueue[str]) -> None:
    first = [queue.retry("a") for _ in range(6)]
    assert first[-1] > 15
    queue.forget("a")
    assert queue.retry("a") <= 1


async def test_a_key_that_succeeded_and_fails_again_comes_back_soon(queue: WorkQueue[str], clock: ManualClock) -> None:
    runs: list[float] = []

    async def reconcile(key: str) -> None:
        runs.append(clock.monotonic())
        if len(runs) != 6:
            raise RuntimeError("no")

    async with working(queue, reconcile):
        queue.add("a")
        await clock.advance(100)
        assert len(runs) == 6
        queue.add("a")
        await clock.advance(1)
    assert len(runs) >= 8


async def test_the_backoff_of_one_key_is_not_that_of_another(queue: WorkQueue[str]) -> None:
    for _ in range(6):
        queue.retry("a")
    assert queue.retry("b") <= 1


async def test_the_server_may_ask_for_a_longer_pause(queue: WorkQueue[str], clock: ManualClock) -> None:
    runs: list[float] = []

    async def reconcile(key: str) -> None:
        runs.append(clock.monotonic())
        if len(runs) == 1:
            raise TooManyRequests(429, "TooManyRequests", "slow down", 25.0)

    async with working(queue, reconcile):
        queue.add("a")
        await clock.advance(24)
        assert runs == [0]
        await clock.advance(1)
    assert runs == [0, 25]


async def test_a_conflict_is_tried_again_without_a_traceback(queue: WorkQueue[str], clock: ManualClock) -> None:
    runs: list[float] = []

    async def reconcile(key: str) -> None:
        runs.append(clock.monotonic())
        if len(runs) == 1:
            raise Conflict(409, "Conflict", "changed")

    with capture_logs() as logs:
        async with working(queue, reconcile):
            queue.add("a")
            await clock.advance(2)
    assert len(runs) == 2
    assert [entry["log_level"] for entry in logs if "conflict" in entry["event"]] == ["info"]
    assert not any(entry.get("exc_info") for entry in logs)


async def test_what_the_api_server_refuses_is_one_sentence_in_the_log_and_no_traceback(
    queue: WorkQueue[str], clock: ManualClock
) -> None:
    refusal = "create not allowed while custom resource definition is terminating"
    runs: list[float] = []

    async def reconcile(_key: str) -> None:
        runs.append(clock.monotonic())
        raise ApiError(405, "MethodNotAllowed", refusal)

    with capture_logs() as logs:
        async with working(queue, reconcile):
            queue.add("a")
            await clock.advance(2)
    assert len(runs) > 1
    failures = [entry for entry in logs if entry["event"] == "reconcile.failed"]
    assert refusal in failures[0]["error"]
    assert not any(entry.get("exc_info") for entry in logs)


async def test_a_worker_that_gives_up_waiting_loses_no_key(queue: WorkQueue[str]) -> None:
    impatient = asyncio.create_task(queue.get())
    patient = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    assert await asyncio.wait_for(patient, 60) == "a"


async def test_it_is_told_how_long_keys_wait_and_take_and_which_fail(clock: ManualClock) -> None:
    heard: list[tuple[str, float]] = []
    queue: WorkQueue[str] = WorkQueue(
        clock=clock,
        waited=lambda waited_s: heard.append(("waited", waited_s)),
        took=lambda took_s: heard.append(("took", took_s)),
        failed=lambda: heard.append(("failed", 0)),
    )
    queue.add("a")
    await clock.advance(3)
    key = await queue.get()
    await clock.advance(2)
    assert queue.longest_running_s == 2
    queue.done(key, failed=True)
    assert queue.longest_running_s == 0
    assert heard == [("waited", 3), ("took", 2), ("failed", 0)]
    queue.add("a")
    queue.done(await queue.get())
    assert heard[3:] == [("waited", 0), ("took", 0)]


operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "after", "retry", "advance"]),
        st.sampled_from("abc"),
        st.integers(min_value=0, max_value=5),
    ),
    max_size=40,
)


@given(operations=operations)
def test_whatever_is_added_is_worked_on_afterwards_and_never_twice_at_once(
    operations: list[tuple[str, str, int]],
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        queue: WorkQueue[str] = WorkQueue(clock=clock, base_s=0.5, cap_s=4)
        running: set[str] = set()
        started: dict[str, float] = {}

        async def reconcile(key: str) -> None:
            assert key not in running
            running.add(key)
            started[key] = clock.monotonic()
            await clock.sleep(1)
            running.remove(key)

        wanted: dict[str, float] = {}
        async with working(queue, reconcile, workers=2):
            for what, key, number in operations:
                if what == "advance":
                    await clock.advance(number)
                    continue
                wanted[key] = clock.monotonic()
                if what == "add":
                    queue.add(key)
                elif what == "after":
                    queue.add_after(key, number)
                else:
                    queue.retry(key)
            await clock.advance(30)
            assert not running
            assert not queue.depth
        for key, at in wanted.items():
            assert started[key] >= at

    asyncio.run(scenario())


async def test_others_have_their_turn_between_keys_that_never_wait(queue: WorkQueue[str]) -> None:
    seen: list[int] = []
    turns = 0

    async def reconcile(_: str) -> None:
        seen.append(turns)

    for number in range(10):
        queue.add(str(number))
    async with working(queue, reconcile, workers=1):
        while len(seen) < 10:
            turns += 1
            await asyncio.sleep(0)
    assert len(set(seen)) == 10


async def test_a_key_that_needs_no_other_look_leaves_nothing_in_the_queue(
    queue: WorkQueue[str], clock: ManualClock
) -> None:
    """A pod's note is repeated after twenty minutes. If the pod is deleted before, its key is not kept until then."""
    there = {"a", "b"}
    runs: list[tuple[str, float]] = []

    async def reconcile(key: str) -> float | None:
        runs.append((key, clock.monotonic()))
        return 1200.0 if key in there else None

    async with working(queue, reconcile):
        queue.add("a")
        queue.add("b")
        await clock.advance(1)
        there.remove("a")
        queue.add("a")
        await clock.advance(0)
        assert dict(queue._due) == {"b": 1200.0}
        await clock.advance(1300)
        assert runs == [("a", 0), ("b", 0), ("a", 1), ("b", 1200)]


@pytest.mark.parametrize("seconds", [1.0, 20.0])
async def test_a_delayed_add_while_a_key_is_worked_on_outlives_the_work(
    queue: WorkQueue[str], clock: ManualClock, seconds: float
) -> None:
    """Whether or not it is later than the one that was pending when the work began."""
    reconciler = Reconciler()
    async with working(queue, reconciler):
        queue.add_after("a", 10)
        queue.add("a")
        await clock.advance(0)
        queue.add_after("a", seconds)
        reconciler.end("a")
        await clock.advance(30)
        assert reconciler.runs == ["a", "a"]
        reconciler.end("a")


async def test_a_failed_key_keeps_its_delayed_add(queue: WorkQueue[str], clock: ManualClock) -> None:
    runs: list[float] = []

    async def reconcile(_: str) -> None:
        runs.append(clock.monotonic())
        raise Conflict(409, "Conflict", "another was faster")

    async with working(queue, reconcile):
        queue.add_after("a", 0.1)
        queue.add("a")
        await clock.advance(0.2)
        assert runs == [0, 0.1]


async def test_delays_that_an_earlier_one_replaces_take_no_room(queue: WorkQueue[str], clock: ManualClock) -> None:
    async def reconcile(_: str) -> float:
        return 1200.0

    async with working(queue, reconcile):
        for _ in range(1000):
            queue.add_after("a", 1200)
            queue.add_after("a", 0.5)
            await clock.advance(0.5)
        assert len(queue._heap) < 100
