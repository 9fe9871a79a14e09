"""How long the event loop was held, as it is told to who scrapes."""

import asyncio

import pytest

from draco.controller.loop_watch import LoopWatch
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
