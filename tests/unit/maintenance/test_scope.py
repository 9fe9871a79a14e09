"""A request is about hardware: which devices it concerns besides those that it names, and how that changes the plan."""

from collections.abc import Iterable
from datetime import timedelta

import msgspec
import pytest

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.plan import plan_maintenance
from draco.maintenance.plan_output import MaintenancePlan
from draco.maintenance.progress import DrainPlan
from draco.maintenance.selecting.matching import MaintenanceScope, scope_of, vanished
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.maintenance.taint_rules import isolated_board, maintained_device, rule_for
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.maintenance import DeviceMaintenance, MaintenancePhase, MaintenanceSelector
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule, DeviceToleration
from draco.resources.names import NVIDIA_DRIVER, DeviceKey, PoolKey
from tests.builders import MOMENT, a_claim, a_device_key, a_maintenance, a_slice

POOL = PoolKey(NVIDIA_DRIVER, "node-1")
PARTS = [f"gpu-0-mig-1g10gb-19-{start}" for start in range(7)]
LATER = timedelta(seconds=60)


def key(device: str) -> DeviceKey:
    return a_device_key(f"node-1/{device}")


def a_whole(minor: int, uuid: str) -> Device:
    return Device(name=f"gpu-{minor}", attributes={"uuid": DeviceAttribute(string=uuid)})


def a_part(name: str, parent: str) -> Device:
    return Device(name=name, attributes={"parentUUID": DeviceAttribute(string=parent)})


def hardware(devices: Iterable[Device], *, generation: int = 1) -> PoolHardware:
    return PoolHardware([a_slice("node-1", devices, generation=generation)])


DIVIDED = hardware([a_whole(0, "GPU-a"), *(a_part(name, "GPU-a") for name in PARTS), a_whole(1, "GPU-b")])


def scope(device: str, pool: PoolHardware = DIVIDED, held: Iterable[str] = (), **isolated: str) -> MaintenanceScope:
    selector = MaintenanceSelector(driver=NVIDIA_DRIVER, pool="node-1", device=device)
    boards = {key(name.replace("_", "-")): uuid for name, uuid in isolated.items()}
    return scope_of(selector, {POOL: pool}, [key(name) for name in held], boards)


def names(devices: Iterable[DeviceKey]) -> set[str]:
    return {device.device for device in devices}


def a_request(device: str = "gpu-0") -> DeviceMaintenance:
    request = a_maintenance("swap-fan", driver=NVIDIA_DRIVER, pool="node-1", device=device)
    return msgspec.structs.replace(request, status=type(request.status)())


def carried_out(request: DeviceMaintenance, plan: MaintenancePlan) -> DeviceMaintenance:
    return msgspec.structs.replace(request, status=plan.status) if plan.status else request


def isolated(
    request: DeviceMaintenance, seen: MaintenanceScope
) -> tuple[DeviceMaintenance, tuple[DeviceTaintRule, ...]]:
    """The request once all rules exist and time has passed."""
    rules = plan_maintenance(request, MaintenanceSnapshot(now=MOMENT, scope=seen)).apply
    for after in (timedelta(0), LATER):
        request = carried_out(
            request, plan_maintenance(request, MaintenanceSnapshot(now=MOMENT + after, scope=seen, rules=rules))
        )
    assert request.status.phase is MaintenancePhase.IN_MAINTENANCE
    return request, rules


def ready(request: DeviceMaintenance) -> tuple[str, str, str]:
    (found,) = [each for each in request.status.conditions if each.type == "ReadyForWork"]
    return found.status, found.reason, found.message


def look(
    request: DeviceMaintenance,
    seen: MaintenanceScope,
    rules: tuple[DeviceTaintRule, ...],
    claims: Iterable[ResourceClaim] = (),
    tolerant: Iterable[ObjectKey] = (),
) -> DeviceMaintenance:
    view = MaintenanceSnapshot(
        now=MOMENT + 2 * LATER, scope=seen, rules=rules, claims=tuple(claims), tolerant=tuple(tolerant)
    )
    return carried_out(request, plan_maintenance(request, view))


