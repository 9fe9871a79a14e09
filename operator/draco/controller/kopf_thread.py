"""Where Kopf lives: a thread and an event loop of its own.

In a shared loop Kopf takes over the process's signals and, when it ends, cancels every task that was started after it. It ends
on errors that a watch should survive, so it is started again; the informers, not Kopf, are what correctness rests on. It is
imported here, late: that takes half a second and 60 MiB which nothing needs before the operator is ready.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import structlog

from draco.kube.connection import Connection
from draco.resources.kinds import Kind

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_STOP_WITHIN_S = 1.0


class OwnKinds:
    """Runs Kopf until cancelled, again and again if need be. `wakes` is who hears of each kind's objects, by UID."""

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], wakes: Mapping[Kind[Any], Callable[[str], None]]
    ) -> None:
        self._connect = connect
        self._wakes = wakes
        self.restarts = 0

    async def run(self) -> None:
        """Run Kopf in its thread; when cancelled, stop it, and leave it to the end of the process if it takes too long."""
        here = asyncio.get_running_loop()
        ended: asyncio.Future[None] = here.create_future()
        wakes = {kind: partial(_from_thread, here, wake) for kind, wake in self._wakes.items()}
        thread = _KopfThread(self._connect, wakes, self._restarted)

        def live() -> None:
            try:
                thread.run()
            finally:
                _from_thread(here, _end, ended)

        threading.Thread(target=live, name="kopf", daemon=True).start()
        try:
            await asyncio.shield(ended)
        finally:
            thread.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_WITHIN_S):
                    await asyncio.shield(ended)

    def _restarted(self) -> None:
        self.restarts += 1


class _KopfThread:
    """What happens inside the thread."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        wakes: Mapping[Kind[Any], Callable[[str], None]],
        restarted: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._wakes = wakes
        self._restarted = restarted
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    def stop(self) -> None:
        _from_thread(self._loop, self._stop.set)

    async def _main(self) -> None:
        import kopf  # noqa: PLC0415 - see above

        from draco.controller.handlers import kopf_registry, kopf_settings  # noqa: PLC0415 - it imports Kopf

        log.info("kopf.loaded")
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            started = self._loop.time()
            try:
                async with await self._connect() as connection:
                    await kopf.operator(
                        registry=kopf_registry(self._wakes, connection),
                        settings=kopf_settings(),
                        standalone=True,
                        clusterwide=True,
                        stop_flag=self._stop,
                    )
            except Exception as error:
                log.warning("kopf.ended", error=str(error) or type(error).__name__, restart_in_s=pause_s, exc_info=True)
            if self._stop.is_set():
                return
            self._restarted()
            if self._loop.time() - started > _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def quiet_kopf() -> None:
    """Keep Kopf's own log to what an operator's reader needs."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").addFilter(_not_about_signals)


def _not_about_signals(record: logging.LogRecord) -> bool:
    return "OS signals are ignored" not in record.getMessage()


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _from_thread(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    with contextlib.suppress(RuntimeError):  # the other loop is closed: nobody is left to hear it
        loop.call_soon_threadsafe(callback, *args)
