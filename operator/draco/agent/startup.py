"""Brings the node from what the last run left to what its record says, and keeps it there.

Owns when the record is read or rebuilt, where the GPUs' names come from if it has none, when record, instances and CDI specs are
made to agree, and the retries. `recovery` says what agreement means.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from draco.agent.claims import rebuilding, recovery
from draco.agent.claims.cdi import CdiFolder
from draco.agent.claims.memory_limits import MpsPlace
from draco.agent.files import Files
from draco.agent.hardware.gpus import GpuLocation, KnownGpu
from draco.agent.hardware.monitor import HardwareMonitor, HardwareView
from draco.agent.mig.claim_instances import ClaimInstances
from draco.agent.publish import device_names as known_gpus
from draco.agent.publish.device_names import KnownGpus
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import OwnedInstance, PreparedClaim
from draco.agent.report.node_events import NodeEvents
from draco.agent.settings import AgentSettings
from draco.agent.state.changes import ClaimRewritten, GpuWorkedOn
from draco.agent.state.facts import NodeFacts
from draco.agent.state.node import NodeState
from draco.agent.threads import AgentThreads
from draco.kube.clock import Clock, wait_for
from draco.kube.connect.client import Client
from draco.kube.connect.retry import persistently
from draco.kube.errors import NotFound
from draco.resources.api.draco import GpuNode
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import ResourceSlice
from draco.resources.kinds import CLAIMS, GPU_NODES, SLICES
from draco.resources.names import ClaimUid, GpuUuid

log = structlog.get_logger()

T = TypeVar("T")

CHECKPOINT = "checkpoint.json"
NAMES_S = 5.0
"""Longest delay of serving kubelet while the GPUs have no names. Without names claims can be given up but not prepared."""


class Startup:
    """Makes one node's record true, at start and after every change of the GPUs.

    `trusted` is set when the record can be relied on, `record_read` when the last run's report is not needed any more,
    `recovered` when instances and specs agree with the record. `known` gets its names as soon as they are available, and
    `hardware` shows them. Each claim whose record or spec was rewritten is told to the state.
    """

    def __init__(
        self,
        client: Client,
        state: NodeState,
        record: Checkpoint,
        cdi: CdiFolder,
        instances: ClaimInstances,
        *,
        known: KnownGpus,
        hardware: HardwareMonitor,
        threads: AgentThreads,
        events: NodeEvents,
        mps_place: MpsPlace,
        settings: AgentSettings,
        files: Files,
        boot_id: str,
        clock: Clock,
    ) -> None:
        self.trusted = asyncio.Event()
        self.record_read = asyncio.Event()
        self.recovered = asyncio.Event()
        self._client = client
        self._state = state
        self._record = record
        self._cdi = cdi
        self._instances = instances
        self._known = known
        self._hardware = hardware
        self._threads = threads
        self._events = events
        self._mps_place = mps_place
        self._path = settings.state_folder / CHECKPOINT
        self._kubelet_dir = settings.kubelet_dir
        self._files = files
        self._driver = settings.driver
        self._node = settings.node_name
        self._boot_id = boot_id
        self._clock = clock
        self._where: dict[GpuUuid, GpuLocation] | None = None
        self._looked = asyncio.Event()
        self._loaded = asyncio.Event()
        self._named = asyncio.Event()
        self._reported: GpuNode | None = None
        self._lacking: tuple[list[ClaimUid], ...] = ([], [], [])

    async def name(self) -> None:
        """Name the GPUs when the record has been read.

        A record without names is of an earlier version, new or lost; the names then come from what the last run published, which
        is read before it is overwritten.
        """
        await self._loaded.wait()
        before: list[KnownGpu] = []
        if not self._record.known:
            published = await self._persistently("recovery.api", self._own_slices)
            self._reported = await self._persistently("recovery.api", self._own_report)
            before = [*known_gpus.published(published), *known_gpus.reported(self._reported)]
        self._known.tell(before)
        self.record_read.set()
        await self._hardware.show_again()
        self._named.set()

    async def recover(self) -> None:
        """Read or rebuild the record, then make all agree with it. Kubelet is served after that, or, if NVML hangs, before."""
        found = await self._persistently(
            "recovery.disk", lambda: self._threads.on_record(lambda: recovery.read_record(self._path, self._files))
        )
        if isinstance(found, recovery.Damaged):
            self._loaded.set()
            await self._rebuild(found)
        else:
            self._record.restore(found)
            await self._persistently("recovery.disk", self._find_again)
            self._known.record()
            self._loaded.set()
            await wait_for(self._named, self._clock, NAMES_S)
        self.trusted.set()
        await self._persistently("recovery.disk", self._converge)
        self.recovered.set()
        self._state.learn(recovered=True)

    async def keep(self) -> None:
        """After each reading, compare claims with the hardware. If GPUs moved (driver reloaded), recreate instances."""
        while True:
            await self._looked.wait()
            self._looked.clear()
            moved = self._where != _where(self._hardware.view)
            await self._persistently("recovery.disk", self._converge if moved else self._respec)

    def seen(self, facts: NodeFacts) -> None:
        """Check prepared claims if the GPUs can be read."""
        view = facts.view
        if view.driver is not None and not view.fault and (self._record.claims or self._where != _where(view)):
            self._looked.set()

    def worked_on(self, change: GpuWorkedOn) -> None:
        """Check prepared claims: instances of the GPU may have been recreated, with new UUIDs and device nodes."""
        devices = (device for claim in self._record.claims.values() for device in claim.devices)
        if any(device.gpu == change.gpu and device.partition is not None for device in devices):
            self._looked.set()

    async def _rebuild(self, damage: recovery.Damaged) -> None:
        log.error("checkpoint.damaged", node=self._node, error=damage.sentence, moved_to=str(damage.moved_to))
        note = f"{damage.sentence} It is kept as {damage.moved_to}, and rebuilt from the CDI specs, the API server and the GPUs."
        self._events.tell("CheckpointDamaged", "Rebuild", note)
        await self._named.wait()
        claims = await self._persistently("recovery.api", lambda: self._client.list(CLAIMS))
        while (view := self._hardware.view).driver is None:
            await self._clock.sleep(1.0)
        by_spec = self._cdi.claims()
        prepared = rebuilding.rebuilt(
            claims,
            driver=self._driver,
            pool=self._node,
            gpus=view.by_device,
            mps_place=self._mps_place,
            with_spec=self._cdi.uids(),
            by_spec=by_spec,
            by_old_spec=self._cdi.claims_before_boot(),
            before=damage.before.claims.values(),
            kubelet_denies=lambda uid: recovery.kubelet_denies(self._kubelet_dir, uid),
        )
        uuids = rebuilding.instance_uuids(
            claims, self._reported, self._cdi.texts(), driver=self._driver, pool=self._node
        )
        there = [one for gpu in view.gpus for one in gpu.instances]
        instances = rebuilding.merged_instances(
            damage.before.instances.values(),
            rebuilding.instances_of(by_spec, boot_id=self._boot_id),
            rebuilding.adopted(there, uuids, boot_id=self._boot_id),
        )
        await self._persistently("recovery.disk", lambda: self._replace(prepared, instances))
        self._known.record()
        await self._hardware.show_again()
        log.info("checkpoint.rebuilt", node=self._node, claims=len(prepared), instances=len(instances))

    async def _find_again(self) -> None:
        """Record claims that have a spec but no record: the record was removed or replaced by an older one."""
        found = rebuilding.forgotten(self._record.claims.values(), self._cdi.claims())
        if not found:
            return
        instances = rebuilding.instances_of(found, boot_id=self._boot_id)
        fresh = [one for one in instances if one.key not in self._record.instances]
        await self._threads.on_record(lambda: self._record.change(put=found, own=fresh))
        names = ", ".join(map(str, found))
        log.error("checkpoint.incomplete", node=self._node, claims=names)
        note = f"The record of prepared claims {self._path} lacked {names}, whose CDI specs exist; the agent recorded them again."
        self._events.tell("CheckpointDamaged", "Rebuild", note)

    async def _own_slices(self) -> list[ResourceSlice]:
        """What the last run published."""
        ours = f"spec.nodeName={self._node},spec.driver={self._driver}"
        return [one for one in await self._client.list(SLICES, field_selector=ours) if one.spec.pool.name == self._node]

    async def _own_report(self) -> GpuNode | None:
        """What the last run reported."""
        try:
            return await self._client.get(GPU_NODES, ObjectKey("", self._node))
        except NotFound:
            return None

    async def _replace(self, claims: list[PreparedClaim], instances: list[OwnedInstance]) -> None:
        await self._threads.on_record(lambda: self._record.replace(claims, boot_id=self._boot_id, instances=instances))

    async def _converge(self) -> None:
        view = self._hardware.view
        gpus = None if view.driver is None else view.gpus
        run = self._threads.on_record if gpus is None else self._threads.with_driver
        done = await run(
            lambda: recovery.converge(
                self._record, self._cdi, gpus=gpus, boot_id=self._boot_id, instances=self._instances
            )
        )
        self._where = None if gpus is None else _where(view)
        self._say(done)

    async def _respec(self) -> None:
        view = self._hardware.view
        if view.driver is None:
            return  # the hardware is unknown

        def respec() -> recovery.RecoveryResult:
            with self._record.lock:
                return recovery.respec(self._record, self._cdi, self._instances, gpus=view.gpus)

        self._say(await self._threads.with_driver(respec))

    def _say(self, done: recovery.RecoveryResult) -> None:
        names = ("undone", "rewritten", "without_gpu", "without_instance", "without_node", "swept")
        counts = {name: len(getattr(done, name)) for name in names}
        lacking = (done.without_gpu, done.without_instance, done.without_node)
        if done.rebooted or done.undone or done.rewritten or done.swept or lacking != self._lacking:
            log.info("claims.converged", node=self._node, rebooted=done.rebooted, **counts)
        self._lacking = lacking
        for uid in dict.fromkeys([*done.moved, *done.rewritten]):
            if uid in self._record.claims:
                self._state.tell(ClaimRewritten(self._record.claims[uid]))

    async def _persistently(self, event: str, attempt: Callable[[], Awaitable[T]]) -> T:
        return await persistently(event, attempt, clock=self._clock)


def _where(view: HardwareView) -> dict[GpuUuid, GpuLocation]:
    return {gpu.uuid: GpuLocation(gpu.minor, gpu.pci_bus_id) for gpu in view.present}
