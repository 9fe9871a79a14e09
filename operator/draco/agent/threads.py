"""Two threads for blocking work, so that only work that needs NVML waits for NVML.

A call of NVML may never return, so one thread calls NVML and the other never does. Owns the threads, the locks that keep
conflicting work apart, and the rule that no NVML work starts while NVML hangs. Knows nothing of the work.
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
"""A call that takes longer may hang: no new NVML work starts."""
STUCK_S = 120.0
"""Work that takes longer counts as stuck."""
_LOOK_S = 0.25
_DRIVER = "the driver"


class DaemonExecutor:
    """Runs work in one daemon thread, in order; it starts with the first work.

    Standard executors have no daemon threads: an NVML call that never returns must not keep the process from ending.
    """

    def __init__(self, name: str, *, monotonic: Callable[[], float]) -> None:
        self._name = name
        self._monotonic = monotonic
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._since_s: float | None = None
        self._then: Callable[[], None] = lambda: None

    def submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Queue work and return its result as a future. The work runs even if nobody waits for it any more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._work.put((future, work))
        done = asyncio.wrap_future(future)
        done.add_done_callback(_heard)  # its waiter may be gone before it fails
        return done

    async def run(self, work: Callable[[], T]) -> T:
        """Queue work and await it."""
        return await asyncio.shield(self.submit(work))

    @property
    def busy_s(self) -> float:
        """Seconds that the current work has taken; 0 when idle."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._monotonic() - since_s

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """End the thread after the queued work. `then` is called in it, or immediately if it never started."""
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
            del future, work, item  # otherwise they live until the next work
        self._then()


class NameLocks:
    """Locks by name. All names of one piece of work are taken together, so nobody waits while holding some.

    `try_take` may be called in any thread; the other methods belong to the event loop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        self._freed = asyncio.Event()

    def try_take(self, names: Iterable[str]) -> bool:
        """Take all of the names if all are free."""
        wanted = set(names)
        with self._lock:
            if wanted & self._taken:
                return False
            self._taken |= wanted
            return True

    async def take(self, names: Iterable[str]) -> None:
        """Take all of the names when all are free."""
        wanted = set(names)
        while not self.try_take(wanted):
            await self._freed.wait()

    async def until_free(self, names: Iterable[str]) -> None:
        """Wait until all of the names are free, without taking them."""
        wanted = set(names)
        while wanted & self._taken:
            await self._freed.wait()

    def give_back(self, names: Iterable[str]) -> None:
        """Release names."""
        with self._lock:
            self._taken.difference_update(names)
        self._freed.set()
        self._freed = asyncio.Event()


class _Attempt(Generic[T]):
    """Work for the driver's thread, which may refuse to start it."""

    def __init__(self, work: Callable[[], T], names: Collection[str] = ()) -> None:
        self.work = work
        self.names = frozenset(names)
        self.wanted = True
        self.begun = False


class AgentThreads:
    """The threads of one node. `calling` is the longest NVML call in progress, None without one.

    Whoever needs NVML alone holds `nvml`, in any thread.
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
        self._worked_on: frozenset[str] = frozenset()  # used in the driver's thread
        self._records = DaemonExecutor("claims", monotonic=clock.monotonic)
        self._driver = DaemonExecutor("instances", monotonic=clock.monotonic)
        self._turns = NameLocks()

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """End the threads after the queued work, then call `then`: never, if a call hangs."""
        self._driver.close(lambda: self._records.close(then))

    async def closed(self, within_s: float, then: Callable[[], None]) -> None:
        """The same; returns when `then` was called, after `within_s`, or immediately if NVML hangs."""
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
        """Take names for `on_record` to release. Returns the hanging call if work that waits for it holds them."""
        found = None

        def kept() -> bool:
            nonlocal found
            found = None if self._worked_on.isdisjoint(names) else self.hanging
            return found is not None

        return None if await self._take_unless(kept, names) else found

    def give_back(self, names: Iterable[str]) -> None:
        """Release names without having done work."""
        self._turns.give_back(names)

    async def on_record(self, work: Callable[[], T], names: Collection[str] = ()) -> T:
        """Run work that needs the disk and never NVML. The names are released when it ends, even if its waiter is gone."""
        return await asyncio.shield(self._holding(names, self._records, work))

    async def with_driver(self, work: Callable[[], T], names: Collection[str] = ()) -> T:
        """Run work that needs NVML, holding its names. It does not start while NVML hangs."""
        while True:
            await self._turns.until_free(names)
            await self._turns.take({_DRIVER})
            attempt = _Attempt(work, names)
            trying = self._try(attempt)
            try:
                came = await asyncio.shield(trying)
            finally:
                attempt.wanted = False  # work whose waiter is gone before it starts must not take its names
            if came:
                return came[0]
            if self.hanging is not None:
                await self._clock.sleep(_LOOK_S)

    async def ask(self, work: Callable[[], None]) -> bool:
        """Run optional NVML work; returns whether it was done. False if NVML hangs; work that has started then continues."""
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
        """Take names in queue order: a poller would always lose to a newcomer. False if `hopeless` becomes true first."""
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
        """Run work as soon as NVML is free; the future's list has its result, or is empty if it did not start.

        The caller has taken the driver's name; it is released here.
        """
        done = self._driver.submit(lambda: self._begin(attempt))
        done.add_done_callback(lambda _: self._turns.give_back({_DRIVER, *(attempt.names if attempt.begun else ())}))
        return done

    def _begin(self, attempt: _Attempt[T]) -> list[T]:
        with ExitStack() as holding:
            # Take names only together with NVML. Work that held names while it waited behind a hanging call would block work that
            # needs no driver.
            holding.enter_context(self._nvml)
            attempt.begun = attempt.wanted and self.hanging is None and self._turns.try_take(attempt.names)
            if not attempt.begun:
                return []
            if not attempt.names:
                holding.close()  # others may read between its steps
            self._worked_on = attempt.names
            try:
                return [attempt.work()]
            finally:
                self._worked_on = frozenset()

    @property
    def hanging(self) -> NvmlCall | None:
        """The NVML call that has not returned within SUSPECT_S and may never do so; None without one."""
        call = self._calling()
        return call if call is not None and self._clock.monotonic() - call.since_s > SUSPECT_S else None

    def stuck(self) -> list[str]:
        """Which threads are stuck, as sentences. A hanging NVML call does not count: a restart of the process does not end it."""
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
    """Retrieve the error, so that asyncio does not report it when nobody waits any more."""
    if not done.cancelled():
        done.exception()
