"""Starts and stops the parts of one agent.

Owns the order of starting and stopping; `parts` makes and connects them. Many agents with different settings can run in one
process and one event loop.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry

from draco.agent import wakes
from draco.agent.errors import AnotherPlugin, ClusterUnsuited, SettingsError
from draco.agent.files import Files
from draco.agent.hardware.nvidia_smi import NvidiaSmi, Smi
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_library import NodeLibrary
from draco.agent.hardware.nvml_memory import own_cgroup
from draco.agent.parts import AgentParts
from draco.agent.plugin.guard import ProcessLock, refuse_beside_others
from draco.agent.plugin.handover import POLL_S, NextAgent, hand_over
from draco.agent.plugin.unix_sockets import SocketTaken
from draco.agent.settings import AgentSettings
from draco.agent.state.changes import RecordRead
from draco.endpoints import http_app, serving
from draco.kube.clock import Clock, SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.retry import persistently
from draco.kube.delegation import serving_metrics
from draco.kube.discovery import PARTITIONABLE, Features, differences, discover, serves, until_changed
from draco.kube.errors import ApiError
from draco.resources.kinds import GPU_NODES

log = structlog.get_logger()

REFUSAL_S = 5.0
"""How long an agent that refuses to start tries to report the refusal."""
CLOSING_S = 3.0
"""How long a stopping agent waits for work in progress. The next agent undoes work that takes longer."""
SILENT_S = 5.0
"""How long a new agent leaves the GpuNode as the last run wrote it, until it knows the node's state."""


async def run_agent(
    settings: AgentSettings,
    *,
    client: Client,
    library: Any = None,
    smi: Smi | None = None,
    clock: Clock | None = None,
    files: Files | None = None,
) -> None:
    """Run an agent until cancelled. `library` replaces the module pynvml, `smi` the program nvidia-smi.

    Raises AnotherPlugin if the driver is already served on this node, SettingsError if the settings cannot work.
    """
    clock = clock or SystemClock()
    nvml = _nvml(settings, library, clock)
    agent = Agent(settings, client, nvml, smi=smi, clock=clock, files=files or Files())
    await agent.run()


def _nvml(settings: AgentSettings, library: Any, clock: Clock) -> Nvml:
    cgroup = settings.own_cgroup or own_cgroup()
    if library is not None:
        return Nvml(library, own_cgroup=cgroup, monotonic=clock.monotonic)
    if settings.installed is None:
        return Nvml(own_cgroup=cgroup, monotonic=clock.monotonic)
    return Nvml(load=NodeLibrary(settings.installed).load, own_cgroup=cgroup, monotonic=clock.monotonic)


