"""What isolation would do, counted before anything is done."""

from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from draco.maintenance.selecting.fleet import ClassSupply, PhysicalGpu, takes_most
from draco.maintenance.selecting.rehearsal import NAMED, RehearsedObjects, problem_of, rehearsal_of, rehearse
from draco.resources.api.maintenance import MaintenanceSchedule
from draco.resources.api.meta import ObjectMeta, TimeWindow
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import NVIDIA_DRIVER, DeviceKey
from tests.builders import a_claim, a_device, a_device_class, a_maintenance, a_pod, a_rule, a_slice

GPUS = [PhysicalGpu(NVIDIA_DRIVER, "node-0", f"gpu-{number}") for number in range(4)]
DEVICES = [DeviceKey(*gpu) for gpu in GPUS]
SLICES = [a_slice("node-0", [gpu.gpu for gpu in GPUS])]


@pytest.mark.parametrize(
    ("taken", "selector", "permitted", "refused"),
    [
        (2, {"deviceClassName": "gpus"}, False, False),
        (3, {"deviceClassName": "gpus"}, False, True),
        (3, {"deviceClassName": "gpus"}, True, False),
        (4, {"driver": NVIDIA_DRIVER, "pool": "node-0"}, False, True),
        (4, {"pool": "node-0", "device": "gpu-0"}, False, False),
    ],
)
def test_more_than_half_of_a_class_needs_a_permit(
    taken: int, selector: dict[str, Any], permitted: bool, refused: bool
) -> None:
    request = a_maintenance(**selector)
    spec = msgspec.structs.replace(request.spec, allow_most_of_class=permitted)
    supply = ClassSupply("gpus", frozenset(GPUS), frozenset())
    found = takes_most(msgspec.structs.replace(request, spec=spec), GPUS[:taken], [supply])
    assert (found is not None) == refused
    if found:
        assert (found.reason, f"takes {taken} of 4 GPUs" in found.message) == ("MostOfClass", True)


def test_a_pod_counts_once_however_many_of_its_claims_are_concerned() -> None:
    claims = [
        a_claim(name, on=[f"node-0/{gpu}"], reserved_for=["train"]) for name, gpu in (("a", "gpu-0"), ("b", "gpu-1"))
    ]
    found = rehearsal_of(DEVICES[:2], GPUS[:2], claims=claims, pods=None)
    assert (found.devices, found.claims, found.pods, found.pod_names) == (2, 2, 1, ["default/train"])


def test_who_only_looks_on_or_holds_something_else_does_not_count() -> None:
    claims = [
        a_claim("monitor", on=["node-0/gpu-0"], reserved_for=["monitor"], admin_access=True),
        a_claim("other", on=["node-0/gpu-3"], reserved_for=["other"]),
    ]
    found = rehearsal_of(DEVICES[:1], GPUS[:1], claims=claims, pods=None)
    assert (found.claims, found.pods) == (0, 0)


def test_counts_are_whole_and_names_are_few() -> None:
    pods = [f"pod-{number:03}" for number in range(NAMED + 5)]
    found = rehearsal_of(DEVICES[:1], GPUS[:1], claims=[a_claim(on=["node-0/gpu-0"], reserved_for=pods)], pods=None)
    assert (found.pods, len(found.pod_names)) == (NAMED + 5, NAMED)


@pytest.mark.parametrize(("taken", "free_after"), [([0], 1), ([2], 2), ([0, 1], 0), ([2, 3], 2)])
def test_what_is_in_use_anyway_leaves_no_class_poorer(taken: Collection[int], free_after: int) -> None:
    supply = ClassSupply("gpus", frozenset(GPUS), frozenset(GPUS[:2]))
    gpus = [GPUS[each] for each in taken]
    (found,) = rehearsal_of([DEVICES[each] for each in taken], gpus, claims=(), pods=None, classes=[supply]).classes
    assert (found.devices, found.free, found.free_after) == (4, 2, free_after)


def test_a_class_that_is_not_concerned_is_not_spoken_of() -> None:
    other = ClassSupply("others", frozenset(GPUS[3:]), frozenset())
    assert rehearsal_of(DEVICES[:1], GPUS[:1], claims=(), pods=None, classes=[other]).classes == []


def test_a_request_that_is_nowhere_yet_is_rehearsed_with_all_that_the_cluster_has() -> None:
    objects = RehearsedObjects(
        slices=SLICES,
        claims=[a_claim("train", on=["node-0/gpu-0"], reserved_for=["train"])],
        classes=[a_device_class("gpus")],
        pods=[a_pod("train", claims=["train"])],
        rules=[a_rule(pool="node-0", device="gpu-1")],
    )
    found = rehearse(a_maintenance(driver=NVIDIA_DRIVER, pool="node-0", device="gpu-0"), objects)
    assert (found.devices, found.problem) == ((DEVICES[0],), "")
    assert (found.summary.claims, found.summary.pods) == (1, 1)
    assert [(each.devices, each.free, each.free_after) for each in found.summary.classes] == [(4, 2, 2)]
    most = rehearse(a_maintenance(deviceClassName="gpus"), objects)
    assert (most.reason, len(most.gpus)) == ("MostOfClass", 4)
    assert rehearse(a_maintenance(deviceClassName="gone"), objects).reason == "NoDeviceClass"


@pytest.mark.parametrize(("labels", "free"), [({"draco.dev/allocator": "operator"}, (3, 2)), ({}, (0, 0))])
def test_gpus_that_draco_allocates_are_free_for_its_own_classes_until_a_claim_has_them(
    labels: dict[str, str], free: tuple[int, int]
) -> None:
    """For kube-scheduler they are tainted: its claims get none of them."""
    taint = DeviceTaint(key="draco.dev/operator-allocated", effect="NoSchedule")
    slices = [a_slice("node-0", [a_device(gpu.gpu, taints=[taint]) for gpu in GPUS])]
    objects = RehearsedObjects(
        slices=slices,
        claims=[a_claim("train", on=["node-0/gpu-1"])],
        classes=[msgspec.structs.replace(a_device_class(), metadata=ObjectMeta(name="gpus", labels=labels))],
        pods=[],
        disruption_budgets=[],
        rules=[],
    )
    found = rehearse(a_maintenance(pool="node-0", device="gpu-0"), objects)
    assert [(each.devices, each.free, each.free_after) for each in found.summary.classes] == [(4, *free)]


def test_a_request_for_nothing_or_for_no_time_has_a_problem() -> None:
    request = a_maintenance(pool="node-0")
    assert problem_of(request, DEVICES) is None
    nothing = problem_of(request, [])
    assert nothing is not None
    assert nothing.reason == "NoDevices"
    schedule = MaintenanceSchedule(windows=[TimeWindow(start="22:00", duration="0m")])
    never = problem_of(
        msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, schedule=schedule)), DEVICES
    )
    assert never is not None
    assert never.reason == "InvalidSchedule"
