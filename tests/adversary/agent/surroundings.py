"""What the adversary's agent depends on: a process that can die at any step, a disk that can fill up, an API server in memory.

Owns these stand-ins and judges nothing.

A killed process does not even clean up. So after its death every file operation and driver call of that agent raises `Killed`
again.
"""

import errno
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from draco.agent.files import Files
from draco.kube.clock import Clock
from draco.kube.errors import AlreadyExists, NotFound, Unreachable
from draco.resources.api.draco import GpuNode
from draco.resources.api.meta import ObjectKey
from draco.resources.api.usage import GpuUsage
from draco.resources.kinds import CLAIMS, GPU_NODES, GPU_USAGES, NODES, SLICES, Kind

NODE = "node-0"
NODE_UID = "node-uid"
OWNERS = [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE_UID}]
DRIVER = "gpu.nvidia.com"
BLOCK = 4096
CGROUP = "cgroup"
"""The folder of the node's cgroups in that of the machine."""
OWN_CGROUP = f"{CGROUP}/draco"


class Killed(BaseException):
    """The agent's process died here. `except Exception` does not catch it."""


class Death:
    """Kills an agent at a chosen step; `count` is the number of steps so far."""

    def __init__(self) -> None:
        self.count = 0
        self.dead = False
        self._left: int | None = None

    def arm(self, steps: int) -> None:
        """Die this many steps from now."""
        self._left = steps

    def disarm(self) -> None:
        """Cancel a planned death."""
        self._left = None

    def step(self, _point: str = "") -> None:
        """One step of the agent. Nothing between two steps is visible from outside."""
        self.count += 1
        if self._left is not None and not self.dead:
            self._left -= 1
            self.dead = self._left <= 0
        if self.dead:
            raise Killed


class Mortal(Protocol):
    """Something that works in steps and may die at each."""

    def step(self, point: str) -> None:
        """One step."""
        ...


class Disk:
    """Free blocks on the node's disk; None means unlimited."""

    def __init__(self) -> None:
        self.free: int | None = None

    def take(self, blocks: int, path: Path) -> None:
        """Use blocks. Raises ENOSPC if there are too few."""
        if self.free is None:
            return
        if blocks > self.free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self.free -= blocks

    def give(self, blocks: int) -> None:
        """Free blocks."""
        if self.free is not None:
            self.free += blocks


