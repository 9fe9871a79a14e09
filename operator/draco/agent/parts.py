"""Creates the parts of one agent and connects them.

Owns which part is made of what, from the record to kubelet's sockets, and which hears of what; nothing of what they do. `app`
starts and stops them.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from draco.agent.claims.cdi import CdiFolder, NodeFiles
from draco.agent.claims.kubelet_record import KUBELET_RECORD, denies
from draco.agent.claims.leftovers import Leftovers
from draco.agent.claims.preparer import ClaimPreparer
from draco.agent.claims.work import ClaimWork
from draco.agent.containers.common_edits import CommonEdits
from draco.agent.errors import PrepareError
from draco.agent.files import Files, advice
from draco.agent.hardware.fault_record import FAULTS, FaultRecord, driver_load
from draco.agent.hardware.gpus import device_name
from draco.agent.hardware.monitor import HardwareMonitor, HardwareView, SysfsPcieRoots
from draco.agent.hardware.nvml import Nvml
from draco.agent.metrics import AgentMetrics
from draco.agent.mig.holders import HoldingProcess
from draco.agent.mig.last_spec import LAST_SPEC, SpecMemory
from draco.agent.mig.parts import NodeDivisions
from draco.agent.plugin.device_plugins import DevicePlugins
from draco.agent.plugin.dra_service import DraService
from draco.agent.plugin.health_service import HealthService
from draco.agent.plugin.registration import Plugin, PluginConflict, RegistrationState, sockets
from draco.agent.plugin.wire import DRA_V1, HEALTH_V1, HEALTH_V1ALPHA1, handlers
from draco.agent.publish.device_names import KnownGpus
from draco.agent.publish.offering import Offers
from draco.agent.publish.publisher import SlicePublisher
from draco.agent.record import checkpoint
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparedClaim
from draco.agent.report.claim_status import ClaimReporter
from draco.agent.report.lease import AgentLease
from draco.agent.report.node_status import NodeReport, NodeReporter
from draco.agent.settings import AgentSettings
from draco.agent.startup import Startup
from draco.agent.threads import AgentThreads
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.discovery import Features
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventType
from draco.resources.api.core import ObjectReference
from draco.resources.names import FIELD_MANAGER_AGENT, GpuUuid

log = structlog.get_logger()

CHECKPOINT = "checkpoint.json"
SETTLE_S = 0.25
"""How long what follows from a prepared claim waits, so that it takes no time from the start of the pod."""


class AgentParts:
    """Everything that one node's agent is made of. `features` and `loop` are told by who runs it."""

    def __init__(
        self,
        settings: AgentSettings,
        client: Client,
        nvml: Nvml,
        *,
        clock: Clock,
        files: Files,
    ) -> None:
        self._settings: Final = settings
        self._client: Final = client
        self._nvml: Final = nvml
        self._clock: Final = clock
        self._files: Final = files
        self._log: Final = log.bind(node=settings.node_name)
        self._boot_id: Final = checkpoint.boot_id(settings.proc_root)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.features: Features | None = None
        self.gpus_read: Final = asyncio.Event()
        self.sockets: Final = sockets(settings.kubelet_dir, settings.driver)
        self.metrics: Final = AgentMetrics()
        # The record, and what is written for containers
        self.checkpoint: Final = Checkpoint(settings.state_folder / CHECKPOINT, files, boot_id="")
        self.threads: Final = AgentThreads(calling=lambda: nvml.calling, nvml=nvml.lock, clock=clock)
        self.common_edits: Final = CommonEdits(
            settings.installed, hook_folder=settings.state_folder, loaded=lambda: self.hardware.view.driver_version
        )
        self._cdi: Final = self._cdi_folder()
        # The GPUs: their instances, names and health
        self.dividing: Final = self._instances()
        self.known: Final = self._names()
        self.faults: Final = self._ledger()
        self.hardware: Final = self._gpus()
        self.health: Final = HealthService(pool=settings.node_name, timeout_s=settings.health_timeout_s)
        # What is written to the API server
        self.events: Final = EventRecorder(
            client,
            controller=FIELD_MANAGER_AGENT,
            instance=settings.node_name,
            clock=clock,
            dropped=self.metrics.event_dropped,
        )
        self.publisher: Final = SlicePublisher(
            client,
            node=settings.node_name,
            driver=settings.driver,
            clock=clock,
            on_change=self.report_changed,
        )
        self.device_plugins: Final = DevicePlugins(
            client,
            node=settings.node_name,
            folder=settings.kubelet_dir / "device-plugins",
            changed=self.device_plugins_changed,
            clock=clock,
            check_s=settings.socket_check_s,
        )
        self.offers: Final = Offers(
            self.publisher,
            self.dividing,
            view=lambda: self.hardware.view,
            given_out=self._given_out,
            clock=clock,
        )
        self.claim_reporter: Final = self._claim_status()
        self.node_reporter: Final = NodeReporter(
            client, node=settings.node_name, node_report=self.node_report, clock=clock
        )
        # Kubelet's claims
        self.startup: Final = self._recovery()
        self.leftovers: Final = self._leftovers()
        self.work: Final = self._claims()
        self.plugin: Final = self._kubelet_plugin()
        self.lease: Final = self._agent_lease()

    def _cdi_folder(self) -> CdiFolder:
        return CdiFolder(
            self._settings.cdi_dir,
            self._files,
            driver=self._settings.driver,
            boot_id=self._boot_id,
            common=self.common_edits,
            node=NodeFiles(
                device_root=self._settings.device_root,
                proc=self._settings.proc_root,
            ),
        )

    def _instances(self) -> NodeDivisions:
        memory = SpecMemory(
            self._client,
            node=self._settings.node_name,
            driver=self._settings.driver,
            path=self._settings.state_folder / LAST_SPEC,
            files=self._files,
            in_thread=self.threads.on_record,
            clock=self._clock,
        )
        return NodeDivisions(
            self._client,
            self._nvml,
            self.checkpoint,
            memory,
            node=self._settings.node_name,
            boot_id=self._boot_id,
            proc=self._settings.proc_root,
            device_root=self._settings.device_root,
            on_gpu=lambda uuid, work: self.threads.with_driver(work, {uuid}),
            shown=self.divisions_shown,
            changed=self.worked_on,
            report=self.gpunode_changed,
            isolation=self.isolation_changed,
            clock=self._clock,
        )

    def _names(self) -> KnownGpus:
        return KnownGpus(
            self.checkpoint,
            in_thread=self.threads.on_record,
            forgotten=lambda: self.dividing.keeper.forgotten,
            promised=lambda: frozenset(self.dividing.keeper.promised),
        )

    def _ledger(self) -> FaultRecord:
        return FaultRecord(
            self._settings.state_folder / FAULTS,
            self._files,
            boot_id=self._boot_id,
            driver_load=lambda: driver_load(self._settings.sysfs_root),
            now=self._clock.now,
        )

    def _gpus(self) -> HardwareMonitor:
        return HardwareMonitor(
            self._nvml,
            SysfsPcieRoots(self._settings.sysfs_root),
            faults=self.faults,
            divided=self.dividing.inventory.look,
            named=self.known.view,
            mismatch=self.common_edits.mismatch,
            clock=self._clock,
            rescan_s=self._settings.rescan_s,
            retry_s=self._settings.nvml_retry_s,
            event_wait_s=self._settings.event_wait_s,
            limit_s=self._settings.nvml_limit_s,
            probe_s=self._settings.probe_s,
        )

    def _claim_status(self) -> ClaimReporter:
        return ClaimReporter(
            self._client,
            driver=self._settings.driver,
            pool=self._settings.node_name,
            claims=lambda: self.checkpoint.claims,
            health=lambda: self.health.reports,
            clock=self._clock,
        )

    def _recovery(self) -> Startup:
        return Startup(
            self._client,
            self.checkpoint,
            self._cdi,
            self.dividing.instances,
            path=self._settings.state_folder / CHECKPOINT,
            files=self._files,
            driver=self._settings.driver,
            node=self._settings.node_name,
            boot_id=self._boot_id,
            known=self.known,
            view=lambda: self.hardware.view,
            show_again=self.hardware.show_again,
            kubelet_denies=lambda uid: denies(self._settings.kubelet_dir / KUBELET_RECORD, uid),
            on_record=self.threads.on_record,
            with_driver=self.threads.with_driver,
            tell=self.tell,
            rewritten=self.claim_reporter.touch,
            clock=self._clock,
        )

    def _claims(self) -> ClaimWork:
        preparer = ClaimPreparer(
            self.checkpoint,
            self._cdi,
            driver=self._settings.driver,
            pool=self._settings.node_name,
            instances=self.dividing.instances,
            leftovers=lambda: {uid: one.clause for uid, one in self.leftovers.found.items()},
        )
        return ClaimWork(
            preparer,
            self.checkpoint,
            self.threads,
            driver=self._settings.driver,
            view=lambda: self.hardware.view,
            in_the_way=self.leftovers.in_the_way,
        )

    def _kubelet_plugin(self) -> Plugin:
        self.service = service = DraService(
            self._client,
            self.work,
            driver=self._settings.driver,
            changed=self.claim_changed,
            opened=self.startup.trusted,
            hindrance=self.giving_way,
            hanging=lambda: self.threads.hanging,
            metrics=self.metrics,
            clock=self._clock,
            deadline_s=self._settings.prepare_deadline_s,
        )
        watch = {"NodeWatchResources": self.health.watch}
        return Plugin(
            self.sockets,
            driver=self._settings.driver,
            services=[
                handlers(DRA_V1, service.behaviours()),
                handlers(HEALTH_V1, watch),
                handlers(HEALTH_V1, watch, name=HEALTH_V1ALPHA1),
            ],
            clock=self._clock,
            check_s=self._settings.socket_check_s,
            on_registration=self.registered,
            on_conflict=self.contested,
            on_stopping=self.health.close,
        )

    def _agent_lease(self) -> AgentLease | None:
        if not self._settings.namespace:
            return None
        return AgentLease(
            self._client,
            node=self._settings.node_name,
            namespace=self._settings.namespace,
            holder=self._settings.lease_holder or self._settings.node_name,
            driver=self._settings.driver,
            duration_s=self._settings.lease_duration_s,
            hindrance=self.hindrance,
            renewed=self.lease_renewed,
            clock=self._clock,
        )

    def _leftovers(self) -> Leftovers:
        return Leftovers(
            self._client,
            driver=self._settings.driver,
            claims=lambda: self.checkpoint.claims,
            running=self._running,
            give_up=self._give_up,
            changed=self.report_changed,
            tell=self.tell,
            clock=self._clock,
            confirm_s=self._settings.confirm_gone_s,
        )

    async def _running(self, claim: PreparedClaim) -> Sequence[HoldingProcess] | None:
        """The processes that run on a claim's devices; None while NVML does not answer."""
        found: list[HoldingProcess] = []
        asked = await self.threads.ask(lambda: found.extend(self.dividing.instances.processes_of(claim)))
        return found if asked else None

    async def _give_up(self, claim: PreparedClaim) -> None:
        try:
            await self.work.unprepare(claim.uid)
        except PrepareError as error:
            self._log.warning("claim.not_unprepared", claim=str(claim), uid=claim.uid, error=str(error))
            return
        self.claim_changed(claim)

    # Which part hears of which change

    async def worked_on(self, uuid: GpuUuid) -> None:
        """Work on a GPU's instances has ended, for now; and what is wanted may be new."""
        self.offers.touch()
        await self.startup.instances_changed(uuid)
        self.report_changed()

    def hardware_read(self, view: HardwareView) -> None:
        """The GPUs were read."""
        self._take_health()
        self._tell_faults()
        self.faults.forgotten = self.dividing.keeper.forgotten
        self.metrics.hardware(view)
        self.offers.touch()
        self.dividing.keeper.seen(view)
        self.startup.seen(view)
        self.gpus_read.set()
        self.report_changed()

    def claims_known(self) -> None:
        """The record has been read: report its claims, as their devices are now."""
        self._take_health()
        self.claim_reporter.touch_all()

    def _take_health(self) -> None:
        before = self.health.reports
        self.health.update(self.hardware.view, self.checkpoint.claims.values(), self.dividing.divisions)
        if self.health.reports != before:
            self.claim_reporter.touch_all()

    def _tell_faults(self) -> None:
        """What began and what is over, as Events; a series of its own for each fault of each GPU."""
        names = {one.gpu.uuid: device_name(one.gpu) for one in self.hardware.view.gpus}
        while self.faults.news:
            news = self.faults.news.popleft()
            gpu = f"{names.get(news.gpu, 'GPU')} ({news.gpu})"
            note = f"{gpu}: {news.name} is over." if news.over else f"{gpu}: {news.name}. {news.message}"
            kind: EventType = "Warning" if news.grave and not news.over else "Normal"
            self._record("GpuFaultEnded" if news.over else "GpuFault", "Watch", note, f"{news.gpu}/{news.name}", kind)

    def gpunode_changed(self) -> None:
        """Somebody deleted the node's GpuNode, or the operator wrote into it."""
        self.node_reporter.report_now()

    def divisions_shown(self) -> None:
        """Instances of GPUs were looked at. In any thread."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.divisions_changed)

    def divisions_changed(self) -> None:
        """Instances of GPUs are others, or are known by now."""
        if not self.startup.recovered.is_set():
            return  # whose the instances are is on record, and that has not been read yet
        self.dividing.tell(self.tell)
        self._take_health()
        self.offers.touch()
        self.report_changed()

    def isolation_changed(self) -> None:
        """What is under maintenance, or what policies make of faults, is other than it was."""
        self.faults.overrides = tuple(self.dividing.keeper.health)
        self.faults.repaired.extend(self.dividing.keeper.repaired)
        self.hardware.judge_again()
        self.offers.touch()
        self.node_reporter.report_now()  # the spec was seen, though nothing else that is reported may change by it

    def claim_changed(self, claim: PreparedClaim) -> None:
        """Listeners are called a little later: kubelet and the runtime are about to start the pod, or to end it."""
        asyncio.get_running_loop().call_later(SETTLE_S, self._claim_settled, claim)

    def _claim_settled(self, claim: PreparedClaim) -> None:
        for uuid in {device.gpu for device in claim.devices}:
            self.dividing.keeper.touch(uuid)
        self._take_health()
        self.claim_reporter.touch(claim)
        if claim.uid not in self.checkpoint.claims:
            self.leftovers.given_up(claim)
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
        self.publisher.hold(self.giving_way())
        self.report_changed()

    def device_plugins_changed(self) -> None:
        """A device plugin gives out GPUs of this node, too, or others, or does so no more."""
        if found := self.device_plugins.found:
            self.tell("DevicePlugin", "Taint", str(found))
        self.offers.touch()
        self.report_changed()

    def _given_out(self, divided: bool) -> bool:
        """Whether a device plugin gives out GPUs that are divided, or those that are not."""
        found = self.device_plugins.found
        return found is not None and found.gives(divided=divided)

    def giving_way(self) -> str:
        """To whom, as a sentence; "" while the node is ours."""
        conflict = self.plugin.conflict
        return conflict.sentence if conflict is not None and conflict.gives_way else ""

    def hindrance(self) -> str:
        """Why no new claim should get a GPU of this node, as a sentence; "" while the agent reads, publishes and serves them."""
        view = self.hardware.view
        if not self.hardware.ready.is_set():
            return "The GPUs have not been read yet."
        if view.driver is None or view.fault:
            return view.fault or "The GPUs cannot be read."
        if view.mismatch:
            return view.mismatch
        if conflict := self.giving_way():
            return conflict
        if not self.publisher.published:
            return self.publisher.problem
        return "" if self.plugin.serving.is_set() else "Kubelet's sockets are not served yet."

    def lease_renewed(self) -> None:
        """The agent lives. The operator may have called it lost meanwhile, as after a while without a network."""
        if self.dividing.keeper.is_called_lost:
            self.node_reporter.report_now()

    def report_changed(self) -> None:
        """What is reported of the node may be new."""
        self.node_reporter.touch()

    def node_report(self) -> NodeReport:
        """What is reported of the node."""
        return NodeReport(
            driver=self._settings.driver,
            view=self.hardware.view,
            published=self.publisher.published,
            problem=self.publisher.problem,
            registration=self.plugin.registration,
            conflict=self.plugin.conflict,
            claims=sum(claim.state == "prepared" for claim in self.checkpoint.claims.values()),
            divisions=self.dividing.divisions if self.startup.recovered.is_set() else {},
            generation=self.dividing.keeper.generation,
            wanted=self.dividing.keeper.wanted or {},
            features=self.features,
            folders_problem=self.folders_problem(),
            edits_problem=self.common_edits.problem,
            certificate_problem=self._certificate_problem(),
            other_allocator=None if (other := self.device_plugins.found) is None else str(other),
            leftovers=" ".join(str(one) for one in self.leftovers.found.values()),
        )

    def _certificate_problem(self) -> str | None:
        """What is the matter with the certificate of the metrics, "" for nothing; None where there is none."""
        if self._settings.metrics is None:
            return None
        return " ".join(self.metrics.certificates.troubles.values())

    def folders_problem(self) -> str:
        """Why what claims need cannot be written; "" when it can, as far as that is known before it is tried."""
        hindrances = (self._files.hindrance(each) for each in (self._settings.cdi_dir, self._settings.state_folder))
        return " ".join(f"No claim can be prepared: {advice(each)}." for each in hindrances if each is not None)

    def tell(self, reason: str, action: str, note: str, gpu: str = "") -> None:
        """An Event on the Node, or a series of its own on each GPU."""
        self._record(reason, action, note, gpu, "Warning")

    def _record(self, reason: str, action: str, note: str, about: str, kind: EventType) -> None:
        """An Event on the Node. Its uid in Events is its name, as kubelet has it. `about` tells series apart."""
        node = ObjectReference(
            api_version="v1",
            kind="Node",
            name=self._settings.node_name,
            uid=self._settings.node_name,
            field_path=f"gpus{{{about}}}" if about else "",
        )
        self.events.record(node, type=kind, reason=reason, action=action, note=note)
