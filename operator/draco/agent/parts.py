"""Creates the parts of one agent and hands each what it needs.

Owns the construction, from the record to kubelet's sockets, and no behaviour. `wakes` connects changes to the parts that follow
them; `app` starts and stops the parts.
"""

from typing import Final

from draco.agent.claims.cdi import CdiFolder
from draco.agent.claims.leftover_claims import LeftoverClaims
from draco.agent.claims.memory_limits import Holding
from draco.agent.claims.mps import MpsDaemons
from draco.agent.claims.mps_upkeep import MpsUpkeep
from draco.agent.claims.preparer import ClaimPreparer
from draco.agent.claims.time_slices import TimeSliceKeeper, TimeSlices
from draco.agent.claims.work import ClaimWork
from draco.agent.containers.common_edits import CommonEdits, EditsRefresh
from draco.agent.files import Files
from draco.agent.hardware.capabilities import Capabilities
from draco.agent.hardware.compute_mode import ComputeModes
from draco.agent.hardware.driver_program import DriverPrograms
from draco.agent.hardware.fault_record import FAULTS, FaultRecord, driver_load
from draco.agent.hardware.monitor import HardwareMonitor, SysfsPcieRoots
from draco.agent.hardware.nvidia_smi import Smi
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_instances import NvmlInstances
from draco.agent.hardware.nvml_limits import NvmlMemory
from draco.agent.hardware.nvml_usage import NvmlUsage
from draco.agent.hardware.time_slicing import TimeSliceSetter
from draco.agent.metrics import AgentMetrics
from draco.agent.mig.claim_instances import ClaimInstances
from draco.agent.mig.holders import Holders, HolderSearch, own_pid
from draco.agent.mig.instance_manager import InstanceManager
from draco.agent.mig.inventory import MigInventory
from draco.agent.mig.keeper import MigKeeper
from draco.agent.mig.last_spec import LAST_SPEC, SpecMemory
from draco.agent.mig.layout import LayoutApplier
from draco.agent.mig.users import DeviceUsers
from draco.agent.mps.control import MpsControl
from draco.agent.mps.folder import MpsFolder
from draco.agent.plugin.device_plugins import DevicePlugins
from draco.agent.plugin.dra_service import DraService
from draco.agent.plugin.health_service import HealthService
from draco.agent.plugin.registration import Plugin, sockets
from draco.agent.plugin.wire import DRA_V1, HEALTH_V1, HEALTH_V1ALPHA1, handlers
from draco.agent.publish.device_names import KnownGpus
from draco.agent.publish.known_divisions import KnownDivisions
from draco.agent.publish.offering import Offers
from draco.agent.publish.publisher import SlicePublisher
from draco.agent.record import checkpoint
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.report.claim_status import ClaimReporter
from draco.agent.report.lease import AgentLease
from draco.agent.report.node_events import NodeEvents
from draco.agent.report.node_status import NodeReporter
from draco.agent.report.readiness import Readiness
from draco.agent.settings import AgentSettings
from draco.agent.startup import CHECKPOINT, Startup
from draco.agent.state.facts import GpuMps
from draco.agent.state.node import NodeState
from draco.agent.threads import AgentThreads
from draco.agent.usage.claim_conditions import UsageConditions
from draco.agent.usage.findings import UsageFindings
from draco.agent.usage.limit_keeper import LimitKeeper
from draco.agent.usage.metrics import UsageMetrics
from draco.agent.usage.reading import UsageReader
from draco.agent.usage.report import UsageReporter
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.mig.keeping import KeptInstances, keeping
from draco.resources.names import FIELD_MANAGER_AGENT, GpuUuid


