"""With which class a verification Job claims its GPU, what it tolerates, and when its claim is useless."""

from typing import Any

import msgspec
import pytest

from draco.maintenance.working.claiming import (
    MOST_TOLERATIONS,
    OfferedDevice,
    ProbedGpu,
    class_for,
    is_outdated,
    no_class,
    obstacle,
    tolerations_for,
)
from draco.maintenance.working.jobs import JobTarget
from draco.maintenance.working.manifests import claim_manifest
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.health import FaultFamily
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import DeviceAttribute
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import TAINT_MAINTENANCE, TAINT_OPERATOR_ALLOCATED
from tests.builders import a_device, a_device_class, a_device_key, a_maintenance

OWN = "example.com/fan"
THEIRS = "example.com/riser"
MANY = [f"example.com/riser-{number}" for number in range(6)]


def taint(key: str, effect: str = "NoSchedule") -> DeviceTaint:
    return DeviceTaint(key=key, effect=effect)


HANDED_OVER = taint(TAINT_OPERATOR_ALLOCATED)


def a_class(name: str) -> DeviceClass:
    made = a_device_class(name)
    labels = {"draco.dev/allocator": "operator"} if name.endswith(".draco.dev") else {}
    return msgspec.structs.replace(made, metadata=ObjectMeta(name=name, labels=labels))


CLASSES = {
    name: a_class(name)
    for name in ("gpu.nvidia.com", "mig.nvidia.com", "gpu.draco.dev", "mig.draco.dev", "z.draco.dev", "mine")
}
OF_PARTITIONS = {"mig.nvidia.com", "mig.draco.dev"}


def a_gpu(*taints: DeviceTaint, name: str = "gpu-0", selects: set[str] | None = None, **fields: Any) -> ProbedGpu:
    device = a_device(name)
    if HANDED_OVER in taints:
        device.attributes["draco.dev/allocator"] = DeviceAttribute(string="operator")
    is_part = "-mig-" in name
    known = CLASSES.keys() - (CLASSES.keys() - OF_PARTITIONS if is_part else OF_PARTITIONS)
    offered = OfferedDevice(a_device_key(f"node-0/{name}"), device, taints)
    return ProbedGpu(
        devices=(offered,), key=OWN, selects=(known if selects is None else selects).__contains__, **fields
    )


PART = "gpu-0-mig-1g10gb-19-0"


@pytest.mark.parametrize(
    ("gpu", "asked_for", "expected"),
    [
        (a_gpu(), (), "gpu.nvidia.com"),
        (a_gpu(name=PART), (), "mig.nvidia.com"),
        (a_gpu(HANDED_OVER), (), "gpu.draco.dev"),
        (a_gpu(HANDED_OVER, name=PART), (), "mig.draco.dev"),
        (a_gpu(), ("mine", "gpu.nvidia.com"), "mine"),
        (a_gpu(), ("", "no-such-class"), "gpu.nvidia.com"),
        (a_gpu(HANDED_OVER), ("mine", "gpu.nvidia.com"), "gpu.draco.dev"),
        (a_gpu(HANDED_OVER), ("z.draco.dev",), "z.draco.dev"),
        (a_gpu(), ("z.draco.dev",), "gpu.nvidia.com"),
        (a_gpu(HANDED_OVER, selects={"z.draco.dev"}), (), "z.draco.dev"),
        (a_gpu(selects=set()), ("mine",), ""),
        (a_gpu(HANDED_OVER, selects={"gpu.nvidia.com", "mine"}), ("mine",), ""),
    ],
)
def test_the_class_is_one_whose_claims_the_allocator_of_the_gpu_allocates(
    gpu: ProbedGpu, asked_for: tuple[str, ...], expected: str
) -> None:
    assert class_for(gpu, asked_for, CLASSES) == expected


def test_without_a_class_it_is_said_what_to_create() -> None:
    assert "create gpu.draco.dev" in no_class(a_gpu(HANDED_OVER, selects=set()), "probe")
    assert "draco.dev/device-class of CronJob probe" in no_class(a_gpu(selects=set()), "probe")


def tolerates(gpu: ProbedGpu, key: str, effect: str) -> bool:
    return any(each.tolerates(taint(key, effect)) for each in tolerations_for(gpu))


