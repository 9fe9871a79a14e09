"""Requests opened by HealthPolicies: whose they are, for which fault of which GPU, their progress, and what they repaired.

Owns the reading of their labels, annotations and conditions, and how many finished ones are kept, because failures in a row are
counted from them. `remediation` decides what becomes of a request.

Also owns which GPUs count as repaired, which their agents are told. NVML reports an XID once and no call reports a reset; drivers
before 565 do not even ask for one. An agent alone would keep such a fault until the driver is loaded again. So the success of the
policy's repair Job counts as a reset, unless the agent has seen the fault since. Readings, the verification, and the failures
counted when the fault is back within the hour show whether the repair worked.
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
    """Whether the request has returned its devices."""
    return request.status.phase in OVER


def places_of(request: DeviceMaintenance) -> set[str]:
    """The node by name, or "" for any, and the UUIDs of the GPUs that a request may concern."""
    gpus = {opened_for(request)[0], *(each.uuid for each in request.status.devices)} - {""}
    return {request.spec.device_selector.pool or "", *gpus}


def concerns(request: DeviceMaintenance, device: DeviceKey, uuid: str) -> bool:
    """Whether an open request concerns a GPU or its partitions, or may do so later.

    One that selects by class or expression lists its devices in its status; until then it may concern any GPU.
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
    # With a count of 0 for this generation, nothing was found.
    return not (request.status.device_count == 0 and request.status.observed_generation == request.metadata.generation)


def _is_part(device: DeviceKey, gpu: DeviceKey) -> bool:
    return device.pool_key == gpu.pool_key and gpu_name(device.device) == gpu.device


def waits(request: DeviceMaintenance) -> bool:
    """Whether nothing has been isolated for it."""
    return request.status.phase in _WAITING and request.status.isolated_at is None


def met_another_board(request: DeviceMaintenance) -> bool:
    """Whether its work has not begun and its device name now means another GPU."""
    ready = find_condition(request.status.conditions, CONDITION_READY_FOR_WORK)
    return request.status.started_at is None and ready is not None and ready.reason == REASON_OTHER_GPU


def expired(requests: Iterable[DeviceMaintenance], now: datetime) -> list[DeviceMaintenance]:
    """Finished requests of ours that are old, or have many newer ones. Those that failures in a row are counted from stay."""
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
    """Keep more if more failed in a row: failures are counted from them."""
    failed = sum(each.metadata.annotations.get(ANNOTATION_OUTCOME) == OUTCOME_FAILED for each in requests)
    return max(_MOST_KEPT, failed + 1)


def repaired_gpus(requests: Iterable[DeviceMaintenance], gpus: Iterable[GpuStatus]) -> list[RepairedGpu]:
    """The GPUs of one node that Jobs have repaired while the agent still reports the repaired fault, by UUID.

    `gpus` are the agent's report, `requests` may be any. Only a request for a fault that a reset ends, or repairs, counts. A
    fault seen after the work began may be newer than the reset: it stays.
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
    """Whether the Jobs of a policy's request have succeeded while it still holds the GPU."""
    return bool(remediates(request)) and not is_over(request) and request.says(CONDITION_WORKED)


def _is_a_reset(kind: FaultKind) -> bool:
    return kind.ends is FaultEnd.RESET or kind.action is FaultAction.RESET
