"""Shared by tests of preemption: pods with priorities that Draco may evict for others."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import EVENTS, MIG_POLICIES, PODS, Kind

PRIORITY_CLASSES: Kind[Any] = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, dict)
_PRIORITIES: Final = {
    "low": (10, {}),
    "middle": (50, {}),
    "high": (100, {}),
    "polite": (100, {"preemptionPolicy": "Never"}),
}


def of_priority(name: str) -> dict[str, Any]:
    """The fields of a pod's spec for a priority."""
    return {"priorityClassName": f"draco-test-{name}"}


async def permit(client: Client, preemption: str = "LowerPriority") -> None:
    """Set preemption in the policy."""
    await client.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"preemption": preemption}})


@pytest.fixture
async def priorities(client: Client) -> AsyncIterator[None]:
    """PriorityClasses for the tests."""
    for name, (value, more) in _PRIORITIES.items():
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": f"draco-test-{name}"}, "value": value, **more})
    yield
    for name in _PRIORITIES:
        with contextlib.suppress(NotFound):
            await client.delete(PRIORITY_CLASSES, ObjectKey("", f"draco-test-{name}"))


async def events_of(client: Client, namespace: str, reason: str) -> dict[str, str]:
    """Notes of such Events by the name of their object."""
    events = await client.list(EVENTS, namespace=namespace)
    return {
        each.involved_object.name: each.message for each in events if each.reason == reason and each.involved_object
    }


async def staying(client: Client, namespace: str) -> set[str]:
    """The names of the pods that are not being deleted."""
    pods = await client.list(PODS, namespace=namespace)
    return {each.metadata.name for each in pods if each.metadata.deletion_timestamp is None}
