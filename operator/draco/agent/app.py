"""The agent, put together.

Owns the order of starting and stopping, and which part is told of what. Holds nothing in modules: many agents, with
different settings, can run in one process and one event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

import structlog

from draco.agent import checkpoint, endpoints, node_status
from draco.agent.api import dra_v1_pb2, dra_v1beta1_pb2, health_v1_pb2, health_v1alpha1_pb2
from draco.agent.cdi import CdiFolder, NodeFiles
from draco.agent.checkpoint import Checkpoint, PreparedClaim
from draco.agent.claim_status import ClaimReporter
from draco.agent.claim_work import ClaimWork
from draco.agent.dividing import Dividing
from draco.agent.dra_service import DraService
from draco.agent.errors import AnotherPlugin, ClusterUnsuited, PrepareError
from draco.agent.fault_record import FAULTS, FaultRecord, driver_load
from draco.agent.files import Files, LocalFiles
from draco.agent.guard import ProcessLock, refuse_beside_others
from draco.agent.hardware import Hardware, View
from draco.agent.health_service import HealthService
from draco.agent.known_gpus import KnownGpus
from draco.agent.lanes import Lanes
from draco.agent.leftovers import KUBELET_RECORD, Leftovers, denies
from draco.agent.metrics import Metrics
from draco.agent.node_status import NodeReporter, Standing
from draco.agent.nvml import Nvml
from draco.agent.offers import Offers
from draco.agent.pcie import SysfsPcieRoots
from draco.agent.plugin import Contest, Plugin, Registration, sockets
from draco.agent.prepare import ClaimDesk
from draco.agent.publisher import SlicePublisher
from draco.agent.settings import AgentSettings
from draco.agent.startup import Startup, persistently
from draco.agent.wire import DRA_V1, DRA_V1BETA1, HEALTH_V1, HEALTH_V1ALPHA1, handlers
from draco.kube.client import Client
from draco.kube.clock import Clock, SystemClock
from draco.kube.discovery import PARTITIONABLE, Features, discover, serves
from draco.kube.errors import ApiError
from draco.kube.events import EventRecorder
from draco.kube.rediscovery import differences, until_changed
from draco.resources.events import ObjectReference
from draco.resources.kinds import GPU_NODES
from draco.resources.names import FIELD_MANAGER_AGENT, GpuUuid

log = structlog.get_logger()

T = TypeVar("T")

CHECKPOINT = "checkpoint.json"
REFUSAL_S = 5.0
"""How long an agent that does not start tries to say so."""
SETTLE_S = 0.25
"""How long what follows from a prepared claim waits, so that it takes no time from the start of the pod."""
UNSERVED_S = 30.0
"""So long the cluster may not serve ResourceSlices before the agent is not ready."""
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
    nvml = Nvml(*([] if library is None else [library]), monotonic=clock.monotonic)
    jitter = random or Random()  # noqa: S311 - spreads retries, guards nothing
    agent = Agent(settings, client, nvml, clock=clock, random=jitter, files=files or LocalFiles())
    await agent.run()


class Agent:
    """One node's agent. `run` it once."""

    def __init__(
        self, settings: AgentSettings, client: Client, nvml: Nvml, *, clock: Clock, random: Random, files: Files
    ) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._random = random
        self._files = files
        self._sockets = sockets(settings.kubelet_dir, settings.driver)
        self._log = log.bind(node=settings.node_name)
        self._metrics = Metrics()
        self._lanes = Lanes(calling=lambda: nvml.calling, reach=nvml.reach, clock=clock)
        self._checkpoint = Checkpoint(settings.state_folder / CHECKPOINT, files, boot_id="")
        self._boot_id = checkpoint.boot_id(settings.proc_root)
        self._cdi = CdiFolder(
            settings.cdi_dir,
            files,
            driver=settings.driver,
            boot_id=self._boot_id,
            node=NodeFiles(
                device_root=settings.device_root,
                library_folder=settings.library_folder,
                library_view=settings.library_view,
                proc=settings.proc_root,
            ),
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dividing = Dividing(
            client,
            nvml,
            self._checkpoint,
            node=settings.node_name,
            boot_id=self._boot_id,
            proc=settings.proc_root,
            device_root=settings.device_root,
            on_gpu=lambda uuid, work: self._lanes.with_driver(work, {uuid}),
            shown=self._divisions_shown,
            changed=self._worked_on,
            gone=self._gpunode_deleted,
            isolation=self._isolation_changed,
            clock=clock,
            random=random,
        )
        self._health = HealthService(pool=settings.node_name, timeout_s=settings.health_timeout_s)
        self._events = EventRecorder(
            client, controller=FIELD_MANAGER_AGENT, instance=settings.node_name, clock=clock, random=random
        )
        self._known = KnownGpus(
            self._checkpoint,
            in_thread=self._lanes.on_record,
            forgotten=lambda: self._dividing.keeper.forgotten,
            promised=lambda: frozenset(self._dividing.promised),
        )
        self._hardware = Hardware(
            nvml,
            SysfsPcieRoots(settings.sysfs_root),
            faults=FaultRecord(
                settings.state_folder / FAULTS,
                files,
                boot_id=self._boot_id,
                driver_load=lambda: driver_load(settings.sysfs_root),
            ),
            divided=self._dividing.inventory.look,
            named=self._known.view,
            clock=clock,
            rescan_s=settings.rescan_s,
            retry_s=settings.nvml_retry_s,
            event_wait_s=settings.event_wait_s,
            limit_s=settings.nvml_limit_s,
        )
        self._publisher = SlicePublisher(
            client,
            node=settings.node_name,
            driver=settings.driver,
            clock=clock,
            random=random,
            on_change=self._standing_changed,
        )
        self._offers = Offers(
            self._publisher, self._dividing, view=lambda: self._hardware.view, clock=clock, random=random
        )
        self._claim_reporter = ClaimReporter(
            client,
            driver=settings.driver,
            pool=settings.node_name,
            claims=lambda: self._checkpoint.claims,
            health=lambda: self._health.reports,
            clock=clock,
            random=random,
        )
        self._features: Features | None = None
        self._asked = asyncio.Event()  # what the cluster can do is known
        self._node_reporter = NodeReporter(
            client, node=settings.node_name, standing=self._standing, clock=clock, random=random
        )
        self._startup = Startup(
            client,
            self._checkpoint,
            self._cdi,
            self._dividing.instances,
            path=settings.state_folder / CHECKPOINT,
            files=files,
            driver=settings.driver,
            node=settings.node_name,
            boot_id=self._boot_id,
            known=self._known,
            view=lambda: self._hardware.view,
            show_again=self._hardware.show_again,
            kubelet_denies=lambda uid: denies(settings.kubelet_dir / KUBELET_RECORD, uid),
            on_record=self._lanes.on_record,
            with_driver=self._lanes.with_driver,
            tell=self._tell,
            rewritten=self._claim_reporter.touch,
            clock=clock,
            random=random,
        )
        desk = ClaimDesk(
            self._checkpoint,
            self._cdi,
            driver=settings.driver,
            pool=settings.node_name,
            instances=self._dividing.instances,
        )
        self._work = ClaimWork(
            desk, self._checkpoint, self._lanes, driver=settings.driver, view=lambda: self._hardware.view
        )
        self._plugin = self._make_plugin()

    def _make_plugin(self) -> Plugin:
        service = DraService(
            self._client,
            self._work,
            driver=self._settings.driver,
            changed=self._claim_changed,
            hindrance=lambda: self._giving_way,
            metrics=self._metrics,
            clock=self._clock,
            random=self._random,
            deadline_s=self._settings.prepare_deadline_s,
        )
        return Plugin(
            self._sockets,
            driver=self._settings.driver,
            services=[
                handlers(DRA_V1, service.behaviours(dra_v1_pb2)),
                handlers(DRA_V1BETA1, service.behaviours(dra_v1beta1_pb2)),
                handlers(HEALTH_V1, self._health.behaviours(health_v1_pb2)),
                handlers(HEALTH_V1ALPHA1, self._health.behaviours(health_v1alpha1_pb2)),
            ],
            clock=self._clock,
            check_s=self._settings.socket_check_s,
            on_registration=self._registered,
            on_contest=self._contested,
            on_stopping=self._health.close,
        )

    async def run(self) -> None:
        """Start, serve until cancelled, and stop: sockets removed, threads ended, slices left in place."""
        try:
            with ProcessLock(self._settings.state_folder / "agent.lock"):
                await refuse_beside_others(self._sockets.registration.parent, self._settings.driver)
                await self._serve()
        except AnotherPlugin as refusal:
            self._log.error("agent.refused", error=str(refusal))
            self._tell("AnotherPlugin", "Start", str(refusal))
            with suppress(ApiError, TimeoutError):
                async with asyncio.timeout(REFUSAL_S):
                    await self._node_reporter.refused(str(refusal), by_ours=refusal.ours)
            await self._events.flush(REFUSAL_S)
            raise
        finally:
            self._lanes.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._hardware.subscribe(self._hardware_read)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hardware.run(), name="hardware")
            tasks.create_task(self._events.run(), name="events")
            if self._settings.listen:
                serving = endpoints.serve(
                    *self._settings.listen, stuck=self._lanes.stuck, lacking=self._lacking, metrics=self._metrics_text
                )
                tasks.create_task(serving, name="endpoints")
            tasks.create_task(self._report(), name="gpunode")
            tasks.create_task(self._publish(), name="slices")
            tasks.create_task(self._startup.name(), name="names")
            await self._hardware.ready.wait()
            recovering = tasks.create_task(self._recover(), name="recovery")
            await self._hardware.unless_hanging(recovering)
            await self._startup.trusted.wait()
            tasks.create_task(self._startup.keep(), name="minors")
            tasks.create_task(self._dividing.keeper.run(), name="partitions")
            tasks.create_task(self._claim_reporter.run(), name="claim status")
            tasks.create_task(self._plugin.run(), name="plugin")
            tasks.create_task(self._leftovers().run(), name="leftovers")
            self._claim_reporter.touch_all()

    async def _recover(self) -> None:
        await self._startup.recover()
        self._divided_anew()

    async def _report(self) -> None:
        """Report, once it is known whose the instances are and what the cluster can do.

        But what keeps us from knowing is to be reported too. What the last run reported is needed first where its record is lost.
        """
        await self._startup.record_read.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(SILENT_S):
                await self._startup.recovered.wait()
                await self._asked.wait()
        await self._node_reporter.run()

    async def _publish(self) -> None:
        """Publish, if the cluster can take it. Kubelet is served meanwhile: what it gives up needs no API server."""
        features = await self._persistently(
            "features.unknown",
            lambda: discover(self._client, node_name=self._settings.node_name, driver=self._settings.driver),
        )
        self._features = features
        self._asked.set()
        self._node_reporter.touch()
        for missing in features.missing:
            if not features.dra:
                raise ClusterUnsuited(f"{missing.consequence} {missing.remedy}")
            if missing.name in ("device status", PARTITIONABLE):
                self._log.warning("feature.missing", feature=missing.name, consequence=missing.consequence)
        follows = await self._persistently("features.unknown", lambda: serves(self._client, GPU_NODES))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publisher.run(), name="publisher")
            offering = self._offers.run(
                recovered=self._startup.recovered,
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
                hint=lambda: self._publisher.unserved_s > 0,
            )
            self._log.warning("cluster.changed", changes=differences(before, features))
            self._features = features
            self._offers.keep_counters(features.partitionable_devices is not False)
            self._publisher.anew()
            self._node_reporter.touch()
            self._claim_reporter.touch_all()

    def _leftovers(self) -> Leftovers:
        return Leftovers(
            self._client,
            driver=self._settings.driver,
            claims=lambda: self._checkpoint.claims,
            kubelet_record=self._settings.kubelet_dir / KUBELET_RECORD,
            give_up=self._give_up,
            clock=self._clock,
        )

    async def _give_up(self, claim: PreparedClaim) -> None:
        try:
            await self._work.unprepare(claim.uid)
        except PrepareError as error:
            self._log.warning("claim.not_unprepared", claim=str(claim), uid=claim.uid, error=str(error))
            return
        self._claim_changed(claim)

    async def _worked_on(self, uuid: GpuUuid) -> None:
        """Work on a GPU's instances has ended, for now; and what is wanted may be new."""
        self._offers.touch()
        await self._startup.instances_changed(uuid)

    async def _persistently(self, event: str, attempt: Callable[[], Awaitable[T]]) -> T:
        return await persistently(event, attempt, clock=self._clock, random=self._random)

    # Who is told of what

    def _hardware_read(self, view: View) -> None:
        self._take_health()
        self._metrics.hardware(view)
        self._offers.touch()
        self._dividing.keeper.seen(view)
        self._startup.seen(view)
        self._standing_changed()

    def _take_health(self) -> None:
        before = self._health.reports
        self._health.update(self._hardware.view, self._checkpoint.claims.values(), self._dividing.divisions)
        if self._health.reports != before:
            self._claim_reporter.touch_all()

    def _gpunode_deleted(self) -> None:
        self._node_reporter.anew()

    def _divisions_shown(self) -> None:
        """In any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._divided_anew)

    def _divided_anew(self) -> None:
        if not self._startup.recovered.is_set():
            return  # whose the instances are is on record, and that has not been read yet
        self._dividing.tell(self._tell)
        self._take_health()
        self._offers.touch()
        self._standing_changed()

    def _isolation_changed(self) -> None:
        self._offers.touch()
        self._node_reporter.anew()  # the spec was seen, though nothing else that is reported may change by it

    def _claim_changed(self, claim: PreparedClaim) -> None:
        """Whoever has to know is told a little later: kubelet and the runtime are about to start the pod, or to end it."""
        asyncio.get_running_loop().call_later(SETTLE_S, self._claim_settled, claim)

    def _claim_settled(self, claim: PreparedClaim) -> None:
        for uuid in {device.gpu for device in claim.devices}:
            self._dividing.keeper.touch(uuid)
        self._take_health()
        self._claim_reporter.touch(claim)
        self._standing_changed()

    def _registered(self, registration: Registration) -> None:
        if not registration.accepted:
            self._tell("RegistrationRefused", "Register", f"Kubelet refused the driver: {registration.error}")
        self._standing_changed()

    def _contested(self, contest: Contest | None) -> None:
        """Somebody else serves the driver, too, or does so no more."""
        if contest is not None:
            self._log.error("plugin.contested", gives_way=contest.gives_way, error=contest.sentence)
            self._tell("AnotherPlugin", "GiveWay" if contest.gives_way else "KeepNode", contest.sentence)
        else:
            self._log.info("plugin.uncontested")
        self._publisher.hold(self._giving_way)
        self._standing_changed()

    @property
    def _giving_way(self) -> str:
        """To whom, as a sentence; "" while the node is ours."""
        contest = self._plugin.contest
        return contest.sentence if contest is not None and contest.gives_way else ""

    def _standing_changed(self) -> None:
        self._node_reporter.touch()

    def _standing(self) -> Standing:
        return Standing(
            driver=self._settings.driver,
            view=self._hardware.view,
            published=self._publisher.published,
            problem=self._publisher.problem,
            registration=self._plugin.registration,
            contest=self._plugin.contest,
            claims=node_status.prepared(self._checkpoint.claims),
            divisions=self._dividing.divisions if self._startup.recovered.is_set() else {},
            features=self._features,
        )

    def _lacking(self) -> list[str]:
        """What keeps the agent from being ready. That kubelet has not registered us is its own business."""
        sentences = [] if self._plugin.serving.is_set() else ["Kubelet's sockets are not served yet."]
        if self._hardware.view.hang is not None:
            sentences.append(self._hardware.view.fault)
        if self._giving_way:
            return [*sentences, self._giving_way]
        if (for_s := self._publisher.unserved_s) > UNSERVED_S:
            sentences.append(f"The cluster has not served ResourceSlices for {for_s:.0f} s.")
        return sentences if self._publisher.published else [*sentences, self._publisher.problem]

    def _metrics_text(self) -> bytes:
        standing = self._standing()
        self._metrics.state(
            claims=standing.claims,
            generation=standing.published.generation if standing.published else 0,
            registered=standing.registration.accepted,
            reading_age_s=self._hardware.reading_age_s,
        )
        self._metrics.divisions(standing.divisions.values())
        return self._metrics.render()

    def _tell(self, reason: str, action: str, note: str, gpu: str = "") -> None:
        """An Event on the Node, or a series of its own on each GPU. Its uid in Events is its name, as kubelet has it."""
        node = ObjectReference(
            api_version="v1",
            kind="Node",
            name=self._settings.node_name,
            uid=self._settings.node_name,
            field_path=f"gpus{{{gpu}}}" if gpu else "",
        )
        self._events.record(node, type="Warning", reason=reason, action=action, note=note)
