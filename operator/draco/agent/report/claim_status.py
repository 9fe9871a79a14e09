"""The devices in a claim's status: their hardware, whether they are ready, and their health.

Owns the entries of our driver in `status.devices`, and the format of their `data` (docs/reference/device-identity.md). Devices
are matched by hardware, never by name. Works in the background: kubelet never waits for it, and failed writes are retried. The
API server drops the entries when the claim is deallocated. Nothing is remembered of a claim that is no longer on record.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from draco.agent.mig.users import HeldDevice, device_uuid
from draco.agent.plugin.health_service import DeviceReport
from draco.agent.record.contents import PreparationState, PreparedClaim, PreparedDevice
from draco.agent.state.facts import GpuMps
from draco.health.table import HealthState
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.errors import Conflict, Invalid, NotFound
from draco.kube.queue import WorkQueue, run_workers
from draco.resources.api.claims import AllocatedDeviceStatus, ResourceClaim
from draco.resources.api.meta import Condition, ObjectKey, all_timed
from draco.resources.kinds import CLAIMS
from draco.resources.names import CONDITION_MPS, CONDITIONS_OF_USAGE, FIELD_MANAGER_AGENT, ClaimUid, GpuUuid

log = structlog.get_logger()


class ClaimRef(NamedTuple):
    """A claim by name, with its UID."""

    namespace: str
    name: str
    uid: ClaimUid

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


IDENTITY_VERSION = 1
"""The version of the format of `data`. Additions do not change it."""


SPACED = (
    "The JSON in opaque.parameters of the claim's config contains blanks, so the API server takes every report on the claim "
    "for a change of its allocation: create the claim with compact JSON, as kubectl does. Its pod runs anyway."
)


def _spaced(error: Invalid) -> bool:
    """Whether the API server saw a change of the allocation, which a report never makes: it compares bytes, not values."""
    return "status.allocation" in error.message and "immutable" in error.message


def wanted(
    claim: PreparedClaim,
    driver: str,
    health: Iterable[DeviceReport],
    usage: Mapping[HeldDevice, Sequence[Condition]] = MappingProxyType({}),
    mps: Mapping[GpuUuid, GpuMps] = MappingProxyType({}),
) -> list[AllocatedDeviceStatus]:
    """The entries for a prepared claim, without times. `usage`: the conditions of usage. `mps`: how that of GPUs is."""
    how = {(report.gpu, report.device if report.part else ""): report for report in health}
    by_device = {(device.device, device.share_id): device for device in claim.devices}
    return [
        AllocatedDeviceStatus(
            driver=driver,
            pool=device.pool,
            device=device.device,
            share_id=device.share_id or None,
            data=identity(device) | _limits(device, mps.get(device.gpu, GpuMps()).protocol),
            conditions=[
                Condition(type="Ready", status="True", reason="Prepared", message="The device is ready for the pod."),
                _healthy(device, how.get((device.gpu, "" if device.partition is None else device.device))),
                *_mps(device, mps.get(device.gpu, GpuMps()).problem_of(device.key)),
                *usage.get(HeldDevice(claim.uid, device_uuid(device)), ()),
            ],
        )
        for device in by_device.values()
    ]


def identity(device: PreparedDevice) -> dict[str, Any]:
    """A device's hardware, to join claims with metrics of NVML and DCGM, and the limit of a share. Unknown facts are left out."""
    said: dict[str, Any] = {"version": IDENTITY_VERSION, "pciBusID": device.pci_bus_id}
    part = device.partition
    if part is None:
        said["uuid"] = device.gpu
    else:
        said |= {
            "uuid": part.uuid,
            "parentUUID": device.gpu,
            "profile": part.profile,
            "placement": {"start": part.start, "size": part.size},
            "giID": part.gi if part.gi >= 0 else "",
            "ciID": part.ci if part.ci >= 0 else "",
        }
    if (limit := device.limit) is not None:
        said |= {"memoryLimit": f"{limit.mib}Mi", "memoryLimitBy": limit.by.value, "memoryLimitLibrary": limit.library}
    return {name: value for name, value in said.items() if value != ""}


