"""The agent's HTTP endpoints: /livez, /readyz and /metrics.

Owns the little server. What ready means is the agent's answer.
"""

import asyncio
from collections.abc import Callable

from aiohttp import web

from draco.agent.errors import SettingsError


async def serve(listen: str, *, lacking: Callable[[], list[str]], metrics: Callable[[], bytes]) -> None:
    """Serve on "host:port" until cancelled. `lacking` says in sentences what keeps the agent from being ready."""
    host, _, port = listen.rpartition(":")
    if not port.isdigit():
        raise SettingsError(f'"{listen}" is no address to listen on; write host:port, for example 127.0.0.1:8080.')

    async def livez(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

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
            await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
        except OSError as error:
            raise SettingsError(f"Cannot listen on {listen}: {error.strerror}; choose another address.") from error
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
