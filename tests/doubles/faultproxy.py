"""A proxy that injects network and server faults between the client under test and a real API server.

The API server is real; only the faults are made here. The proxy listens on plain HTTP on this machine and speaks TLS to the
server, with an administrator's certificate.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiohttp
import msgspec
from aiohttp import web

CHUNK_BYTES = 64 * 1024


class Upstream(Protocol):
    """The part of a control plane that the proxy needs."""

    @property
    def server(self) -> str: ...

    @property
    def pki(self) -> Any: ...


Matches = Callable[[web.Request], bool]
Action = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


def anything(_: web.Request) -> bool:
    return True


def watches(request: web.Request) -> bool:
    return request.query.get("watch") == "true"


def lists(request: web.Request) -> bool:
    return request.method == "GET" and not watches(request)


def streaming_lists(request: web.Request) -> bool:
    return "sendInitialEvents" in request.query


def continued_lists(request: web.Request) -> bool:
    return "continue" in request.query


def writes(request: web.Request) -> bool:
    return request.method != "GET"


def status(code: int, reason: str = "", message: str = "injected") -> dict[str, Any]:
    return {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
    }  # fmt: skip


def error_event(code: int, reason: str = "") -> bytes:
    return msgspec.json.encode({"type": "ERROR", "object": status(code, reason)})


def answer(code: int, reason: str = "", headers: Mapping[str, str] | None = None, message: str = "injected") -> Action:
    async def act(_: web.Request) -> web.StreamResponse:
        return web.json_response(status(code, reason, message), status=code, headers=headers)

    return act


def plain(code: int, text: str) -> Action:
    async def act(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text=text)

    return act


def delay(seconds: float) -> Action:
    async def act(_: web.Request) -> None:
        await asyncio.sleep(seconds)

    return act


async def drop(request: web.Request) -> web.StreamResponse:
    """Close the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


class Stream:
    """A watch on its way through the proxy."""

    def __init__(self, request: web.Request) -> None:
        self.query = dict(request.query)
        self.path = request.path
        self.forwarded = 0
        self.silent = False
        """Nothing passes any more, and the connection stays open."""
        self.cut_next = False
        """The next line is cut in the middle, and the connection breaks."""
        self.truncate_next = False
        """The stream ends cleanly, but in the middle of the next line."""
        self.mangle_next = False
        """The next line arrives whole but is not JSON."""
        self.close_after = -1
        """The server ends the stream cleanly after this many more lines."""
        self._request = request
        self._injected: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended = asyncio.Event()

    def inject(self, line: bytes) -> None:
        """Send a line that did not come from the server."""
        self._injected.put_nowait(line + b"\n")

    def cut(self) -> None:
        """Break the connection now."""
        if self._request.transport is not None:
            self._request.transport.abort()

    async def relay(self, lines: AsyncIterator[bytes], response: web.StreamResponse) -> None:
        async with asyncio.TaskGroup() as group:
            injecting = group.create_task(self._inject_into(response))
            try:
                async for line in lines:
                    if self.silent:
                        continue
                    if self.close_after == 0:
                        return
                    self.close_after -= 1
                    if self.cut_next:
                        await response.write(line[: max(1, len(line) // 2)])
                        self.cut()
                        return
                    if self.truncate_next:
                        await response.write(line[: len(line) // 2])
                        return
                    if self.mangle_next:
                        self.mangle_next = False
                        line = line[: len(line) // 2] + b"\n"  # noqa: PLW2901 - what is sent instead
                    await response.write(line)
                    self.forwarded += 1
                if self.silent:
                    await asyncio.Event().wait()
            finally:
                injecting.cancel()

    async def _inject_into(self, response: web.StreamResponse) -> None:
        while True:
            await response.write(await self._injected.get())


class FaultProxy:
    """Faults are rules: the first matching rule that is not used up acts on the request."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._rules: list[tuple[Matches, Action, list[int]]] = []
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and query of every request so far."""
        self.headers: list[Mapping[str, str]] = []
        self.streams: list[Stream] = []
        self.url = ""
        self._opened = asyncio.Condition()
        self._silenced: asyncio.Event | None = None
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._port = 0

    async def start(self) -> None:
        tls = ssl.create_default_context(cafile=str(self._upstream.pki / "ca.crt"))
        tls.load_cert_chain(self._upstream.pki / "admin.crt", self._upstream.pki / "admin.key")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )
        await self.accept()

    async def stop(self) -> None:
        await self.refuse()
        if self._session:
            await self._session.close()

    async def accept(self) -> None:
        """Listen, on the same port as before."""
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def refuse(self) -> None:
        """Stop listening and break all connections."""
        for stream in self.open_streams:
            stream.cut()
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    @asynccontextmanager
    async def unplugged(self) -> AsyncIterator[None]:
        """Within this block, everything sent is lost and nothing is answered, as if a cable were unplugged."""
        self._silenced = asyncio.Event()
        for stream in self.open_streams:
            stream.silent = True
        try:
            yield
        finally:
            self._silenced.set()
            self._silenced = None

    def fault(self, matches: Matches, action: Action, *, times: int = 1) -> None:
        """Act on the next `times` requests that match."""
        self._rules.append((matches, action, [times]))

    async def lose_the_answer(self, request: web.Request) -> web.StreamResponse:
        """An action: the server executes the request, but the client gets no answer."""
        await self._forward(request)
        return await drop(request)

    def heal(self) -> None:
        """Forget all rules."""
        self._rules.clear()

    @property
    def open_streams(self) -> list[Stream]:
        return [stream for stream in self.streams if not stream.ended.is_set()]

    async def open_stream(self) -> Stream:
        """Wait until a watch is open, and return the newest."""
        async with self._opened:
            await asyncio.wait_for(self._opened.wait_for(lambda: bool(self.open_streams)), 20)
        return self.open_streams[-1]

    async def stream_after(self, count: int) -> Stream:
        """Wait until more than `count` watches have been opened, and return the newest."""
        async with self._opened:
            await asyncio.wait_for(self._opened.wait_for(lambda: len(self.streams) > count), 20)
        return self.streams[-1]

    def count(self, matches: Callable[[dict[str, str]], bool]) -> int:
        """How many requests so far had a matching query."""
        return sum(matches(query) for _, _, query in self.seen)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.path, dict(request.query)))
        self.headers.append(request.headers)
        if self._silenced:
            await self._silenced.wait()
            return await drop(request)
        for matches, action, left in self._rules:
            if left[0] > 0 and matches(request):
                left[0] -= 1
                made = await action(request)
                if made is not None:
                    return made
                break
        return await self._forward(request)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        kept = {name: request.headers[name] for name in ("Accept", "Content-Type") if name in request.headers}
        async with self._session.request(
            request.method,
            self._upstream.server + request.path_qs,
            data=await request.read() or None,
            headers={**kept, "Accept-Encoding": "identity"},
        ) as upstream:
            response = web.StreamResponse(status=upstream.status)
            response.content_type = upstream.content_type
            if not watches(request) or upstream.status != 200:
                body = await upstream.read()
                return web.Response(status=upstream.status, body=body, content_type=upstream.content_type)
            await response.prepare(request)
            stream = Stream(request)
            async with self._opened:
                self.streams.append(stream)
                self._opened.notify_all()
            try:
                await stream.relay(_lines(upstream), response)
            finally:
                stream.ended.set()
            return response


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in response.content.iter_any():
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            yield line + b"\n"
