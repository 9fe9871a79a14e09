"""Connections to the ports of the operator and of the agent: how many there may be, and how long a client may take.

Owns accepting and ending them. Anyone who reaches a port can open connections and leave it at that, so there are at most so many:
one more ends the oldest of the address that has most. An address with few, as kubelet and the API server have, is always let in.
What is answered is the application's business.
"""

import asyncio
import socket
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

log = structlog.get_logger(__name__)

_BACKLOG = 128
_PAUSE_S = 1.0
"""Before the next attempt where the machine has no room for another connection."""
_SAID_EVERY_S = 60.0


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What clients may take.

    `head_s` is for TLS, and again for the head of a request, counted from the last answer; `body_s` for a request's body, and
    again for taking the answer.
    """

    most: int = 512
    head_s: float = 20.0
    body_s: float = 10.0


USUAL = ConnectionLimits()


def in_time(limits: ConnectionLimits) -> Middleware:
    """Middleware that ends connections on which a request is not sent, or its answer not taken, in time."""

    @web.middleware
    async def timed(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            async with asyncio.timeout(limits.body_s):
                await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"the request took longer than {limits.body_s:g} s\n") from None
        response = await handler(request)
        try:
            async with asyncio.timeout(limits.body_s):
                await response.prepare(request)
                await response.write_eof()
        except (TimeoutError, ConnectionError):  # the client is too slow, or gone
            if request.transport is not None:
                request.transport.abort()
        return response

    return timed


async def listening(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen there; without a host on every address. Raises OSError."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    try:
        sockets = [each.dup() for each in server.sockets]
        for each in sockets:
            each.listen(_BACKLOG)
    finally:
        server.close()
    return sockets


class Connections:
    """The connections to one server, each with the task that serves it."""

    def __init__(
        self, protocol: Callable[[], asyncio.Protocol], limits: ConnectionLimits, tls: ssl.SSLContext | None
    ) -> None:
        self._protocol = protocol
        self._limits = limits
        self._tls = tls
        self._open: defaultdict[str, dict[asyncio.Task[None], None]] = defaultdict(dict)  # the oldest first
        self._said_at: float | None = None

    @asynccontextmanager
    async def accepting(self, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
        """Accept connections until left. What is open then stays open."""
        tasks = [asyncio.create_task(self._accept(each), name="accept") for each in sockets]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for each in sockets:
                each.close()

    async def end(self) -> None:
        """End all that are open."""
        tasks = [task for tasks in self._open.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("http.not_accepted", error=str(error))
                await asyncio.sleep(_PAUSE_S)
            else:
                self._admit(address[0], loop.create_task(self._serve(connection), name="connection"))

    def _admit(self, address: str, task: asyncio.Task[None]) -> None:
        self._open[address][task] = None
        task.add_done_callback(lambda _: self._forget(address, task))
        if sum(map(len, self._open.values())) > self._limits.most:
            greediest = max(self._open, key=lambda each: len(self._open[each]))
            oldest = next(iter(self._open[greediest]))
            self._say(greediest)
            self._forget(greediest, oldest)
            oldest.cancel()

    def _forget(self, address: str, task: asyncio.Task[None]) -> None:
        self._open[address].pop(task, None)
        if not self._open[address]:
            del self._open[address]

    def _say(self, address: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._said_at is None or now - self._said_at > _SAID_EVERY_S:
            self._said_at = now
            log.warning("http.too_many", address=address, connections=len(self._open[address]), most=self._limits.most)

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        with suppress(OSError):  # TLS that fails or takes too long is one
            transport, _ = await loop.connect_accepted_socket(
                lambda: _Watched(self._protocol(), ended),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._limits.head_s if self._tls else None,
            )
            try:
                await ended
            except asyncio.CancelledError:
                # A TLS transport of Python 3.11 that was closed twice has forgotten what to abort, and ends on its own.
                with suppress(AttributeError):
                    transport.abort()
                raise


class _Watched(asyncio.Protocol):
    """A protocol, and a future that is done when its connection has ended."""

    def __init__(self, watched: asyncio.Protocol, ended: asyncio.Future[None]) -> None:
        self._lost = watched.connection_lost
        self._ended = ended
        for passed_on in ("connection_made", "data_received", "eof_received", "pause_writing", "resume_writing"):
            setattr(self, passed_on, getattr(watched, passed_on))

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on, and say so."""
        self._lost(exc)
        if not self._ended.done():
            self._ended.set_result(None)
