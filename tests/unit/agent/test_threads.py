"""Which work waits for the driver and which does not, on gates that the test opens and a manual clock."""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from draco.agent.hardware.nvml import NvmlCall
from draco.agent.threads import STUCK_S, SUSPECT_S, AgentThreads, DaemonExecutor, NameLocks
from tests.agents import eventually
from tests.doubles.clock import ManualClock


class Gate:
    """Work that lasts until the test opens the gate."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        self._open.wait(30)
        return "done"

    def open(self) -> None:
        self._open.set()


class Node:
    """Agent threads; also the NVML session that they hold: `reach` runs first, and `leave` at the end."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.call: NvmlCall | None = None
        self.reach: Callable[[], object] = str
        self.leave: Callable[[], object] = str
        self.threads = AgentThreads(calling=lambda: self.call, nvml=self, clock=self.clock)
        self.gate = Gate()

    def __enter__(self) -> None:
        self.reach()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def hang(self) -> None:
        self.call = NvmlCall("nvmlDeviceGetName", "GPU-0", self.clock.monotonic() - SUSPECT_S - 1)

    async def until(self, check: Callable[[], Any]) -> None:
        """Let time pass until the check holds."""
        deadline = time.monotonic() + 60
        while not check():
            assert time.monotonic() < deadline, "not in time"
            await self.clock.advance(0.25)
            await asyncio.sleep(0.005)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node()
    yield made
    made.gate.open()
    made.threads.close()


