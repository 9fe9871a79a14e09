"""Two threads for work that blocks, so that nothing waits for the driver that does not need it.

A call of the driver may never return. So one thread asks NVML, and the other never does. Owns the threads, the turns of those who
must not work at once, and that nothing is begun that needs NVML while it does not answer. What the work is, is not its business.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from draco.agent.hardware.nvml import NvmlCall
from draco.kube.clock import Clock

T = TypeVar("T")


SUSPECT_S = 5.0
"""A call that takes so long may be one that hangs: nothing new is begun that needs NVML."""
STUCK_S = 120.0
"""No work takes so long unless something is wrong with it."""
_LOOK_S = 0.25
_DRIVER = "the driver"


class DaemonExecutor:
    """One thread that does one thing after the other. Begun when there is something to do.

    It is a daemon, which no executor's thread is: a call of a driver that never returns must not keep the process from ending.
    """

    def __init__(self, name: str, *, monotonic: Callable[[], float]) -> None:
        self._name = name
        self._monotonic = monotonic
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._since_s: float | None = None
        self._then: Callable[[], None] = lambda: None

    def submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Have it done; what comes of it. It is done even if nobody waits for it any more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._work.put((future, work))
        done = asyncio.wrap_future(future)
        done.add_done_callback(_heard)  # its waiter may be gone before it fails
        return done

    async def run(self, work: Callable[[], T]) -> T:
        """The same, awaited."""
        return await asyncio.shield(self.submit(work))

    @property
    def busy_s(self) -> float:
        """For how long it has been doing what it does now; 0 when it does nothing."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._monotonic() - since_s

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """Let the thread end when it has done what is on its list. `then` is called in it, or at once where there is none."""
        if self._thread is None:
            then()
        else:
            self._then = then
            self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            self._since_s = self._monotonic()
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the waiter gets it, as from any executor
                future.set_exception(error)
            else:
                future.set_result(result)
            finally:
                self._since_s = None
            del future, work, item  # or they live until there is something to do again
        self._then()


class NameLocks:
    """Who works on what: no two at a time have a name in common. Names are taken all at once, so nobody waits holding some.

    Names may be tried in any thread; what waits or gives back is the event loop's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        self._freed = asyncio.Event()

    def try_take(self, names: Iterable[str]) -> bool:
        """Take all of the names, if nobody has any."""
        wanted = set(names)
        with self._lock:
            if wanted & self._taken:
                return False
            self._taken |= wanted
            return True

    async def take(self, names: Iterable[str]) -> None:
        """Take all of the names, as soon as nobody has any."""
        wanted = set(names)
        while not self.try_take(wanted):
            await self._freed.wait()

    async def until_free(self, names: Iterable[str]) -> None:
        """Return when nobody has any of the names, and take none."""
        wanted = set(names)
        while wanted & self._taken:
            await self._freed.wait()

    def give_back(self, names: Iterable[str]) -> None:
        """Let others have the names."""
        with self._lock:
            self._taken.difference_update(names)
        self._freed.set()
        self._freed = asyncio.Event()


class _Attempt(Generic[T]):
    """Work for the driver's thread, which is begun there or not."""

    def __init__(self, work: Callable[[], T], names: Collection[str] = ()) -> None:
        self.work = work
        self.names = frozenset(names)
        self.wanted = True
        self.begun = False