def with_first_board(fresh: AllocatedDeviceStatus, before: AllocatedDeviceStatus | None) -> AllocatedDeviceStatus:
    """The entry with the hardware that the claim got first, according to `before`, and a condition if it is another now.

    An exchanged board, or another machine under the node's name, keeps the device's name, but the program ran, or still runs, on
    the previous one. Partitions are compared by GPU, because they get new UUIDs when recreated.
    """
    then, now = "" if before is None else before.board, fresh.board
    if before is None or not then or not now or then == now:
        return fresh
    message = (
        f"The claim was prepared on {then}, and {fresh.device} is {now} now: another board, or another machine of the same name. "
        "Delete the pod, by force if its machine is gone, so that it gets a claim of its own."
    )
    other = Condition(type="Healthy", status="False", reason="OtherBoard", message=message)
    conditions = [other if each.type == other.type else each for each in fresh.conditions]
    return msgspec.structs.replace(fresh, data=before.data, conditions=conditions)


def _healthy(device: PreparedDevice, report: DeviceReport | None) -> Condition:
    if report is None:
        return Condition(
            type="Healthy",
            status="Unknown",
            reason="NotFound",
            message=f"GPU {device.gpu} is not on this node any more.",
        )
    status = {HealthState.HEALTHY: "True", HealthState.UNHEALTHY: "False"}.get(report.state, "Unknown")
    return Condition(type="Healthy", status=status, reason=report.fault or report.state.value, message=report.message)


def _mps(device: PreparedDevice, problem: str) -> list[Condition]:
    """Nothing of a device without MPS."""
    if device.mps is None:
        return []
    if problem:
        message = f"{'GPU' if device.partition is None else 'MIG device'} {device_uuid(device)}: {problem}."
        return [Condition(type=CONDITION_MPS, status="False", reason="Trouble", message=message)]
    message = "The MPS daemon answers. Its limits are for each client process, not for all of the claim together."
    return [Condition(type=CONDITION_MPS, status="True", reason="Answers", message=message)]


def _limits(device: PreparedDevice, protocol: int) -> dict[str, Any]:
    """Whom the limits of MPS are for: of protocol 2, by which all daemons run, for each client process."""
    if device.mps is None:
        return {}
    return {"mps": {"limitsPer": "process"} | ({"newestProtocol": protocol} if protocol else {})}


_OF_PODS: Final = ("Ready", CONDITION_MPS, *CONDITIONS_OF_USAGE)
"""Conditions of a device while a pod has it."""


def left_behind(before: Iterable[AllocatedDeviceStatus]) -> list[AllocatedDeviceStatus]:
    """Entries to keep when the pod has ended: those with faults. Kubelet reports no devices of a pod that has ended."""
    over = Condition(
        type="Ready", status="False", reason="Unprepared", message="The pod that had the device has ended."
    )
    return [
        msgspec.structs.replace(one, conditions=[over, *(each for each in one.conditions if each.type not in _OF_PODS)])
        for one in before
        if any(each.type == "Healthy" and _of_fault(each) for each in one.conditions)
    ]


def _of_fault(condition: Condition) -> bool:
    return condition.status == "False" or (condition.status == "True" and condition.reason != HealthState.HEALTHY.value)


