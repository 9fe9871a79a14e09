"""The real agent on a node of the adversary, one step at a time: it can be killed at every one of them.

Owns how the agent is started, given its turn, called as kubelet calls it, and ended. It is `draco.agent.app.Agent` as the
program makes it, but for its sockets; what it would publish is read where it is handed to the publisher. Time is the machine's,
and threads are run in place, so that a sequence repeats exactly.

A process that is killed does nothing more, not even clean up. So from the moment of its death every file operation and every
driver call of that agent raises `Killed` again.
"""

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from unittest import mock

import msgspec

from draco.agent import app, hardware, lanes
from draco.agent.api import dra_v1_pb2
from draco.agent.dra_service import DraService
from draco.agent.files import LocalFiles
from draco.agent.lanes import Lane
from draco.agent.nvml import Nvml
from draco.agent.settings import AgentSettings
from draco.kube.errors import NotFound, Unreachable
from draco.resources.draco import WantedGpu
from draco.resources.kinds import CLAIMS, GPU_NODES, SLICES, Kind
from draco.simulator import procfs
from draco.simulator.nvml import SimulatedNvml
from tests.doubles.clock import ManualClock

T = TypeVar("T")

NODE = "node-0"
DRIVER = "gpu.nvidia.com"
RESCAN_S = 20.0
BLOCK = 4096
KUBELET_S = 45.0
"""How long kubelet waits for an answer."""
PATIENCE_S = 20.0
"""Longer than any work takes that does not hang."""
GRACE_S = 0.1
"""While something hangs, work that is not done by then waits for it. If it was only slow, it is done a little later."""
_MANY = 20_000
"""So many turns of the event loop without a pause are a live lock."""


class Killed(BaseException):
    """The agent's process has ended here. No `except Exception` sees it."""


class Gone(Exception):
    """The agent does not run."""


class NoAnswer(Exception):
    """Kubelet's call ran into its deadline."""


class Death:
    """Ends an agent at a chosen step; `count` says how many there were."""

    def __init__(self) -> None:
        self.count = 0
        self.dead = False
        self._left: int | None = None

    def arm(self, steps: int) -> None:
        """Die at the so manieth step from now."""
        self._left = steps

    def disarm(self) -> None:
        """Live on."""
        self._left = None

    def step(self, _point: str = "") -> None:
        """One step of the agent: nothing between two of them can be seen from outside."""
        self.count += 1
        if self._left is not None and not self.dead:
            self._left -= 1
            self.dead = self._left <= 0
        if self.dead:
            raise Killed


class Disk:
    """How much room the node's disk has, in blocks; None is plenty."""

    def __init__(self) -> None:
        self.free: int | None = None

    def take(self, blocks: int, path: Path) -> None:
        """ENOSPC without room."""
        if self.free is None:
            return
        if blocks > self.free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self.free -= blocks

    def give(self, blocks: int) -> None:
        """Room that was freed."""
        if self.free is not None:
            self.free += blocks


