"""The plan for a request, as `plan` computes it and the controller writes it. Owns the struct and its text."""

from datetime import timedelta
from enum import Enum

import msgspec

from draco.maintenance.taint_rules import maintained_device
from draco.resources.api.maintenance import DeviceMaintenanceStatus
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.texts import listed


class AdmissionWish(Enum):
    """What to tell the budgets: ask for an answer, leave the queue, or change nothing."""

    ASK = "ask"
    WITHDRAW = "withdraw"
    KEEP = "keep"


class MaintenancePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to write, in this order: `admission`, rules to apply, rules to delete, the status.

    `admission` is first: a request that begins is in the budgets' books until its status says so. `status_first` writes the
    status before the rules, if it withdraws an earlier statement or says that devices are to be isolated. Otherwise a crash in
    between leaves devices marked as settled that were isolated just now, returned devices marked as ready for work, or devices
    out of service that no budget counts. `status` is None if it needs no change. `look_again` is when time alone may change the
    plan.

    `drain` permits evicting pods, `work` and `verify` creating Jobs; each is set only once the status says so. `stop_jobs`
    deletes the request's Jobs.
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
        """Whether there is nothing to write."""
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
