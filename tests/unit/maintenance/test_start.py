"""When the budgets are asked whether a request may begin, and what follows from the answer."""

from typing import Any

import msgspec
import pytest

from draco.maintenance.gate import COUNTING, SelectionProblem, Waiting
from draco.maintenance.plan import plan_maintenance
from draco.maintenance.plan_output import AdmissionWish
from draco.maintenance.progress import DrainPlan
from draco.maintenance.selecting.matching import MaintenanceScope
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.resources.api.meta import ObjectKey
from draco.resources.names import NVIDIA_DRIVER, PoolKey
from tests.builders import MOMENT
from tests.unit.maintenance.test_plan import GPU_3, LATER, a_request, in_maintenance


@pytest.mark.parametrize(
    ("known", "wish"),
    [
        ({}, AdmissionWish.ASK),
        ({"admission": Waiting(reason="BudgetUsedUp", message="wait")}, AdmissionWish.ASK),
        ({"problem": SelectionProblem("MostOfClass", "no")}, AdmissionWish.WITHDRAW),
        ({"incomplete": (PoolKey(NVIDIA_DRIVER, "node-1"),)}, AdmissionWish.KEEP),
    ],
)
def test_the_budgets_are_asked_only_about_what_nothing_else_holds_up(
    known: dict[str, Any], wish: AdmissionWish
) -> None:
    snapshot = MaintenanceSnapshot(now=MOMENT, scope=MaintenanceScope(named=frozenset({GPU_3})), **known)
    assert plan_maintenance(a_request(), snapshot).admission is wish


def test_while_the_budgets_count_nothing_is_written() -> None:
    here = MaintenanceScope(named=frozenset({GPU_3}))
    plan = plan_maintenance(a_request(), MaintenanceSnapshot(now=MOMENT, scope=here, admission=COUNTING))
    assert (plan.empty, plan.admission) == (True, AdmissionWish.ASK)
    assert plan.look_again is not None


def test_one_that_has_begun_leaves_the_queue_of_the_budgets() -> None:
    request, rules = in_maintenance(a_request())
    here = MaintenanceScope(named=frozenset({GPU_3}))
    snapshot = MaintenanceSnapshot(now=MOMENT + LATER, scope=here, rules=rules)
    assert plan_maintenance(request, snapshot).admission is AdmissionWish.WITHDRAW
    drain = DrainPlan(evict=(ObjectKey("default", "train"),))
    uncounted = msgspec.structs.replace(snapshot, knows_paused=False)
    assert plan_maintenance(request, uncounted, drain).empty, "a paused budget may be about its GPUs"
