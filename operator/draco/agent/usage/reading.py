"""Reads at intervals who uses the node's GPUs, for all who ask.

Owns the thread of these readings, their interval, and the last one. Nobody waits for a reading: one that hangs ends only the
readings of its GPU, until it returns. Claims are never kept waiting, because the thread shares no lock with their work.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

import msgspec
import structlog

from draco.agent.hardware.gpus import Gpu
from draco.agent.hardware.nvml_errors import NvmlError
from draco.agent.hardware.nvml_usage import DeviceUse, NvmlUsage
from draco.agent.mig.holders import Holders
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import ClaimPod, PreparedClaim
from draco.agent.state.node import NodeState
from draco.agent.threads import DaemonExecutor
from draco.agent.usage.attribution import ContainerUse, ProcessPlace, attributed
from draco.kube.clock import Clock, wait_for
from draco.kube.connect.client import Client
from draco.kube.errors import KubeError
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS
from draco.resources.names import ClaimUid, GpuUuid

log = structlog.get_logger()

LATE_S = 5.0
"""A GPU whose reading takes longer is left out until it answers."""
ASK_AGAIN_S = 60.0
"""How long a claim's pods are not asked for again."""


class UsageReading(msgspec.Struct, frozen=True, kw_only=True):
    """Who uses the GPUs at one moment. `gpus` are all that NVML lists, `unread` the UUIDs of those without an answer.

    `claims` are those on record.
    """

    at: datetime
    at_s: float
    gpus: tuple[Gpu, ...] = ()
    devices: tuple[DeviceUse, ...] = ()
    uses: tuple[ContainerUse, ...] = ()
    claims: tuple[PreparedClaim, ...] = ()
    unread: tuple[GpuUuid, ...] = ()


class UsageReader:
    """The readings of one node. `latest` is None before the first; `subscribe` to be called with each."""

    def __init__(
        self,
        client: Client,
        state: NodeState,
        record: Checkpoint,
        usage: NvmlUsage,
        holders: Holders,
        *,
        clock: Clock,
        every_s: float,
    ) -> None:
        self.latest: UsageReading | None = None
        self._client = client
        self._state = state
        self._record = record
        self._usage = usage
        self._places = _Places(holders)
        self._clock = clock
        self._every_s = every_s
        self._thread = self._new_thread()
        self._hanging: dict[GpuUuid, asyncio.Future[list[DeviceUse]]] = {}
        self._later_pods: dict[ClaimUid, tuple[ClaimPod, ...]] = {}
        self._asked_s: dict[ClaimUid, float] = {}
        self._subscribers: list[Callable[[UsageReading], None]] = []

    def subscribe(self, callback: Callable[[UsageReading], None]) -> None:
        """Call `callback` after every reading."""
        self._subscribers.append(callback)

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            while True:
                await self.read()
                await self._clock.sleep(self._every_s)
        finally:
            self._thread.close()

    async def read(self) -> None:
        """Read once, without the GPUs that hang."""
        gpus = self._state.facts.view.present
        devices: list[DeviceUse] = []
        unread: list[GpuUuid] = []
        for gpu in gpus:
            found = await self._within_time(gpu)
            devices += found or ()
            if found is None:
                unread.append(gpu.uuid)
        pids = {process.pid for device in devices for process in device.processes}
        places = await self._thread.run(partial(self._places.of, pids))
        claims = list(self._record.claims.values())
        uses = attributed(devices, places, claims, self._later_pods)
        if await self._learn_pods(uses, claims):
            uses = attributed(devices, places, claims, self._later_pods)
        self.latest = UsageReading(
            at=self._clock.now(),
            at_s=self._clock.monotonic(),
            gpus=tuple(gpus),
            devices=tuple(devices),
            uses=tuple(uses),
            claims=tuple(claims),
            unread=tuple(unread),
        )
        for callback in self._subscribers:
            callback(self.latest)

    async def _within_time(self, gpu: Gpu) -> list[DeviceUse] | None:
        """The usage of a GPU; None if it cannot be read, or not in time: then another thread goes on with the others."""
        before = self._hanging.get(gpu.uuid)
        if before is not None and not before.done():
            return None
        self._hanging.pop(gpu.uuid, None)
        reading = self._thread.submit(partial(self._usage.read, gpu))
        read = asyncio.Event()
        reading.add_done_callback(lambda _: read.set())
        await wait_for(read, self._clock, LATE_S)
        if not reading.done():
            log.warning("usage.hangs", gpu=gpu.uuid)
            self._hanging[gpu.uuid] = reading
            self._thread.close()
            self._thread = self._new_thread()
            return None
        try:
            return reading.result()
        except NvmlError as error:
            log.debug("usage.unread", gpu=gpu.uuid, error=str(error))
            return None

    def _new_thread(self) -> DaemonExecutor:
        return DaemonExecutor("usage", monotonic=self._clock.monotonic)

    async def _learn_pods(self, uses: Iterable[ContainerUse], claims: Sequence[PreparedClaim]) -> bool:
        """Ask for which pods the claims of devices with unknown pods are reserved now; whether that is known of any."""
        on_record = {one.uid for one in claims}
        self._later_pods = {uid: pods for uid, pods in self._later_pods.items() if uid in on_record}
        self._asked_s = {uid: asked for uid, asked in self._asked_s.items() if uid in on_record}
        strange = {use.device.uuid for use in uses if use.place.pod and not use.claims}
        learnt = False
        for use in uses:
            for claim in use.claims if use.device.uuid in strange else ():
                now_s = self._clock.monotonic()
                if now_s - self._asked_s.get(claim.uid, -ASK_AGAIN_S) >= ASK_AGAIN_S:
                    self._asked_s[claim.uid] = now_s
                    with suppress(KubeError):
                        learnt = await self._ask(claim) or learnt
        return learnt

    async def _ask(self, claim: PreparedClaim) -> bool:
        found = await self._client.get(CLAIMS, ObjectKey(claim.namespace, claim.name))
        if found.metadata.uid != claim.uid:
            return False
        pods = [one for one in found.status.reserved_for if one.resource == "pods"]
        self._later_pods[claim.uid] = tuple(ClaimPod(name=one.name, uid=one.uid) for one in pods)
        return True


class _Places:
    """Where processes run. What is known of a container is looked up once."""

    def __init__(self, holders: Holders) -> None:
        self._holders = holders
        self._known: dict[str, ProcessPlace] = {}

    def of(self, pids: Iterable[int]) -> Mapping[int, ProcessPlace]:
        """By PID."""
        found = {}
        for pid in pids:
            pod, container = self._holders.place(pid)
            if pod or container:
                known = self._known.get(container)
                found[pid] = known if known is not None and known.name else self._looked_up(pid, pod, container)
                if container:
                    self._known[container] = found[pid]
        there = {one.container for one in found.values()}
        self._known = {container: place for container, place in self._known.items() if container in there}
        return found

    def _looked_up(self, pid: int, pod: str, container: str) -> ProcessPlace:
        if not container:
            return ProcessPlace(pod)
        name, claims = self._holders.container_name(pid, pod), self._holders.claims_told(pid)
        return ProcessPlace(pod, container, name, claims)