class ClaimReporter:
    """Writes claims' device status. `claims` are the claims on record, `health` returns the devices' health.

    `usage` returns the conditions of usage by claim and device, and None while they are unknown.
    """

    def __init__(
        self,
        client: Client,
        *,
        driver: str,
        pool: str,
        claims: Callable[[], Mapping[ClaimUid, PreparedClaim]],
        health: Callable[[], Iterable[DeviceReport]],
        usage: Callable[[], Mapping[HeldDevice, Sequence[Condition]] | None],
        mps: Callable[[], Mapping[GpuUuid, GpuMps]] = dict,
        clock: Clock,
    ) -> None:
        self._client = client
        self._driver = driver
        self._pool = pool
        self._claims = claims
        self._health = health
        self._usage = usage
        self._mps = mps
        self._clock = clock
        self._refused: dict[ClaimUid, str] = {}  # messages about claims on record
        self._queue: WorkQueue[ClaimRef] = WorkQueue(clock=clock, base_s=0.5, cap_s=120.0)

    def touch(self, claim: PreparedClaim) -> None:
        """Look at a claim that was prepared or unprepared, or whose devices' health changed."""
        self._queue.add(ClaimRef(claim.namespace, claim.name, claim.uid))

    def touch_all(self, _change: object = None) -> None:
        """Look at every claim on record."""
        for claim in self._claims().values():
            self.touch(claim)

    async def run(self) -> None:
        """Report until cancelled."""
        await run_workers(self._queue, self._reconcile, workers=2, log=log)

    async def _reconcile(self, ref: ClaimRef) -> float | None:
        on_record = self._claims()
        self._refused = {uid: said for uid, said in self._refused.items() if uid in on_record}
        try:
            claim = await self._client.get(CLAIMS, ObjectKey(ref.namespace, ref.name))
        except NotFound:
            return None
        if claim.metadata.uid != ref.uid or claim.status.allocation is None:
            return None
        before = [one for one in claim.status.devices if one.driver == self._driver and one.pool == self._pool]
        entries = self._entries(ref.uid, claim, before)
        if entries == before:
            return None
        body = {
            "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
            "status": {"devices": [msgspec.to_builtins(one) for one in entries]},
        }
        try:
            await self._client.apply(
                CLAIMS, claim.metadata.key, body, manager=FIELD_MANAGER_AGENT, subresource="status"
            )
        except (NotFound, Conflict):
            return 1.0  # deleted or recreated meanwhile; the next look settles it
        except Invalid as error:
            # Deallocated meanwhile, or the right to report is missing: an immediate retry would not help.
            self._say_refused(ref, SPACED if _spaced(error) else str(error))
            return None if _spaced(error) else 60.0
        self._refused.pop(ref.uid, None)
        return None

    def _say_refused(self, ref: ClaimRef, sentence: str) -> None:
        if self._refused.get(ref.uid) != sentence:
            log.warning("claim.status_refused", claim=str(ref), error=sentence)
        if ref.uid in self._claims():
            self._refused[ref.uid] = sentence

    def _wanted(self, claim: PreparedClaim, before: Iterable[AllocatedDeviceStatus]) -> list[AllocatedDeviceStatus]:
        """The entries; what was reported of usage stays while it is unknown."""
        usage = self._usage()
        entries = wanted(claim, self._driver, self._health(), usage or {}, self._mps())
        if usage is not None:
            return entries
        said = {
            (one.device, one.share_id): [each for each in one.conditions if each.type in CONDITIONS_OF_USAGE]
            for one in before
        }
        return [
            msgspec.structs.replace(one, conditions=[*one.conditions, *said.get((one.device, one.share_id), ())])
            for one in entries
        ]

    def _entries(
        self, uid: ClaimUid, claim: ResourceClaim, before: list[AllocatedDeviceStatus]
    ) -> list[AllocatedDeviceStatus]:
        prepared = self._claims().get(uid)
        ended = prepared is None or prepared.state is not PreparationState.PREPARED
        fresh = left_behind(before) if ended or prepared is None else self._wanted(prepared, before)
        known = {(one.device, one.share_id): one for one in before}
        now = self._clock.now()
        allocated = {one.key for one in claim.results}
        return [
            msgspec.structs.replace(said, conditions=all_timed(said.conditions, there.conditions if there else [], now))
            for one in fresh
            for there in [known.get((one.device, one.share_id))]
            for said in [one if ended else with_first_board(one, there)]
            if (one.driver, one.pool, one.device) in allocated
        ]
