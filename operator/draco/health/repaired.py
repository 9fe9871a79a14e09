"""Which GPUs the Jobs of HealthPolicies have repaired, as their agents are told of it.

NVML reports an XID once and tells nobody of a reset; drivers before 565 do not even ask for one. An agent alone would keep such a
fault until the driver is loaded again. A policy names the Job that repairs a GPU, so one that succeeded is believed: what a reset
ends is over, unless the agent has seen it since. Owns that decision. What a repair is worth shows after it: in readings without a
fault, in the verification, and in the failures that are counted if the fault is back within the hour.
"""

from collections.abc import Iterable

from draco.health.requests import is_over, opened_for, remediates
from draco.health.table import FaultAction, FaultEnd, FaultKind, kind_of
from draco.resources.api.draco import GpuStatus, RepairedGpu
from draco.resources.api.maintenance import CONDITION_WORKED, DeviceMaintenance


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