def _blocks(path: Path) -> int:
    try:
        return -(-path.stat().st_size // BLOCK)
    except FileNotFoundError:
        return 0


class MortalFiles(LocalFiles):
    """The agent's files: each operation is a step before and after, and writing one may be cut short in the middle."""

    def __init__(self, death: Death, disk: Disk) -> None:
        self._death = death
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


class Threads:
    """Stands in for the thread pools of one agent, which have one thread each: work is done at once, where it is submitted.

    A call that hangs cannot be waited for in place. So once `hangs` is set each pool has a thread after all, and whoever submits
    work waits until it is done or stuck: in a call that hangs, or behind one.
    """

    def __init__(self) -> None:
        self.hangs = False
        self.stuck = False
        self._bell = threading.Condition()
        self._open: list[Future[Any]] = []

    def lane(self, *_args: Any, **_options: Any) -> "InPlace":
        """In place of a lane."""
        return InPlace(self)

    def step(self, point: str) -> None:
        """A step of a driver call, which says when it hangs."""
        if point.startswith("hangs"):
            with self._bell:
                self.stuck = True
                self._bell.notify_all()

    def run(self, behind: "Future[Any] | None", future: "Future[Any]", work: Callable[..., Any], args: Any) -> None:
        """Do work in a thread of its own, when what is before it is done; return when it is done or stuck."""

        def in_turn() -> None:
            if behind is not None:
                with suppress(BaseException):
                    behind.result()
            _do(future, work, args)
            with self._bell:
                self._bell.notify_all()

        self._open = [one for one in self._open if not one.done()] + [future]
        threading.Thread(target=in_turn, daemon=True).start()
        with self._bell:
            self._bell.wait_for(lambda: future.done() or self.stuck, PATIENCE_S)
            if self.stuck:  # this work may have nothing to do with what hangs
                self._bell.wait_for(future.done, GRACE_S)

    def let_go(self) -> None:
        """Nothing hangs any more: wait until all is done."""
        for future in self._open:
            with suppress(BaseException):
                future.result(timeout=PATIENCE_S)
        self.hangs = self.stuck = False
        self._open = []


class InPlace(Lane):
    """A lane that has no thread while nothing hangs."""

    def __init__(self, threads: Threads) -> None:
        super().__init__("in place", monotonic=lambda: 0.0)
        self._threads = threads
        self._last: Future[Any] | None = None

    def submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Do it now, or as soon as it can be done."""
        future: Future[Any] = Future()
        behind, self._last = self._last, future
        if not self._threads.hangs:
            _do(future, work, ())
        else:
            self._threads.run(behind, future, work, ())
        return asyncio.wrap_future(future)


def _do(future: "Future[Any]", work: Callable[..., Any], args: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work(*args))
    except BaseException as error:  # noqa: BLE001 - as a thread pool does
        future.set_exception(error)


class Source:
    """What the agent reads and writes at the API server: claims, its GpuNode, its slices. Everything else is out of reach.

    It keeps objects as they are given and judges nothing. What the API server does to objects is proven with a real one.
    """

    def __init__(self) -> None:
        self.gone = False
        self._objects: dict[str, dict[str, Any]] = {}
        self.put(GPU_NODES, {"metadata": {"name": NODE, "uid": "node-uid"}})

    @property
    def connection(self) -> "Source":
        """Discovery asks below the client; it is out of reach, too."""
        return self

    def put(self, kind: Kind[Any], content: Any) -> None:
        """Have such an object."""
        made = msgspec.convert(content, kind.type)
        self._objects.setdefault(kind.plural, {})[str(made.metadata.key)] = made

    def drop(self, kind: Kind[Any], key: str) -> None:
        """Have it no more."""
        self._objects.get(kind.plural, {}).pop(key, None)

    def reported(self, claim: str) -> bool:
        """Whether a claim's status says that a device is ready."""
        found = self._objects.get(CLAIMS.plural, {}).get(f"default/{claim}")
        return found is not None and bool(found.status.devices)

    def publish(self, devices: list[Any], counters: list[Any]) -> None:
        """The slices of the node, as many devices as there are in one."""
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices, "sharedCounters": counters}
        self.put(SLICES, {"metadata": {"name": NODE}, "spec": spec})

    async def get(self, kind: Kind[Any], key: Any, **_options: Any) -> Any:
        self._reach()
        return self._found(kind, key)

    async def list(self, kind: Kind[Any], **_options: Any) -> Any:
        self._reach()
        return list(self._objects.get(kind.plural, {}).values())

    async def apply(self, kind: Kind[Any], key: Any, body: Any, **_options: Any) -> Any:
        """The fields of the status that are given are replaced."""
        self._reach()
        known = msgspec.to_builtins(self._found(kind, key))
        self.put(kind, known | {"status": known.get("status", {}) | body["status"]})
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


class Driven:
    """One run of the agent, from its start to its death."""

    def __init__(
        self,
        folder: Path,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: ManualClock,
        source: Source,
        disk: Disk,
        death: Death,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.death = death
        self.threads = Threads()
        gpus = folder / "gpus.json"
        settings = AgentSettings(
            node_name=NODE,
            kubelet_dir=folder / "k",
            cdi_dir=folder / "cdi",
            state_dir=folder / "agent",
            sysfs_root=folder / "sys",
            proc_root=procfs.tree(gpus),
            rescan_s=RESCAN_S,
            event_wait_s=0,
        )
        services: list[DraService] = []

        class Noted(DraService):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                services.append(self)

        with (
            mock.patch.object(lanes, "Lane", self.threads.lane),
            mock.patch.object(hardware, "Lane", self.threads.lane),
            mock.patch.object(app, "DraService", Noted),
        ):
            library = SimulatedNvml(gpus, step=self._step)
            client: Any = source
            self.agent = app.Agent(
                settings,
                client,
                Nvml(library, monotonic=clock.monotonic),
                clock=clock,
                random=Random(0),
                files=MortalFiles(death, disk),
            )
        self._calls = services[0].behaviours(dra_v1_pb2)
        self._task: asyncio.Task[None] | None = None

    def _step(self, point: str) -> None:
        self.threads.step(point)
        self.death.step(point)

    # Its life

    @property
    def ready(self) -> bool:
        """Whether kubelet finds its socket."""
        return self.agent._plugin.serving.is_set()

    def start(self, wanted: dict[Any, WantedGpu]) -> None:
        """As the program does, but for the sockets; and it is taken that the API server was asked what it can do."""
        self.want(wanted)
        plugin: Any = self.agent._plugin
        plugin.run = self._serve_nobody
        self.agent._asked.set()
        self._task = self.loop.create_task(self.agent._serve())
        self._run(self._settle())
        for _ in range(20):  # it may wait a little for what it cannot have
            if not self.ready:
                self._run(self.clock.advance(1.0))

    async def _serve_nobody(self) -> None:
        """In place of the sockets: nobody calls through them here."""
        self.agent._plugin.serving.set()
        await asyncio.Event().wait()

    def want(self, wanted: dict[Any, WantedGpu]) -> None:
        """What policies want of GPUs, as the operator would have written it into the GpuNode."""
        keeper = self.agent._dividing.keeper
        touched = set(wanted) | set(keeper.wanted or {})
        keeper.wanted = dict(wanted)
        keeper.known.set()
        for uuid in touched:
            keeper.touch(uuid)

    def turn(self, seconds: float) -> None:
        """Let so much time pass for the agent."""
        self._run(self.clock.advance(seconds))

    def stop(self) -> None:
        """The process ends, as by SIGKILL: nothing of it has any effect from here on."""
        self.death.dead = True
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(_ended(self.loop))

    def let_go(self) -> None:
        """Calls that hung have been let go: have them end, and what waited for them."""
        self.threads.let_go()
        if not self.death.dead:
            self._run(self._settle())

    # Calls

    def prepare(self, name: str, uid: str) -> tuple[str, list[Any]]:
        """Kubelet's call: the error, and the devices."""
        answer = self._call("NodePrepareResources", dra_v1_pb2.NodePrepareResourcesRequest, name, uid)
        return answer.error, list(answer.devices)

    def unprepare(self, name: str, uid: str) -> str:
        """Kubelet's call: the error."""
        return str(self._call("NodeUnprepareResources", dra_v1_pb2.NodeUnprepareResourcesRequest, name, uid).error)

    def _call(self, method: str, request: Any, name: str, uid: str) -> Any:
        asked = request(claims=[dra_v1_pb2.Claim(namespace="default", name=name, uid=uid)])
        answer = self._run(self._answered(self._calls[method](asked, None)))
        return answer.claims[uid]

    async def _answered(self, call: Coroutine[Any, Any, Any]) -> Any:
        """The answer of a call that may wait for time to pass."""
        task = self.loop.create_task(call)
        until_s = self.clock.monotonic() + KUBELET_S
        while not task.done():
            await self._settle()
            wake_s = self.clock.next_wake_s
            if task.done() or wake_s is None or self.clock.monotonic() + wake_s > until_s:
                break
            await self.clock.advance(wake_s)
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            raise NoAnswer
        return await task

    def published(self) -> tuple[list[Any], list[Any]] | None:
        """What it would publish now, as JSON; None while it would publish nothing."""
        if not self.ready:
            return None
        self._run(self.agent._offers._reconcile(""))
        wanted = self.agent._publisher._wanted
        if wanted is None:
            return None
        devices, counters = (msgspec.json.decode(msgspec.json.encode(part)) for part in wanted)
        return devices, counters

    # The loop

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run, and then whatever it has woken. Killed when the agent died meanwhile; a task that fails is a defect."""
        if self.death.dead:
            work.close()
            raise Gone
        try:
            answer = self.loop.run_until_complete(work)
            self.loop.run_until_complete(self._settle())
        except BaseException:
            if self.death.dead:
                raise Killed from None
            raise
        if self.death.dead:
            raise Killed
        if self._task is not None and self._task.done():
            self._task.result()
        return answer

    async def _settle(self) -> None:
        ready: Any = self.loop._ready  # type: ignore[attr-defined]
        for _ in range(_MANY):
            await asyncio.sleep(0)
            if not ready or self.death.dead:
                return
        raise AssertionError("the agent works without end, and time does not pass")


async def _ended(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task()}
    await asyncio.gather(*tasks, return_exceptions=True)
