"""How the conditions of a request are read.

Their names are in `resources.api.maintenance`. When a condition holds is `plan`'s to say.
"""

from typing import Final

from draco.resources.api.maintenance import CONDITION_ISOLATED, DeviceMaintenance
from draco.resources.api.meta import Condition, find_condition, is_true

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
