"""The two Unix sockets of a driver for kubelet.

Owns the sockets: paths, permissions, registration handshake, existence while the agent serves, removal afterwards, and the
reaction to another plugin of the driver. `dra_service` and `health_service` answer the calls, `guard` finds other plugins.

Kubelet watches the registry folder: it registers every socket that exists at its start or appears later, and forgets a plugin
whose socket is removed. So a restart of kubelet needs no action. A socket whose file has vanished (the folder was wiped) can
never be found again, so it is recreated.

Kubelet calls the plugin of a driver that registered last. A later plugin comes with its own socket, as in updates without a gap,
or replaces ours. An agent that was first keeps the node: it registers again, to be the last, under another path if its own is
taken. It does so twice for each newcomer, since kubelet may register the newcomer a little later than we see it, but never in a
loop against a plugin that does the same. An agent that was not first yields: it withdraws its registration, so that kubelet calls
the other one, and continues when that is gone.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import structlog

from draco.agent.errors import SettingsError
from draco.agent.plugin.api import registration_pb2
from draco.agent.plugin.guard import SERVING_SINCE, OtherPlugin, OtherPlugins
from draco.agent.plugin.unix_sockets import SocketFile, SocketTaken, hidden_beside, identity, show, withdraw
from draco.agent.plugin.wire import REGISTRATION, SUPPORTED_VERSIONS, handlers
from draco.agent.state.changes import RegistrationHeard
from draco.agent.state.facts import PluginConflict
from draco.agent.state.node import NodeState
from draco.kube.clock import Clock
from draco.resources.texts import shown

log = structlog.get_logger()

PATH_LIMIT = 107
"""Bytes in the path of a Unix socket, without the closing zero."""
STOP_GRACE_S = 2.0
REGISTER_AGAIN_S = (0.0, 5.0)
"""When to register again after another plugin was first seen. Kubelet takes a second or two to register one."""


class Sockets(msgspec.Struct, frozen=True):
    """A driver's registration socket and service socket."""

    registration: Path
    service: Path


def sockets(kubelet_dir: Path, driver: str) -> Sockets:
    """The sockets of a driver. Raises SettingsError if a path is too long for a Unix socket."""
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


def other_sockets(usual: Sockets) -> Sockets:
    """The sockets to use if the usual ones are taken. Their paths have the same length."""
    name = usual.registration.name.removesuffix("-reg.sock")
    return Sockets(usual.registration.with_name(f"{name}-alt.sock"), usual.service.with_name("alt.sock"))


class RegistrationState(msgspec.Struct, frozen=True):
    """Kubelet's last answer: whether it accepted the driver, and why not."""

    accepted: bool = False
    error: str = ""

    @classmethod
    def not_yet(cls, where: Sockets) -> "RegistrationState":
        """No answer yet. The message covers a kubelet that never answers because its folder is another one."""
        folder = where.registration.parent.parent
        return cls(
            error=f"Kubelet has not connected to {where.registration} yet. If it does not within a minute, kubelet's folder is "
            f"not {folder}: name it with the chart's value agent.kubeletDir (--kubelet-dir)."
        )


