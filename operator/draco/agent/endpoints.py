"""The agent's HTTP endpoints: /livez, /readyz and /metrics.

Owns the little server. What ready means is the agent's answer.
"""

import asyncio
from collections.abc import Callable

from aiohttp import web

from draco.agent.errors import SettingsError


async def serve(
    host: str,
    port: int,
    *,
    stuck: Callable[[], str],
    lacking: Callable[[], list[str]],
    metrics: Callable[[], bytes],
) -> None:
    """Serve until cancelled; without a host on every address. `lacking` says in sentences what keeps it from being ready.

    `stuck` says what only another process would mend.
    """

    async def livez(_request: web.Request) -> web.Response:
        sentence = stuck()
        return web.Response(status=503 if sentence else 200, text=f"{sentence or 'ok'}\n")

    async def readyz(_request: web.Request) -> web.Response:
        sentences = lacking()
        return web.Response(status=503 if sentences else 200, text="\n".join(sentences or ["ok"]) + "\n")

    async def scrape(_request: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", scrape)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host or None, port).start()
        except OSError as error:
            raise SettingsError(
                f"Cannot listen on {host}:{port}: {error.strerror}; choose another address with --listen."
            ) from error
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