class Agent:
    """One node's agent. `run` it once."""

    def __init__(
        self,
        settings: AgentSettings,
        client: Client,
        nvml: Nvml,
        *,
        smi: Smi | None = None,
        clock: Clock,
        files: Files,
    ) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._files = files
        self._log = log.bind(node=settings.node_name)
        self._standing_by = False
        self._asked = asyncio.Event()  # cluster features are known
        self.parts: Final = AgentParts(
            settings, client, nvml, smi=smi or NvidiaSmi(settings.installed), clock=clock, files=files
        )
        wakes.connect(self.parts)

    async def run(self) -> None:
        """Start, serve until cancelled, and stop: sockets removed, threads ended, slices left in place."""
        plugin, registry = self.parts.plugin, self.parts.sockets.registration.parent
        lock = ProcessLock(self._settings.state_folder / "agent.lock")
        try:
            async with self._endpoints():
                await self._take_place(lock)
                await refuse_beside_others(registry, self._settings.driver, ours=plugin.identities)
                await self._serve_until_followed()
        except AnotherPlugin as refusal:
            self._log.error("agent.refused", error=str(refusal))
            self.parts.node_events.tell("AnotherPlugin", "Start", str(refusal))
            if not self._standing_by:  # else the serving agent reports the node's state
                with suppress(ApiError, TimeoutError):
                    async with asyncio.timeout(REFUSAL_S):
                        await self.parts.node_reporter.refused(str(refusal), by_ours=refusal.ours)
            await self.parts.events.flush(REFUSAL_S)
            raise
        finally:
            try:
                await plugin.withdraw()
            finally:
                # From here on another agent may act, so no thread of ours may still work on instances or the record.
                await self.parts.threads.closed(CLOSING_S, lock.release)

    async def _take_place(self, lock: ProcessLock) -> None:
        """Become the node's agent: now, or, with `takes_over`, when the present one ends."""
        try:
            lock.acquire()
        except AnotherPlugin as there:
            if not self._settings.takes_over:
                raise
            with NextAgent(self._settings.state_folder) as place:
                await self._stand_by(lock, place, there)

    async def _stand_by(self, lock: ProcessLock, place: NextAgent, there: AnotherPlugin) -> None:
        plugin, deadline = self.parts.plugin, self._clock.monotonic() + self._settings.stand_by_s
        self._log.info("agent.standing_by", agent=str(there))
        self._standing_by = True
        while True:
            try:
                lock.acquire()
            except AnotherPlugin:
                if self._clock.monotonic() > deadline and not place.called:
                    raise
            else:
                self._standing_by = False
                self._log.info("agent.taking_over")
                return
            if place.called and not plugin.identities:
                with suppress(SocketTaken, SettingsError, OSError):  # kubelet then waits until this agent serves
                    await plugin.register_early()
            if plugin.registration.accepted:
                place.has_registered()
            await self._clock.sleep(POLL_S)

    async def _serve_until_followed(self) -> None:
        """Serve. An agent that is told to end keeps serving until its successor has registered."""
        serving = asyncio.create_task(self._serve(), name="serving")
        try:
            await asyncio.wait({serving})
        finally:
            try:
                if not serving.done():
                    self.parts.plugin.leave()
                    await hand_over(self._settings.state_folder, self._clock, calls=lambda: self.parts.service.calls)
            finally:
                serving.cancel()
                await serving

    async def _serve(self) -> None:
        self.parts.state.begin()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.parts.hardware.run(), name="hardware")
            tasks.create_task(self.parts.state.run(), name="settled claims")
            tasks.create_task(self.parts.events.run(), name="events")
            tasks.create_task(self._report(), name="gpunode")
            tasks.create_task(self.parts.edits_refresh.run(), name="edits")
            tasks.create_task(self.parts.device_plugins.run(), name="device plugins")
            tasks.create_task(self._publish(), name="slices")
            tasks.create_task(self.parts.startup.name(), name="names")
            if self.parts.lease is not None:
                tasks.create_task(self.parts.lease.run(), name="lease")
            await self.parts.hardware.ready.wait()
            recovering = tasks.create_task(self.parts.startup.recover(), name="recovery")
            await self.parts.hardware.unless_hanging(recovering)
            await self.parts.startup.trusted.wait()
            tasks.create_task(self.parts.startup.keep(), name="minors")
            tasks.create_task(self.parts.keeper.run(), name="partitions")
            tasks.create_task(self.parts.time_slices.run(), name="time slices")
            tasks.create_task(self.parts.mps.run(), name="mps")
            tasks.create_task(self.parts.claim_reporter.run(), name="claim status")
            tasks.create_task(self.parts.plugin.run(), name="plugin")
            tasks.create_task(self.parts.leftovers.run(), name="leftovers")
            tasks.create_task(self._read_usage(), name="usage")
            tasks.create_task(self.parts.usage_reporter.run(), name="gpuusage")
            tasks.create_task(self.parts.limit_keeper.run(), name="memory limits")
            self.parts.state.tell(RecordRead())

    async def _read_usage(self) -> None:
        await self.parts.usage_reporter.restore()
        await self.parts.usage.run()

    @asynccontextmanager
    async def _endpoints(self) -> AsyncIterator[None]:
        secure = self._settings.metrics
        async with AsyncExitStack() as stack:
            if self._settings.listen is not None:
                plain = self._measured if secure is None else None
                app = http_app(plain, alive=self.parts.threads.stuck, ready=self._lacking)
                await stack.enter_async_context(serving(app, *self._settings.listen))
            if secure is not None:
                metrics = serving_metrics(
                    secure,
                    self._measured,
                    certificates=self.parts.metrics.certificates,
                    client=self._client,
                    clock=self._clock,
                )
                await stack.enter_async_context(metrics)
            yield

    async def _report(self) -> None:
        """Report once owners and cluster features are known, or after SILENT_S. A lost record needs the old report first."""
        await self.parts.startup.record_read.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(SILENT_S):
                await self.parts.startup.recovered.wait()
                await self._asked.wait()
        await self.parts.node_reporter.run()

    async def _publish(self) -> None:
        """Publish if the cluster supports it. Kubelet is served meanwhile: unprepare needs no API server."""
        features = await persistently("features.unknown", self._discover, clock=self._clock)
        self.parts.state.learn(features=features)
        self._asked.set()
        for missing in features.missing:
            if not features.dra:
                raise ClusterUnsuited(f"{missing.consequence} {missing.remedy}")
            if missing.name in ("device status", PARTITIONABLE):
                self._log.warning("feature.missing", feature=missing.name, consequence=missing.consequence)
        follows = await persistently("features.unknown", lambda: serves(self._client, GPU_NODES), clock=self._clock)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.parts.publisher.run(), name="publisher")
            offering = self.parts.offers.run(recovered=self.parts.startup.recovered, follows=follows)
            tasks.create_task(offering, name="offers")
            tasks.create_task(self._follow_features(features), name="features")

    async def _follow_features(self, features: Features) -> None:
        while True:
            before = features
            features = await until_changed(
                self._discover,
                before,
                clock=self._clock,
                every_s=self._settings.rediscover_s,
                confirm_s=self._settings.confirm_s,
                hint=lambda: self.parts.publisher.unserved_s > 0,
            )
            self._log.warning("cluster.changed", changes=differences(before, features))
            self.parts.state.learn(features=features)

    async def _discover(self) -> Features:
        return await discover(self._client, node_name=self._settings.node_name, driver=self._settings.driver)

    def _lacking(self) -> list[str]:
        """Why the agent is not ready. An agent that stands by is ready: it only waits for the other one to end."""
        return [] if self._standing_by else self.parts.readiness.lacking()

    def _measured(self) -> CollectorRegistry:
        node_report = self.parts.readiness.node_report()
        facts = node_report.facts
        self.parts.metrics.state(
            claims=node_report.claims,
            generation=facts.published.generation if facts.published else 0,
            registered=node_report.registration.accepted,
            reading_age_s=self.parts.hardware.reading_age_s,
        )
        self.parts.usage_metrics.set(self.parts.usage.latest, now_s=self._clock.monotonic())
        self.parts.metrics.divisions(facts.divisions.values() if facts.recovered else ())
        return self.parts.metrics.registry
