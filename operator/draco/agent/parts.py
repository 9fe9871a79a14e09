"""Creates the parts of one agent and connects them.

Owns which part is made of what, from the record to kubelet's sockets, and nothing of what they do: `app` starts and stops them,
and says who hears of what.
"""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Protocol

from draco.agent.claims.cdi import CdiFolder, NodeFiles
from draco.agent.claims.leftovers import KUBELET_RECORD, Leftovers, denies
from draco.agent.claims.preparer import ClaimPreparer
from draco.agent.claims.work import ClaimWork
from draco.agent.containers.common_edits import CommonEdits
from draco.agent.files import Files
from draco.agent.hardware.fault_record import FAULTS, FaultRecord, driver_load
from draco.agent.hardware.monitor import HardwareMonitor, SysfsPcieRoots
from draco.agent.hardware.nvml import Nvml
from draco.agent.lanes import Lanes
from draco.agent.metrics import AgentMetrics
from draco.agent.mig.parts import NodeDivisions
from draco.agent.plugin.api import health_v1_pb2, health_v1alpha1_pb2
from draco.agent.plugin.dra_service import DraService
from draco.agent.plugin.health_service import HealthService
from draco.agent.plugin.registration import Plugin, PluginConflict, RegistrationState, sockets
from draco.agent.plugin.wire import DRA_V1, HEALTH_V1, HEALTH_V1ALPHA1, handlers
from draco.agent.publish.device_names import KnownGpus
from draco.agent.publish.offering import Offers
from draco.agent.publish.publisher import SlicePublisher
from draco.agent.record import checkpoint
from draco.agent.record.checkpoint import Checkpoint, PreparedClaim
from draco.agent.report.claim_status import ClaimReporter
from draco.agent.report.node_status import NodeReport, NodeReporter
from draco.agent.settings import AgentSettings
from draco.agent.startup import Startup
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.resources.names import FIELD_MANAGER_AGENT, GpuUuid

CHECKPOINT = "checkpoint.json"


class Listener(Protocol):
    """Receives the changes of the parts, and answers what only all of them together know."""

    def divisions_shown(self) -> None:
        """Instances of GPUs were looked at. In any thread."""
        ...

    async def worked_on(self, uuid: GpuUuid) -> None:
        """Work on a GPU's instances has ended, for now; and what is wanted may be new."""
        ...

    def gpunode_deleted(self) -> None:
        """Somebody deleted the node's GpuNode."""
        ...

    def isolation_changed(self) -> None:
        """What is under maintenance is other than it was."""
        ...

    def claim_changed(self, claim: PreparedClaim) -> None:
        """A claim was prepared or given up."""
        ...

    def registered(self, registration: RegistrationState) -> None:
        """Kubelet took the driver, or refused it."""
        ...

    def contested(self, conflict: PluginConflict | None) -> None:
        """Somebody else serves the driver, too, or does so no more."""
        ...

    def report_changed(self) -> None:
        """What is reported of the node may be new."""
        ...

    def node_report(self) -> NodeReport:
        """What is reported of the node."""
        ...

    def giving_way(self) -> str:
        """To whom, as a sentence; "" while the node is ours."""
        ...

    def tell(self, reason: str, action: str, note: str, gpu: str = "") -> None:
        """An Event on the Node, or a series of its own on each GPU."""
        ...


