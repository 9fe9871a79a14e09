"""Pods of a higher priority get devices that pods of a lower one have, where the MigPolicy permits it."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import EVENTS, MIG_POLICIES, PODS, Kind
from tests.component.allocation.lab import ALLOCATING, Guarded
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import allocated_claims, make_member, make_template
from tests.component.simulator.test_nodes import running, until_gone, until_running

PRIORITY_CLASSES: Kind[Any] = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, dict)
PRIORITIES = {"draco-test-low": 10, "draco-test-middle": 50, "draco-test-high": 100}
LOW: dict[str, Any] = {"priorityClassName": "draco-test-low"}
MIDDLE: dict[str, Any] = {"priorityClassName": "draco-test-middle"}
HIGH: dict[str, Any] = {"priorityClassName": "draco-test-high"}
PREEMPTING = msgspec.structs.replace(ALLOCATING, lease_duration_s=15, renew_deadline_s=10.0)


@pytest.fixture
async def permitting(handed_over: Client) -> AsyncIterator[Client]:
    """A policy that lets pods of a lower priority be evicted from the GPUs of one node, and priorities."""
    await handed_over.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"preemption": "LowerPriority"}})
    for name, value in PRIORITIES.items():
        await handed_over.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
    yield handed_over
    for name in PRIORITIES:
        with contextlib.suppress(NotFound):
            await handed_over.delete(PRIORITY_CLASSES, ObjectKey("", name))


async def events_of(client: Client, namespace: str, reason: str) -> dict[str, str]:
    """The notes of such Events by the name of what they are about."""
    events = await client.list(EVENTS, namespace=namespace)
    return {
        each.involved_object.name: each.message for each in events if each.reason == reason and each.involved_object
    }


async def pod(client: Client, namespace: str, name: str) -> Pod | None:
    try:
        return await client.get(PODS, ObjectKey(namespace, name))
    except NotFound:
        return None


async def test_a_pod_of_a_higher_priority_gets_the_gpus_of_one_of_a_lower(
    guarded: Guarded, permitting: Client, namespace: str, folder: Path
) -> None:
    async with running(permitting, folder), an_operator(guarded, PREEMPTING):
        await make_template(permitting, namespace, "four", gpus=4)
        await make_member(permitting, namespace, "low", template="four", **LOW)
        await make_member(permitting, namespace, "middle", template="four", **MIDDLE)
        await until_running(permitting, namespace, "low", "middle")
        await make_member(permitting, namespace, "high", template="four", **HIGH)
        await until_running(permitting, namespace, "high")
        await until_gone(permitting, namespace, "low")
        middle = await pod(permitting, namespace, "middle")
        assert middle is not None
        assert middle.metadata.deletion_timestamp is None

        async def told() -> dict[str, str] | None:
            return await events_of(permitting, namespace, "Preempted")

        assert await until(told, what="the Event") == {
            "low": "Evicted, because 1 pod of priority 100 gets devices that it holds; its own priority is 10."
        }
        said = await events_of(permitting, namespace, "Preempting")
        assert said["high"].startswith("Draco evicted 1 pod of lower priority to make room: gpu-")
        assert len(await allocated_claims(permitting, namespace)) == 2
