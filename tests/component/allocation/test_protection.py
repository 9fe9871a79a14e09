"""The chart's policy that adds the finalizer to claims at creation, so that allocating them is one write."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from draco.controller.allocation.writing.writes import FINALIZER
from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES
from draco_local.cluster.controlplane import ControlPlane
from tests.component.allocation.lab import ALLOCATING, Guarded, make_claim, until_allocated
from tests.component.chart.rendering import render
from tests.component.controller.replicas import an_operator, until
from tests.component.simulator.test_nodes import running
from tests.requests import call

OWN = "tests-own"


def exactly(device_class: str) -> dict[str, Any]:
    return {"name": device_class.replace(".", "-"), "exactly": {"deviceClassName": device_class}}


def first_of(*device_classes: str) -> dict[str, Any]:
    choices = [{"name": f"choice-{number}", "deviceClassName": each} for number, each in enumerate(device_classes)]
    return {"name": "one", "firstAvailable": choices}


async def made(client: Client, namespace: str, name: str, requests: Sequence[object], *finalizers: str) -> list[str]:
    """The finalizers of a new claim."""
    meta = {"name": name, "namespace": namespace, "finalizers": list(finalizers)}
    return (
        await client.create(CLAIMS, {"metadata": meta, "spec": {"devices": {"requests": requests}}})
    ).metadata.finalizers


async def in_force(client: Client, namespace: str) -> None:
    """Wait until the API server enforces the policy, which it does some time after storing it."""

    async def given() -> bool:
        finalizers = await made(client, namespace, "probe", [exactly("gpu.draco.dev")])
        await client.patch(CLAIMS, ObjectKey(namespace, "probe"), {"metadata": {"finalizers": None}})
        await client.delete(CLAIMS, ObjectKey(namespace, "probe"))
        return finalizers == [FINALIZER]

    await until(given, what="the policy")


@pytest.mark.parametrize(
    ("requests", "is_given"),
    [
        ([exactly("gpu.draco.dev")], True),
        ([exactly("gpu.draco.dev"), exactly("mig-1g.10gb.h100.draco.dev")], True),
        ([first_of("mig.draco.dev", "gpu.draco.dev")], True),
        ([exactly(OWN)], False),
        ([exactly("gpu.draco.dev"), exactly("nic.example.com")], False),
        ([first_of("mig.draco.dev", "gpu.nvidia.com")], False),
    ],
)
@pytest.mark.usefixtures("guarded")
async def test_a_claim_of_the_charts_classes_alone_gets_the_finalizer_when_it_is_made(
    client: Client, namespace: str, requests: Sequence[object], is_given: bool
) -> None:
    await in_force(client, namespace)
    assert await made(client, namespace, "claim", requests) == [FINALIZER] * is_given
    if is_given:
        assert await made(client, namespace, "other", requests, "example.com/own") == ["example.com/own"]


async def test_allocating_is_one_write_and_where_the_finalizer_is_missing_two(
    guarded: Guarded, handed_over: Client, control_plane: ControlPlane, namespace: str, folder: Path
) -> None:
    labels = {"draco.dev/allocator": "operator"}
    selector = "device.attributes['draco.dev'].?allocator.orValue('') == 'operator'"
    spec = {"selectors": [{"cel": {"expression": selector}}]}
    await handed_over.create(DEVICE_CLASSES, {"metadata": {"name": OWN, "labels": labels}, "spec": spec})
    try:
        async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
            await in_force(handed_over, namespace)
            for name, device_class, written in (
                ("of-the-chart", "gpu.draco.dev", {"status"}),
                ("own", OWN, {"", "status"}),
            ):
                await make_claim(handed_over, namespace, name, device_class=device_class)
                claim = await until_allocated(handed_over, namespace, name)
                assert claim.metadata.finalizers == [FINALIZER]
                assert await written_by_the_operator(control_plane, namespace, name) == written
    finally:
        await handed_over.delete(DEVICE_CLASSES, ObjectKey("", OWN))


async def written_by_the_operator(plane: ControlPlane, namespace: str, name: str) -> set[str]:
    """The parts of the claim that the operator wrote: "" for the object itself, or a subresource."""
    meta = call(plane, "GET", CLAIMS.path(ObjectKey(namespace, name)))["metadata"]
    return {each.get("subresource", "") for each in meta["managedFields"] if each["manager"].startswith("draco-op")}


def test_where_the_api_server_does_not_know_such_policies_the_chart_has_none() -> None:
    allocate = ("--set", "operator.allocate=true")
    known = (*allocate, "--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")
    assert sum(each["kind"].startswith("MutatingAdmissionPolicy") for each in render(*known)) == 2
    assert not any(each["kind"].startswith("MutatingAdmissionPolicy") for each in render(*allocate))
