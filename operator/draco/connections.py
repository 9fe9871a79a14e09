"""Limits on connections to the ports of operator and agent: how many there are, and how long a client may take.

Owns accepting and closing connections. Anyone who reaches a port can open connections and leave them idle, so their number is
limited: one more closes the oldest connection of the address with the most. So an address with few, as kubelet and the API server
have, is always admitted.
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
"""Pause before the next accept if the machine is out of resources for connections."""
_SAID_EVERY_S = 60.0


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for clients.

    `head_s` is for TLS, and again for a request's head, counted from the last answer; `body_s` for a request's body, and again
    for reading the answer.
    """

    most: int = 512
    head_s: float = 20.0
    body_s: float = 10.0


USUAL = ConnectionLimits()


def in_time(limits: ConnectionLimits) -> Middleware:
    """Middleware that closes a connection if the request is not sent, or the answer not read, in time."""

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
    """Listening sockets; on every address if `host` is "". Raises OSError."""
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
    """The connections to one server, each with its task."""

    def __init__(
        self, protocol: Callable[[], asyncio.Protocol], limits: ConnectionLimits, tls: ssl.SSLContext | None
    ) -> None:
        self._protocol = protocol
        self._limits = limits
        self._tls = tls
        self._open: defaultdict[str, dict[asyncio.Task[None], None]] = defaultdict(dict)  # oldest first
        self._said_at: float | None = None

    @asynccontextmanager
    async def accepting(self, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
        """Accept connections until the context ends. Open ones stay open."""
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
        """Close all open connections."""
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
        with suppress(OSError):  # includes TLS failures and timeouts
            transport, _ = await loop.connect_accepted_socket(
                lambda: _Watched(self._protocol(), ended),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._limits.head_s if self._tls else None,
            )
            try:
                await ended
            except asyncio.CancelledError:
                # A TLS transport of Python 3.11 that was closed twice has nothing left to abort, and ends without it.
                with suppress(AttributeError):
                    transport.abort()
                raise


class _Watched(asyncio.Protocol):
    """A protocol with a future that completes when its connection ends."""

    def __init__(self, watched: asyncio.Protocol, ended: asyncio.Future[None]) -> None:
        self._lost = watched.connection_lost
        self._ended = ended
        for passed_on in ("connection_made", "data_received", "eof_received", "pause_writing", "resume_writing"):
            setattr(self, passed_on, getattr(watched, passed_on))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forward the call, then complete the future."""
        self._lost(exc)
        if not self._ended.done():
            self._ended.set_result(None)