def _blocks(path: Path) -> int:
    try:
        return -(-path.stat().st_size // BLOCK)
    except FileNotFoundError:
        return 0


class MortalFiles(Files):
    """The agent's files. There is a step before and after each operation, and a write can be cut short in the middle."""

    def __init__(self, process: Mortal, disk: Disk) -> None:
        self._death = process
        self._disk = disk

    def write(self, path: Path, content: bytes) -> None:
        self._replacing(path, content)
        super().write(path, content)
        self._death.step("after write")

    def write_volatile(self, path: Path, content: bytes) -> None:
        self._replacing(path, content)
        super().write_volatile(path, content)
        self._death.step("after write")

    def _replacing(self, path: Path, content: bytes) -> None:
        self._death.step("before write")
        self._disk.take(-(-len(content) // BLOCK), path)
        try:
            self._death.step("half write")
        except Killed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(path.name + ".tmp").write_bytes(content[: len(content) // 2])
            raise
        self._disk.give(_blocks(path))

    def overwrite(self, path: Path, offset: int, content: bytes) -> None:
        self._death.step("before overwrite")
        try:
            self._death.step("half overwrite")
        except Killed:
            super().overwrite(path, offset, content[: len(content) // 2])
            raise
        super().overwrite(path, offset, content)
        self._death.step("after overwrite")

    def remove(self, path: Path) -> None:
        self._death.step("before remove")
        self._disk.give(_blocks(path))
        super().remove(path)
        self._death.step("after remove")

    def keep_as(self, path: Path, target: Path) -> None:
        self._death.step("before keep_as")
        super().keep_as(path, target)
        self._death.step("after keep_as")


class Source:
    """An API server in memory: claims, the agent's Node, GpuNode and slices. All else is unreachable.

    `mute`: the watch of GpuNodes delivers nothing, as if the agent had no right to read them.
    It stores objects unchecked; component tests use a real API server.
    """

    def __init__(self) -> None:
        self.gone = False
        self.mute = False
        self.slow_s = 0.0
        """How long reading a claim takes."""
        self.clock: Clock | None = None
        self.heard: list[Any] = []
        """The forms of GPUs in the last decision that an agent has read; it counts until there is another."""
        self._objects: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.put(NODES, {"metadata": {"name": NODE, "uid": NODE_UID}})
        self._applied: dict[tuple[str, str, str], set[str]] = {}
        """The fields of the status of a kind's object that each field manager has applied last."""
        self._make_gpu_node()

    @property
    def connection(self) -> "Source":
        """Discovery uses the connection directly; it is unreachable, too."""
        return self

    def put(self, kind: Kind[Any], content: dict[str, Any]) -> None:
        """Store an object with a new resourceVersion."""
        self.version += 1
        version = {"resourceVersion": str(self.version)}
        made = msgspec.convert(content | {"metadata": content["metadata"] | version}, kind.type)
        self._objects.setdefault(kind.plural, {})[str(made.metadata.key)] = made

    def drop(self, kind: Kind[Any], key: str) -> None:
        """Delete an object."""
        self._objects.get(kind.plural, {}).pop(key, None)

    def reported(self, claim: str) -> bool:
        """Whether a claim's status says that a device is ready."""
        found = self._objects.get(CLAIMS.plural, {}).get(f"default/{claim}")
        return found is not None and bool(found.status.devices)

    def condition(self, name: str) -> str:
        """Status of this condition in the GpuNode; "" if it is missing."""
        conditions = self.gpu_node.status.conditions if self.gpu_node is not None else ()
        return next((one.status for one in conditions if one.type == name), "")

    @property
    def gpu_node(self) -> GpuNode | None:
        """The GpuNode; None if it was deleted and not created again."""
        found: GpuNode | None = self._objects[GPU_NODES.plural].get(NODE)
        return found

    @property
    def gpu_usage(self) -> GpuUsage | None:
        """The GpuUsage; None if it was not created yet."""
        found: GpuUsage | None = self._objects.get(GPU_USAGES.plural, {}).get(NODE)
        return found

    def decide(self, spec: dict[str, Any]) -> None:
        """An operator writes the spec of the existing GpuNode."""
        known = msgspec.to_builtins(self.gpu_node)
        known["metadata"]["generation"] += 1
        self.put(GPU_NODES, known | {"spec": spec})

    def _make_gpu_node(self) -> None:
        metadata = {"name": NODE, "uid": f"gpunode-{self.version}", "generation": 1, "ownerReferences": OWNERS}
        self.put(GPU_NODES, {"metadata": metadata})
        self._applied = {owner: names for owner, names in self._applied.items() if owner[0] != GPU_NODES.plural}

    def publish(self, devices: list[Any], counters: list[Any]) -> None:
        """Store all devices of the node in one slice."""
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices, "sharedCounters": counters}
        self.put(SLICES, {"metadata": {"name": NODE, "ownerReferences": OWNERS}, "spec": spec})

    @property
    def claims(self) -> list[Any]:
        """All claims."""
        return list(self._objects.get(CLAIMS.plural, {}).values())

    @property
    def slices(self) -> dict[ObjectKey, Any]:
        """The node's slices."""
        return {each.metadata.key: each for each in self._objects.get(SLICES.plural, {}).values()}

    async def get(self, kind: Kind[Any], key: Any, **_options: Any) -> Any:
        self._reach()
        if self.slow_s and self.clock is not None and kind is CLAIMS:
            await self.clock.sleep(self.slow_s)
        return self._found(kind, key)

    async def list(self, kind: Kind[Any], **_options: Any) -> Any:
        self._reach()
        return list(self._objects.get(kind.plural, {}).values())

    async def pages(self, _kind: Kind[Any], **_options: Any) -> AsyncGenerator[Any, None]:
        """Lists of watches are out of reach: `driven` tells the agent of its GpuNode."""
        raise Unreachable("out of reach in this test")
        yield

    async def create(self, kind: Kind[Any], _body: Any, **_options: Any) -> Any:
        """Create the agent's GpuNode with an empty spec, or its GpuUsage. No other kind can be created."""
        self._reach()
        if kind is GPU_USAGES:
            self.put(
                GPU_USAGES, {"metadata": {"name": NODE, "uid": f"gpuusage-{self.version}", "ownerReferences": OWNERS}}
            )
            return self.gpu_usage
        if kind is not GPU_NODES:
            raise Unreachable("out of reach in this test")
        if self.gpu_node is not None:
            raise AlreadyExists(409, "AlreadyExists", f"{kind.plural} {NODE} is there")
        self._make_gpu_node()
        return self.gpu_node

    async def apply(self, kind: Kind[Any], key: Any, body: Any, *, manager: str, **_options: Any) -> Any:
        """Replace the given fields of the status, and remove those that the manager applied before and gives no more."""
        self._reach()
        known = msgspec.to_builtins(self._found(kind, key))
        owner = kind.plural, str(key), manager
        applied = self._applied.get(owner, set())
        self._applied[owner] = set(body["status"])
        stays = {name: value for name, value in known.get("status", {}).items() if name not in applied}
        self.put(kind, known | {"status": stays | body["status"]})
        return self._found(kind, key)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        async def unreachable(*_args: Any, **_options: Any) -> Any:
            raise Unreachable("out of reach in this test")

        return unreachable

    def _found(self, kind: Kind[Any], key: Any) -> Any:
        if str(key) not in self._objects.get(kind.plural, {}):
            raise NotFound(404, "NotFound", f"{kind.plural} {key} not found")
        return self._objects[kind.plural][str(key)]

    def _reach(self) -> None:
        if self.gone:
            raise Unreachable("connection refused")
