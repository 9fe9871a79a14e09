"""The HTTP endpoints of operator and agent: /livez, /readyz and /metrics.

Owns the server, which the webhook uses too, and the wording of its answers. Asks the program on each request whether it is alive
and ready; an Authorizer decides who may read metrics over TLS. Why this is not Kopf's server: docs/design/0001-kopf.md.
"""

import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from draco.connections import USUAL, ConnectionLimits, Connections, in_time, listening
from draco.resources.errors import DracoError

log = structlog.get_logger(__name__)

Check = Callable[[], list[str]]
"""What is wrong, one clause or sentence each; empty if nothing is."""


class Refusal(NamedTuple):
    """Why a request is refused: the HTTP status, and one sentence."""

    status: int
    sentence: str
    retry_after_s: int = 0


class Authorizer(Protocol):
    """Decides who is answered."""

    async def __call__(self, *, authorization: str, address: str, verb: str, path: str) -> Refusal | None:
        """Why the caller is refused; None if it is not."""
        ...


_LARGEST_BYTES = 1024
"""Most bytes of a request; these endpoints expect no body."""
_LINGER_S = 1.0
"""How long to keep reading after an answer, so that the client receives it."""


_server_log = logging.getLogger(__name__)
_server_log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))
"""Drop clients' protocol errors: clients get an answer, and must not fill the log."""


class PortTaken(DracoError):
    """The port to serve on is not available."""


def http_app(metrics: Callable[[], CollectorRegistry] | None, *, alive: Check, ready: Check) -> web.Application:
    """The probes, and the metrics without authorization unless None. `metrics` is called on each scrape."""

    async def livez(_: web.Request) -> web.Response:
        return _verdict(alive())

    async def readyz(_: web.Request) -> web.Response:
        return _verdict(ready())

    async def scrape(request: web.Request) -> web.Response:
        if metrics is None:
            return web.Response(status=404, text="metrics are served over TLS, on a port of their own\n")
        return _exposition(request, metrics())

    app = web.Application(client_max_size=_LARGEST_BYTES)
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", scrape)])
    return app


def metrics_app(metrics: Callable[[], CollectorRegistry], authorizer: Authorizer) -> web.Application:
    """The metrics, for authorized callers only."""

    async def scrape(request: web.Request) -> web.Response:
        refusal = await authorizer(
            authorization=request.headers.get("Authorization", ""),
            address=request.remote or "",
            verb=request.method.lower(),
            path=request.path,
        )
        return _exposition(request, metrics()) if refusal is None else _refused(refusal)

    app = web.Application(client_max_size=_LARGEST_BYTES)
    app.add_routes([web.get("/metrics", scrape)])
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
    """Serve `what` until the context ends; yields the port. An empty host means every address.

    Raises PortTaken, which names the option that selects another port.
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
    # asyncio's strerror repeats the address.
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


def _verdict(problems: list[str]) -> web.Response:
    if not problems:
        return web.Response(text="ok\n")
    return web.Response(status=503, text="".join(f"{problem}\n" for problem in problems))


def _exposition(request: web.Request, registry: CollectorRegistry) -> web.Response:
    names = request.query.getall("name[]", [])
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    scraped = registry.restricted_registry(names) if names else registry
    return web.Response(body=encode(scraped), headers={"Content-Type": content_type})


def _refused(refusal: Refusal) -> web.Response:
    headers = {"Retry-After": str(refusal.retry_after_s)} if refusal.retry_after_s else {}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(status=refusal.status, text=f"{refusal.sentence}\n", headers=headers)
