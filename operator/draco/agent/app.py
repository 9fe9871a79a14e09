"""Starts and stops the parts of one agent, and passes each change to the parts that need it.

Owns the order of starting and stopping, and which part hears of which change; `parts` makes them. Holds nothing in modules: many
agents, with different settings, can run in one process and one event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

import structlog
from prometheus_client import CollectorRegistry

from draco.agent.errors import AnotherPlugin, ClusterUnsuited, PrepareError, SettingsError
from draco.agent.files import Files, LocalFiles, advice
from draco.agent.hardware.monitor import HardwareView
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_library import NodeLibrary
from draco.agent.lanes import Lane
from draco.agent.parts import AgentParts
from draco.agent.plugin.guard import ProcessLock, refuse_beside_others
from draco.agent.plugin.handover import POLL_S, NextAgent, hand_over
from draco.agent.plugin.registration import PluginConflict, RegistrationState
from draco.agent.plugin.unix_sockets import SocketTaken
from draco.agent.record.checkpoint import PreparedClaim
from draco.agent.report import node_status
from draco.agent.report.node_status import NodeReport
from draco.agent.settings import AgentSettings
from draco.endpoints import http_app, serving
from draco.kube.clock import Clock, SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.retry import persistently
from draco.kube.discovery import PARTITIONABLE, Features, discover, serves
from draco.kube.errors import ApiError
from draco.kube.rediscovery import differences, until_changed
from draco.kube.secure_metrics import serving_metrics
from draco.resources.api.core import ObjectReference
from draco.resources.kinds import GPU_NODES
from draco.resources.names import GpuUuid

log = structlog.get_logger()

T = TypeVar("T")

REFUSAL_S = 5.0
"""How long an agent that does not start tries to say so."""
SETTLE_S = 0.25
"""How long what follows from a prepared claim waits, so that it takes no time from the start of the pod."""
UNSERVED_S = 30.0
"""So long the cluster may not serve ResourceSlices before the agent is not ready."""
CLOSING_S = 3.0
"""How long work that was begun is waited for when the agent ends. If it takes longer it is undone by the next one."""
SILENT_S = 5.0
"""How long GpuNode is left as the last run wrote it, while this one finds out how things stand."""


async def run_agent(
    settings: AgentSettings,
    *,
    client: Client,
    library: Any = None,
    clock: Clock | None = None,
    random: Random | None = None,
    files: Files | None = None,
) -> None:
    """Run an agent until cancelled. `library` stands in for the module pynvml.

    AnotherPlugin when the driver is already served on this node, SettingsError when the settings cannot work.
    """
    clock = clock or SystemClock()
    nvml = _nvml(settings, library, clock)
    jitter = random or Random()  # noqa: S311 - spreads retries, guards nothing
    agent = Agent(settings, client, nvml, clock=clock, random=jitter, files=files or LocalFiles())
    await agent.run()


def _nvml(settings: AgentSettings, library: Any, clock: Clock) -> Nvml:
    if library is not None:
        return Nvml(library, monotonic=clock.monotonic)
    if settings.installed is None:
        return Nvml(monotonic=clock.monotonic)
    return Nvml(load=NodeLibrary(settings.installed).load, monotonic=clock.monotonic)


class Agent:
    """One node's agent. `run` it once."""

    def __init__(
        self, settings: AgentSettings, client: Client, nvml: Nvml, *, clock: Clock, random: Random, files: Files
    ) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._files = files
        self._random = random
        self._log = log.bind(node=settings.node_name)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._features: Features | None = None
        self._standing_by = False
        self._asked = asyncio.Event()  # what the cluster can do is known
        self._read = asyncio.Event()  # the GPUs were read
        self.parts: Final = AgentParts(settings, client, nvml, self, clock=clock, random=random, files=files)

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
            self.tell("AnotherPlugin", "Start", str(refusal))
            if not self._standing_by:  # else the one that serves is as it should be
                with suppress(ApiError, TimeoutError):
                    async with asyncio.timeout(REFUSAL_S):
                        await self.parts.node_reporter.refused(str(refusal), by_ours=refusal.ours)
            await self.parts.events.flush(REFUSAL_S)
            raise
        finally:
            try:
                await plugin.withdraw()
            finally:
                # Another agent acts from then on: not while a thread of ours still works on instances or the record.
                await self.parts.lanes.closed(CLOSING_S, lock.release)

    async def _take_place(self, lock: ProcessLock) -> None:
        """Become the node's agent: at once, or, where that is wanted, when the one that is there ends."""
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
                with suppress(SocketTaken, SettingsError, OSError):  # then kubelet waits until this one serves
                    await plugin.register_early()
            if plugin.registration.accepted:
                place.has_registered()
            await self._clock.sleep(POLL_S)

    async def _serve_until_followed(self) -> None:
        """Serve. When this agent is told to end, everything goes on until the one that follows has registered."""
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
        self._loop = asyncio.get_running_loop()
        self.parts.hardware.subscribe(self._hardware_read)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.parts.hardware.run(), name="hardware")
            tasks.create_task(self.parts.events.run(), name="events")
            tasks.create_task(self._report(), name="gpunode")
            tasks.create_task(self._keep_edits(), name="edits")
            tasks.create_task(self._publish(), name="slices")
            tasks.create_task(self.parts.startup.name(), name="names")
            await self.parts.hardware.ready.wait()
            recovering = tasks.create_task(self._recover(), name="recovery")
            await self.parts.hardware.unless_hanging(recovering)
            await self.parts.startup.trusted.wait()
            tasks.create_task(self.parts.startup.keep(), name="minors")
            tasks.create_task(self.parts.dividing.keeper.run(), name="partitions")
            tasks.create_task(self.parts.claim_reporter.run(), name="claim status")
            tasks.create_task(self.parts.plugin.run(), name="plugin")
            tasks.create_task(self.parts.leftovers(self._give_up).run(), name="leftovers")
            self.parts.claim_reporter.touch_all()

    async def _keep_edits(self) -> None:
        """Find out what containers get of the driver, whenever another was read.

        In a thread, for it may take seconds, and in one that keeps no process from ending.
        """
        edits, lane = self.parts.common_edits, Lane("edits", monotonic=self._clock.monotonic)
        try:
            while True:
                await self._read.wait()
                self._read.clear()
                driver = self.parts.hardware.view.driver
                with suppress(
                    OSError
                ):  # files go as they are read while another driver is installed: the next reading tells
                    if driver is not None and await lane.run(partial(edits.outdated, driver.driver_version)):
                        await lane.run(partial(edits.refresh, driver.driver_version))
                        self.report_changed()
        finally:
            lane.close()

    @asynccontextmanager
    async def _endpoints(self) -> AsyncIterator[None]:
        secure = self._settings.metrics
        async with AsyncExitStack() as stack:
            if self._settings.listen is not None:
                plain = self._measured if secure is None else None
                app = http_app(plain, alive=self.parts.lanes.stuck, ready=self._lacking)
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

    async def _recover(self) -> None:
        await self.parts.startup.recover()
        self._divided_anew()

    async def _report(self) -> None:
        """Report, once it is known whose the instances are and what the cluster can do.

        But what keeps us from knowing is to be reported too. What the last run reported is needed first where its record is lost.
        """
        await self.parts.startup.record_read.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(SILENT_S):
                await self.parts.startup.recovered.wait()
                await self._asked.wait()
        await self.parts.node_reporter.run()

    async def _publish(self) -> None:
        """Publish, if the cluster can take it. Kubelet is served meanwhile: what it gives up needs no API server."""
        features = await self._persistently(
            "features.unknown",
            lambda: discover(self._client, node_name=self._settings.node_name, driver=self._settings.driver),
        )
        self._features = features
        self._asked.set()
        self.parts.node_reporter.touch()
        for missing in features.missing:
            if not features.dra:
                raise ClusterUnsuited(f"{missing.consequence} {missing.remedy}")
            if missing.name in ("device status", PARTITIONABLE):
                self._log.warning("feature.missing", feature=missing.name, consequence=missing.consequence)
        follows = await self._persistently("features.unknown", lambda: serves(self._client, GPU_NODES))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.parts.publisher.run(), name="publisher")
            offering = self.parts.offers.run(
                recovered=self.parts.startup.recovered,
                follows=follows,
                partitionable=features.partitionable_devices is not False,
            )
            tasks.create_task(offering, name="offers")
            tasks.create_task(self._follow_features(features), name="features")

    async def _follow_features(self, features: Features) -> None:
        """Adapt to what the cluster can do, while kubelet is served."""
        while True:
            before = features
            features = await until_changed(
                lambda: discover(self._client, node_name=self._settings.node_name, driver=self._settings.driver),
                before,
                clock=self._clock,
                every_s=self._settings.rediscover_s,
                confirm_s=self._settings.confirm_s,
                hint=lambda: self.parts.publisher.unserved_s > 0,
            )
            self._log.warning("cluster.changed", changes=differences(before, features))
            self._features = features
            self.parts.offers.keep_counters(features.partitionable_devices is not False)
            self.parts.publisher.republish()
            self.parts.node_reporter.touch()
            self.parts.claim_reporter.touch_all()

    async def _give_up(self, claim: PreparedClaim) -> None:
        try:
            await self.parts.work.unprepare(claim.uid)
        except PrepareError as error:
            self._log.warning("claim.not_unprepared", claim=str(claim), uid=claim.uid, error=str(error))
            return
        self.claim_changed(claim)

    async def worked_on(self, uuid: GpuUuid) -> None:
        """Work on a GPU's instances has ended, for now; and what is wanted may be new."""
        self.parts.offers.touch()
        await self.parts.startup.instances_changed(uuid)

    async def _persistently(self, event: str, attempt: Callable[[], Awaitable[T]]) -> T:
        return await persistently(event, attempt, clock=self._clock, random=self._random)

    # Which part hears of which change

    def _hardware_read(self, view: HardwareView) -> None:
        self._take_health()
        self.parts.metrics.hardware(view)
        self.parts.offers.touch()
        self.parts.dividing.keeper.seen(view)
        self.parts.startup.seen(view)
        self._read.set()
        self.report_changed()

    def _take_health(self) -> None:
        before = self.parts.health.reports
        self.parts.health.update(
            self.parts.hardware.view, self.parts.checkpoint.claims.values(), self.parts.dividing.divisions
        )
        if self.parts.health.reports != before:
            self.parts.claim_reporter.touch_all()

    def gpunode_deleted(self) -> None:
        """Somebody deleted the node's GpuNode."""
        self.parts.node_reporter.report_now()

    def divisions_shown(self) -> None:
        """In any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._divided_anew)

    def _divided_anew(self) -> None:
        if not self.parts.startup.recovered.is_set():
            return  # whose the instances are is on record, and that has not been read yet
        self.parts.dividing.tell(self.tell)
        self._take_health()
        self.parts.offers.touch()
        self.report_changed()

    def isolation_changed(self) -> None:
        """What is under maintenance is other than it was."""
        self.parts.offers.touch()
        self.parts.node_reporter.report_now()  # the spec was seen, though nothing else that is reported may change by it

    def claim_changed(self, claim: PreparedClaim) -> None:
        """Listeners are called a little later: kubelet and the runtime are about to start the pod, or to end it."""
        asyncio.get_running_loop().call_later(SETTLE_S, self._claim_settled, claim)

    def _claim_settled(self, claim: PreparedClaim) -> None:
        for uuid in {device.gpu for device in claim.devices}:
            self.parts.dividing.keeper.touch(uuid)
        self._take_health()
        self.parts.claim_reporter.touch(claim)
        self.report_changed()

    def registered(self, registration: RegistrationState) -> None:
        """Kubelet took the driver, or refused it."""
        if not registration.accepted:
            self.tell("RegistrationRefused", "Register", f"Kubelet refused the driver: {registration.error}")
        self.report_changed()

    def contested(self, conflict: PluginConflict | None) -> None:
        """Somebody else serves the driver, too, or does so no more."""
        if conflict is not None:
            self._log.error("plugin.contested", gives_way=conflict.gives_way, error=conflict.sentence)
            self.tell("AnotherPlugin", "GiveWay" if conflict.gives_way else "KeepNode", conflict.sentence)
        else:
            self._log.info("plugin.uncontested")
        self.parts.publisher.hold(self.giving_way())
        self.report_changed()

    def giving_way(self) -> str:
        """To whom, as a sentence; "" while the node is ours."""
        conflict = self.parts.plugin.conflict
        return conflict.sentence if conflict is not None and conflict.gives_way else ""

    def report_changed(self) -> None:
        """What is reported of the node may be new."""
        self.parts.node_reporter.touch()

    def node_report(self) -> NodeReport:
        """What is reported of the node."""
        return NodeReport(
            driver=self._settings.driver,
            view=self.parts.hardware.view,
            published=self.parts.publisher.published,
            problem=self.parts.publisher.problem,
            registration=self.parts.plugin.registration,
            conflict=self.parts.plugin.conflict,
            claims=node_status.prepared(self.parts.checkpoint.claims),
            divisions=self.parts.dividing.divisions if self.parts.startup.recovered.is_set() else {},
            features=self._features,
            folders_problem=self._folders_problem(),
            edits_problem=self.parts.common_edits.problem,
            certificate_problem=self._certificate_problem(),
        )

    def _certificate_problem(self) -> str | None:
        """What is the matter with the certificate of the metrics, "" for nothing; None where there is none."""
        if self._settings.metrics is None:
            return None
        return " ".join(self.parts.metrics.certificates.troubles.values())

    def _folders_problem(self) -> str:
        """Why what claims need cannot be written; "" when it can, as far as that is known before it is tried."""
        hindrances = (self._files.hindrance(each) for each in (self._settings.cdi_dir, self._settings.state_folder))
        return " ".join(f"No claim can be prepared: {advice(each)}." for each in hindrances if each is not None)

    def _lacking(self) -> list[str]:
        """What keeps the agent from being ready. That kubelet has not registered us is its own business.

        One that stands by is: the next thing to happen is that the other one is ended.
        """
        if self._standing_by:
            return []
        sentences = [] if self.parts.plugin.serving.is_set() else ["Kubelet's sockets are not served yet."]
        if problem := self._folders_problem():
            sentences.append(problem)
        if self.parts.hardware.view.hang is not None:
            sentences.append(self.parts.hardware.view.fault)
        if self.giving_way():
            return [*sentences, self.giving_way()]
        if (for_s := self.parts.publisher.unserved_s) > UNSERVED_S:
            sentences.append(f"The cluster has not served ResourceSlices for {for_s:.0f} s.")
        return sentences if self.parts.publisher.published else [*sentences, self.parts.publisher.problem]

    def _measured(self) -> CollectorRegistry:
        node_report = self.node_report()
        self.parts.metrics.state(
            claims=node_report.claims,
            generation=node_report.published.generation if node_report.published else 0,
            registered=node_report.registration.accepted,
            reading_age_s=self.parts.hardware.reading_age_s,
        )
        self.parts.metrics.divisions(node_report.divisions.values())
        return self.parts.metrics.registry

    def tell(self, reason: str, action: str, note: str, gpu: str = "") -> None:
        """An Event on the Node, or a series of its own on each GPU. Its uid in Events is its name, as kubelet has it."""
        node = ObjectReference(
            api_version="v1",
            kind="Node",
            name=self._settings.node_name,
            uid=self._settings.node_name,
            field_path=f"gpus{{{gpu}}}" if gpu else "",
        )
        self.parts.events.record(node, type="Warning", reason=reason, action=action, note=note)
