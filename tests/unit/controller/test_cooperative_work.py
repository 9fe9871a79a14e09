"""Long work yields to other tasks on the event loop."""

import asyncio

import pytest

from draco.controller.loop_watch import TURN_S, CooperativeWork
from tests.doubles.clock import WorkClock


async def turns_of_others(clock: WorkClock, parts: int) -> int:
    """How often another task gets a turn while this many parts of work are done."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    cooperative = CooperativeWork(clock)
    for _ in range(parts):
        await cooperative.pause()
    task.cancel()
    return turns


async def test_others_have_a_turn_after_each_bite() -> None:
    assert await turns_of_others(WorkClock(each_s=TURN_S / 10), 100) == pytest.approx(10, abs=2)


async def test_quick_work_is_done_in_one_go() -> None:
    assert await turns_of_others(WorkClock(each_s=TURN_S / 1000), 100) == 0


async def test_time_that_others_take_in_between_is_not_work() -> None:
    clock = WorkClock(each_s=TURN_S / 10)

    async def other() -> None:
        while True:
            clock.stall(60)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    cooperative = CooperativeWork(clock)
    for _ in range(100):
        await cooperative.pause()
    task.cancel()
    assert cooperative.work_s == pytest.approx(10 * TURN_S, rel=0.2)


async def test_a_stall_of_the_machine_is_not_work() -> None:
    clock = WorkClock(each_s=TURN_S / 10)
    cooperative = CooperativeWork(clock)
    await cooperative.pause()
    clock.stall(60)
    await cooperative.pause()
    await cooperative.pause()
    assert cooperative.work_s <= 2 * TURN_S


async def test_a_stall_at_the_end_is_not_work_either() -> None:
    clock = WorkClock(each_s=TURN_S / 10)
    cooperative = CooperativeWork(clock)
    await cooperative.pause()
    clock.stall(60)
    assert cooperative.work_s <= TURN_S
