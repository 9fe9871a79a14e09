"""The row of the phase table for a status, for the tests of the state machine."""

from typing import Final

from draco.resources.api.maintenance import (
    CONDITION_FAILED,
    CONDITION_ISOLATED,
    CONDITION_READY_FOR_WORK,
    CONDITION_VERIFIED,
    OVER,
    REASON_RETURNING,
    DeviceMaintenanceStatus,
)
from scripts.maintenance_phases import PHASES, PhaseRow

_BY_REASON: Final = {row.reason: row for row in PHASES}


def row_of(status: DeviceMaintenanceStatus) -> PhaseRow | None:
    """The row for a status; None if this version writes no such status."""
    found = {each.type: each for each in status.conditions}
    isolated, ready = found.get(CONDITION_ISOLATED), found.get(CONDITION_READY_FOR_WORK)
    if ready is not None and ready.reason == "StoppingJobs":
        return _BY_REASON[ready.reason]
    if isolated is None or ready is None:
        return None
    if isolated.reason == REASON_RETURNING:
        decisive = isolated
    elif failed := found.get(CONDITION_FAILED):
        decisive = failed
    elif status.phase in OVER:
        decisive = isolated
    elif verified := found.get(CONDITION_VERIFIED):
        decisive = verified
    else:
        decisive = isolated if isolated.status != "True" else ready
    row = _BY_REASON.get(decisive.reason)
    return row if row is not None and row.phase in {None, status.phase} else None