@pytest.mark.parametrize(
    "standing", [(), (HANDED_OVER,), (HANDED_OVER, taint(THEIRS), taint("draco.dev/ecc", "NoExecute"))]
)
def test_it_tolerates_maintenance_and_faults_by_name_and_never_what_keeps_others_from_dracos_gpus(
    standing: tuple[DeviceTaint, ...],
) -> None:
    gpu = a_gpu(*standing, other_keys=frozenset({THEIRS}))
    for effect in ("NoSchedule", "NoExecute"):
        assert tolerates(gpu, OWN, effect)
        assert tolerates(gpu, TAINT_MAINTENANCE, effect)
        assert tolerates(gpu, THEIRS, effect) is (taint(THEIRS) in standing)
        assert not tolerates(gpu, TAINT_OPERATOR_ALLOCATED, effect)
        assert not tolerates(gpu, "example.com/by-hand", effect)
        assert not tolerates(gpu, "draco.dev/agent-lost", effect)
    found = tolerations_for(gpu)
    # With many taints, there is no room to tolerate future faults: the claim is recreated when one comes.
    all_faults = all(tolerates(gpu, f"draco.dev/{family.value}", "NoSchedule") for family in FaultFamily)
    assert all_faults or len(found) == MOST_TOLERATIONS
    assert all(each.key and each.operator == "Exists" for each in found)
    # Only a toleration with effect NoExecute lets a claim keep its device.
    assert {each.key for each in found if each.effect == "NoExecute"} == {
        OWN,
        TAINT_MAINTENANCE,
        *(each.key for each in standing if each != HANDED_OVER),
    }


def test_a_request_whose_own_taint_pretends_to_be_the_hand_over_tolerates_no_hand_over() -> None:
    gpu = msgspec.structs.replace(
        a_gpu(HANDED_OVER), key=TAINT_OPERATOR_ALLOCATED, other_keys=frozenset({TAINT_OPERATOR_ALLOCATED})
    )
    assert not tolerates(gpu, TAINT_OPERATOR_ALLOCATED, "NoSchedule")


def test_it_tolerates_no_more_than_the_api_server_takes_and_first_of_all_what_stands() -> None:
    others = [f"example.com/{number}" for number in range(20)]
    gpu = a_gpu(*map(taint, others[:5]), other_keys=frozenset(others))
    assert len(tolerations_for(gpu)) == MOST_TOLERATIONS
    assert all(tolerates(gpu, key, "NoSchedule") for key in (OWN, *others[:5]))


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        ((taint(OWN), HANDED_OVER, taint("draco.dev/xid", "NoExecute")), ""),
        ((taint("example.com/by-hand", "None"),), ""),
        (
            (taint("example.com/by-hand"),),
            "gpu-0 of node-0 has the taint example.com/by-hand:NoSchedule, which belongs to no",
        ),
        ((taint("draco.dev/agent-lost"),), "no Job can use it yet"),
        ((taint("draco.dev/unsettled"),), "no Job can use it yet"),
    ],
)
def test_what_it_does_not_tolerate_is_said(standing: tuple[DeviceTaint, ...], said: str) -> None:
    assert (said in obstacle(a_gpu(*standing))) if said else obstacle(a_gpu(*standing)) == ""


def test_a_gpu_of_which_a_part_can_be_had_has_no_obstacle() -> None:
    hindered, free = a_gpu(taint("example.com/by-hand"), name=PART), a_gpu(name="gpu-0-mig-1g10gb-19-1")
    assert obstacle(msgspec.structs.replace(hindered, devices=hindered.devices + free.devices)) == ""


def a_claim_for(gpu: ProbedGpu) -> ResourceClaim:
    target = JobTarget(a_device_key("node-0/gpu-0"), "GPU-0")
    found = class_for(gpu, (), CLASSES)
    body = claim_manifest(
        a_maintenance(), target, namespace="n", device_class=found, tolerations=tolerations_for(gpu), profile=""
    )
    return msgspec.convert(msgspec.to_builtins(body), ResourceClaim)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((), (), False),
        ((), (HANDED_OVER,), True),
        ((HANDED_OVER,), (), True),
        ((HANDED_OVER,), (HANDED_OVER, taint("draco.dev/ecc")), False),
        ((), (taint(THEIRS),), True),
        ((taint(THEIRS),), (), False),
        ((), (taint("example.com/by-hand"),), False),
        ((), (taint("draco.dev/ecc", "NoExecute"),), False),
        (tuple(map(taint, MANY)), (*map(taint, MANY), taint("draco.dev/xid")), True),
    ],
)
def test_a_claim_is_made_again_only_where_that_helps(
    before: tuple[DeviceTaint, ...], now: tuple[DeviceTaint, ...], expected: bool
) -> None:
    others = frozenset({THEIRS, *MANY})
    claim = a_claim_for(a_gpu(*before, other_keys=others))
    assert is_outdated(claim, a_gpu(*now, other_keys=others), CLASSES) is expected


def test_a_claim_stays_while_nothing_is_published_or_no_other_class_would_do() -> None:
    claim = a_claim_for(a_gpu())
    gone = msgspec.structs.replace(a_gpu(HANDED_OVER), devices=())
    assert not is_outdated(claim, gone, CLASSES)
    assert not is_outdated(claim, a_gpu(HANDED_OVER, selects=set()), CLASSES)
