"""The status of a MaintenanceBudget: its condition and messages. `admission` decides what it allows."""

from collections.abc import Collection
from datetime import datetime
from typing import Final

from draco.maintenance.budgets.admission import BudgetLimit
from draco.maintenance.selecting.fleet import PhysicalGpu
from draco.resources.api.maintenance import MaintenanceBudget, MaintenanceBudgetStatus
from draco.resources.api.meta import Condition, timed
from draco.resources.texts import agreeing, are, counted

CONDITION_AVAILABLE: Final = "Available"


def budget_status(
    budget: MaintenanceBudget,
    limit: BudgetLimit,
    out: Collection[PhysicalGpu],
    *,
    waiting: int,
    now: datetime,
    has_class: bool,
) -> MaintenanceBudgetStatus:
    """The budget's status. `out` are GPUs out of service for any budget; `waiting` counts requests that wait for this one."""
    used = limit.counted(out)
    full = [place for place in limit.totals if (allowed := limit.allows(place)) is not None and used[place] >= allowed]
    number = used.total()
    if not has_class:
        status, reason = "False", "NoDeviceClass"
        message = no_class(limit.spec.device_class_name or "")
    elif limit.spec.paused:
        status, reason = "False", "Paused"
        stays = agreeing(number, "stays", "stay")
        message = f"Paused: nothing more is taken out of service, and {counted(number, 'GPU')} {stays} out of service."
    elif full and len(full) == len(limit.totals):
        status, reason = "False", "UsedUp"
        message = (
            f"{number} of {counted(len(limit.places), 'GPU')} {are(number)} out of service, as many as is allowed."
        )
    else:
        status, reason = "True", "Available"
        message = f"{number} of {counted(len(limit.places), 'GPU')} {are(number)} out of service."
    if waiting:
        message += f" {counted(waiting, 'request')} {agreeing(waiting, 'waits', 'wait')} for it."
    wanted = Condition(type=CONDITION_AVAILABLE, status=status, reason=reason, message=message)
    return MaintenanceBudgetStatus(
        observed_generation=budget.metadata.generation,
        devices=len(limit.places),
        out_of_service=number,
        waiting=waiting,
        message=message,
        conditions=[timed(wanted, budget.status.conditions, now, generation=budget.metadata.generation)],
    )


def no_class(name: str) -> str:
    """The message for a budget whose DeviceClass does not exist."""
    return f"There is no DeviceClass {name}, so this budget limits nothing."
