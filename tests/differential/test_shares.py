"""Shares of devices, case by case: what each claim consumes, and that Kubernetes' own allocator answers the same."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.differential.test_allocator import Json, draco_says, kubernetes_says
from tests.oracle.programs import Oracle

ORACLE = "allocator"
DRIVER = "gpu.example.com"
ADMIN, EXCLUSIVE = "admin", "exclusive"

BY_STEP = {"default": "10Gi", "validRange": {"min": "1Gi", "max": "64Gi", "step": "3Gi"}}
BY_VALUE = {"default": "10Gi", "validValues": ["5Gi", "10Gi", "20Gi", "80Gi"]}
ALL = {"default": "80Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
ONE = {"value": "2", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}}
NEVER = "error"


def a_gpu(name: str = "gpu-0", policy: Json | None = None, **fields: Any) -> Json:
    memory = {"value": "80Gi"} | ({} if policy is None else {"requestPolicy": policy})
    return {"name": name, "allowMultipleAllocations": True, "capacity": {"memory": memory}} | fields


def wants(*amounts: str | None, of: str = "memory", **fields: Any) -> list[Json]:
    """Requests for one device each, with an amount or none."""
    return [
        {
            "name": f"gpu-{number}",
            "exactly": {"deviceClassName": "gpu"} | ({"capacity": {"requests": {of: each}}} if each else {}) | fields,
        }
        for number, each in enumerate(amounts)
    ]


def held(number: int, device: str, consumed: str | None = None, **fields: Any) -> Json:
    result: Json = {"request": "gpu", "driver": DRIVER, "pool": "node-0", "device": device} | fields
    if consumed:
        result |= {"shareID": f"00000000-0000-4000-8000-{number:012d}", "consumedCapacity": {"memory": consumed}}
    return _claim(f"held-{number}", wants(None), {"allocation": {"devices": {"results": [result]}}})


def decided(go: Oracle, devices: Sequence[Json], requests: Sequence[Json], *others: Json, **spec: Any) -> Any:
    """The devices that the claim gets, with what it consumes; None for no place, NEVER for an error. Kubernetes says the same."""
    pool = {"name": "node-0", "generation": 1, "resourceSliceCount": 1 + bool(spec)}
    slices = [{"nodeName": "node-0", "devices": list(devices)}, *([{"nodeName": "node-0", **spec}] if spec else [])]
    scenario = {
        "name": "shares",
        "objects": [
            _object("v1", "Node", "node-0"),
            _object("resource.k8s.io/v1", "DeviceClass", "gpu", spec={}),
            *(
                _object(
                    "resource.k8s.io/v1", "ResourceSlice", f"slice-{number}",
                    spec={"driver": DRIVER, "pool": pool, **each},
                )
                for number, each in enumerate(slices)
            ),
            *others,
            _claim("wanted", requests),
        ],
        "node": "node-0",
        "claims": ["default/wanted"],
    }  # fmt: skip
    mine = draco_says(scenario)
    assert mine == kubernetes_says(go, scenario)
    if "error" in mine:
        return NEVER
    if mine["results"] is None:
        return None
    (result,) = mine["results"]
    return [_told(each) for each in result.devices.results]


def _told(result: Any) -> tuple[str, str]:
    assert (result.share_id is None) == (not result.consumed_capacity)
    kind = ADMIN if result.admin_access and result.share_id is None else EXCLUSIVE
    return result.device, result.consumed_capacity.get("memory", kind)


def _object(version: str, kind: str, name: str, **fields: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}} | fields


def _claim(name: str, requests: Sequence[Json], status: Json | None = None) -> Json:
    claim = _object("resource.k8s.io/v1", "ResourceClaim", name, spec={"devices": {"requests": list(requests)}})
    claim["metadata"]["namespace"] = "default"
    return claim | ({"status": status} if status else {})


@pytest.mark.parametrize(
    ("policy", "asked", "consumed"),
    [
        (BY_STEP, "4Gi", "4Gi"),
        (BY_STEP, "4097Mi", "7Gi"),  # rounded up to 1Gi + 2 * 3Gi
        (BY_STEP, "1", "1Gi"),  # the minimum
        (BY_STEP, "62Gi", "64Gi"),
        (BY_STEP, "65Gi", None),  # above the maximum
        (BY_STEP, None, "10Gi"),
        (BY_VALUE, "5Gi", "5Gi"),
        (BY_VALUE, "6Gi", "10Gi"),  # the next valid value
        (BY_VALUE, "21Gi", "80Gi"),
        (BY_VALUE, "81Gi", None),
        (BY_VALUE, None, "10Gi"),
        (ALL, None, "80Gi"),
        (ALL, "0", "1Gi"),
        (ALL, "81Gi", None),
        (ALL, "16E", NEVER),  # cannot be rounded by steps in 64 bits
        (None, "10Gi", "10Gi"),
        (None, None, "80Gi"),  # without a policy all of it
    ],
)
def test_an_amount_is_rounded_by_the_policy(
    go: Oracle, policy: Json | None, asked: str | None, consumed: str | None
) -> None:
    expected = consumed if consumed in {None, NEVER} else [("gpu-0", consumed)]
    assert decided(go, [a_gpu(policy=policy)], wants(asked)) == expected


def test_shares_of_other_claims_leave_the_rest(go: Oracle) -> None:
    others = [held(1, "gpu-0", "40Gi"), held(2, "gpu-0", "30Gi")]
    assert decided(go, [a_gpu(policy=ALL)], wants("10Gi"), *others) == [("gpu-0", "10Gi")]
    assert decided(go, [a_gpu(policy=ALL)], wants("11Gi"), *others) is None
    assert decided(go, [a_gpu(policy=ALL)], wants(None), *others) is None
    assert decided(go, [a_gpu(policy=ALL), a_gpu("gpu-1", ALL)], wants("11Gi"), *others) == [("gpu-1", "11Gi")]


def test_a_claim_may_have_several_shares_of_one_device_with_a_request_for_each(go: Oracle) -> None:
    gpu = a_gpu(policy=ALL)
    assert decided(go, [gpu], wants("10Gi", "70Gi")) == [("gpu-0", "10Gi"), ("gpu-0", "70Gi")]
    assert decided(go, [gpu], wants("10Gi", "71Gi")) is None
    assert decided(go, [gpu], wants("10Gi", "70Gi"), held(1, "gpu-0", "1Gi")) is None
    assert decided(go, [gpu], wants("10Gi", count=2)) is None
    two = [gpu, a_gpu("gpu-1", ALL)]
    assert decided(go, two, wants("10Gi", count=2)) == [("gpu-0", "10Gi"), ("gpu-1", "10Gi")]
    assert decided(go, two, wants("50Gi", "40Gi")) == [("gpu-0", "50Gi"), ("gpu-1", "40Gi")]


def test_whoever_has_a_device_alone_leaves_no_share_and_a_share_is_charged_beside_it(go: Oracle) -> None:
    assert decided(go, [a_gpu(policy=ALL)], wants("1Gi"), held(1, "gpu-0")) is None
    alone = a_gpu(policy=None, allowMultipleAllocations=False)
    assert decided(go, [alone], wants("1Gi")) == [("gpu-0", EXCLUSIVE)]
    assert decided(go, [alone], wants("81Gi")) is None
    assert decided(go, [alone], wants("1Gi", "1Gi")) is None


def test_a_capacity_that_the_device_lacks_rules_it_out(go: Oracle) -> None:
    assert decided(go, [a_gpu(policy=ALL)], wants("1", of="shares")) is None
    by_count = a_gpu("gpu-1", {"default": "0", "validRange": {"min": "0", "step": "1Mi"}})
    by_count["capacity"]["shares"] = ONE
    assert decided(go, [a_gpu(policy=ALL), by_count], wants("1", "1", of="shares")) == [("gpu-1", "0"), ("gpu-1", "0")]
    assert decided(go, [by_count], wants("1", "1", "1", of="shares")) is None


COUNTERS = {"sharedCounters": [{"name": "card", "counters": {"slices": {"value": "4"}}}]}


def _draws(slices: str) -> Json:
    return {"consumesCounters": [{"counterSet": "card", "counters": {"slices": {"value": slices}}}]}


def test_all_shares_of_a_device_are_charged_to_its_counters_once(go: Oracle) -> None:
    whole = a_gpu("gpu-0", ALL, **_draws("4"))
    halves = [a_gpu("mig-0", ALL, **_draws("2")), a_gpu("mig-1", ALL, **_draws("2"))]
    assert decided(go, halves, wants("40Gi", "40Gi", "1Gi"), **COUNTERS) == [
        ("mig-0", "40Gi"), ("mig-0", "40Gi"), ("mig-1", "1Gi"),
    ]  # fmt: skip
    assert decided(go, [whole, *halves], wants("1Gi"), held(1, "gpu-0", "1Gi"), **COUNTERS) == [("gpu-0", "1Gi")]
    assert decided(go, halves, wants("80Gi"), held(1, "mig-0", "1Gi"), **COUNTERS) == [("mig-1", "80Gi")]
    one = held(1, "mig-0", "1Gi")
    assert decided(go, [*halves, whole], wants("80Gi", "1Gi"), one, **COUNTERS) == [("mig-1", "80Gi"), ("mig-0", "1Gi")]
    assert decided(go, [whole, *halves], wants("80Gi", "80Gi"), one, **COUNTERS) is None


def test_a_taint_keeps_new_shares_off_a_device_that_has_some(go: Oracle) -> None:
    tainted = a_gpu(policy=ALL, taints=[{"key": "example.com/a", "effect": "NoSchedule"}])
    one = held(1, "gpu-0", "10Gi")
    assert decided(go, [tainted], wants("10Gi"), one) is None
    tolerating = wants("10Gi", tolerations=[{"key": "example.com/a", "operator": "Exists"}])
    assert decided(go, [tainted], tolerating, one) == [("gpu-0", "10Gi")]


def test_administrative_access_asks_for_an_amount_of_a_shared_device_like_everybody(go: Oracle) -> None:
    gpu = a_gpu(policy=BY_STEP)
    for consumed in ("60Gi", "79Gi"):
        found = decided(go, [gpu], wants("1Gi", adminAccess=True), held(1, "gpu-0", consumed))
        assert found == [("gpu-0", "1Gi")]
    full = held(1, "gpu-0", "80Gi")
    assert decided(go, [gpu], wants("1Gi", adminAccess=True), full) is None
    assert decided(go, [gpu], wants(None, adminAccess=True), held(1, "gpu-0", "75Gi")) is None
    watched = held(2, "gpu-0", "80Gi", adminAccess=True)
    assert decided(go, [gpu], wants("64Gi"), watched) == [("gpu-0", "64Gi")]  # it holds nothing
