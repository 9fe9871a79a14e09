"""Limits on clients of Draco's ports: slow ones, greedy ones and very many."""

import asyncio
import gc
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs

from draco.connections import ConnectionLimits
from draco.controller.webhook.server import PATH, webhook_app
from draco.endpoints import http_app, serving
from draco_local.cluster.pki import Authority
from tests.unit.controller.webhook.test_admission import Lab

SOON = ConnectionLimits(head_s=0.2, body_s=0.2)
PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


def probes() -> web.Application:
    return http_app(CollectorRegistry, alive=list, ready=list)


def webhook() -> web.Application:
    return webhook_app({PATH: Lab().admission.review}, Counter("reviews", "Help.", ["result"], registry=None))


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, request: bytes = PROBE) -> bytes:
        """The start of the answer; empty if the connection is closed instead."""
        try:
            self.writer.write(request)
            return await asyncio.wait_for(self.reader.read(1 << 16), 30)
        except ConnectionError:
            return b""

    async def ended(self) -> bytes:
        """Everything that arrives until the connection is closed."""
        try:
            return await asyncio.wait_for(self.reader.read(), 30)
        except ConnectionError:
            return b""


@asynccontextmanager
async def served(
    app: web.Application, limits: ConnectionLimits, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Callable[..., "asyncio.Future[Client]"]]:
    """A server, and a function that connects to it from an address."""
    writers = []
    async with serving(app, "127.0.0.1", 0, limits=limits, tls=tls) as port:

        async def connect(address: str = "127.0.0.1") -> Client:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            writers.append(writer)
            return Client(reader, writer)

        try:
            yield lambda *address: asyncio.ensure_future(connect(*address))
        finally:
            for writer in writers:
                writer.close()


async def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_request_that_is_sent_slowly_is_ended() -> None:
    async with served(probes(), SOON) as connect:
        client = await connect()
        ended = asyncio.create_task(client.ended())
        for byte in b"GET /livez HTTP/1.1\r\nA: " + b"x" * 10_000:
            if ended.done():
                break
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
        else:
            pytest.fail("it was waited for")
        assert await ended == b""


async def test_a_connection_on_which_nothing_is_asked_is_ended() -> None:
    async with served(probes(), SOON) as connect:
        client = await connect()
        assert await client.ended() == b""
        client = await connect()
        assert b" 200 " in await client.ask()
        assert await client.ended() == b"", "nor is it kept for ever after an answer"


async def test_a_body_that_is_sent_slowly_is_refused() -> None:
    async with served(webhook(), SOON) as connect:
        client = await connect()
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n".encode()
        assert b" 408 " in await client.ask(head + b"{")


async def test_an_answer_that_is_not_taken_is_ended() -> None:
    asked: list[web.Request] = []

    async def large(request: web.Request) -> web.Response:
        asked.append(request)
        return web.Response(body=b"x" * (64 << 20))

    app = web.Application()
    app.add_routes([web.get("/", large)])
    async with served(app, SOON) as connect:
        client = await connect()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(lambda: bool(asked) and asked[0].transport is None)


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    """The certificate of the server."""
    issued = Authority.create("test").issue("server", hosts=["127.0.0.1"])
    (tmp_path / "crt").write_bytes(issued.certificate)
    (tmp_path / "key").write_bytes(issued.key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    return tls


async def test_a_client_that_leaves_after_its_answer_fills_no_log(
    tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    async with serving(probes(), "127.0.0.1", 0, limits=ConnectionLimits(), tls=tls) as port:
        livez = f"https://127.0.0.1:{port}/livez"
        async with aiohttp.ClientSession() as session, session.get(livez, ssl=unverified) as response:
            assert response.status == 200
        await eventually(lambda: not any(task.get_name() == "connection" for task in asyncio.all_tasks()))
    gc.collect()  # errors that nobody has read are logged when their task is collected
    assert caplog.records == []


async def test_a_client_that_never_finishes_tls_is_ended(tls: ssl.SSLContext) -> None:
    async with served(probes(), SOON, tls) as connect:
        client = await connect()
        client.writer.write(b"\x16\x03\x01")
        assert await client.ended() == b""


@pytest.mark.parametrize(
    ("app", "request_", "status"),
    [
        (
            webhook,
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {9 << 20}\r\n\r\n".encode() + b" " * (9 << 20),
            413,
        ),
        (
            webhook,
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            + (b"100000\r\n" + b" " * (1 << 20) + b"\r\n") * 9,
            413,
        ),
        (probes, b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n" + b" " * 2000, 413),
        (probes, b"GET /livez HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n", 400),
        (probes, b"GET /livez HTTP/1.1\r\n" + b"A: x\r\n" * 2_000 + b"\r\n", 400),
        (probes, b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 400),
    ],
    ids=["body", "pieces of a body", "body for a probe", "header", "headers", "path"],
)
async def test_a_request_beyond_the_limits_is_refused(
    app: Callable[[], web.Application], request_: bytes, status: int
) -> None:
    async with served(app(), ConnectionLimits()) as connect:
        client = await connect()
        assert f" {status} ".encode() in await client.ask(request_)
        assert b" 200 " in await (await connect()).ask(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n") or app is webhook


async def test_a_client_with_very_many_connections_keeps_nobody_else_out() -> None:
    async with served(probes(), ConnectionLimits(most=4)) as connect:
        kubelet = await connect()
        assert b" 200 " in await kubelet.ask()
        with capture_logs() as logs:
            greedy = [await connect("127.0.0.2") for _ in range(20)]
            oldest = [asyncio.create_task(each.ended()) for each in greedy[:17]]
            assert {await each for each in oldest} == {b""}
            assert b" 200 " in await kubelet.ask(), "its connection is not touched"
            assert b" 200 " in await (await connect()).ask(), "and another one is accepted"
        assert [each["address"] for each in logs if each["event"] == "http.too_many"] == ["127.0.0.2"], (
            "it is said once"
        )


@pytest.mark.parametrize("sent", [PROBE, b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_client_that_is_gone_or_sends_nonsense_does_not_fill_the_log(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(probes(), ConnectionLimits()) as connect:
        client = await connect()
        client.writer.write(sent)
        client.writer.write_eof()
        await client.ended()
    assert caplog.records == []


async def test_what_is_open_at_the_end_is_ended() -> None:
    async with served(probes(), ConnectionLimits()) as connect:
        idle, used = await connect(), await connect()
        assert b" 200 " in await used.ask()
    assert await idle.ended() == b""
    assert await used.ended() == b""