def test_a_whole_gpu_means_all_its_partitions() -> None:
    found = scope("gpu-0")
    assert names(found.named) == {"gpu-0"}
    assert names(found.overlapping) == set(PARTS)
    assert set(found.overlapping.values()) == {key("gpu-0")}
    assert names(found.others) == {"gpu-1"}
    assert set(found.boards.values()) == {"GPU-a"}


def test_a_partition_means_its_whole_gpu_and_leaves_the_others_free() -> None:
    found = scope(PARTS[3])
    assert names(found.named | found.overlapping.keys()) == {PARTS[3], "gpu-0"}
    assert names(found.others) == {*PARTS, "gpu-1"} - {PARTS[3]}


def test_a_whole_gpu_of_which_only_partitions_are_published_is_isolated_before_it_is_published() -> None:
    parts_only = hardware([a_part(name, "GPU-a") for name in PARTS])
    found = scope("gpu-0", parts_only)
    assert names(found.named) == {"gpu-0"}
    assert names(found.overlapping) == set(PARTS)
    assert found.boards[key("gpu-0")] == "GPU-a"


def test_a_partition_that_a_claim_holds_is_a_part_though_no_slice_has_it_any_more() -> None:
    found = scope("gpu-0", held=["gpu-0-mig-3g40gb-9-4", "gpu-1-mig-3g40gb-9-4"])
    assert "gpu-0-mig-3g40gb-9-4" in names(found.overlapping)
    assert not found.doubtful
    of_a_part = scope(PARTS[3], held=["gpu-0-mig-3g40gb-9-4"])
    assert names(of_a_part.doubtful) == {"gpu-0-mig-3g40gb-9-4"}


def test_a_pool_without_any_slice_still_has_what_claims_hold() -> None:
    found = scope("gpu-0", PoolHardware([]), held=["gpu-0", PARTS[0]])
    assert names(found.named | found.overlapping.keys()) == {"gpu-0", PARTS[0]}


def test_a_gpu_that_goes_by_another_name_now_is_found_by_its_uuid() -> None:
    swapped = hardware([a_whole(0, "GPU-b"), a_whole(1, "GPU-a"), a_part("gpu-1-mig-1g10gb-19-0", "GPU-a")])
    found = scope("gpu-0", swapped, gpu_0="GPU-a")
    assert names(found.named) == {"gpu-0"}
    assert names(found.overlapping) == {"gpu-1", "gpu-1-mig-1g10gb-19-0"}


def test_a_partition_whose_gpu_goes_by_another_name_is_found_and_its_neighbours_are_not() -> None:
    swapped = hardware([a_part(f"gpu-1-mig-1g10gb-19-{start}", "GPU-a") for start in range(3)])
    selector = MaintenanceSelector(driver=NVIDIA_DRIVER, pool="node-1", device=PARTS[2])
    found = scope_of(selector, {POOL: swapped}, (), {key(PARTS[2]): "GPU-a"})
    assert names(found.overlapping) == {"gpu-1-mig-1g10gb-19-2", "gpu-1"}


def test_each_part_gets_an_exact_rule_that_says_why_and_of_which_gpu() -> None:
    plan = plan_maintenance(a_request(), MaintenanceSnapshot(now=MOMENT, scope=scope("gpu-0")))
    assert {device.device for rule in plan.apply if (device := maintained_device(rule))} == {"gpu-0", *PARTS}
    assert {isolated_board(rule) for rule in plan.apply} == {"GPU-a"}
    reasons = {rule.metadata.annotations.get("draco.dev/overlaps", "") for rule in plan.apply}
    assert reasons == {"", f"{NVIDIA_DRIVER}/node-1/gpu-0"}