class AgentParts:
    """All parts of one node's agent."""

    def __init__(
        self, settings: AgentSettings, client: Client, nvml: Nvml, *, smi: Smi, clock: Clock, files: Files
    ) -> None:
        boot_id = checkpoint.boot_id(settings.proc_root)
        self.state: Final = NodeState(clock)
        self.sockets: Final = sockets(settings.kubelet_dir, settings.driver)
        self.metrics: Final = AgentMetrics()
        # The record, and the edits for containers
        self.checkpoint: Final = Checkpoint(settings.state_folder / CHECKPOINT, files, boot_id="")
        self.threads: Final = AgentThreads(calling=lambda: nvml.calling, nvml=nvml.lock, clock=clock)
        self.common_edits: Final = CommonEdits(
            settings.installed,
            hook_folder=settings.state_folder,
            library=settings.limit_library,
            loaded=lambda: self.state.facts.view.driver_version,
        )
        capabilities = Capabilities(settings.proc_root, settings.device_root)
        self.edits_refresh: Final = EditsRefresh(self.common_edits, self.state, clock=clock)
        cdi = CdiFolder(
            settings.cdi_dir,
            files,
            driver=settings.driver,
            boot_id=boot_id,
            common=self.common_edits,
            node=capabilities,
        )
        # The GPUs: their instances, names and health
        edge = NvmlInstances(nvml)
        holders = Holders(settings.proc_root, own=own_pid(settings.proc_root))
        holder = HolderSearch(holders, capabilities)
        self.inventory: Final = MigInventory(
            self.checkpoint,
            edge,
            boot_id=boot_id,
            monotonic=clock.monotonic,
            shown=lambda divisions: self.state.learn_from_thread(divisions=divisions),
        )

        def load() -> str:
            return f"{boot_id}/{driver_load(settings.sysfs_root)}"

        mps = MpsDaemons(
            self.checkpoint,
            MpsFolder(settings.mps_folder, files),
            MpsControl(DriverPrograms(settings.installed)),
            ComputeModes(nvml),
            load=load,
            aside=nvml.aside,
        )
        manager = InstanceManager(self.checkpoint, edge, self.inventory, holder=holder, end_on=mps.end_on)
        self.instances: Final = ClaimInstances(
            self.checkpoint,
            self.inventory,
            manager,
            keeping=self._keeping,
            monotonic=clock.monotonic,
            users=DeviceUsers(self.checkpoint, holders, monotonic=clock.monotonic),
        )
        memory = SpecMemory(
            client,
            node=settings.node_name,
            driver=settings.driver,
            path=settings.state_folder / LAST_SPEC,
            files=files,
            in_thread=self.threads.on_record,
            clock=clock,
        )
        self.keeper: Final = MigKeeper(
            client,
            self.state,
            node=settings.node_name,
            memory=memory,
            layouts=LayoutApplier(self.checkpoint, self.inventory, manager, self.instances),
            divisions=lambda: self.inventory.divisions,
            on_gpu=lambda uuid, work: self.threads.with_driver(work, {uuid}),
            clock=clock,
        )
        self.known: Final = KnownGpus(self.checkpoint, self.state, in_thread=self.threads.on_record)
        self.faults: Final = FaultRecord(
            settings.state_folder / FAULTS,
            files,
            boot_id=boot_id,
            driver_load=lambda: driver_load(settings.sysfs_root),
            now=clock.now,
        )
        self.hardware: Final = HardwareMonitor(
            nvml,
            SysfsPcieRoots(settings.sysfs_root),
            faults=self.faults,
            divided=self.inventory.look,
            named=self.known.view,
            mismatch=self.common_edits.mismatch,
            clock=clock,
            rescan_s=settings.rescan_s,
            retry_s=settings.nvml_retry_s,
            event_wait_s=settings.event_wait_s,
            limit_s=settings.nvml_limit_s,
            probe_s=settings.probe_s,
        )
        self.hardware.subscribe(lambda view: self.state.learn(view=view))
        self.health: Final = HealthService(pool=settings.node_name, timeout_s=settings.health_timeout_s)
        # Writers to the API server
        self.publisher: Final = SlicePublisher(
            client, self.state, node=settings.node_name, driver=settings.driver, clock=clock
        )
        self.device_plugins: Final = DevicePlugins(
            client,
            self.state,
            node=settings.node_name,
            folder=settings.kubelet_dir / "device-plugins",
            clock=clock,
            check_s=settings.socket_check_s,
        )
        time_slices = TimeSlices(
            self.checkpoint,
            TimeSliceSetter(nvml, smi),
            driver_version=lambda: self.state.facts.view.driver_version,
            load=load,
        )
        self.mps: Final = MpsUpkeep(mps, self.state, self.threads, clock=clock)
        self.time_slices: Final = TimeSliceKeeper(time_slices, self.state, self.threads, clock=clock)
        self.offers: Final = Offers(
            self.state,
            self.publisher,
            self.keeper,
            KnownDivisions(self.checkpoint),
            claims=lambda: self.checkpoint.claims,
            slicing_known=self.time_slices.known,
            clock=clock,
        )
        self.events: Final = EventRecorder(
            client,
            controller=FIELD_MANAGER_AGENT,
            instance=settings.node_name,
            clock=clock,
            dropped=self.metrics.event_dropped,
        )
        self.node_events: Final = NodeEvents(
            self.events, self.state, self.faults, self.inventory, node=settings.node_name
        )
        self.claim_reporter: Final = ClaimReporter(
            client,
            driver=settings.driver,
            pool=settings.node_name,
            claims=lambda: self.checkpoint.claims,
            health=lambda: self.health.reports,
            usage=lambda: self.usage_conditions.known,
            mps=lambda: self.state.facts.mps,
            clock=clock,
        )
        # Kubelet's claims
        self.startup: Final = Startup(
            client,
            self.state,
            self.checkpoint,
            cdi,
            self.instances,
            known=self.known,
            hardware=self.hardware,
            threads=self.threads,
            events=self.node_events,
            mps_place=mps.place,
            settings=settings,
            files=files,
            boot_id=boot_id,
            clock=clock,
        )
        preparer = ClaimPreparer(
            self.checkpoint,
            cdi,
            driver=settings.driver,
            pool=settings.node_name,
            instances=self.instances,
            time_slices=time_slices,
            mps=mps,
            holding=Holding(
                self.offers.shares,
                self.common_edits.library,
                has_mps=lambda uuid: self.state.facts.mps.get(uuid, GpuMps()).supported,
            ),
            leftovers=lambda: {uid: one.clause for uid, one in self.state.facts.leftovers.items()},
        )
        self.work: Final = ClaimWork(
            preparer, self.checkpoint, self.instances, self.threads, self.state, driver=settings.driver, clock=clock
        )
        self.leftovers: Final = LeftoverClaims(
            client,
            self.state,
            self.checkpoint,
            self.work,
            driver=settings.driver,
            tell=self.node_events.tell,
            clock=clock,
            confirm_s=settings.confirm_gone_s,
        )
        self.service: Final = DraService(
            client,
            self.state,
            self.work,
            driver=settings.driver,
            opened=self.startup.trusted,
            hanging=lambda: self.threads.hanging,
            metrics=self.metrics,
            clock=clock,
            deadline_s=settings.prepare_deadline_s,
        )
        watch = {"NodeWatchResources": self.health.watch}
        self.plugin: Final = Plugin(
            self.sockets,
            self.state,
            driver=settings.driver,
            services=[
                handlers(DRA_V1, self.service.behaviours()),
                handlers(HEALTH_V1, watch),
                handlers(HEALTH_V1, watch, name=HEALTH_V1ALPHA1),
            ],
            clock=clock,
            check_s=settings.socket_check_s,
            on_stopping=self.health.close,
        )
        self.readiness: Final = Readiness(
            self.state,
            self.checkpoint,
            self.plugin,
            self.publisher,
            self.metrics.certificates,
            settings=settings,
            files=files,
        )
        self.node_reporter: Final = NodeReporter(
            client, node=settings.node_name, node_report=self.readiness.node_report, clock=clock
        )
        # Who uses the GPUs
        self.usage: Final = UsageReader(
            client,
            self.state,
            self.checkpoint,
            NvmlUsage(nvml, now=lambda: clock.now().timestamp()),
            holders,
            clock=clock,
            every_s=settings.usage_s,
        )
        self.findings: Final = UsageFindings()
        self.usage_conditions: Final = UsageConditions(
            self.findings, after_s=settings.unused_after_s, changed=self.claim_reporter.touch
        )
        self.usage_metrics: Final = UsageMetrics(self.metrics.registry, self.findings.unused)
        self.usage_reporter: Final = UsageReporter(client, self.findings, node=settings.node_name, clock=clock)
        self.limit_keeper: Final = LimitKeeper(NvmlMemory(nvml), holders, tell=self.node_events.tell, clock=clock)
        self.lease: Final = (
            AgentLease(
                client,
                self.state,
                node=settings.node_name,
                namespace=settings.namespace,
                holder=settings.lease_holder or settings.node_name,
                driver=settings.driver,
                duration_s=settings.lease_duration_s,
                hindrance=self.readiness.hindrance,
                clock=clock,
            )
            if settings.namespace
            else None
        )

    def _keeping(self, uuid: GpuUuid) -> KeptInstances:
        division = self.inventory.divisions.get(uuid)
        return keeping((self.state.facts.wanted.gpus or {}).get(uuid), division.board if division else None)
