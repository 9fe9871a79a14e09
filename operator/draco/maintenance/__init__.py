"""Maintenance: which taints devices need that are taken out of service, by request or by rule, and where a request stands.

Owns the state machine of DeviceMaintenance as one function from what is seen to a plan. Must not read a clock, write a log or
talk to the API server: the controller carries the plans out.

Rooms: `rules` (the exact taint rule of one device, and a rule on one device put on all that is the same hardware), `matching`
(which devices a request concerns), `plan` (the state machine), `wording` (what it says of itself), `isolation` (what agents are
notified of it).
"""

from draco.maintenance.isolation import isolated_gpus, isolates, not_heeded
from draco.maintenance.matching import MaintenanceScope, scope_of
from draco.maintenance.plan import (
    CONDITION_ISOLATED,
    CONDITION_READY_FOR_WORK,
    MaintenancePlan,
    PlanInput,
    plan_abandoned,
    plan_maintenance,
    says,
)
from draco.maintenance.rules import isolated_board, maintained_device, maintenance_uid, rule_for, rule_name

__all__ = [
    "CONDITION_ISOLATED",
    "CONDITION_READY_FOR_WORK",
    "MaintenancePlan",
    "MaintenanceScope",
    "PlanInput",
    "isolated_board",
    "isolated_gpus",
    "isolates",
    "maintained_device",
    "maintenance_uid",
    "not_heeded",
    "plan_abandoned",
    "plan_maintenance",
    "rule_for",
    "rule_name",
    "says",
    "scope_of",
]
