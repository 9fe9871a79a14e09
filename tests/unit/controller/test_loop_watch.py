"""How long the event loop was held, as it is told to who scrapes."""

import asyncio

from draco.controller.loop_watch import LoopWatch
from tests.doubles.clock import ManualClock


async def test_the_longest_hold_of_the_last_minute_is_told() -> None:
    clock = ManualClock()
    watch = LoopWatch(clock)
    task = asyncio.create_task(watch.run())
    await clock.advance(1.0)
    assert watch.longest_s < 1e-9
    clock.pass_without_a_turn(0.3)
    await clock.advance(0.02)
    assert 0.27 <= watch.longest_s <= 0.3
    assert watch.longest_work_s < 0.2, "by the processor, nothing was done"
    await clock.advance(59.0)
    assert watch.longest_s >= 0.27
    await clock.advance(2.0)
    assert watch.longest_s < 1e-9
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
