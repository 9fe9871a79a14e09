"""What the agent's endpoints answer: whether it is stuck, and what it lacks, each with the reason."""

import asyncio
import socket
from contextlib import suppress

import aiohttp

from draco.agent import endpoints
from tests.agents import eventually


async def test_liveness_and_readiness_fail_with_their_reasons_and_apart_from_each_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    stuck, lacking = "", ["Kubelet's sockets are not served yet.", "NVML does not answer."]
    serving = asyncio.create_task(
        endpoints.serve("127.0.0.1", port, stuck=lambda: stuck, lacking=lambda: lacking, metrics=lambda: b"a 1\n")
    )
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", trust_env=False) as session:

        async def get(path: str) -> tuple[int, str]:
            async with session.get(path) as answer:
                return answer.status, await answer.text()

        async def up() -> bool:
            with suppress(aiohttp.ClientConnectionError):
                return bool(await get("/metrics"))
            return False

        await eventually(up)
        assert await get("/livez") == (200, "ok\n")
        assert await get("/readyz") == (503, "Kubelet's sockets are not served yet.\nNVML does not answer.\n")
        stuck, lacking = "Work on a claim's record has not ended.", []
        assert await get("/livez") == (503, "Work on a claim's record has not ended.\n")
        assert await get("/readyz") == (200, "ok\n")
        assert await get("/metrics") == (200, "a 1\n")
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving
