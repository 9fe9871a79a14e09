"""The real agent on a node of the adversary, run step by step. It can be killed at every step.

Owns how the agent is started, run, called as kubelet would, and ended. It is `draco.agent.app.Agent` as the program builds it.
Calls bypass its sockets (`rivals`), and published devices are read where the agent passes them to the publisher. The machine
controls the clock and threads run in place, so a sequence repeats exactly.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import msgspec

from draco.agent import app, parts, threads
from draco.agent.hardware import monitor as hardware
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_usage import NvmlUsage
from draco.agent.plugin.api import dra_v1_pb2, registration_pb2
from draco.agent.plugin.dra_service import DraService
from draco.agent.report.claim_status import ClaimRef
from draco.agent.report.node_status import ABSENT_S
from draco.agent.settings import AgentSettings
from draco.agent.usage import reading
from draco.agent.usage.limit_keeper import LimitKeeper
from draco.kube.queue import WorkQueue
from draco.kube.watch.watching import ListedCollection
from draco.resources.names import ClaimUid
from draco_local.simulator.gpus import procfs
from draco_local.simulator.nvml.library import SimulatedNvml
from draco_local.simulator.nvml.nvidia_smi import SimulatedSmi
from tests.adversary.agent import observer
from tests.adversary.agent.processes import Process
from tests.adversary.agent.surroundings import CGROUP, NODE, OWN_CGROUP, Death, Disk, Killed, MortalFiles, Source
from tests.doubles.clock import ManualClock

T = TypeVar("T")

RESCAN_S = 20.0
EVENT_WAIT_S = 5.0
"""How long one wait for NVML events lasts. Events that come meanwhile are delivered at its end."""
KUBELET_S = 45.0
"""How long kubelet waits for an answer."""
CHECK_S = 5.0
"""Seconds between two checks of the sockets."""
SETTINGS = ("uuid", "mig_current", "mig_pending", "compute_mode", "time_slice")
_MANY = 20_000
"""Turns of the event loop without a pause that count as a livelock."""


class Gone(Exception):
    """The agent is not running."""


class NoAnswer(Exception):
    """Kubelet's call ran into its deadline."""


class AtOnce(SimulatedNvml):
    """NVML that never waits for an event: the machine's clock stands still during a call."""

    def nvmlEventSetWait_v2(self, events: Any, _timeout_ms: int) -> Any:  # noqa: N802 - the name is pynvml's
        return self._functions["nvmlEventSetWait_v2"](events, 0)


class Listening(hardware.HardwareMonitor):
    """Waits on the machine's clock before it asks for events, instead of in a thread."""

    async def _heard_by(self, seconds: float, work: Callable[[], T]) -> T:
        if seconds:
            self._due_s = self._clock.monotonic() + seconds
            await self._clock.sleep(seconds)
        return await super()._heard_by(0.0, work)


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
        follows: bool = False,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.folder = folder
        self.source = source
        self.death = death
        self.process = Process(death)
        self.threads = self.process.threads
        gpus = folder / "gpus.json"
        settings = AgentSettings(
            node_name=NODE,
            kubelet_dir=folder / "k",
            cdi_dir=folder / "cdi",
            state_dir=folder / "agent",
            sysfs_root=folder / "sys",
            proc_root=procfs.tree(gpus),
            device_root=folder / "root",
            rescan_s=RESCAN_S,
            event_wait_s=EVENT_WAIT_S,
            socket_check_s=CHECK_S,
            takes_over=follows,
        )
        services: list[DraService] = []

        class Noted(DraService):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                services.append(self)

        with (
            mock.patch.object(threads, "DaemonExecutor", self.threads.executor),
            mock.patch.object(hardware, "DaemonExecutor", self.threads.executor),
            mock.patch.object(reading, "DaemonExecutor", self.threads.executor),
            mock.patch.object(parts, "LimitKeeper", partial(LimitKeeper, cgroups=folder / CGROUP)),
            mock.patch.object(parts, "DraService", Noted),
            mock.patch.object(parts, "HardwareMonitor", Listening),
            mock.patch.object(parts, "NvmlUsage", partial(NvmlUsage, pause=lambda _: None)),
        ):
            library = AtOnce(gpus, step=self._step)
            client: Any = source
            self.agent = app.Agent(
                settings,
                client,
                Nvml(library, own_cgroup=folder / OWN_CGROUP, monotonic=clock.monotonic),
                smi=SimulatedSmi(AtOnce(gpus, step=self._step)),
                clock=clock,
                files=MortalFiles(self.process, disk),
            )
        self._calls = services[0].behaviours()
        self._task: asyncio.Task[None] | None = None
        self._asked: set[ClaimRef] = set()  # the claims of kubelet's calls
        self._has_read = False  # the GPUs, in this turn

    def _step(self, point: str) -> None:
        self.threads.step(point)
        self.process.step(point)

    # Its life

    @property
    def ready(self) -> bool:
        """Whether the agent serves kubelet."""
        return self.agent.parts.plugin.serving.is_set()

    def begin(self) -> None:
        """Start the agent as the program does, with feature discovery already done."""
        self.agent._asked.set()
        self._task = self.loop.create_task(self.agent.run(), context=self.process.context)
        parts = self.agent.parts
        offering = parts.offers.run(recovered=parts.startup.recovered, follows=True)
        self.loop.create_task(offering, context=self.process.context)
        self._run(self._settle())
        self.listen()

    def start(self) -> None:
        """Start the agent and wait until it serves. Raises AnotherPlugin if another plugin serves the driver."""
        self.begin()
        for _ in range(20):  # it may first wait in vain for something unavailable
            if not self.ready:
                self._run(self.clock.advance(1.0))

    def listen(self) -> None:
        """Deliver the GpuNode through the agent's watch, if that works, and at its start the slices."""
        self._run(self._heard())

    async def _heard(self) -> None:
        await self.loop.create_task(self._hear(), context=self.process.context)

    async def _hear(self) -> None:
        if not (self.source.gone or self.source.mute):
            there = self.source.gpu_node
            listed = {there.metadata.key: there} if there is not None else {}
            self.agent.parts.keeper._informer.take(ListedCollection(listed, "", []))
            if there is not None and there.spec.decided:
                self.source.heard = [msgspec.to_builtins(each) for each in there.spec.shared]
        if not (self.source.gone or self.agent.parts.publisher._informer.synced.is_set()):
            self.see_slices()

    def see_slices(self) -> None:
        """Deliver the slices through the agent's watch."""
        self.agent.parts.publisher._informer.take(ListedCollection(self.source.slices, "", []))

    def slices_written(self) -> None:
        """Let the agent know that the API server has what it wants to publish: the machine writes it."""
        publisher = self.agent.parts.publisher
        publisher._written = publisher._wanted

    @property
    def forgets(self) -> bool:
        """Whether the last spec could not be written to disk, so that only this process knows it."""
        return self.agent.parts.keeper._memory.unwritten

    def turn(self, seconds: float) -> None:
        """Let this many seconds pass for the agent."""
        self.listen()
        self._has_read = seconds > RESCAN_S
        self._run(self.clock.advance(seconds))

    def end(self) -> None:
        """Tell the agent to end, as SIGTERM does."""
        if self._task is not None:
            self._task.cancel()
        self.pass_time(0.0)

    def pass_time(self, seconds: float) -> None:
        """Let this many seconds pass for all agents, even if this one dies."""
        self.loop.run_until_complete(self.clock.advance(seconds))
        self.loop.run_until_complete(self._settle())

    @property
    def ended(self) -> bool:
        """Whether its process has ended or is ending."""
        return self.death.dead or self._task is None or self._task.done()

    @property
    def why_ended(self) -> BaseException | None:
        """The exception with which it ended, if any."""
        if self._task is None or not self._task.done():
            return None
        return asyncio.CancelledError() if self._task.cancelled() else self._task.exception()

    @property
    def registers(self) -> bool:
        """Whether the agent has registration sockets for kubelet."""
        return bool(self.agent.parts.plugin.identities)

    def kubelet_registers(self) -> None:
        """Kubelet tells the agent that it is registered."""
        plugin = self.agent.parts.plugin
        done = plugin._notified(registration_pb2.RegistrationStatus(plugin_registered=True), None)
        self.loop.run_until_complete(self.loop.create_task(done, context=self.process.context))

    def stop(self) -> None:
        """End the process as SIGKILL does: nothing it started has any effect from here on."""
        self.process.end(self.loop)

    def let_go(self) -> None:
        """Finish the calls that hung and everything that waited for them."""
        self.threads.let_go()
        if not self.death.dead:
            self._run(self._settle())

    # Calls

    def prepare(self, name: str, uid: str) -> tuple[str, list[Any]]:
        """Call as kubelet does. Returns the error and the devices."""
        answer = self._call("NodePrepareResources", dra_v1_pb2.NodePrepareResourcesRequest, name, uid)
        return answer.error, list(answer.devices)

    def unprepare(self, name: str, uid: str) -> str:
        """Call as kubelet does. Returns the error."""
        return str(self._call("NodeUnprepareResources", dra_v1_pb2.NodeUnprepareResourcesRequest, name, uid).error)

    def ask(self, name: str, uid: str, *, gives_up: bool) -> "asyncio.Task[Any]":
        """Start a call without waiting for its answer."""
        asked = dra_v1_pb2.Claim(namespace="default", name=name, uid=uid)
        self._asked.add(ClaimRef("default", name, ClaimUid(uid)))
        if gives_up:
            call = self._calls["NodeUnprepareResources"](dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[asked]), None)
        else:
            call = self._calls["NodePrepareResources"](dra_v1_pb2.NodePrepareResourcesRequest(claims=[asked]), None)
        return self.loop.create_task(call, context=self.process.context)

    def finish(self, calls: "Collection[asyncio.Task[Any]]") -> None:
        """Let time pass until all calls are answered or kubelet's timeout is over."""
        until_s = self.clock.monotonic() + KUBELET_S
        while not all(call.done() for call in calls) and self.clock.monotonic() < until_s:
            self._run(self.clock.advance(0.5))

    def _call(self, method: str, request: Any, name: str, uid: str) -> Any:
        asked = request(claims=[dra_v1_pb2.Claim(namespace="default", name=name, uid=uid)])
        self._asked.add(ClaimRef("default", name, ClaimUid(uid)))
        answer = self._run(self._answered(self._calls[method](asked, None)))
        return answer.claims[uid]

    async def _answered(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Await a call, letting time pass while it waits."""
        task = self.loop.create_task(call, context=self.process.context)
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
        """The devices and counters that it would publish now, as JSON; None if it would publish nothing."""
        parts = self.agent.parts
        if not self.ready or parts.publisher._wanted is None:
            return None
        self._check_wakes()
        self._run(parts.offers._reconcile(""))
        wanted: Any = parts.publisher._wanted
        devices, counters = (msgspec.json.decode(msgspec.json.encode(part)) for part in wanted)
        return devices, counters

    def _check_wakes(self) -> None:
        """Liveness: a reconcile that nothing has woken finds nothing to do."""
        parts = self.agent.parts
        if parts.state.facts.gives_way_to or self.threads.hangs or parts.state._settling._due:
            return  # a claim that settles will wake them soon
        reconciles: list[tuple[str, Any, Any]] = [("offers", parts.offers, "")]
        if not self.source.mute:  # else nothing tells that the GpuNode is gone
            reconciles.append(("report", parts.node_reporter, NODE))
        claims = {ClaimRef(each.namespace, each.name, each.uid) for each in parts.checkpoint.claims.values()}
        reconciles += [("claim status", parts.claim_reporter, ref) for ref in sorted(claims | self._asked)]
        if self._has_read:  # only then: a layout reads the GPU itself, and might find what has changed since
            gpus = list(parts.inventory.divisions)
            # Work on one shows what is known of all.
            if not any(self._is_woken(parts.keeper._queue, uuid) for uuid in gpus):
                reconciles += [("MIG layout", parts.keeper, uuid) for uuid in gpus]
            reconciles += [("time slice", parts.time_slices, gpu.uuid) for gpu in parts.state.facts.view.present]
            reconciles += [("MPS", parts.mps, gpu.uuid) for gpu in parts.state.facts.view.present]
        self._has_read = False
        for what, reconciler, key in reconciles:
            if self._is_woken(reconciler._queue, key) or self.source.gone:
                continue
            before = self._effects()
            self._run(self._ours(reconciler._reconcile(key)))
            assert self._effects() == before, (
                f"the {what} of {key or NODE} was out of date, and nothing woke its reconciler"
            )

    async def _ours(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await self.loop.create_task(work, context=self.process.context)

    def _is_woken(self, queue: WorkQueue[Any], key: Any) -> bool:
        """Whether the key is queued or running, waits for another try, or is delayed by less than a periodic look."""
        soon_s = self.clock.monotonic() + ABSENT_S
        if key in queue._ready or key in queue._running:
            return True
        return key in queue._due and (key in queue._backoffs or queue._due[key] <= soon_s)

    def _effects(self) -> tuple[Any, ...]:
        """What reconcilers change: objects of the API server, the offer, instances, and the settings of GPUs."""
        instances = [
            (*(gpu[what] for what in SETTINGS), *(each["serial"] for each in gpu["instances"]))
            for gpu in observer.look(self.folder).gpus
        ]
        return self.source.version, self.agent.parts.publisher._wanted, instances

    # The loop

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run `work` and everything it wakes. Raises Killed if the agent died meanwhile. A task that fails is a defect."""
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
