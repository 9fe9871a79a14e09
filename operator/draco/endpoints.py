"""The HTTP endpoints of the operator and of the agent: /livez, /readyz and /metrics.

Owns the server, which the webhook uses too, and the wording of its answers. What counts as alive and ready is asked of the
program, each time. Why they are not Kopf's: docs/design/0001-kopf.md.
"""

import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from draco.connections import USUAL, ConnectionLimits, Connections, in_time, listening
from draco.resources.errors import DracoError

log = structlog.get_logger(__name__)

Check = Callable[[], list[str]]
"""What is wrong, one clause or sentence each; empty when all is well."""


_LARGEST_BYTES = 1024
"""Nobody has anything to send to these endpoints."""
_LINGER_S = 1.0
"""How long what is sent after an answer is still taken, so that the client gets to see the answer."""


_server_log = logging.getLogger(__name__)
_server_log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))
"""Without what clients do wrong: they are told, and must not fill the log."""


class PortTaken(DracoError):
    """A port to serve on cannot be had."""


def http_app(metrics: Callable[[], CollectorRegistry], *, alive: Check, ready: Check) -> web.Application:
    """The endpoints as an application. `metrics` is called for each scrape."""

    async def livez(_: web.Request) -> web.Response:
        return _verdict(alive())

    async def readyz(_: web.Request) -> web.Response:
        return _verdict(ready())

    async def scrape(request: web.Request) -> web.Response:
        registry = metrics()
        names = request.query.getall("name[]", [])
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        scraped = registry.restricted_registry(names) if names else registry
        return web.Response(body=encode(scraped), headers={"Content-Type": content_type})

    app = web.Application(client_max_size=_LARGEST_BYTES)
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", scrape)])
    return app


@asynccontextmanager
async def serving(
    app: web.Application,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    what: str = "probes and metrics",
    option: str = "--listen",
    limits: ConnectionLimits = USUAL,
) -> AsyncIterator[int]:
    """Serve `what` until left; yields the port. Without a host on every address.

    Raises PortTaken, which names the option that chooses another.
    """
    app.middlewares.append(in_time(limits))
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=0.5,
        keepalive_timeout=limits.head_s,
        lingering_time=_LINGER_S,
        logger=_server_log,
        handler_cancellation=True,  # nobody waits for the answer any more
        auto_decompress=False,
    )
    await runner.setup()
    assert runner.server is not None  # noqa: S101 - it is there after the set-up
    connections = Connections(runner.server, limits, tls)
    try:
        try:
            sockets = await listening(host, port)
        except OSError as error:
            raise PortTaken(
                f"cannot serve {what} on {host}:{port} ({_words(error)}); free the port or choose another with {option}"
            ) from error
        async with connections.accepting(sockets):
            bound = sockets[0].getsockname()[1]
            log.info("http.serving", host=host, port=bound, what=what)
            yield bound
    finally:
        await runner.cleanup()
        await connections.end()


def _words(error: OSError) -> str:
    # What asyncio puts into strerror repeats the address.
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


def _verdict(problems: list[str]) -> web.Response:
    if not problems:
        return web.Response(text="ok\n")
    return web.Response(status=503, text="".join(f"{problem}\n" for problem in problems))