def test_work_cannot_start_while_a_claim_holds_any_part() -> None:
    request, rules = isolated(a_request(), scope("gpu-0"))
    claims = [a_claim(f"tenant-{n}", on=[f"node-1/{PARTS[n]}"]) for n in range(7)]
    busy = look(request, scope("gpu-0"), rules, claims)
    assert busy.status.phase is MaintenancePhase.ISOLATED
    assert ready(busy)[:2] == ("False", "InUse")
    assert busy.status.in_use == 7
    assert busy.status.message.startswith(
        "7 of 8 devices are still in use: gpu-0-mig-1g10gb-19-0 of node-1 by default/"
    )
    (whole,) = [each for each in busy.status.devices if each.device == "gpu-0"]
    assert (whole.uuid, whole.overlaps, whole.claims) == ("GPU-a", "", [])
    assert {each.overlaps for each in busy.status.devices} == {"", f"{NVIDIA_DRIVER}/node-1/gpu-0"}


def test_work_on_a_partition_waits_for_the_claim_on_the_whole() -> None:
    request, rules = isolated(a_request(PARTS[3]), scope(PARTS[3]))
    assert ready(look(request, scope(PARTS[3]), rules, [a_claim("all-of-it", on=["node-1/gpu-0"])]))[1] == "InUse"
    neighbour = a_claim("neighbour", on=[f"node-1/{PARTS[4]}"])
    assert ready(look(request, scope(PARTS[3]), rules, [neighbour]))[0] == "True"


def test_what_may_be_a_part_holds_up_the_work_and_is_not_tainted() -> None:
    request, rules = isolated(a_request(PARTS[3]), scope(PARTS[3]))
    lost = "gpu-0-mig-3g40gb-9-4"
    seen = scope(PARTS[3], held=[lost])
    view = MaintenanceSnapshot(
        now=MOMENT + LATER, scope=seen, rules=rules, claims=(a_claim("old", on=[f"node-1/{lost}"]),)
    )
    plan = plan_maintenance(request, view)
    assert not plan.apply
    busy = carried_out(request, plan)
    assert ready(busy)[1] == "InUse"
    assert [(each.device, each.claims) for each in busy.status.devices if each.claims] == [(lost, ["default/old"])]


def test_a_partition_published_later_takes_readiness_back_before_anything_else_is_written() -> None:
    before = scope("gpu-0", hardware([a_whole(0, "GPU-a")]))
    request, rules = isolated(a_request(), before)
    plan = plan_maintenance(request, MaintenanceSnapshot(now=MOMENT + 2 * LATER, scope=scope("gpu-0"), rules=rules))
    assert plan.status_first
    assert len(plan.apply) == len(PARTS)
    request = carried_out(request, plan)
    assert ready(request)[:2] == ("False", "NotIsolated")
    settling = MaintenanceSnapshot(now=MOMENT + 2 * LATER, scope=scope("gpu-0"), rules=(*rules, *plan.apply))
    again = plan_maintenance(request, settling)
    assert not again.status_first
    request = carried_out(request, again)
    assert ready(request)[1] == "Settling"  # counted from the newest rule, not the first


def test_a_rule_of_a_part_that_is_published_no_more_stays() -> None:
    request, rules = isolated(a_request(), scope("gpu-0"))
    alone = scope("gpu-0", hardware([a_whole(0, "GPU-a")]))
    assert plan_maintenance(request, MaintenanceSnapshot(now=MOMENT + LATER, scope=alone, rules=rules)).empty


def test_a_rule_of_a_device_that_is_no_part_any_more_is_deleted() -> None:
    request, rules = isolated(a_request(), scope("gpu-0"))
    other = hardware([a_whole(0, "GPU-a"), *(a_part(name, "GPU-z") for name in PARTS)])
    plan = plan_maintenance(request, MaintenanceSnapshot(now=MOMENT + LATER, scope=scope("gpu-0", other), rules=rules))
    assert {device.device for rule in plan.delete if (device := maintained_device(rule))} == set(PARTS)


