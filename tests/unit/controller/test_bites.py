"""Long work leaves the event loop to others in between."""

import asyncio

import pytest

from draco.controller.loop_watch import BITE_S, Bites
from tests.doubles.clock import WorkClock


async def turns_of_others(clock: WorkClock, parts: int) -> int:
    """How often another task has its turn while so many parts of work are done."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    bites = Bites(clock)
    for _ in range(parts):
        await bites.pause()
    task.cancel()
    return turns


async def test_others_have_a_turn_after_each_bite() -> None:
    assert await turns_of_others(WorkClock(each_s=BITE_S / 10), 100) == pytest.approx(10, abs=2)


async def test_quick_work_is_done_in_one_go() -> None:
    assert await turns_of_others(WorkClock(each_s=BITE_S / 1000), 100) == 0


async def test_time_that_others_take_in_between_is_not_work() -> None:
    clock = WorkClock(each_s=BITE_S / 10)

    async def other() -> None:
        while True:
            clock.stall(60)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    bites = Bites(clock)
    for _ in range(100):
        await bites.pause()
    task.cancel()
    assert bites.work_s == pytest.approx(10 * BITE_S, rel=0.2)


async def test_a_stall_of_the_machine_is_not_work() -> None:
    clock = WorkClock(each_s=BITE_S / 10)
    bites = Bites(clock)
    await bites.pause()
    clock.stall(60)
    await bites.pause()
    await bites.pause()
    assert bites.work_s <= 2 * BITE_S


async def test_a_stall_at_the_end_is_not_work_either() -> None:
    clock = WorkClock(each_s=BITE_S / 10)
    bites = Bites(clock)
    await bites.pause()
    clock.stall(60)
    assert bites.work_s <= BITE_S
