"""Shares that no container could use together: told when the claim is written, and again when it is allocated so."""

from typing import Any

import msgspec
import pytest

from draco.allocation.fleet.fleet import Fleet
from draco.explanation.explain import explain
from draco.explanation.model import ObstacleKind, Problem, ProblemKind
from draco.explanation.problems.claims import problems_of
from draco.resources.api.claims import (
    CapacityRequirements,
    DeviceClaim,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from draco.resources.api.slices import CapacityRange, CapacityRequestPolicy, Device, DeviceAttribute, DeviceCapacity
from draco.resources.names import ATTRIBUTE_MEMORY_LIMIT
from tests.builders import a_claim, a_device_class, a_node, a_pod, a_slice, as_shares
from tests.unit.explanation.clusters import GPU, selectors

_SHARED = CapacityRequestPolicy(default="10Gi", valid_range=CapacityRange(min="1Gi", step="1Gi"))


def a_gpu(name: str, level: str, policy: CapacityRequestPolicy) -> Device:
    memory = DeviceCapacity(value="80Gi", request_policy=None if level == "alone" else policy)
    return Device(
        name=name,
        attributes={} if level == "alone" else {ATTRIBUTE_MEMORY_LIMIT: DeviceAttribute(string=level)},
        capacity={"memory": memory},
        allow_multiple_allocations=level != "alone",
    )


def a_fleet(*levels: str, policy: CapacityRequestPolicy = _SHARED) -> Fleet:
    gpus = [a_gpu(f"gpu-{number}", level, policy) for number, level in enumerate(levels)]
    return Fleet.of(slices=[a_slice("n1", gpus)], nodes=[a_node("n1")], classes=[a_device_class()])


def asking(**requests: Any) -> ResourceClaim:
    """A claim whose requests ask so, such as a={"count": 2}."""
    devices = [
        DeviceRequest(name=name, exactly=ExactDeviceRequest(device_class_name=GPU, **fields))
        for name, fields in requests.items()
    ]
    return msgspec.structs.replace(a_claim(), spec=ResourceClaimSpec(devices=DeviceClaim(requests=devices)))


def problems(claim: ResourceClaim, fleet: Fleet) -> list[Problem]:
    return problems_of(fleet, [claim])


SHARES = {"selectors": selectors("device.allowMultipleAllocations")}
WHOLE = {"selectors": selectors("!device.allowMultipleAllocations")}


def test_a_count_of_gpus_that_are_all_shared_with_mps_is_told_before_anything_is_allocated() -> None:
    [problem] = problems(asking(gpu={"count": 2}), a_fleet("mps", "mps"))
    assert (problem.kind, problem.request, problem.fatal) == (ProblemKind.SHARES_REFUSED, "gpu", False)
    assert problem.text.startswith(
        "request gpu wants 2 GPUs, and all that it selects are shared with MPS: a container can be"
    )
    assert problem.remedy == "ask for 1, or use several pods with a claim each"


@pytest.mark.parametrize(
    ("claim", "levels"),
    [
        (asking(gpu={}), ["mps", "mps"]),
        (asking(one={}, two={}), ["mps", "mps"]),  # they may get shares of one GPU
        (asking(gpu={"count": 2}), ["mps", "alone", "alone"]),
        (asking(gpu={"count": 2}), ["library", "library"]),
        (asking(gpu={"count": 2}), ["driver", "none"]),
        (asking(share=SHARES, monitor={**WHOLE, "admin_access": True}), ["mps", "alone"]),
    ],
)
def test_what_may_go_well_is_no_problem(claim: ResourceClaim, levels: list[str]) -> None:
    assert problems(claim, a_fleet(*levels)) == []


def test_claims_that_know_nothing_of_shares_have_gpus_alone_where_the_policy_says_so() -> None:
    alone = a_fleet("mps", "mps", policy=msgspec.structs.replace(_SHARED, default="80Gi"))
    assert problems(asking(gpu={"count": 2}), alone) == []
    of_10_gib = CapacityRequirements(requests={"memory": "10Gi"})
    assert len(problems(asking(gpu={"count": 2, "capacity": of_10_gib}), alone)) == 1
    assert (
        problems(asking(gpu={"count": 2, "capacity": CapacityRequirements(requests={"memory": "80Gi"})}), alone) == []
    )


@pytest.mark.parametrize(
    ("level", "text"),
    [
        (
            "mps",
            "all GPUs that request share selects are shared with MPS, and none that request whole selects: a container",
        ),
        (
            "library",
            "are shared with a library that limits their memory, and none that request whole selects: a container",
        ),
    ],
)
def test_a_share_and_a_gpu_without_one_are_told_with_their_requests(level: str, text: str) -> None:
    [problem] = problems(asking(share=SHARES, whole=WHOLE), a_fleet(level, "alone"))
    assert (problem.kind, problem.request) == (ProblemKind.SHARES_REFUSED, "whole")
    assert text in problem.text


def test_a_pod_whose_shares_go_not_together_is_told_why_it_does_not_start() -> None:
    fleet = a_fleet("mps", "mps")
    one = as_shares(a_claim(on=[f"{GPU}/n1/gpu-0"]), "a", memory="10Gi")
    assert one.status.allocation is not None
    other = msgspec.structs.replace(one.results[0], device="gpu-1", share_id="b")
    devices = msgspec.structs.replace(one.status.allocation.devices, results=[*one.results, other])
    allocation = msgspec.structs.replace(one.status.allocation, devices=devices)
    both = msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, allocation=allocation))
    pod = a_pod(node="n1")
    pod = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Pending"))
    assert explain(fleet, [one], pod=pod).obstacles == []
    [found] = explain(fleet, [both], pod=pod).obstacles
    assert found.kind is ObstacleKind.SHARES_REFUSED
    assert found.text.startswith(
        "it has gpu-0, gpu-1 with MPS, and a container can be the client of only one MPS daemon"
    )
    assert found.remedy == "make a new claim: ask for shares of one GPU, or use several pods with a claim each"
