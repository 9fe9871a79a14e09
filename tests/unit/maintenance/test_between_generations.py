"""Budgets hold while a driver replaces the slices of a pool one by one, and while nobody publishes a GPU."""

from collections import Counter
from typing import Any

import pytest

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.budgets.admission import BudgetLimit, StartCandidate, admit
from draco.maintenance.gate import POOL_INCOMPLETE
from draco.maintenance.plan import plan_maintenance
from draco.maintenance.selecting.fleet import FleetPool, PhysicalGpu, PublishedDevice, nvlink_domain
from draco.maintenance.selecting.matching import MaintenanceSelection, incomplete_pools, scope_of
from draco.maintenance.selecting.rehearsal import PoolSelection
from draco.maintenance.selecting.selectors import test_of as asked_by
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.resources.api.claims import CelSelector, DeviceSelector
from draco.resources.api.maintenance import BudgetScope, MaintenanceBudgetSpec, MaintenancePhase, MaintenanceSelector
from draco.resources.api.slices import Device, DeviceAttribute, ResourceSlice
from draco.resources.names import NVIDIA_DRIVER, DeviceKey, PoolKey
from tests.builders import MOMENT, a_maintenance, a_slice

POOL = PoolKey(NVIDIA_DRIVER, "node-1")
GPUS = [PhysicalGpu(*POOL, f"gpu-{number}") for number in range(3)]
BEFORE = [a_slice("node-1", [f"gpu-{number}"], name=f"s-{number}", generation=15, of=3) for number in range(3)]
AFTER = [a_slice("node-1", [f"gpu-{number}"], name=f"s-{number}", generation=16, of=3) for number in range(3)]
BETWEEN = [AFTER[0], *BEFORE[1:]]
WHOLE = MaintenanceSelection(selector=MaintenanceSelector(driver=POOL.driver, pool=POOL.pool))
ONE = MaintenanceSelection(selector=MaintenanceSelector(driver=POOL.driver, pool=POOL.pool, device="gpu-1"))
HELD = [DeviceKey(*POOL, "gpu-0")]


def incomplete(slices: list[ResourceSlice], selection: MaintenanceSelection, held: list[DeviceKey]) -> bool:
    return bool(incomplete_pools(selection, {POOL: PoolHardware(slices)}, held))


@pytest.mark.parametrize("slices", [BEFORE, AFTER])
def test_a_pool_whose_slices_are_all_there_is_complete(slices: list[ResourceSlice]) -> None:
    assert not incomplete(slices, WHOLE, HELD)


@pytest.mark.parametrize("selection", [WHOLE, ONE])
def test_a_pool_between_two_generations_is_not(selection: MaintenanceSelection) -> None:
    assert incomplete(BETWEEN, selection, [])
    assert incomplete([AFTER[0]], WHOLE, HELD)


def test_what_is_held_of_a_whole_pool_that_nobody_publishes_is_not_all_of_it() -> None:
    assert incomplete([], WHOLE, HELD)
    assert not incomplete([], ONE, HELD)
    assert not incomplete([], WHOLE, [])


def test_a_slice_that_somebody_else_publishes_in_a_nodes_name_makes_its_pool_no_less_complete() -> None:
    intruder = a_slice("node-2", ["gpu-9"], pool="node-1", name="intruder", generation=99, of=7)
    assert not incomplete([*AFTER, intruder], WHOLE, HELD)


def test_other_pools_hold_up_nobody() -> None:
    other = MaintenanceSelection(selector=MaintenanceSelector(driver=POOL.driver, pool="node-2"))
    assert not incomplete(BETWEEN, other, [])


@pytest.mark.parametrize("before", [None, MaintenancePhase.PENDING, MaintenancePhase.REHEARSED])
def test_a_request_does_not_begin_between_two_generations(before: MaintenancePhase | None) -> None:
    request = a_maintenance(phase=before)
    seen = MaintenanceSnapshot(
        now=MOMENT, scope=scope_of(WHOLE, {POOL: PoolHardware(BETWEEN)}, HELD), incomplete=(POOL,)
    )
    plan = plan_maintenance(request, seen)
    assert plan.status is not None
    assert plan.status.phase == (before or MaintenancePhase.PENDING)
    assert plan.status.conditions[0].reason == POOL_INCOMPLETE
    assert (plan.apply, plan.status.devices, plan.status.isolated_at) == ((), [], None)