class AgentThreads:
    """The threads of one node. `calling` is the call of NVML that has been going on longest, None when there is none.

    `nvml` is held by those who keep NVML for themselves, in whatever thread.
    """

    def __init__(
        self,
        *,
        calling: Callable[[], NvmlCall | None],
        nvml: AbstractContextManager[object],
        clock: Clock,
    ) -> None:
        self._calling = calling
        self._nvml = nvml
        self._clock = clock
        self._worked_on: frozenset[str] = frozenset()  # in the driver's thread
        self._records = DaemonExecutor("claims", monotonic=clock.monotonic)
        self._driver = DaemonExecutor("instances", monotonic=clock.monotonic)
        self._turns = NameLocks()

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """Let the threads end when they have done what is on their lists. `then` is called when nothing is done any more.

        With a call that hangs that is never.
        """
        self._driver.close(lambda: self._records.close(then))

    async def closed(self, within_s: float, then: Callable[[], None]) -> None:
        """The same, and return when it is so, after a while, or at once where NVML does not answer."""
        ended: Future[None] = Future()

        def end() -> None:
            then()
            if ended.set_running_or_notify_cancel():
                ended.set_result(None)

        self.close(end)
        if self.hanging is None:
            waiting = asyncio.wrap_future(ended)
            await asyncio.wait({waiting}, timeout=within_s)
            waiting.cancel()

    async def take(self, names: Collection[str]) -> NvmlCall | None:
        """Take names, for `on_record` to give back. The call instead, if they are kept by work to which NVML does not answer."""
        found = None

        def kept() -> bool:
            nonlocal found
            found = None if self._worked_on.isdisjoint(names) else self.hanging
            return found is not None

        return None if await self._take_unless(kept, names) else found

    def give_back(self, names: Iterable[str]) -> None:
        """Give names back that nothing was done with."""
        self._turns.give_back(names)

    async def on_record(self, work: Callable[[], T], names: Collection[str] = ()) -> T:
        """Work that needs the disk and never NVML. The names are released when it has ended, even if its waiter is gone."""
        return await asyncio.shield(self._holding(names, self._records, work))

    async def with_driver(self, work: Callable[[], T], names: Collection[str] = ()) -> T:
        """Work that needs NVML, and is alone with what it names meanwhile. Not begun while NVML does not answer."""
        while True:
            await self._turns.until_free(names)
            await self._turns.take({_DRIVER})
            attempt = _Attempt(work, names)
            trying = self._try(attempt)
            try:
                came = await asyncio.shield(trying)
            finally:
                attempt.wanted = False  # who is gone before it was begun takes nothing with him
            if came:
                return came[0]
            if self.hanging is not None:
                await self._clock.sleep(_LOOK_S)

    async def ask(self, work: Callable[[], None]) -> bool:
        """The same for work that can be done without: whether it was done. What was begun goes on where NVML does not answer."""
        if not await self._take_unless(lambda: self.hanging is not None, {_DRIVER}):
            return False
        if self.hanging is not None:
            self._turns.give_back({_DRIVER})
            return False
        asked = self._holding({_DRIVER}, self._driver, work)
        while not asked.done():
            look = asyncio.ensure_future(self._clock.sleep(_LOOK_S))
            try:
                await asyncio.wait({asked, look}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                look.cancel()
            if not asked.done() and self.hanging is not None:
                return False
        asked.result()
        return True

    async def _take_unless(self, hopeless: Callable[[], bool], names: Collection[str]) -> bool:
        """Take names in one's turn: who looks for them again and again is always later than who has just begun."""
        taking = asyncio.ensure_future(self._turns.take(names))
        try:
            await asyncio.sleep(0)
            while not taking.done():
                if hopeless():
                    return False
                look = asyncio.ensure_future(self._clock.sleep(_LOOK_S))
                try:
                    await asyncio.wait({taking, look}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    look.cancel()
        except BaseException:
            if taking.done():
                self._turns.give_back(names)
            raise
        finally:
            taking.cancel()
        return True

    def _try(self, attempt: _Attempt[T]) -> asyncio.Future[list[T]]:
        """Do work as soon as NVML is free; what it comes to, in a list that is empty where it was not begun.

        The driver's turn is taken by the caller, and given back here.
        """
        done = self._driver.submit(lambda: self._begin(attempt))
        done.add_done_callback(lambda _: self._turns.give_back({_DRIVER, *(attempt.names if attempt.begun else ())}))
        return done

    def _begin(self, attempt: _Attempt[T]) -> list[T]:
        with ExitStack() as holding:
            # Names are taken when NVML is, which is kept as long as they are: who waits for NVML while it is kept by a call that
            # hangs would keep them from work that needs no driver.
            holding.enter_context(self._nvml)
            attempt.begun = attempt.wanted and self.hanging is None and self._turns.try_take(attempt.names)
            if not attempt.begun:
                return []
            if not attempt.names:
                holding.close()  # others may read between two of its steps
            self._worked_on = attempt.names
            try:
                return [attempt.work()]
            finally:
                self._worked_on = frozenset()

    @property
    def hanging(self) -> NvmlCall | None:
        """A call of NVML that has not returned for so long that it may never do so."""
        call = self._calling()
        return call if call is not None and self._clock.monotonic() - call.since_s > SUSPECT_S else None

    def stuck(self) -> list[str]:
        """Whose thread does not come to an end, as sentences; empty when all is well.

        Not the driver's: a process that is started again does not make it answer.
        """
        if self._records.busy_s > STUCK_S:
            return [f"Work on a claim's record has been running for more than {STUCK_S:g} s."]
        if self._driver.busy_s > STUCK_S and self.hanging is None:
            return [f"Work on GPU instances has been running for more than {STUCK_S:g} s, and does not wait for NVML."]
        return []

    def _holding(self, names: Iterable[str], executor: DaemonExecutor, work: Callable[[], T]) -> "asyncio.Future[T]":
        done = executor.submit(work)
        done.add_done_callback(lambda _: self._turns.give_back(names))
        return done


def _heard(done: "asyncio.Future[Any]") -> None:
    """Nobody may wait any more for what work comes to: that is no error."""
    if not done.cancelled():
        done.exception()