class Plugin:
    """Serves a driver to kubelet. The state gets kubelet's answer and other plugins. `on_stopping` precedes waiting for calls."""

    def __init__(
        self,
        where: Sockets,
        state: NodeState,
        *,
        driver: str,
        services: Sequence[Any],
        clock: Clock,
        check_s: float = 1.0,
        on_stopping: Callable[[], None] = lambda: None,
    ) -> None:
        self.registration = RegistrationState.not_yet(where)
        self.serving = asyncio.Event()
        self._state = state
        self._driver = driver
        self._clock = clock
        self._check_s = check_s
        self._leaving = False
        self._on_stopping = on_stopping
        self._rivals = OtherPlugins(where.registration.parent, driver, clock=clock)
        self._seen: frozenset[SocketFile] = frozenset()
        self._register_at: list[float] = []
        behaviours = {"GetInfo": self._get_info, "NotifyRegistrationStatus": self._notified}
        other = other_sockets(where)
        self._service = _Endpoint((where.service, other.service), services)
        self._registry = _Endpoint((where.registration, other.registration), [handlers(REGISTRATION, behaviours)])

    @property
    def identities(self) -> frozenset[SocketFile]:
        """Our own socket in kubelet's registry folder."""
        return self._registry.identities

    async def register_early(self) -> None:
        """Register with kubelet now. Raises SocketTaken if no path is free; it may be retried."""
        self._rivals.begin()
        if not self._service.serves:
            await self._service.start()
        await self._registry.start()
        log.info("plugin.registering_early", driver=self._driver, socket=str(self._service.path))

    def leave(self) -> None:
        """Keep serving, but do not defend the node: another agent of ours registers, and this one ends soon."""
        self._leaving = True

    async def withdraw(self) -> None:
        """Remove the sockets, the registration first, so that kubelet stops calling."""
        await self._registry.stop(grace_s=0.0)
        await self._service.stop(grace_s=STOP_GRACE_S)

    async def run(self) -> None:
        """Serve until cancelled; then remove both sockets."""
        try:
            self._rivals.begin()
            await self._check()
            self.serving.set()
            log.info("plugin.serving", driver=self._driver, socket=str(self._service.path))
            while True:
                await self._clock.sleep(self._check_s)
                if not self._leaving:
                    await self._check()
        finally:
            self.serving.clear()
            self._on_stopping()
            await self.withdraw()

    async def _check(self) -> None:
        """Ensure that kubelet finds us, unless another plugin was first."""
        others = await self._rivals.look(ours=self._registry.identities)
        first = [peer for peer in others if self._rivals.was_first(peer)]
        self._plan_registrations(others)
        conflict = self._conflict(others, first)
        try:
            if not self._service.reachable():
                await self._lost(self._service)
                await self._registry.stop(grace_s=0.0)  # it tells kubelet the old path
            if first:
                await self._registry.stop(grace_s=0.0)
            elif not self._registry.reachable():
                await self._lost(self._registry)
            elif self._register_at and self._register_at[0] <= self._clock.monotonic():
                self._register_at = [at for at in self._register_at if at > self._clock.monotonic()]
                log.warning("plugin.registering_again", driver=self._driver, others=[str(peer) for peer in others])
                await self._registry.stop(grace_s=0.0)
                await self._registry.start()
        except SocketTaken as taken:
            conflict = PluginConflict(f"{taken} Draco cannot register there: end that process.", gives_way=True)
        if conflict != self._state.facts.conflict:
            if conflict is not None and conflict.gives_way:
                self.registration = RegistrationState(error=conflict.sentence)
            self._state.learn(conflict=conflict)

    async def _lost(self, endpoint: "_Endpoint") -> None:
        """Serve a missing socket, whether it never existed or has vanished."""
        if endpoint.serves:
            log.warning("plugin.socket_lost", socket=str(endpoint.path))
            await endpoint.stop(grace_s=0.0)
        await endpoint.start()

    def _plan_registrations(self, others: Sequence[OtherPlugin]) -> None:
        now = self._clock.monotonic()
        seen = frozenset(peer.identity for peer in others)
        if seen - self._seen:
            self._register_at = [now + after_s for after_s in REGISTER_AGAIN_S]
        elif not seen:
            self._register_at = []
        self._seen = seen

    def _conflict(self, others: Sequence[OtherPlugin], first: Sequence[OtherPlugin]) -> PluginConflict | None:
        if first:
            return PluginConflict(
                f"Driver {self._driver} was served on this node before Draco by {'; '.join(map(str, first))}. Draco prepares "
                "no claims until that plugin is gone; remove it, or run Draco under another driver name (--driver).",
                gives_way=True,
            )
        if others:
            return PluginConflict(
                f"Driver {self._driver} is also served by {'; '.join(map(str, others))}, which came after Draco. Draco keeps "
                "the node and has registered again; remove that plugin: two plugins of one driver hand out the same GPUs twice."
            )
        return None

    async def _get_info(self, _request: Any, context: Any) -> Any:
        context.set_trailing_metadata(((SERVING_SINCE, repr(self._rivals.since_s)),))
        return registration_pb2.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=str(self._service.path),
            supported_versions=SUPPORTED_VERSIONS,
        )

    async def _notified(self, request: Any, _context: Any) -> Any:
        if request.plugin_registered:
            log.info("plugin.registered", driver=self._driver)
        else:
            log.error("plugin.refused", driver=self._driver, error=request.error)
        self.registration = RegistrationState(accepted=request.plugin_registered, error=shown(request.error))
        self._state.tell(RegistrationHeard(self.registration.accepted, self.registration.error))
        return registration_pb2.RegistrationStatusResponse()


class _Endpoint:
    """A gRPC server on one socket file: the first of `paths` that nobody else uses."""

    def __init__(self, paths: Sequence[Path], services: Sequence[Any]) -> None:
        self.path = paths[0]
        self._paths = paths
        self._services = services
        self._server: grpc.aio.Server | None = None
        self._identity: SocketFile | None = None

    @property
    def serves(self) -> bool:
        return self._server is not None

    @property
    def identities(self) -> frozenset[SocketFile]:
        return frozenset() if self._identity is None else frozenset({self._identity})

    async def start(self) -> None:
        """Serve, replacing what an earlier run left. Only root may connect. Raises SocketTaken if all paths are in use."""
        taken: SocketTaken | None = None
        for path in self._paths:
            try:
                await self._start(path)
            except SocketTaken as error:
                taken = taken or error
            else:
                self.path = path
                return
        raise taken or AssertionError("an endpoint has a path")

    async def _start(self, path: Path) -> None:
        """Bind under a hidden name: binding to a name removes an existing file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = hidden_beside(path)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(tuple(self._services))
        try:
            server.add_insecure_port(f"unix:{hidden}")
        except RuntimeError as error:
            raise SettingsError(
                f"The socket {path} cannot be created: {error}; check the folder's rights and the disk."
            ) from error
        hidden.chmod(0o600)
        await server.start()
        try:
            self._identity = show(hidden, path)
        except BaseException:
            await server.stop(0.0)
            raise
        self._server = server

    def reachable(self) -> bool:
        """Whether the file is still the socket we serve."""
        return self._identity is not None and identity(self.path) == self._identity

    async def stop(self, *, grace_s: float) -> None:
        """Remove the socket, unless the file belongs to another process by now, and end the server."""
        if self._server is None:
            return
        server, self._server = self._server, None
        if self._identity is not None:
            withdraw(self.path, self._identity)
        self._identity = None
        await server.stop(grace_s)
