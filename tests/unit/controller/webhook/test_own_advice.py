"""Immediate warnings about Draco's own kinds: the sentence that their status would have, and never a denial."""

import json
from typing import Any

import msgspec
import pytest

from draco.controller.webhook.admission_review import ReviewOutcome
from draco.controller.webhook.own_kind_advice import OwnKindAdvice
from draco.kube.clock import SystemClock
from draco.resources.api.claims import DeviceClass

DEVICE = {"driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-3"}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("DeviceMaintenance", {"deviceSelector": DEVICE}, ""),
    (
        "DeviceMaintenance",
        {"deviceSelector": {"selectors": [{"cel": {"expression": "device.driver ="}}]}},
        "spec.deviceSelector.selectors[0] does not compile",
    ),
    ("DeviceMaintenance", {"deviceSelector": {"deviceClassName": "gpus"}}, "There is no DeviceClass gpus"),
    (
        "DeviceMaintenance",
        {
            "deviceSelector": DEVICE,
            "schedule": {"windows": [{"start": "22:00", "duration": "2h", "timeZone": "Europe/Atlantis"}]},
        },
        "Europe/Atlantis is not a time zone",
    ),
    (
        "DeviceMaintenance",
        {"deviceSelector": DEVICE, "schedule": {"start": "2020-01-01T00:00:00Z"}},
        "spec.schedule.start is in the past (2020-01-01T00:00:00Z)",
    ),
    (
        "DeviceMaintenance",
        {"deviceSelector": DEVICE, "schedule": {"start": "2020-01-01T06:00:00+02:00"}},
        "spec.schedule.start is in the past (2020-01-01T04:00:00Z)",
    ),
    ("MaintenanceBudget", {"maxDevices": 2, "deviceClassName": "known"}, ""),
    ("MaintenanceBudget", {"maxDevices": 0}, "Nothing can be taken out of service"),
    ("MaintenanceBudget", {}, "This budget limits nothing"),
    ("MaintenanceBudget", {"maxDevices": 2, "deviceClassName": "gpus"}, "There is no DeviceClass gpus"),
    ("MaintenanceBudget", {"paused": True}, ""),
    ("HealthPolicy", {"rules": [{"name": "mild", "condition": "fault.xid == 13", "effect": "Record"}]}, ""),
    (
        "HealthPolicy",
        {"rules": [{"name": "mild", "condition": "fault.xid == '13'", "effect": "Record"}]},
        "The condition of rule mild is invalid",
    ),
    (
        "MigPolicy",
        {"mode": "Dynamic", "reset": {"windows": [{"start": "22:00", "duration": "2h", "timeZone": "Mars"}]}},
        "Mars is not a time zone",
    ),
    ("SharingPolicy", {"mode": "Memory"}, ""),
    (
        "SharingPolicy",
        {"mode": "Memory", "deviceSelectors": [{"cel": {"expression": "device.driver ="}}]},
        "spec.deviceSelectors[0] is invalid",
    ),
    ("DeviceLimit", {"limits": {"devices": 1}}, ""),
    ("DeviceLimit", {"limits": {"devices": 1}, "deviceClassNames": ["gpus"]}, "There is no DeviceClass gpus"),
    (
        "DeviceLimit",
        {"limits": {"devices": 1}, "deviceClassNames": ["known"]},
        "kube-scheduler allocates claims of DeviceClass",
    ),
    ("Secret", {}, ""),
]


async def reviewed(kind: str, spec: dict[str, Any], **request: Any) -> tuple[dict[str, Any], ReviewOutcome]:
    known = msgspec.convert({"metadata": {"name": "known"}}, DeviceClass)
    advice = OwnKindAdvice(lambda: {"known": known}, clock=SystemClock())
    found = {"metadata": {"name": "one", "generation": 1}, "spec": spec}
    asked = {"uid": "r", "kind": {"kind": kind}, "operation": "CREATE", "object": found} | request
    answer, outcome = await advice.review(json.dumps({"request": asked}).encode())
    response: dict[str, Any] = json.loads(answer)["response"]
    return response, outcome


@pytest.mark.parametrize(("kind", "spec", "said"), CASES)
async def test_what_can_be_seen_of_an_object_alone_is_said_at_once(kind: str, spec: dict[str, Any], said: str) -> None:
    response, outcome = await reviewed(kind, spec)
    assert response["allowed"] is True
    if said:
        [warning] = response["warnings"]
        assert said in warning
    else:
        assert "warnings" not in response
    assert (outcome is ReviewOutcome.WARNED) is bool(said)


async def test_what_leaves_the_spec_as_it_was_gets_no_advice() -> None:
    old = {"metadata": {"name": "one", "finalizers": ["example.com/a"]}, "spec": {}}
    response, outcome = await reviewed("MaintenanceBudget", {}, operation="UPDATE", oldObject=old)
    assert (response, outcome) == ({"uid": "r", "allowed": True}, ReviewOutcome.UNSEEN)


async def test_an_object_that_cannot_be_read_is_stored() -> None:
    response, outcome = await reviewed("HealthPolicy", {"rules": 3})
    assert (response, outcome) == ({"uid": "r", "allowed": True}, ReviewOutcome.UNSEEN)