async def test_a_lane_does_one_thing_after_the_other_and_hands_on_what_comes_of_each() -> None:
    clock = ManualClock()
    executor = DaemonExecutor("test", monotonic=clock.monotonic)
    seen: list[int] = []

    def note(number: int) -> int:
        seen.append(number)
        return number

    assert await asyncio.gather(*(executor.run(partial(note, number)) for number in range(5))) == [*range(5)]
    assert seen == [*range(5)]
    with pytest.raises(ZeroDivisionError):
        await executor.run(lambda: 1 // 0)
    clock.pass_without_a_turn(100)
    await eventually(lambda: not executor.busy_s)
    assert await executor.run(lambda: threading.current_thread().daemon) is True, (
        "a call that never returns keeps no process"
    )
    executor.close()


async def test_names_are_taken_all_or_none_and_nobody_waits_holding_some() -> None:
    turns = NameLocks()
    await turns.take({"a"})
    both = asyncio.create_task(turns.take({"a", "b"}))
    await asyncio.sleep(0)
    assert turns.try_take({"b"}), "who waits for a does not keep b"
    turns.give_back({"b"})
    turns.give_back({"a"})
    await both
    assert not turns.try_take({"b"})


async def test_work_that_needs_no_driver_goes_on_while_the_drivers_never_ends(node: Node) -> None:
    stays = asyncio.create_task(node.threads.with_driver(node.gate, {"GPU-0"}))
    await eventually(node.gate.entered.is_set)
    assert await node.threads.on_record(lambda: "given up") == "given up"
    await node.threads.take({"GPU-1"})
    waits = asyncio.create_task(node.threads.take({"GPU-0"}))
    await asyncio.sleep(0)
    assert not waits.done(), "the GPU that is worked on waits"
    node.gate.open()
    assert await stays == "done"
    await waits


async def test_names_are_held_until_the_work_has_ended_whoever_still_waits_for_it(node: Node) -> None:
    given_up = asyncio.create_task(node.threads.with_driver(node.gate, {"GPU-0"}))
    await eventually(node.gate.entered.is_set)
    given_up.cancel()
    next_one = asyncio.create_task(node.threads.take({"GPU-0"}))
    await asyncio.sleep(0.01)
    assert not next_one.done()
    node.gate.open()
    await next_one


async def test_nothing_that_needs_the_driver_is_begun_while_a_call_hangs_and_it_keeps_no_name(node: Node) -> None:
    node.hang()
    looks: list[None] = []
    node.reach = lambda: looks.append(None)
    done = asyncio.create_task(node.threads.with_driver(lambda: "made", {"GPU-1"}))
    await node.until(lambda: len(looks) > 2)
    assert not done.done()
    await node.threads.take({"GPU-1"})
    node.threads.give_back({"GPU-1"})
    node.call = None
    await node.until(done.done)
    assert done.result() == "made"


async def test_who_waits_until_nvml_is_free_keeps_no_name_and_has_them_when_it_is(node: Node) -> None:
    node.reach = node.gate
    done = asyncio.create_task(node.threads.with_driver(lambda: "made", {"GPU-1"}))
    await eventually(node.gate.entered.is_set)
    await node.threads.take({"GPU-1"})  # without waiting: no call has been running for long
    node.gate.open()
    await node.until(lambda: not node.threads.stuck())
    assert not done.done()
    node.threads.give_back({"GPU-1"})
    await node.until(done.done)
    assert done.result() == "made"


async def test_no_call_that_hangs_comes_between_the_names_and_the_work(node: Node) -> None:
    nvml, reads = threading.RLock(), threading.Event()

    def read() -> None:
        with nvml:
            node.hang()
            reads.set()
            node.gate()

    def leave() -> None:
        nvml.release()
        if not reads.is_set():  # a reading starts as soon as it can
            threading.Thread(target=read, daemon=True).start()
            reads.wait(30)

    def keep() -> str:
        with nvml:
            return "as wanted"

    node.reach, node.leave = nvml.acquire, leave
    done = asyncio.create_task(node.threads.with_driver(keep, {"GPU-0"}))
    await node.until(reads.is_set)
    taken = asyncio.create_task(node.threads.take({"GPU-0"}))
    await node.until(taken.done)
    assert taken.result() is None, "no work waits for NVML and keeps the GPU meanwhile"
    assert await done == "as wanted"


async def test_names_of_work_to_which_nvml_does_not_answer_are_not_waited_for_and_those_of_others_are(
    node: Node,
) -> None:
    stays = asyncio.create_task(node.threads.with_driver(node.gate, {"GPU-0"}))
    await eventually(node.gate.entered.is_set)
    assert await node.threads.take({"GPU-1"}) is None
    told, waits = (asyncio.create_task(node.threads.take({name})) for name in ("GPU-0", "GPU-1"))
    await node.clock.advance(60)
    assert not told.done(), "slow work that asks NVML one thing after the other is waited for"
    node.hang()
    await node.until(told.done)
    assert told.result() == node.call
    await node.clock.advance(60)
    assert not waits.done(), "who has it needs no driver, and gives it back"
    node.threads.give_back({"GPU-1"})
    await node.until(waits.done)
    assert waits.result() is None
    node.gate.open()
    assert await stays == "done"
    assert await node.threads.take({"GPU-0"}) is None, "nothing was taken"


async def test_those_who_wait_for_one_name_and_for_nvml_do_not_wake_each_other_for_ever(node: Node) -> None:
    looks: list[None] = []
    node.reach = lambda: looks.append(None)
    await node.threads.take({"GPU-1"})
    waiting = [asyncio.create_task(node.threads.with_driver(partial(str, number), {"GPU-1"})) for number in range(3)]
    assert (
        await asyncio.gather(*(node.threads.with_driver(str, {f"GPU-{number}"}) for number in range(2, 5))) == [""] * 3
    )
    for _ in range(200):
        await asyncio.sleep(0)
    seen = len(looks)
    await node.threads.on_record(str)
    for _ in range(200):
        await asyncio.sleep(0.001)
    assert len(looks) == seen, "nobody asks again and again while the name is taken"
    node.threads.give_back({"GPU-1"})
    assert await asyncio.gather(*waiting) == ["0", "1", "2"]
    assert len(looks) < 20, "each has its turn without much ado"


async def test_who_no_longer_waits_until_nvml_is_free_leaves_its_turn_to_others(node: Node) -> None:
    node.reach = node.gate
    gone = asyncio.create_task(node.threads.with_driver(str, {"GPU-1"}))
    await eventually(node.gate.entered.is_set)
    gone.cancel()
    other = asyncio.create_task(node.threads.with_driver(lambda: "made", {"GPU-1"}))
    await asyncio.sleep(0.01)
    assert not other.done()
    node.gate.open()
    assert await other == "made"


async def test_a_question_has_its_turn_while_others_ask_again_and_again(node: Node) -> None:
    async def others() -> None:
        while True:
            await node.threads.with_driver(str)

    busy = [asyncio.create_task(others()) for _ in range(2)]
    async with asyncio.timeout(30):
        for _ in range(20):
            assert await node.threads.ask(lambda: None) is True
    for one in busy:
        one.cancel()
    await asyncio.wait(busy)


async def test_who_no_longer_waits_for_names_keeps_none(node: Node) -> None:
    assert await node.threads.take({"GPU-0"}) is None
    for turns in range(12):
        gone = asyncio.create_task(node.threads.take({"GPU-0"}))
        await asyncio.sleep(0.001)
        node.threads.give_back({"GPU-0"})
        for _ in range(turns):
            await asyncio.sleep(0)
        gone.cancel()
        [ended], _ = await asyncio.wait({gone})
        if ended.cancelled():
            async with asyncio.timeout(5):
                assert await node.threads.take({"GPU-0"}) is None


async def test_a_question_is_left_when_the_driver_does_not_answer(node: Node) -> None:
    def ask() -> None:
        node.gate()

    asked = asyncio.create_task(node.threads.ask(ask))
    await eventually(node.gate.entered.is_set)
    await node.clock.advance(60)
    assert not asked.done(), "slow work that asks NVML one thing after the other is waited for"
    node.hang()
    await node.until(asked.done)
    assert asked.result() is False
    assert await node.threads.ask(ask) is False, "and nobody asks again"
    node.call = None
    node.gate.open()
    again = asyncio.create_task(node.threads.ask(lambda: None))
    await node.until(again.done)
    assert again.result() is True


@pytest.mark.parametrize("how", ["ask", "with_driver", "on_record"])
async def test_work_that_fails_when_nobody_waits_for_it_any_more_is_no_error_of_ours(node: Node, how: str) -> None:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))

    def fails() -> None:
        node.gate()
        raise ValueError("the driver says no")

    doing = asyncio.create_task(node.threads.ask(fails) if how == "ask" else getattr(node.threads, how)(fails))
    await node.until(node.gate.entered.is_set)
    doing.cancel()
    await asyncio.wait([doing])
    del doing
    node.gate.open()
    await (node.threads.on_record if how == "on_record" else node.threads.with_driver)(
        str
    )  # the same thread has finished with it
    await asyncio.sleep(0)
    gc.collect()
    assert not unheard