def test_a_name_that_stands_for_another_gpu_is_not_taken_for_the_same_board() -> None:
    request, rules = isolated(a_request(), scope("gpu-0", hardware([a_whole(0, "GPU-a")])))
    replaced = scope("gpu-0", hardware([a_whole(0, "GPU-new")]), gpu_0="GPU-a")
    request = look(request, replaced, rules)
    status, reason, message = ready(request)
    assert (status, reason) == ("False", "OtherGpu")
    assert message.startswith("gpu-0 of node-1 was GPU-a when it was isolated and is GPU-new now.")
    assert [each.uuid for each in request.status.devices] == ["GPU-a"]


def test_nobody_is_made_to_leave_another_gpu_that_has_the_name_now() -> None:
    """For example, another machine has the node's name: users of its board have nothing to do with the request."""
    request, rules = isolated(a_request(), scope("gpu-0", hardware([a_whole(0, "GPU-a")])))
    replaced = scope("gpu-0", hardware([a_whole(0, "GPU-new")]), gpu_0="GPU-a")
    holder = a_claim("theirs", on=["node-1/gpu-0"], reserved_for=["pod"])
    drain = DrainPlan(leaving=(ObjectKey("default", "pod"),), no_execute=True, message="1 pod is leaving.")
    seen = MaintenanceSnapshot(now=MOMENT + 2 * LATER, scope=replaced, rules=rules, claims=(holder,))
    plan = plan_maintenance(request, seen, drain)
    assert ready(carried_out(request, plan))[1] == "OtherGpu"
    assert not plan.apply, "no taint that evicts"
    again = plan_maintenance(carried_out(request, plan), seen, drain)
    assert (again.drain, carried_out(request, plan).status.phase) == (False, MaintenancePhase.ISOLATED)
    same = msgspec.structs.replace(seen, scope=scope("gpu-0", hardware([a_whole(0, "GPU-a")]), gpu_0="GPU-a"))
    assert [rule.spec.taint.effect for rule in plan_maintenance(request, same, drain).apply] == ["NoExecute"]


def test_the_gpu_that_is_under_maintenance_is_noted_down_once_it_is_known() -> None:
    nameless = rule_for(a_request(), key("gpu-0"))
    known = MaintenanceSnapshot(now=MOMENT, scope=scope("gpu-0", hardware([a_whole(0, "GPU-a")])), rules=(nameless,))
    (put_right,) = plan_maintenance(a_request(), known).apply
    assert isolated_board(put_right) == "GPU-a"


def test_a_claim_that_tolerates_the_taint_holds_up_the_promise() -> None:
    request, rules = isolated(a_request(), scope("gpu-0"))
    request = look(request, scope("gpu-0"), rules, tolerant=[ObjectKey("team-a", "greedy")])
    assert ready(request)[:2] == ("False", "Obtainable")
    assert request.status.phase is MaintenancePhase.ISOLATED
    assert request.status.message == (
        "8 devices are isolated and free, but claim team-a/greedy waits for devices and tolerates the taint "
        "draco.dev/maintenance:NoSchedule: delete it, or set spec.taint.key to one that is not tolerated."
    )


TAINT = DeviceTaint(key="draco.dev/maintenance", effect="NoSchedule")


@pytest.mark.parametrize(
    ("claim", "may"),
    [
        (a_claim(), False),
        (a_claim(tolerations=[DeviceToleration(operator="Exists")]), True),
        (a_claim(tolerations=[DeviceToleration(key="draco.dev/maintenance", operator="Exists")]), True),
        (a_claim(tolerations=[DeviceToleration(key="other", operator="Exists")]), False),
        (a_claim(tolerations=[DeviceToleration(operator="Exists", effect="NoExecute")]), False),
        (a_claim(tolerations=[DeviceToleration(operator="Exists")], on=["node-1/gpu-4"]), False),
        (a_claim(tolerations=[DeviceToleration(operator="Exists")], deleting=True), False),
        (a_claim(tolerations=[DeviceToleration(operator="Exists")], admin_access=True), False),
    ],
)
def test_who_might_be_given_a_tainted_device_waits_for_one_and_tolerates_it(claim: ResourceClaim, may: bool) -> None:
    assert bool(claim.classes_in_spite_of(TAINT)) is may


