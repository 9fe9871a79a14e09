"""The plugin watcher of a kubelet stand-in: which DRA drivers serve this node, and calls to them.

Owns the registration handshake on `plugins_registry` and one gRPC channel per registered plugin, over real Unix sockets.
Knows nothing of pods. Source: kubelet's plugin contract (registration v1, DRA v1).
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from stat import S_ISSOCK

import grpc
import grpc.aio
import msgspec
import structlog

from draco.agent.plugin.api import dra_v1_pb2, registration_pb2
from draco.agent.plugin.wire import DRA_V1, REGISTRATION, unary
from draco.kube.clock import Clock
from draco_local.simulator.kubelet.ledger import ClaimRecord

log = structlog.get_logger()

CALL_TIMEOUT_S = 45.0
"""How long kubelet waits for a driver."""
REGISTRATION_TIMEOUT_S = 5.0
RETRY_S = 2.0
"""Between attempts to register a plugin whose handshake failed."""

SERVICE = "v1.DRAPlugin"
"""How the service is announced."""

CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # else a plugin's new instance inherits the backoff of the one that died
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
]

SocketIdentity = tuple[int, int]
"""Inode and change time: a plugin that restarts makes a new socket under the old name."""


class PluginError(Exception):
    """A driver could not be asked, or refused as a whole."""


class RegisteredPlugin(msgspec.Struct, frozen=True):
    """One registered plugin instance: its driver, and the channel to it."""

    driver: str
    channel: grpc.aio.Channel


class Plugins:
    """The DRA drivers that serve one node, found under `<root>/plugins_registry`.

    `registered` is called with a driver's name each time an instance of it has registered.
    """

    def __init__(self, root: Path, *, clock: Clock, registered: Callable[[str], None], poll_s: float = 0.25) -> None:
        self._registry = root / "plugins_registry"
        self._registry.mkdir(parents=True, exist_ok=True)
        self._log = log.bind(node=root.name)
        self._clock = clock
        self._registered = registered
        self._poll_s = poll_s
        self._instances: dict[str, RegisteredPlugin] = {}  # by socket name, newest last
        self._known: dict[str, SocketIdentity] = {}
        self._retry_at: dict[str, float] = {}
        self._missing_since: dict[str, float] = {}  # by driver
        self._looked_at = -1  # the folder's modification time as of the last full look, in ns

    async def run(self) -> None:
        """Watch the registry until cancelled; then close every channel."""
        try:
            while True:
                await self._look()
                await self._clock.sleep(self._poll_s)
        finally:
            await asyncio.gather(*(instance.channel.close() for instance in self._instances.values()))
            self._instances.clear()

    def drivers(self) -> set[str]:
        """Return the drivers with a registered instance."""
        return {instance.driver for instance in self._instances.values()}

    def gone_for(self, seconds: float) -> list[str]:
        """Return the drivers that were registered and have had no live instance for `seconds`; each is named once."""
        now = self._clock.monotonic()
        gone = [driver for driver, since in self._missing_since.items() if now - since >= seconds]
        for driver in gone:
            del self._missing_since[driver]
        return gone

    async def prepare(self, driver: str, claims: Iterable[ClaimRecord]) -> dict[str, str]:
        """Ask the driver to prepare the claims: the error by claim uid, for those that failed.

        PluginError when the driver cannot be asked, or fails as a whole.
        """
        claims = list(claims)
        answers = await self._call(driver, "NodePrepareResources", claims)
        return _failures(claims, answers)

    async def unprepare(self, driver: str, claims: Iterable[ClaimRecord]) -> dict[str, str]:
        """Ask the driver to unprepare the claims; answers and errors as in `prepare`."""
        claims = list(claims)
        answers = await self._call(driver, "NodeUnprepareResources", claims)
        return _failures(claims, answers)

    async def _call(self, driver: str, method: str, claims: list[ClaimRecord]) -> dict[str, str]:
        """Error texts (empty: done) by claim uid, as answered."""
        instance = next((i for i in reversed(self._instances.values()) if i.driver == driver), None)
        if instance is None:
            raise PluginError(f"DRA driver {driver} is not registered on this node")
        request = getattr(dra_v1_pb2, f"{method}Request")(
            claims=[dra_v1_pb2.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]
        )
        try:
            response = await unary(instance.channel, DRA_V1, method)(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise PluginError(f"DRA driver {driver} failed: {error.details() or error.code().name}") from error
        except asyncio.CancelledError:  # a call whose channel is closed ends with this, too
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise PluginError(f"DRA driver {driver} unregistered during the call") from None
        return {uid: answer.error for uid, answer in response.claims.items()}

    async def _look(self) -> None:
        """One pass over the registry: forget what left, register what came, notice which drivers are dead."""
        changed_at = self._registry.stat().st_mtime_ns
        if changed_at != self._looked_at or self._retry_at:
            await self._compare(_sockets(self._registry))
            # A file system's clock is coarse: what comes right after this look may bear the same time.
            settled = self._clock.now().timestamp() - changed_at / 1e9 > 1.0
            self._looked_at = changed_at if settled else -1
        now = self._clock.monotonic()
        live = {instance.driver for instance in self._instances.values() if _connected(instance.channel)}
        for driver in live:
            self._missing_since.pop(driver, None)
        for driver in self.drivers() - live:
            self._missing_since.setdefault(driver, now)

    async def _compare(self, found: dict[str, SocketIdentity]) -> None:
        for name in [name for name in self._known if found.get(name) != self._known[name]]:
            await self._forget(name)
        self._retry_at = {name: at for name, at in self._retry_at.items() if name in found}
        now = self._clock.monotonic()
        for name, identity in found.items():
            if name not in self._known and self._retry_at.get(name, 0.0) <= now:
                await self._register(name, identity)

    async def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        instance = self._instances.pop(name, None)
        if instance is not None:
            self._log.info("kubelet.plugin_unregistered", driver=instance.driver, socket=name)
            if instance.driver not in self.drivers():
                self._missing_since.setdefault(instance.driver, self._clock.monotonic())
            await instance.channel.close()

    async def _register(self, name: str, identity: SocketIdentity) -> None:
        self._retry_at[name] = self._clock.monotonic() + RETRY_S
        async with grpc.aio.insecure_channel(f"unix:{self._registry / name}", options=CHANNEL_OPTIONS) as channel:
            try:
                info = await unary(channel, REGISTRATION, "GetInfo")(
                    registration_pb2.InfoRequest(), timeout=REGISTRATION_TIMEOUT_S
                )
                refusal = _refusal(info)
                status = registration_pb2.RegistrationStatus(plugin_registered=not refusal, error=refusal)
                await unary(channel, REGISTRATION, "NotifyRegistrationStatus")(status, timeout=REGISTRATION_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                self._log.info("kubelet.plugin_not_answering", socket=name, error=error.details())
                return
        self._known[name] = identity
        self._retry_at.pop(name, None)
        if refusal:
            self._log.warning("kubelet.plugin_refused", socket=name, error=refusal)
            return
        channel = grpc.aio.insecure_channel(f"unix:{info.endpoint}", options=CHANNEL_OPTIONS)
        channel.get_state(try_to_connect=True)
        self._instances[name] = RegisteredPlugin(info.name, channel)
        self._missing_since.pop(info.name, None)
        self._log.info("kubelet.plugin_registered", driver=info.name, socket=name)
        self._registered(info.name)


def _failures(claims: Iterable[ClaimRecord], answers: dict[str, str]) -> dict[str, str]:
    """The error by claim uid: what the driver said, or that it said nothing."""
    failures = {claim.uid: answers.get(claim.uid, "the driver did not answer for this claim") for claim in claims}
    return {uid: error for uid, error in failures.items() if error}


def _refusal(info: registration_pb2.PluginInfo) -> str:
    """Why the plugin is not taken; empty when it is."""
    if info.type != "DRAPlugin":
        return f'plugin type "{info.type}" is not served here, only DRAPlugin'
    if not info.name or not info.endpoint:
        return "a DRA plugin needs a name and an endpoint"
    if SERVICE not in info.supported_versions:
        return f"none of the plugin's versions is known here: {', '.join(info.supported_versions) or 'it names none'}"
    return ""


def _sockets(folder: Path) -> dict[str, SocketIdentity]:
    found = {}
    for path in sorted(folder.iterdir()):
        try:
            stat = path.stat()
        except FileNotFoundError:  # removed meanwhile
            continue
        if S_ISSOCK(stat.st_mode) and not path.name.startswith("."):
            found[path.name] = (stat.st_ino, stat.st_ctime_ns)
    return found


def _connected(channel: grpc.aio.Channel) -> bool:
    return channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY
