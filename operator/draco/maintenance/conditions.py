"""The conditions of a request: their names, their reasons where others depend on these, and how to read them.

Owns the names. When a condition holds is `plan`'s to say.
"""

from typing import Final

from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.api.meta import Condition, find_condition, is_true

CONDITION_ISOLATED: Final = "Isolated"
CONDITION_READY_FOR_WORK: Final = "ReadyForWork"
CONDITION_WORKED: Final = "Worked"
"""All Jobs that do the work have succeeded: from then on the devices are verified, even if somebody deletes the Jobs."""
CONDITION_VERIFIED: Final = "Verified"
CONDITION_FAILED: Final = "Failed"
CONDITION_BLOCKED: Final = "Blocked"
"""Jobs of the request cannot be made, or do not start: it goes no further until that is put right."""

REASON_RETURNING: Final = "Returning"
"""Of Isolated: the devices are being given back, which is not called off any more."""


def condition_of(request: DeviceMaintenance, type_: str) -> Condition | None:
    """The condition of that name, if the status has it."""
    return find_condition(request.status.conditions, type_)


def says(request: DeviceMaintenance, type_: str) -> bool:
    """Whether the status has this condition as true."""
    return is_true(request.status.conditions, type_)


def is_returning(request: DeviceMaintenance) -> bool:
    """Whether the devices are being given back."""
    found = condition_of(request, CONDITION_ISOLATED)
    return found is not None and found.reason == REASON_RETURNING
