"""How long the event loop was held, as reported in the metrics."""

import asyncio

import pytest
from structlog.testing import capture_logs

from draco.controller.loop_watch import LoopWatch, starved_s
from tests.doubles.clock import ManualClock


@pytest.mark.parametrize(("worked_s", "told_s"), [(0.0, 0.0), (0.1, 0.1), (0.5, 0.28)])
async def test_the_longest_hold_of_the_last_minute_is_told(worked_s: float, told_s: float) -> None:
    clock, worked = ManualClock(), [0.0]
    watch = LoopWatch(clock, processor_s=lambda: worked[0])
    task = asyncio.create_task(watch.run())
    await clock.advance(1.0)
    assert watch.longest_s < 1e-9
    worked[0] += worked_s
    clock.pass_without_a_turn(0.3)
    await clock.advance(0.02)
    assert watch.longest_s == pytest.approx(0.28, abs=0.021)
    assert watch.longest_work_s == pytest.approx(told_s, abs=0.021), "by the processor, and no more than the hold"
    await clock.advance(59.0)
    assert watch.longest_s >= 0.27
    await clock.advance(2.0)
    assert watch.longest_s < 1e-9
    assert watch.longest_work_s < 1e-9
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("known", [True, False])
async def test_a_long_hold_is_logged_with_its_cause_unless_a_longer_one_was_just_told(known: bool) -> None:
    clock, worked, starved = ManualClock(), [0.0], [3.0]
    watch = LoopWatch(clock, processor_s=lambda: worked[0], starved_s=lambda: starved[0] if known else None)
    with capture_logs() as logs:
        task = asyncio.create_task(watch.run())
        await clock.advance(1.0)
        for hold_s in (0.9, 3.0, 2.0):
            worked[0] += 0.5
            starved[0] += hold_s - 0.5
            clock.pass_without_a_turn(hold_s)
            await clock.advance(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    (told,) = logs
    assert told["event"] == "loop.held"
    assert told["seconds"] == pytest.approx(3.0, abs=0.05)
    assert told["processor_s"] == pytest.approx(0.5)
    assert told["starved_s"] == (pytest.approx(2.5) if known else None)


def test_the_kernel_says_how_long_a_thread_was_without_a_processor() -> None:
    before = starved_s()
    assert before is not None
    after = starved_s()
    assert after is not None
    assert after >= before