def test_one_that_has_begun_goes_on() -> None:
    begun = a_maintenance(phase=MaintenancePhase.ISOLATED, driver=POOL.driver, pool=POOL.pool)
    seen = MaintenanceSnapshot(now=MOMENT, scope=scope_of(WHOLE, {POOL: PoolHardware(BEFORE)}), incomplete=(POOL,))
    assert len(plan_maintenance(begun, seen).apply) == 3


def test_what_is_still_to_come_counts_and_is_selected_as_it_was() -> None:
    pool = FleetPool(POOL, BETWEEN)
    assert set(pool.gpus) == set(GPUS)
    cel = DeviceSelector(cel=CelSelector(expression="true"))
    asked = PoolSelection(asked_by(MaintenanceSelector(selectors=[cel]), {}))
    asked.add(pool)
    assert {device.device for device in asked.result().devices} == {"gpu-0", "gpu-1", "gpu-2"}


def a_limit(published: list[PhysicalGpu], per: BudgetScope, **more: Any) -> BudgetLimit:
    places = {gpu: "" if per is BudgetScope.CLUSTER else gpu.pool for gpu in published}
    spec = MaintenanceBudgetSpec(per=per, max_devices=1)
    return BudgetLimit(name="one", spec=spec, places=places, totals=Counter(places.values()), **more)


def asking(*gpus: PhysicalGpu) -> StartCandidate:
    return StartCandidate(uid="a", name="a", age=(False, 0.0, ""), gpus=frozenset(gpus))


@pytest.mark.parametrize("per", BudgetScope)
@pytest.mark.parametrize("published", [[], GPUS[:1]])
def test_a_gpu_that_nobody_publishes_counts_as_one_of_its_pool(per: BudgetScope, published: list[PhysicalGpu]) -> None:
    limit = a_limit(published, per)
    assert not admit([asking(*GPUS)], (), [limit]).admitted
    assert not admit([asking(GPUS[0])], [GPUS[2]], [limit]).admitted
    assert admit([asking(GPUS[2])], [], [limit]).admitted


def test_a_budget_of_a_class_does_not_count_what_is_known_not_to_be_of_it() -> None:
    elsewhere = a_limit([], BudgetScope.CLUSTER, elsewhere=frozenset(GPUS))
    assert admit([asking(*GPUS)], (), [elsewhere]).admitted
    assert admit([asking(*GPUS)], (), [a_limit([], BudgetScope.CLUSTER, without={POOL})]).admitted


def test_an_unknown_gpu_counts_in_the_nvlink_domain_of_its_node() -> None:
    limit = a_limit([], BudgetScope.NVLINK_DOMAIN, pool_places={"node-1": "rack", "node-2": "rack"})
    assert limit.counted([GPUS[0], PhysicalGpu(NVIDIA_DRIVER, "node-2", "gpu-0")]) == {"rack": 2}


@pytest.mark.parametrize("driver", [NVIDIA_DRIVER, "gpu.example.com"])
@pytest.mark.parametrize("domain", ["", f"{NVIDIA_DRIVER}/"])
def test_an_nvlink_domain_is_the_fabric_that_placement_knows(driver: str, domain: str) -> None:
    def within(cluster: str) -> str:
        attributes = {
            f"{domain}clusterUUID": DeviceAttribute(string=cluster),
            f"{domain}cliqueID": DeviceAttribute(int_=7),
        }
        gpu = Device(name="gpu-0", attributes=attributes)
        return nvlink_domain(PublishedDevice(gpu, "node-1", PhysicalGpu(driver, "node-1", "gpu-0")), {})

    assert within("6f1c-2") == "6f1c-2.7"
    assert within("00000000-0000-0000-0000-000000000000") == "node-1"