class AgentParts:
    """Everything that one node's agent is made of; nothing of it runs yet."""

    def __init__(
        self,
        settings: AgentSettings,
        client: Client,
        nvml: Nvml,
        listener: Listener,
        *,
        clock: Clock,
        random: Random,
        files: Files,
    ) -> None:
        self._settings: Final = settings
        self._client: Final = client
        self._nvml: Final = nvml
        self._listener: Final = listener
        self._clock: Final = clock
        self._random: Final = random
        self._files: Final = files
        self._boot_id: Final = checkpoint.boot_id(settings.proc_root)
        self.sockets: Final = sockets(settings.kubelet_dir, settings.driver)
        self.metrics: Final = AgentMetrics()
        # The record, and what is written for containers
        self.checkpoint: Final = Checkpoint(settings.state_folder / CHECKPOINT, files, boot_id="")
        self.lanes: Final = Lanes(calling=lambda: nvml.calling, reach=nvml.reach, clock=clock)
        self.common_edits: Final = CommonEdits(
            settings.installed, hook_folder=settings.state_folder, loaded=lambda: self.hardware.view.driver_version
        )
        self._cdi: Final = self._cdi_folder()
        # The GPUs: their instances, names and health
        self.dividing: Final = self._instances()
        self.known: Final = self._names()
        self.hardware: Final = self._gpus()
        self.health: Final = HealthService(pool=settings.node_name, timeout_s=settings.health_timeout_s)
        # What is written to the API server
        self.events: Final = EventRecorder(
            client, controller=FIELD_MANAGER_AGENT, instance=settings.node_name, clock=clock, random=random
        )
        self.publisher: Final = SlicePublisher(
            client,
            node=settings.node_name,
            driver=settings.driver,
            clock=clock,
            random=random,
            on_change=listener.report_changed,
        )
        self.offers: Final = Offers(
            self.publisher, self.dividing, view=lambda: self.hardware.view, clock=clock, random=random
        )
        self.claim_reporter: Final = self._claim_status()
        self.node_reporter: Final = NodeReporter(
            client, node=settings.node_name, node_report=listener.node_report, clock=clock, random=random
        )
        # Kubelet's claims
        self.startup: Final = self._recovery()
        self.work: Final = self._claims()
        self.plugin: Final = self._kubelet_plugin()

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
        return NodeDivisions(
            self._client,
            self._nvml,
            self.checkpoint,
            node=self._settings.node_name,
            boot_id=self._boot_id,
            proc=self._settings.proc_root,
            device_root=self._settings.device_root,
            on_gpu=lambda uuid, work: self.lanes.with_driver(work, {uuid}),
            shown=self._listener.divisions_shown,
            changed=self._listener.worked_on,
            gone=self._listener.gpunode_deleted,
            isolation=self._listener.isolation_changed,
            clock=self._clock,
            random=self._random,
        )

    def _names(self) -> KnownGpus:
        return KnownGpus(
            self.checkpoint,
            in_thread=self.lanes.on_record,
            forgotten=lambda: self.dividing.keeper.forgotten,
            promised=lambda: frozenset(self.dividing.promised),
        )

    def _gpus(self) -> HardwareMonitor:
        return HardwareMonitor(
            self._nvml,
            SysfsPcieRoots(self._settings.sysfs_root),
            faults=FaultRecord(
                self._settings.state_folder / FAULTS,
                self._files,
                boot_id=self._boot_id,
                driver_load=lambda: driver_load(self._settings.sysfs_root),
            ),
            divided=self.dividing.inventory.look,
            named=self.known.view,
            mismatch=self.common_edits.mismatch,
            clock=self._clock,
            rescan_s=self._settings.rescan_s,
            retry_s=self._settings.nvml_retry_s,
            event_wait_s=self._settings.event_wait_s,
            limit_s=self._settings.nvml_limit_s,
        )

    def _claim_status(self) -> ClaimReporter:
        return ClaimReporter(
            self._client,
            driver=self._settings.driver,
            pool=self._settings.node_name,
            claims=lambda: self.checkpoint.claims,
            health=lambda: self.health.reports,
            clock=self._clock,
            random=self._random,
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
            on_record=self.lanes.on_record,
            with_driver=self.lanes.with_driver,
            tell=self._listener.tell,
            rewritten=self.claim_reporter.touch,
            clock=self._clock,
            random=self._random,
        )

    def _claims(self) -> ClaimWork:
        preparer = ClaimPreparer(
            self.checkpoint,
            self._cdi,
            driver=self._settings.driver,
            pool=self._settings.node_name,
            instances=self.dividing.instances,
        )
        return ClaimWork(
            preparer, self.checkpoint, self.lanes, driver=self._settings.driver, view=lambda: self.hardware.view
        )

    def _kubelet_plugin(self) -> Plugin:
        self.service = service = DraService(
            self._client,
            self.work,
            driver=self._settings.driver,
            changed=self._listener.claim_changed,
            opened=self.startup.trusted,
            hindrance=self._listener.giving_way,
            metrics=self.metrics,
            clock=self._clock,
            random=self._random,
            deadline_s=self._settings.prepare_deadline_s,
        )
        return Plugin(
            self.sockets,
            driver=self._settings.driver,
            services=[
                handlers(DRA_V1, service.behaviours()),
                handlers(HEALTH_V1, self.health.behaviours(health_v1_pb2)),
                handlers(HEALTH_V1ALPHA1, self.health.behaviours(health_v1alpha1_pb2)),
            ],
            clock=self._clock,
            check_s=self._settings.socket_check_s,
            on_registration=self._listener.registered,
            on_conflict=self._listener.contested,
            on_stopping=self.health.close,
        )

    def leftovers(self, give_up: Callable[[PreparedClaim], Awaitable[None]]) -> Leftovers:
        """Who gives up what kubelet no longer knows of."""
        return Leftovers(
            self._client,
            driver=self._settings.driver,
            claims=lambda: self.checkpoint.claims,
            kubelet_record=self._settings.kubelet_dir / KUBELET_RECORD,
            give_up=give_up,
            clock=self._clock,
        )
