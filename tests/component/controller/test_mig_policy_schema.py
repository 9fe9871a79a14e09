"""What the API server itself refuses in a MigPolicy, and with which message."""

import uuid
from typing import Any

import pytest

from draco.kube.connect.client import Client
from draco.kube.errors import ApiError
from draco.resources.api.draco import IdleClaims
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import MIG_POLICIES

pytestmark = pytest.mark.usefixtures("crds")

HALVES = {"name": "halves", "instances": [{"profile": "3g.40gb", "count": 2}]}


async def create(client: Client, spec: dict[str, Any]) -> ObjectKey:
    key = ObjectKey("", f"policy-{uuid.uuid4().hex[:8]}")
    await client.create(MIG_POLICIES, {"metadata": {"name": key.name}, "spec": spec})
    return key


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"mode": "Static", "layouts": [HALVES]}, "mode Static needs spec.layout to name one of spec.layouts"),
        (
            {"mode": "Static", "layouts": [HALVES], "layout": "thirds"},
            "spec.layouts has no layout named thirds",
        ),
        ({"mode": "Static", "layout": "thirds"}, "spec.layouts has no layout named thirds"),
        ({"mode": "Sometimes"}, 'supported values: "Disabled", "Static", "Dynamic"'),
        ({}, "spec.mode: Required value"),
        (
            {"mode": "Dynamic", "profiles": ["1g.10gb"], "warm": [{"profile": "2g.20gb"}]},
            "every profile of spec.warm must be one of spec.profiles, or spec.profiles must be empty",
        ),
        (
            {
                "mode": "Dynamic",
                "layouts": [{"name": "x", "instances": [{"profile": "1g.10gb", "count": 2, "start": 0}]}],
            },
            "only one instance can be at a start; write one entry for each, or leave start out",
        ),
        ({"mode": "Dynamic", "reset": {"permit": "InWindows"}}, "permit InWindows needs at least one window"),
        (
            {"mode": "Dynamic", "reset": {"windows": [{"start": "22:00", "duration": "25h"}]}},
            "a window must be open for 1m to 24h, written in hours and minutes, such as 2h30m",
        ),
        (
            {"mode": "Dynamic", "reset": {"windows": [{"start": "22:00", "duration": ""}]}},
            "a window must be open for 1m to 24h, written in hours and minutes, such as 2h30m",
        ),
        ({"mode": "Dynamic", "reset": {"windows": [{"start": "24:00", "duration": "1h"}]}}, "should match"),
        ({"mode": "Dynamic", "repair": {"maxMoves": 3}}, "should be less than or equal to 2"),
        ({"mode": "Dynamic", "repair": {"idleClaims": "Delete"}}, 'supported values: "Keep", "Release"'),
        (
            {"mode": "Dynamic", "exclude": ["gpu-0"]},
            "the UUID of a GPU starts with GPU-; `kubectl get gpunodes -o yaml` lists them",
        ),
        (
            {"mode": "Dynamic", "nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "In"}]}},
            "In and NotIn need values; Exists and DoesNotExist take none",
        ),
    ],
)
async def test_what_cannot_be_meant_is_refused_with_what_to_do(client: Client, spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as refused:
        await create(client, spec)
    assert said in str(refused.value)


async def test_what_is_left_out_is_filled_in(client: Client) -> None:
    key = await create(
        client,
        {
            "mode": "Static",
            "layout": "halves",
            "layouts": [{"name": "halves", "instances": [{"profile": "4g.40gb", "start": 0}, {"profile": "3g.40gb"}]}],
            "reset": {"permit": "InWindows", "windows": [{"start": "22:00", "duration": "2h30m", "days": ["Sat"]}]},
        },
    )
    spec = (await client.get(MIG_POLICIES, key)).spec
    assert [(each.profile, each.count, each.start) for each in spec.layouts[0].instances] == [
        ("4g.40gb", 1, 0),
        ("3g.40gb", 1, None),
    ]
    assert spec.repair.max_moves == 2
    assert spec.repair.idle_claims is IdleClaims.KEEP
    assert spec.reset.windows[0].time_zone == "UTC"
    await client.delete(MIG_POLICIES, key)
