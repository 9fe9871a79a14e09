"""A DRA plugin for tests of the kubelet side: real sockets, no devices.

It records its calls, and returns the errors that the test sets.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from draco.agent.plugin.api import dra_v1_pb2, registration_pb2
from draco.agent.plugin.wire import DRA_V1, REGISTRATION, handlers


class RecordingPlugin:
    """`calls` holds ("prepare" | "unprepare", claim name) in order. `errors` maps a claim's name to the error in the answer."""

    def __init__(self, driver: str = "gpu.example.com") -> None:
        self.driver = driver
        self.calls: list[tuple[str, str]] = []
        self.errors: dict[str, str] = {}
        self.silent_about: set[str] = set()
        self.registered = asyncio.Event()
        self.refused = ""
        self.info = registration_pb2.PluginInfo(type="DRAPlugin", name=driver, supported_versions=["v1.DRAPlugin"])

    @asynccontextmanager
    async def serving(self, root: Path, *, pod: str = "") -> AsyncIterator["RecordingPlugin"]:
        """Serve on the node whose kubelet directory is `root`; remove the sockets at the end.

        Like plugins in Go, it replaces existing sockets of the same name. With `pod` it uses sockets of its own instead.
        """
        self.registered.clear()
        home = root / "plugins" / self.driver
        home.mkdir(parents=True, exist_ok=True)
        (root / "plugins_registry").mkdir(exist_ok=True)
        own = f"-{pod}" if pod else ""
        sockets = [home / f"dra{own}.sock", root / "plugins_registry" / f"{self.driver}{own}-reg.sock"]
        self.info.endpoint = str(sockets[0])
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            (
                handlers(REGISTRATION, {"GetInfo": self._info, "NotifyRegistrationStatus": self._notify}),
                handlers(DRA_V1, {"NodePrepareResources": self._prepare, "NodeUnprepareResources": self._unprepare}),
            )
        )
        for socket in sockets:
            socket.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{socket}")
        await server.start()
        try:
            yield self
        finally:
            await server.stop(grace=None)
            for socket in sockets:
                socket.unlink(missing_ok=True)

    async def _info(self, _request: Any, _context: Any) -> Any:
        return self.info

    async def _notify(self, request: Any, _context: Any) -> Any:
        self.refused = request.error
        if request.plugin_registered:
            self.registered.set()
        return registration_pb2.RegistrationStatusResponse()

    async def _prepare(self, request: Any, _context: Any) -> Any:
        answer = dra_v1_pb2.NodePrepareResourcesResponse()
        for claim in request.claims:
            self.calls.append(("prepare", claim.name))
            if claim.name not in self.silent_about:
                answer.claims[claim.uid].error = self.errors.get(claim.name, "")
        return answer

    async def _unprepare(self, request: Any, _context: Any) -> Any:
        answer = dra_v1_pb2.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            self.calls.append(("unprepare", claim.name))
            answer.claims[claim.uid].error = self.errors.get(claim.name, "")
        return answer
