"""Threads of one agent of the adversary, run in place, so that a sequence repeats exactly; and calls that hang in them.

Owns what stands in for `draco.agent.threads.DaemonExecutor`. What is done in an executor is the agent's business.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from draco.agent.threads import DaemonExecutor

T = TypeVar("T")

PATIENCE_S = 20.0
"""Longer than any work takes that does not hang."""
GRACE_S = 0.1
"""While something hangs, work that is not done by then waits for it. If it was only slow, it is done a little later."""


class Threads:
    """Stands in for the thread pools of one agent, which have one thread each: work is done at once, where it is submitted.

    A call that hangs cannot be waited for in place. So once `hangs` is set each pool has a thread after all, and whoever submits
    work waits until it is done or stuck: in a call that hangs, or behind one.
    """

    def __init__(self) -> None:
        self.hangs = False
        self.stuck = False
        self._bell = threading.Condition()
        self._open: list[Future[Any]] = []

    def executor(self, *_args: Any, **_options: Any) -> "InPlace":
        """In place of an executor."""
        return InPlace(self)

    def step(self, point: str) -> None:
        """A step of a driver call, which says when it hangs."""
        if point.startswith("hangs"):
            with self._bell:
                self.stuck = True
                self._bell.notify_all()

    def run(self, behind: "Future[Any] | None", future: "Future[Any]", work: Callable[..., Any], args: Any) -> None:
        """Do work in a thread of its own, when what is before it is done; return when it is done or stuck."""

        def in_turn() -> None:
            if behind is not None:
                with suppress(BaseException):
                    behind.result()
            _do(future, work, args)
            with self._bell:
                self._bell.notify_all()

        self._open = [one for one in self._open if not one.done()] + [future]
        threading.Thread(target=in_turn, daemon=True).start()
        with self._bell:
            self._bell.wait_for(lambda: future.done() or self.stuck, PATIENCE_S)
            if self.stuck:  # this work may have nothing to do with what hangs
                self._bell.wait_for(future.done, GRACE_S)

    def let_go(self) -> None:
        """Nothing hangs any more: wait until all is done."""
        for future in self._open:
            with suppress(BaseException):
                future.result(timeout=PATIENCE_S)
        self.hangs = self.stuck = False
        self._open = []


class InPlace(DaemonExecutor):
    """An executor that has no thread while nothing hangs."""

    def __init__(self, threads: Threads) -> None:
        super().__init__("in place", monotonic=lambda: 0.0)
        self._threads = threads
        self._last: Future[Any] | None = None

    def submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Do it now, or as soon as it can be done."""
        future: Future[Any] = Future()
        behind, self._last = self._last, future
        if not self._threads.hangs:
            _do(future, work, ())
        else:
            self._threads.run(behind, future, work, ())
        return asyncio.wrap_future(future)

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """Say when nothing is left to be done."""
        if self._last is None or self._last.done():
            then()
        else:
            self._last.add_done_callback(lambda _: then())


def _do(future: "Future[Any]", work: Callable[..., Any], args: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work(*args))
    except BaseException as error:  # noqa: BLE001 - as a thread pool does
        future.set_exception(error)