async def test_nothing_is_asked_while_another_threads_call_hangs_and_nothing_is_kept(node: Node) -> None:
    asked: list[None] = []
    node.hang()
    assert await node.threads.ask(lambda: asked.append(None)) is False
    node.call = None
    assert await node.threads.ask(lambda: None) is True
    assert asked == []


async def test_what_a_question_comes_to_is_raised(node: Node) -> None:
    with pytest.raises(ZeroDivisionError):
        await node.threads.ask(lambda: 1 // 0)  # type: ignore[arg-type]
    assert await node.threads.ask(lambda: None) is True, "the driver's turn was given back"


async def test_a_stuck_record_is_stuck_and_a_driver_that_hangs_is_not(node: Node) -> None:
    assert node.threads.stuck() == []
    stays = asyncio.create_task(node.threads.with_driver(node.gate))
    await eventually(node.gate.entered.is_set)
    node.clock.pass_without_a_turn(STUCK_S + 1)
    assert node.threads.stuck() == [
        "Work on GPU instances has been running for more than 120 s, and does not wait for NVML."
    ]
    node.hang()
    assert node.threads.stuck() == [], "another process would hang as well"
    other = Gate()
    disk = asyncio.create_task(node.threads.on_record(other))
    await eventually(other.entered.is_set)
    node.clock.pass_without_a_turn(STUCK_S + 1)
    assert node.threads.stuck() == ["Work on a claim's record has been running for more than 120 s."]
    other.open()
    node.gate.open()
    await asyncio.gather(stays, disk)


async def test_an_agent_that_ends_says_so_when_nothing_of_it_works_any_more(node: Node) -> None:
    at_work = asyncio.create_task(node.threads.with_driver(node.gate, {"GPU-0"}))
    await eventually(node.gate.entered.is_set)
    ended = threading.Event()
    await node.threads.closed(0.05, ended.set)
    assert not ended.is_set(), "a thread still works"
    node.gate.open()
    await at_work
    await eventually(ended.is_set)


async def test_an_agent_that_has_nothing_to_do_ends_at_once(node: Node) -> None:
    await node.threads.on_record(lambda: None)
    ended = threading.Event()
    async with asyncio.timeout(5):
        await node.threads.closed(60.0, ended.set)
    assert ended.is_set()


async def test_an_agent_that_ends_does_not_wait_for_a_call_that_hangs(node: Node) -> None:
    at_work = asyncio.create_task(node.threads.with_driver(node.gate, {"GPU-0"}))
    await eventually(node.gate.entered.is_set)
    node.hang()
    ended = threading.Event()
    async with asyncio.timeout(5):
        await node.threads.closed(60.0, ended.set)
    assert not ended.is_set()
    node.gate.open()
    await at_work
    await eventually(ended.is_set)
