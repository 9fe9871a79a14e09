"""Detects device plugins that allocate this node's GPUs beside Draco: two plugins give one GPU to two pods.

A device plugin, Kubernetes' older way to give GPUs to containers, tells kubelet how many `nvidia.com/gpu` or `nvidia.com/mig-*`
there are, and kubelet chooses which. Neither knows of the other. Owns the detection, from three sources:

- the node's allocatable resources, which kubelet writes every ten seconds; a resource with 0 does not count: kubelet keeps
  those of a plugin that has gone;
- kubelet's device-plugins folder, where a plugin's socket has a telling name: `nvidia-gpu.sock`;
- kubelet's checkpoint there of registered devices, for those that the node does not list yet.

Sources that cannot be read keep their last state. Changes nothing of the plugins; `publish` and `report` act on the result.
"""

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog

from draco.agent.plugin.unix_sockets import SocketFile, identity, listener
from draco.agent.state.facts import OtherAllocator
from draco.agent.state.node import NodeState
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.watch.informer import Informer
from draco.resources.api.core import NodeResources
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import NODE_RESOURCES

log = structlog.get_logger()

RESOURCE: Final = re.compile(r"nvidia\.com/(gpu|mig-).*")
"""The resources of NVIDIA's and of clouds' device plugins for GPUs and MIG devices. Other NVIDIA devices have other names."""
_SOCKET: Final = re.compile(r"nvidia-?(gpu|mig).*\.sock", re.IGNORECASE)
_RECORD: Final = "kubelet_internal_checkpoint"
PROBE_S: Final = 10.0
"""How often a socket is probed: a plugin may log each probe."""


class DevicePlugins:
    """Follows one node. Each change of the findings is told to the state."""

    def __init__(
        self, client: Client, state: NodeState, *, node: str, folder: Path, clock: Clock, check_s: float
    ) -> None:
        self._state = state
        self._folder = folder
        self._clock = clock
        self._check_s = check_s
        self._key = ObjectKey("", node)
        self._informer = Informer(client, NODE_RESOURCES, field_selector=f"metadata.name={node}", clock=clock)
        self._listens: dict[SocketFile, tuple[float, bool]] = {}
        self._allocatable: dict[str, bool] | None = None
        """Whether the node, as last read, has any of a resource."""

    async def run(self) -> None:
        """Look until cancelled."""
        self._informer.subscribe(lambda _change: self._look_at_node())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informer.run(), name="node")
            while True:
                await self.look()
                await self._clock.sleep(self._check_s)

    async def look(self) -> None:
        """Look once at kubelet's folder and at the known node."""
        self._look_at_node()
        sockets = await self._live_sockets()
        self._decide(sockets)

    def _look_at_node(self) -> None:
        found = self._informer.store.get(self._key)
        if found is not None:
            self._allocatable = counted(found)
            known = self._state.facts.device_plugins
            self._decide(() if known is None else known.sockets)

    def _decide(self, sockets: Iterable[str]) -> None:
        allocatable = self._allocatable or {}
        given = {name for name, some in allocatable.items() if some}
        given |= {name for name in self._registered() if name not in allocatable}
        fresh = OtherAllocator(tuple(sorted(given)), tuple(sorted(sockets)))
        before = self._state.facts.device_plugins
        if not fresh and before is None and self._allocatable is None:
            return  # only the node may report such a plugin
        if fresh != before:
            if fresh:
                log.warning("device_plugin.found", resources=fresh.resources, sockets=fresh.sockets)
            elif before:
                log.info("device_plugin.gone")
            self._state.learn(device_plugins=fresh)

    async def _live_sockets(self) -> list[str]:
        """The sockets of GPU plugins on which a process listens."""
        there: dict[SocketFile, Path] = {}
        with suppress(OSError):
            for path in self._folder.iterdir():
                if _SOCKET.fullmatch(path.name) and path.is_socket() and (one := identity(path)) is not None:
                    there[one] = path
        now_s = self._clock.monotonic()
        self._listens = {one: known for one, known in self._listens.items() if one in there}
        for one, path in there.items():
            asked_s, _ = self._listens.get(one, (float("-inf"), False))
            if now_s - asked_s >= PROBE_S:
                self._listens[one] = (now_s, await asyncio.to_thread(listener, path) is not None)
        return [path.name for one, path in there.items() if self._listens[one][1]]

    def _registered(self) -> list[str]:
        try:
            content = (self._folder / _RECORD).read_bytes()
            devices = msgspec.json.decode(content, type=_Record).data.registered_devices
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return []
        return [name for name, ids in devices.items() if ids and RESOURCE.fullmatch(name)]


class _Data(msgspec.Struct):
    registered_devices: dict[str, list[str] | None] = msgspec.field(name="RegisteredDevices", default_factory=dict)


class _Record(msgspec.Struct):
    data: _Data = msgspec.field(name="Data", default_factory=_Data)


def counted(node: NodeResources) -> dict[str, bool]:
    """The GPU resources in a node's allocatable or capacity, and whether any can be allocated."""
    names = {*node.status.allocatable, *node.status.capacity}
    return {name: node.status.allocatable.get(name, "0") != "0" for name in names if RESOURCE.fullmatch(name)}
