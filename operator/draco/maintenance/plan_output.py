"""What is to be written for a request, as the state machine says it: a value that reads aloud.

Owns the struct and its text. What is in it is `plan`'s to say, and writing it the controller's.
"""

from datetime import timedelta
from enum import Enum

import msgspec

from draco.maintenance.rules import maintained_device
from draco.resources.api.maintenance import DeviceMaintenanceStatus
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.texts import listed


class AdmissionWish(Enum):
    """What is wished of the budgets: an answer, that the request leaves the queue, or that all stays as it is."""

    ASK = "ask"
    WITHDRAW = "withdraw"
    KEEP = "keep"


class MaintenancePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to write, in this order: rules to apply, rules to delete, the status.

    `status_first`: the status takes back what it said before, or says that the devices are to be isolated, so it comes before all
    else. Else an operator that died in between would leave devices called settled that were isolated just now, ready for work
    that are given back, or out of service that no budget knows of. `status` is `None` when it is already as it should be.
    `look_again` is when time alone may change the plan.

    `admission` comes before all of it: a request that begins is in the budgets' books until its status says so.

    Pods may be evicted while `drain` is set, Jobs made while `work` or `verify` is: each only once the status says so. With
    `stop_jobs` the request's Jobs are to be deleted.
    """

    request: str
    admission: AdmissionWish = AdmissionWish.WITHDRAW
    status_first: bool = False
    apply: tuple[DeviceTaintRule, ...] = ()
    delete: tuple[DeviceTaintRule, ...] = ()
    status: DeviceMaintenanceStatus | None = None
    look_again: timedelta | None = None
    drain: bool = False
    work: bool = False
    verify: bool = False
    stop_jobs: bool = False

    @property
    def empty(self) -> bool:
        """Whether everything is as it should be."""
        return not (self.apply or self.delete or self.status or self.stop_jobs)

    def __str__(self) -> str:
        steps = [
            f"{verb} {listed(map(_describe, rules), rest='more rules')}"
            for verb, rules in (("apply", self.apply), ("delete", self.delete))
            if rules
        ]
        if self.status is not None:
            steps.append(f"set status {self.status.phase}: {self.status.message}")
        if self.stop_jobs:
            steps.append("delete its Jobs")
        return f"maintenance {self.request}: " + ("; ".join(steps) or "nothing to do")


def _describe(rule: DeviceTaintRule) -> str:
    device = maintained_device(rule)
    taint = rule.spec.taint
    return f"rule {rule.metadata.name} ({taint.key}:{taint.effect} on {device or 'an unknown device'})"
