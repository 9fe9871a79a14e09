"""The two Unix sockets that kubelet knows a driver by.

Owns the sockets: their paths, their rights, the handshake of registration, and that they are there as long as the agent serves
and gone afterwards. What the calls do is `dra_service`'s and `health_service`'s.

Kubelet watches the registry folder: at its start it takes up every socket that is there, later every socket that appears, and it
forgets a plugin whose socket is removed. So nothing has to be done when kubelet restarts. A socket whose file has vanished
though (the folder was wiped) can never be found again: it is made anew.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import structlog

from draco.agent.api import registration_pb2
from draco.agent.errors import SettingsError
from draco.agent.wire import REGISTRATION, SUPPORTED_VERSIONS, handlers
from draco.kube.clock import Clock

log = structlog.get_logger()

PATH_LIMIT = 107
"""Bytes of a Unix socket's path, without the closing zero."""
STOP_GRACE_S = 2.0


class Sockets(msgspec.Struct, frozen=True):
    """Where kubelet finds a driver, and where it serves."""

    registration: Path
    service: Path


def sockets(kubelet_dir: Path, driver: str) -> Sockets:
    """The sockets of a driver; SettingsError when a path is too long for a Unix socket."""
    pair = Sockets(
        kubelet_dir / "plugins_registry" / f"{driver}-reg.sock", kubelet_dir / "plugins" / driver / "dra.sock"
    )
    for path in (pair.registration, pair.service):
        length = len(str(path).encode())
        if length > PATH_LIMIT:
            raise SettingsError(
                f"The socket path {path} has {length} bytes, but Linux allows {PATH_LIMIT}; use a shorter kubelet "
                "directory or driver name."
            )
    return pair


class Registration(msgspec.Struct, frozen=True):
    """What kubelet last said: whether it has accepted the driver, and if not, why."""

    accepted: bool = False
    error: str = "Kubelet has not looked at the registration socket yet."


class Plugin:
    """Serves a driver to kubelet. `registration` is kubelet's last word; `on_registration` is called when it speaks.

    `on_stopping` is called before calls that still run are waited for.
    """

    def __init__(
        self,
        where: Sockets,
        *,
        driver: str,
        services: Sequence[Any],
        clock: Clock,
        check_s: float = 5.0,
        on_registration: Callable[[Registration], None] = lambda _: None,
        on_stopping: Callable[[], None] = lambda: None,
    ) -> None:
        self.registration = Registration()
        self.serving = asyncio.Event()
        self._driver = driver
        self._where = where
        self._clock = clock
        self._check_s = check_s
        self._on_registration = on_registration
        self._on_stopping = on_stopping
        behaviours = {"GetInfo": self._get_info, "NotifyRegistrationStatus": self._notified}
        self._service = _Endpoint(where.service, services)
        self._registry = _Endpoint(where.registration, [handlers(REGISTRATION, behaviours)])

    async def run(self) -> None:
        """Serve until cancelled; then remove both sockets, the registration first, so that kubelet stops calling."""
        try:
            await self._service.start()
            await self._registry.start()  # only now may kubelet find us
            self.serving.set()
            log.info("plugin.serving", driver=self._driver, socket=str(self._where.service))
            while True:
                await self._clock.sleep(self._check_s)
                for endpoint in (self._service, self._registry):
                    if not endpoint.reachable():
                        log.warning("plugin.socket_lost", socket=str(endpoint.path))
                        await endpoint.stop(grace_s=0.0)
                        await endpoint.start()
        finally:
            self.serving.clear()
            self._on_stopping()
            await self._registry.stop(grace_s=0.0)
            await self._service.stop(grace_s=STOP_GRACE_S)

    async def _get_info(self, _request: Any, _context: Any) -> Any:
        return registration_pb2.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=str(self._where.service),
            supported_versions=SUPPORTED_VERSIONS,
        )

    async def _notified(self, request: Any, _context: Any) -> Any:
        if request.plugin_registered:
            log.info("plugin.registered", driver=self._driver)
        else:
            log.error("plugin.refused", driver=self._driver, error=request.error)
        self.registration = Registration(accepted=request.plugin_registered, error=request.error)
        self._on_registration(self.registration)
        return registration_pb2.RegistrationStatusResponse()


class _Endpoint:
    """A gRPC server on one socket file."""

    def __init__(self, path: Path, services: Sequence[Any]) -> None:
        self.path = path
        self._services = services
        self._server: grpc.aio.Server | None = None
        self._inode = 0

    async def start(self) -> None:
        """Bind, whatever file an earlier run left there, and serve. Only root may connect."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(tuple(self._services))
        try:
            self._server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:
            raise SettingsError(
                f"The socket {self.path} cannot be created: {error}; check the folder's rights and the disk."
            ) from error
        self.path.chmod(0o600)
        self._inode = self.path.stat().st_ino
        await self._server.start()

    def reachable(self) -> bool:
        """Whether the file is still the socket we serve."""
        try:
            return self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    async def stop(self, *, grace_s: float) -> None:
        """Remove the socket, unless the file is somebody else's by now, and end the server."""
        if self._server is None:
            return
        if self.reachable():
            self.path.unlink(missing_ok=True)
        server, self._server = self._server, None
        await server.stop(grace_s)
