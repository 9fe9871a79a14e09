"""The state machine of a maintenance request as a table: what is seen, the phase that follows, and what is written.

Owns the table that people read and that `plan` is tested against. Phases are recomputed from the current state, so a row says
when a phase holds, not which phase precedes it. The first row that matches counts.
"""

from typing import Final

import msgspec

from draco.resources.api.maintenance import REASON_OTHER_GPU, REASON_RETURNING, MaintenancePhase


class PhaseRow(msgspec.Struct, frozen=True):
    """What is seen, and what follows. `reason` is the decisive condition's; a row without a phase leaves it as it is."""

    phase: MaintenancePhase | None
    reason: str
    seen: str
    written: str


def _row(phase: MaintenancePhase | None, reason: str, seen: str, written: str = "the status") -> PhaseRow:
    return PhaseRow(phase, reason, seen, written)


_P = MaintenancePhase
_KEEP = "the status; missing rules"

PHASES: Final = (
    # over, or on the way there
    _row(
        None,
        "StoppingJobs",
        "finished or cancelled, and a Job of the request still runs (Verifying if finished)",
        "the status, then its Jobs are deleted",
    ),
    _row(
        None,
        REASON_RETURNING,
        "cancelled; or past a deadline with action Cancel; or finished and verified (then Verifying); and a taint is left",
        "first the status, then the rules are deleted; never called off",
    ),
    _row(_P.COMPLETED, "Finished", "finished and verified, and no taint is left"),
    _row(_P.CANCELLED, "Cancelled", "cancelled, or past a deadline with action Cancel, and no taint is left"),
    # not begun
    _row(_P.PENDING, "NoDeviceClass", "deviceClassName names no DeviceClass"),
    _row(_P.PENDING, "InvalidSelector", "an expression does not compile"),
    _row(_P.PENDING, "SelectorFails", "an expression cannot be evaluated for a device"),
    _row(_P.PENDING, "TooManyDevices", "node, class and CEL select more than 256 devices"),
    _row(_P.PENDING, "MostOfClass", "more than half of a DeviceClass is selected, and allowMostOfClass is false"),
    _row(
        None,
        "PoolIncomplete",
        "a driver is replacing the ResourceSlices of a pool, and some are missing (Pending or Rehearsed stays)",
    ),
    _row(_P.PENDING, "NoDevices", "no published device is selected, and none was isolated"),
    _row(
        _P.PENDING,
        "DeviceTaintRuleNotServed",
        "no DeviceTaintRules are served, and no agent of Draco publishes some device",
    ),
    _row(_P.PENDING, "EffectNone", "the taint only announces", "the status; rules with effect None"),
    _row(_P.PENDING, "InvalidSchedule", "an unknown time zone, or a zero duration"),
    _row(_P.REHEARSED, "NotApproved", "approval is Required, and approved is false"),
    _row(_P.REHEARSED, "NotYet", "before schedule.start, or no window is open"),
    _row(_P.REHEARSED, "NeverFits", "a budget never allows so many GPUs at once"),
    _row(_P.REHEARSED, "Paused", "a budget is paused"),
    _row(_P.REHEARSED, "TooManyFailed", "more requests have failed than a budget's maxFailed"),
    _row(_P.REHEARSED, "BudgetUsedUp", "a budget has no room, or an older request waits for it"),
    # begun
    _row(
        _P.FAILED,
        "WorkFailed",
        "a Job that does the work has failed",
        "the status; the taints stay. Resumes when the Job is deleted",
    ),
    _row(
        _P.FAILED,
        "DeadlinePassed",
        "not free in time, with action Fail",
        "the status; the taints stay. Resumes when the devices are free",
    ),
    _row(
        _P.REHEARSED,
        "Isolating",
        "nothing keeps it from starting, or a taint is missing",
        "first the status with isolatedAt, then the rules",
    ),
    _row(
        _P.DRAINING,
        "Draining",
        "isolated, and pods are being evicted",
        f"{_KEEP}; evictions; a NoExecute taint if asked",
    ),
    _row(_P.ISOLATED, "InUse", "isolated, and a claim holds some device", _KEEP),
    _row(_P.ISOLATED, REASON_OTHER_GPU, "a name refers to another GPU than when it was isolated", _KEEP),
    _row(_P.ISOLATED, "OtherRequest", "another request works on a device", _KEEP),
    _row(_P.ISOLATED, "Obtainable", "a claim waits that tolerates the taint", _KEEP),
    _row(_P.ISOLATED, "Publishing", "an agent has not published a device with the taint yet", _KEEP),
    _row(_P.ISOLATED, "Settling", "isolated and free, but not for long enough yet", _KEEP),
    _row(
        _P.IN_MAINTENANCE,
        "NotPublished",
        "isolated and free, but nothing of some device's GPU is published: its node, its driver or the board is missing",
        f"{_KEEP}; Jobs that do the work",
    ),
    _row(_P.IN_MAINTENANCE, "Free", "isolated and free", f"{_KEEP}; Jobs that do the work"),
    # finished, or all Jobs that do the work have succeeded
    _row(
        _P.FAILED,
        "GpuUnhealthy",
        "finished, and the agent reports a GPU as missing, unhealthy or faulty",
        "the status; the taints stay. Resumes when the GPU is healthy",
    ),
    _row(
        _P.FAILED,
        "VerificationFailed",
        "finished, and a Job that verifies has failed",
        "the status; the taints stay. Resumes when the Job is deleted",
    ),
    _row(_P.VERIFYING, "NotReadYet", "finished, but the agent's report may be from before the work", _KEEP),
    _row(
        _P.VERIFYING,
        "FaultEnding",
        "finished; a fault is no longer seen, but not for long enough yet",
        _KEEP,
    ),
    _row(_P.VERIFYING, "AgentSilent", "finished, and an agent reports nothing now", _KEEP),
    _row(_P.VERIFYING, "NoJobs", "finished, verification by Job, and no CronJob is named", _KEEP),
    _row(_P.VERIFYING, "Verifying", "finished, and not verified yet", f"{_KEEP}; Jobs that verify"),
)
