"""Maintenance: which taints a request for maintenance needs, and where the request stands.

Owns the state machine of DeviceMaintenance as one function from what is seen to a plan. Must not read a clock, write a log or
talk to the API server: the controller carries the plans out.

Rooms: `rules` (the exact taint rule of one device), `matching` (which devices a request names), `plan` (the state machine).
"""

from draco.maintenance.matching import devices_in, matching_devices
from draco.maintenance.plan import (
    CONDITION_ISOLATED,
    CONDITION_READY_FOR_WORK,
    MaintenancePlan,
    Seen,
    plan_abandoned,
    plan_maintenance,
)
from draco.maintenance.rules import maintained_device, maintenance_uid, rule_for, rule_name

__all__ = [
    "CONDITION_ISOLATED",
    "CONDITION_READY_FOR_WORK",
    "MaintenancePlan",
    "Seen",
    "devices_in",
    "maintained_device",
    "maintenance_uid",
    "matching_devices",
    "plan_abandoned",
    "plan_maintenance",
    "rule_for",
    "rule_name",
]
