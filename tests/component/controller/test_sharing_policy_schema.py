"""What the API server itself refuses in a SharingPolicy, and with which message."""

import uuid
from typing import Any

import pytest

from draco.kube.connect.client import Client
from draco.kube.errors import ApiError
from draco.resources.api.meta import ObjectKey
from draco.resources.api.sharing import Enforcement
from draco.resources.kinds import SHARING_POLICIES

pytestmark = pytest.mark.usefixtures("crds")


async def create(client: Client, spec: dict[str, Any]) -> ObjectKey:
    key = ObjectKey("", f"policy-{uuid.uuid4().hex[:8]}")
    await client.create(SHARING_POLICIES, {"metadata": {"name": key.name}, "spec": spec})
    return key


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "spec.mode: Required value"),
        ({"mode": "Half"}, 'supported values: "Memory", "Count", "Unlimited"'),
        ({"mode": "Count"}, "mode Count needs spec.count, the number of shares of a device"),
        ({"mode": "Memory", "count": 2}, "leave it out in other modes"),
        ({"mode": "Count", "count": 0}, "should be greater than or equal to 1"),
        ({"mode": "Count", "count": -1}, "should be greater than or equal to 1"),
        ({"mode": "Count", "count": 4, "step": "1Gi"}, "are amounts of memory for mode Memory"),
        ({"mode": "Unlimited", "default": "1Gi"}, "are amounts of memory for mode Memory"),
        ({"mode": "Memory", "step": "0"}, "is not a whole amount of memory of at least 1Mi"),
        ({"mode": "Memory", "step": "-1Gi"}, "is not a whole amount of memory of at least 1Mi"),
        ({"mode": "Memory", "step": "1.5Gi"}, "is not a whole amount of memory of at least 1Mi"),
        ({"mode": "Memory", "step": "1.5"}, "is not a whole amount of memory of at least 1Mi"),
        ({"mode": "Memory", "step": "a lot"}, "is not a whole amount of memory of at least 1Mi"),
        ({"mode": "Memory", "step": ""}, "is not a whole amount of memory of at least 1Mi"),
        ({"mode": "Memory", "minimum": "512Ki"}, "is not a whole amount of memory of at least 1Mi"),
        ({"mode": "Memory", "minimum": "10Gi", "default": "5Gi"}, "spec.default must not be less than spec.minimum"),
        ({"mode": "Memory", "step": "10Gi", "default": "5Gi"}, "spec.default must not be less than spec.minimum"),
        (
            {"mode": "Memory", "step": "4Gi", "default": "10Gi"},
            "spec.default must be spec.minimum plus a multiple of spec.step",
        ),
        (
            {"mode": "Memory", "step": "4Gi", "minimum": "1Gi", "default": "8Gi"},
            "spec.default must be spec.minimum plus a multiple of spec.step",
        ),
        (
            {"mode": "Count", "count": 4, "enforcement": "DriverLimit"},
            "an enforcement other than None needs mode Memory, in which each share has an amount",
        ),
        ({"mode": "Unlimited", "enforcement": "Library"}, "an enforcement other than None needs mode Memory"),
        (
            {"mode": "Memory", "migDevices": True, "enforcement": "DriverLimit"},
            "limits are for whole GPUs; leave spec.migDevices out",
        ),
        ({"mode": "Memory", "enforcement": "Trust"}, 'supported values: "None", "DriverLimit", "MPS", "Library"'),
    ],
)
async def test_a_policy_that_cannot_be_meant_is_refused(client: Client, spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as refusal:
        await create(client, spec)
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    "spec",
    [
        {"mode": "Memory"},
        {"mode": "Memory", "step": "1Gi"},
        {"mode": "Memory", "step": "1Gi", "minimum": "2Gi", "default": "10Gi"},
        {"mode": "Memory", "step": "4Gi", "minimum": "1Gi", "default": "9Gi"},
        {"mode": "Memory", "default": "1536Mi"},
        {"mode": "Count", "count": 8, "migDevices": True},
        {"mode": "Unlimited"},
    ],
)
async def test_a_policy_that_can_be_carried_out_is_kept(client: Client, spec: dict[str, Any]) -> None:
    key = await create(client, spec)
    policy = await client.get(SHARING_POLICIES, key)
    assert policy.spec.enforcement is Enforcement.NONE
    await client.delete(SHARING_POLICIES, key)