@pytest.mark.parametrize("uuid", ["GPU-a", ""])
def test_a_gpu_that_is_made_whole_is_isolated_with_the_partition_that_was(uuid: str) -> None:
    whole = hardware([a_whole(0, "GPU-a"), a_whole(1, "GPU-b")])
    assert names(scope(PARTS[0], whole, **{PARTS[0]: uuid}).overlapping) == {"gpu-0"}


def test_a_gpu_that_is_made_whole_on_another_board_is_left_alone() -> None:
    assert not scope(PARTS[0], hardware([a_whole(0, "GPU-new")]), **{PARTS[0]: "GPU-a"}).overlapping


def test_a_held_part_of_a_gpu_that_is_published_no_more_is_isolated_with_it() -> None:
    assert names(scope("gpu-0", hardware([]), held=[PARTS[0]], gpu_0="GPU-a").overlapping) == {PARTS[0]}


GONE = hardware([a_whole(1, "GPU-b")], generation=2)


@pytest.mark.parametrize(
    ("device", "uuid", "pool", "is_gone"),
    [
        ("gpu-0", "GPU-a", DIVIDED, False),
        ("gpu-0", "GPU-a", GONE, True),
        ("gpu-0", "", GONE, True),
        ("gpu-0", "GPU-a", PoolHardware(()), True),
        ("gpu-0", "GPU-a", hardware([a_part(PARTS[0], "GPU-a")]), False),  # it was divided
        (PARTS[0], "GPU-a", hardware([a_whole(0, "GPU-a")]), False),  # it was made whole
        (PARTS[0], "GPU-a", hardware([a_part(PARTS[1], "GPU-a")]), False),  # divided differently
        ("gpu-0", "GPU-a", hardware([a_whole(7, "GPU-a")]), False),  # it has another name
        ("gpu-0", "", hardware([a_whole(0, "")]), False),
        (PARTS[0], "GPU-a", GONE, True),
    ],
)
def test_a_device_has_vanished_once_nothing_of_its_gpu_is_published(
    device: str, uuid: str, pool: PoolHardware, is_gone: bool
) -> None:
    assert vanished({key(device): uuid}, {POOL: pool}) == [key(device)] * is_gone


def test_what_a_driver_has_not_replaced_yet_has_not_vanished() -> None:
    before = a_slice("node-1", [a_whole(0, "GPU-a")], name="one", of=2)
    newer = a_slice("node-1", [a_whole(1, "GPU-b")], name="two", generation=2, of=2)
    assert vanished({key("gpu-0"): "GPU-a"}, {POOL: PoolHardware([before, newer])}) == []
    assert vanished({key("gpu-0"): "GPU-a"}, {}) == [key("gpu-0")]


def test_work_goes_on_without_the_device_and_its_rule_stays() -> None:
    request, rules = isolated(a_request("gpu-1"), scope("gpu-1"))
    seen = MaintenanceSnapshot(now=MOMENT + 2 * LATER, rules=rules, vanished=(key("gpu-1"),))
    plan = plan_maintenance(request, seen)
    assert (plan.apply, plan.delete) == ((), ())
    gone = carried_out(request, plan)
    assert gone.status.phase is MaintenancePhase.IN_MAINTENANCE
    assert " ".join(ready(gone)) == (
        "True NotPublished "
        "1 device is isolated and no claim holds it: work can start. "
        "gpu-1 of node-1 is not published now, and stays isolated when it comes back."
    )
