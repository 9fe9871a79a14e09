"""The threads of the adversary's agent, run in place so that a sequence repeats exactly, and calls that hang in them.

Owns the stand-in for `draco.agent.threads.DaemonExecutor`.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from draco.agent.threads import DaemonExecutor

T = TypeVar("T")

PATIENCE_S = 20.0
"""Longer than any work that does not hang."""
GRACE_S = 0.1
"""While a call hangs, wait this long for other work. Slow work just finishes a little later."""


class Threads:
    """Stands in for an agent's single-threaded pools: work runs in place when it is submitted.

    A hanging call would block the test. So once `hangs` is set, work runs in real threads, and the submitter waits until it is
    done, or stuck in or behind a hanging call.
    """

    def __init__(self) -> None:
        self.hangs = False
        self.stuck = False
        self._bell = threading.Condition()
        self._open: list[Future[Any]] = []

    def executor(self, *_args: Any, **_options: Any) -> "InPlace":
        """Make a stand-in for an executor."""
        return InPlace(self)

    def step(self, point: str) -> None:
        """One step of a driver call. Its name says if the call hangs."""
        if point.startswith("hangs"):
            with self._bell:
                self.stuck = True
                self._bell.notify_all()

    def run(self, behind: "Future[Any] | None", future: "Future[Any]", work: Callable[..., Any], args: Any) -> None:
        """Run work in its own thread after the work before it. Return when it is done or stuck."""

        def in_turn() -> None:
            if behind is not None:
                with suppress(BaseException):
                    behind.result()
            _do(future, work, args)
            with self._bell:
                self._bell.notify_all()

        self._open = [one for one in self._open if not one.done()] + [future]
        threading.Thread(target=contextvars.copy_context().run, args=(in_turn,), daemon=True).start()
        with self._bell:
            self._bell.wait_for(lambda: future.done() or self.stuck, PATIENCE_S)
            if self.stuck:  # this work may not depend on the hanging call
                self._bell.wait_for(future.done, GRACE_S)

    def let_go(self) -> None:
        """The hanging calls return now: wait until all work is done."""
        for future in self._open:
            with suppress(BaseException):
                future.result(timeout=PATIENCE_S)
        self.hangs = self.stuck = False
        self._open = []


class InPlace(DaemonExecutor):
    """An executor without a thread, until a call hangs."""

    def __init__(self, threads: Threads) -> None:
        super().__init__("in place", monotonic=lambda: 0.0)
        self._threads = threads
        self._last: Future[Any] | None = None

    def submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run the work in place, or in a thread while calls hang."""
        future: Future[Any] = Future()
        behind, self._last = self._last, future
        if not self._threads.hangs:
            _do(future, work, ())
        else:
            self._threads.run(behind, future, work, ())
        return asyncio.wrap_future(future)

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """Call `then` when all submitted work is done."""
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
