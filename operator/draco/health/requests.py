"""What a request that a HealthPolicy opened says: whose it is, for which fault of which GPU, how far it is, what it repaired.

Owns the reading of their labels, annotations and conditions, and which of those that are over are kept: failures in a row are
counted by them. What becomes of a request is `remediation`'s.

Owns also which GPUs count as repaired, as their agents are told. NVML reports an XID once and tells nobody of a reset; drivers
before 565 do not even ask for one. An agent alone would keep such a fault until the driver is loaded again. A policy names the
Job that repairs a GPU, so one that succeeded is believed: what a reset ends is over, unless the agent has seen it since. What a
repair is worth shows after it: in readings without a fault, in the verification, and in the failures that are counted if the
fault is back within the hour.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from draco.health.table import FaultAction, FaultEnd, FaultKind, kind_of
from draco.resources.api.draco import GpuStatus, RepairedGpu
from draco.resources.api.maintenance import (
    CONDITION_READY_FOR_WORK,
    CONDITION_WORKED,
    OVER,
    REASON_OTHER_GPU,
    DeviceMaintenance,
    MaintenancePhase,
)
from draco.resources.api.meta import find_condition
from draco.resources.names import ANNOTATION_FAULT, ANNOTATION_OUTCOME, LABEL_REMEDIATES, DeviceKey, gpu_name

OUTCOME_FAILED = "failed"
_WAITING = frozenset({None, MaintenancePhase.PENDING, MaintenancePhase.REHEARSED})
_KEPT = timedelta(days=7)
_LATEST_KEPT = timedelta(days=30)
_MOST_KEPT = 5


def remediates(request: DeviceMaintenance) -> str:
    """The UID of the policy that opened a request; "" if a person did."""
    return request.metadata.labels.get(LABEL_REMEDIATES, "")


def opened_for(request: DeviceMaintenance) -> tuple[str, str]:
    """The UUID of the GPU and the name of the fault that a request of ours was opened for."""
    uuid, _, fault = request.metadata.annotations.get(ANNOTATION_FAULT, "").partition(": ")
    return uuid, fault


def is_over(request: DeviceMaintenance) -> bool:
    """Whether the request has given everything back."""
    return request.status.phase in OVER


def places_of(request: DeviceMaintenance) -> set[str]:
    """The node by name, or "" for any, and the GPUs by UUID that a request is about: no other GPU is any concern of it."""
    gpus = {opened_for(request)[0], *(each.uuid for each in request.status.devices)} - {""}
    return {request.spec.device_selector.pool or "", *gpus}


def concerns(request: DeviceMaintenance, device: DeviceKey, uuid: str) -> bool:
    """Whether a request that is not over is about a GPU, its partitions included, or may yet be.

    One that selects by class or expression says what it found in its status; until then it may be anything.
    """
    if is_over(request):
        return False
    found = request.status.devices
    if found:
        return any(each.uuid == uuid or _is_part(each.key, device) for each in found)
    selector = request.spec.device_selector
    if not selector.may_match(device.pool_key):
        return False
    if selector.node_name not in {None, "", device.pool}:
        return False
    if selector.device and not _is_part(DeviceKey(device.driver, device.pool, selector.device), device):
        return False
    # Looked for and not found, as far as it was looked for at all.
    return not (request.status.device_count == 0 and request.status.observed_generation == request.metadata.generation)


def _is_part(device: DeviceKey, gpu: DeviceKey) -> bool:
    return device.pool_key == gpu.pool_key and gpu_name(device.device) == gpu.device


def waits(request: DeviceMaintenance) -> bool:
    """Whether nothing was isolated for it."""
    return request.status.phase in _WAITING and request.status.isolated_at is None


def met_another_board(request: DeviceMaintenance) -> bool:
    """Whether no work on it has begun, and its device is another GPU now, which it is not about."""
    ready = find_condition(request.status.conditions, CONDITION_READY_FOR_WORK)
    return request.status.started_at is None and ready is not None and ready.reason == REASON_OTHER_GPU


def expired(requests: Iterable[DeviceMaintenance], now: datetime) -> list[DeviceMaintenance]:
    """Requests of ours that are over and long past, or have many newer ones. What tells failures in a row apart stays."""
    found = []
    by_gpu: dict[str, list[DeviceMaintenance]] = {}
    for each in requests:
        if remediates(each):
            by_gpu.setdefault(opened_for(each)[0], []).append(each)
    for all_of_gpu in by_gpu.values():
        for age, each in enumerate(newest_first(all_of_gpu)):
            ended = each.status.completed_at or each.metadata.creation_timestamp or now
            too_old = now - ended > (_KEPT if age else _LATEST_KEPT)
            if is_over(each) and (too_old or age > _most_kept(all_of_gpu)):
                found.append(each)
    return found


def attempt_of(request: DeviceMaintenance) -> int:
    """The number at the end of its name, which counts the requests for its GPU; 0 without one."""
    text = request.metadata.name.rpartition("-")[2]
    return int(text) if text.isdecimal() else 0


def newest_first(requests: Iterable[DeviceMaintenance]) -> list[DeviceMaintenance]:
    """Requests for one GPU, the last attempt first."""
    return sorted(requests, key=attempt_of, reverse=True)


def _most_kept(requests: Sequence[DeviceMaintenance]) -> int:
    """More where more failed in a row: they are what it is counted by."""
    failed = sum(each.metadata.annotations.get(ANNOTATION_OUTCOME) == OUTCOME_FAILED for each in requests)
    return max(_MOST_KEPT, failed + 1)


def repaired_gpus(requests: Iterable[DeviceMaintenance], gpus: Iterable[GpuStatus]) -> list[RepairedGpu]:
    """The GPUs of one node that Jobs have repaired and whose agent still reports what that ended, by UUID.

    `gpus` are what the agent reports, `requests` any. A request for a fault that a reset does not end repairs nothing by its Job.
    What was seen after the work began may have come after the reset: it stays.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    found = {}
    for request in requests:
        uuid, fault = opened_for(request)
        began, gpu = request.status.started_at, by_uuid.get(uuid)
        if gpu is None or began is None or not (has_repaired(request) and _is_a_reset(kind_of(fault))):
            continue
        latched = [each.last_seen for each in gpu.faults if kind_of(each.name, each.code).ends is FaultEnd.RESET]
        if seen := [last for last in latched if last is not None and last <= began]:
            found[uuid] = RepairedGpu(uuid=uuid, request=request.metadata.name, until=max(seen))
    return [found[uuid] for uuid in sorted(found)]


def has_repaired(request: DeviceMaintenance) -> bool:
    """Whether the Jobs of a policy's request have succeeded, and it still has the GPU."""
    return bool(remediates(request)) and not is_over(request) and request.says(CONDITION_WORKED)


def _is_a_reset(kind: FaultKind) -> bool:
    """Whether what repairs such a fault is a reset, or does at least as much."""
    return kind.ends is FaultEnd.RESET or kind.action is FaultAction.RESET
