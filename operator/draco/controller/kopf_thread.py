"""Runs Kopf in a thread and an event loop of its own.

In a shared loop Kopf would take over the process's signals and, at its end, cancel every task started after it. It ends on errors
that a watch should survive, so it is restarted. Imported late: that takes 0.4 s, and readiness does not need it.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from cachetools import LRUCache

from draco.controller.own_kinds import OwnKind
from draco.kube.connect.connection import Connect
from draco.resources.kinds import Kind

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_STOP_WITHIN_S = 1.0
_ERRORS_KNOWN = 32
_ERROR_CHARACTERS = 200


class KopfThread:
    """Runs Kopf until cancelled, restarting it as needed. Events go to `own_kinds`, on the loop of `run`.

    `identity` is the operator's. Without one Kopf asks for the name of its user, and ends if there is none, as in a container.
    """

    def __init__(self, connect: Connect, own_kinds: Mapping[Kind[Any], OwnKind[Any]], *, identity: str) -> None:
        self._connect = connect
        self._identity: Any = identity  # Kopf's type is not public
        self._own_kinds = own_kinds
        self._here: asyncio.AbstractEventLoop | None = None
        self._loop = asyncio.new_event_loop()
        self._ending = False
        self._stop = asyncio.Event()  # of the current run, or of the pause before the next
        for each in own_kinds.values():
            each.start_again = self.start_again

    async def run(self) -> None:
        """Run Kopf in its thread; on cancellation stop it, and abandon it if that takes too long."""
        self._here = asyncio.get_running_loop()
        ended: asyncio.Future[None] = self._here.create_future()

        def live() -> None:
            self._loop.set_exception_handler(self._hear)
            try:
                with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                    runner.run(self._main())
            finally:
                self._tell(_end, ended)

        threading.Thread(target=live, name="kopf", daemon=True).start()
        try:
            await asyncio.shield(ended)
        finally:
            self._ending = True
            self.start_again()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_WITHIN_S):
                    await asyncio.shield(ended)

    def start_again(self) -> None:
        """Stop Kopf; it starts again unless the operator is ending."""
        with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended
            self._loop.call_soon_threadsafe(self._stop.set)

    def _tell(self, callback: Callable[..., object], *args: object) -> None:
        """Pass a call from Kopf's thread to the operator's."""
        assert self._here is not None  # noqa: S101 - the thread starts after it is set
        with contextlib.suppress(RuntimeError):  # the operator's loop is closed: nobody is left
            self._here.call_soon_threadsafe(callback, *args)

    def _hear(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle errors on Kopf's loop. At the end it closes watches that Kopf leaves open, and some refuse that."""
        if self._ending and "asyncgen" in context:
            log.debug("kopf.watch_not_closed", error=str(context.get("exception")))
        else:
            loop.default_exception_handler(context)

    async def _main(self) -> None:
        pause_s, known = _FIRST_PAUSE_S, ""
        while not self._ending:
            started = self._loop.time()
            try:
                await self._run_kopf()
            except Exception as error:
                why = str(error) or type(error).__name__
                # Log the traceback once: while the cause lasts, Kopf ends again and again.
                log.warning("kopf.ended", error=why, restart_in_s=pause_s, exc_info=why != known)
                known = why
            if self._loop.time() - started > _LONGEST_PAUSE_S or self._stop.is_set():
                pause_s = _FIRST_PAUSE_S
            self._stop.clear()
            if self._ending:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            self._stop.clear()
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _run_kopf(self) -> None:
        import kopf  # noqa: PLC0415 - see above

        from draco.controller.handlers import kopf_registry  # noqa: PLC0415 - it imports Kopf

        log.info("kopf.loaded")
        await kopf.operator(
            registry=kopf_registry(self._connect, self._own_kinds, self._tell),
            identity=self._identity,
            memo=kopf.Memo(),
            standalone=True,
            clusterwide=True,
            stop_flag=self._stop,
        )


def quiet_kopf() -> None:
    """Reduce Kopf's own log to what the operator's reader needs."""
    logger = logging.getLogger("kopf")
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.handlers[:] = [_TracebacksOnce()]
    logging.getLogger("kopf._core.reactor.running").addFilter(_not_about_signals)


class _TracebacksOnce(logging.Handler):
    """Passes on Kopf's log, with a traceback only if it was not logged recently."""

    def __init__(self) -> None:
        super().__init__()
        self._said: LRUCache[str, None] = LRUCache(_ERRORS_KNOWN)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the record on."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            what = repr(error)[:_ERROR_CHARACTERS]
            if what in self._said:
                record.exc_info = record.exc_text = None
            self._said[what] = None
        logging.getLogger().handle(record)


def _not_about_signals(record: logging.LogRecord) -> bool:
    return "OS signals are ignored" not in record.getMessage()


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
