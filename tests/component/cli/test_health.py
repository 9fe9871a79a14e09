"""`draco health` on a real API server: a GPU with faults from its agent's report to the screen."""

import io
import json
import uuid
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest

from draco.cli import run
from draco_local.cluster.controlplane import ControlPlane
from tests.requests import call

DRA = "/apis/resource.k8s.io/v1"
MAINTENANCES = "/apis/draco.dev/v1alpha1/devicemaintenances"
GPU_NODES = "/apis/draco.dev/v1alpha1/gpunodes"
Json = dict[str, Any]

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
def node(api_server: ControlPlane) -> Iterator[str]:
    """A node whose first GPU has a fault and whose second is well."""
    name = f"sick-{uuid.uuid4().hex[:6]}"
    head = {"apiVersion": "draco.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}}
    call(api_server, "POST", GPU_NODES, head)
    fault = {
        "family": "xid",
        "name": "Xid119",
        "code": 119,
        "scope": "Gpu",
        "message": "the GSP did not answer; drain the GPU and reset it",
        "latched": True,
        "effect": "NoSchedule",
        "policy": "strict",
        "count": 3,
        "firstSeen": "2026-11-24T06:00:00Z",
        "lastSeen": "2026-11-24T06:05:00Z",
    }
    gpus = [
        {"device": "gpu-0", "uuid": f"GPU-{name}-0", "health": "Unhealthy", "faults": [fault]},
        {"device": "gpu-1", "uuid": f"GPU-{name}-1", "health": "Healthy"},
    ]
    status = {"driver": "gpu.nvidia.com", "gpus": gpus}
    call(api_server, "PATCH", f"{GPU_NODES}/{name}/status?fieldManager=tests", {**head, "status": status})
    yield name
    call(api_server, "DELETE", f"{GPU_NODES}/{name}")


def health(plane: ControlPlane, *arguments: str) -> tuple[int, str, str]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = run(["health", "--kubeconfig", str(plane.kubeconfig), *arguments])
    return status, out.getvalue(), err.getvalue()


def test_only_gpus_with_a_fault_are_listed_unless_all_are_wanted(api_server: ControlPlane, node: str) -> None:
    listed = {(each["node"], each["device"]) for each in json.loads(health(api_server, "-o", "json")[1])["gpus"]}
    assert (node, "gpu-0") in listed
    assert (node, "gpu-1") not in listed
    every = {
        (each["node"], each["device"]) for each in json.loads(health(api_server, "--all", "-o", "json")[1])["gpus"]
    }
    assert (node, "gpu-1") in every
    text = health(api_server)[1]
    (line,) = [each for each in text.splitlines() if each.startswith(node)]
    cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
    assert cells[1:7] == ["gpu-0", "Unhealthy", "Xid119", "NoSchedule", "2026-11-24 06:00:00Z", "strict"]
    assert cells[-1].endswith("drain the GPU and reset it")


def test_one_gpu_shows_its_ledger(api_server: ControlPlane, node: str) -> None:
    for name in (f"{node}/gpu-0", f"GPU-{node}-0"):
        status, text, _ = health(api_server, name)
        assert status == 0
        assert "by repair" in text
        assert "docs/runbooks/xid.md" in text


def test_a_gpu_that_nobody_reports_is_answered_with_the_nearest(api_server: ControlPlane, node: str) -> None:
    status, _, said = health(api_server, f"{node}/gpu0")
    assert status == 1
    assert f"did you mean {node}/gpu-0?" in said


def test_the_pods_of_a_pod_group_use_what_is_reserved_for_it(
    api_server: ControlPlane, node: str, namespace: str
) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "any"}}
    claim = {"metadata": {"name": "shared"}, "spec": {"devices": {"requests": [request]}}}
    claims, pods = f"{DRA}/namespaces/{namespace}/resourceclaims", f"/api/v1/namespaces/{namespace}/pods"
    call(api_server, "POST", claims, claim)
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": "gpu-0"}
    gang = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "gang", "uid": "g"}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [gang]}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    call(api_server, "PATCH", f"{claims}/shared/status?fieldManager=tests", {**head, "status": status})
    call(api_server, "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    spec = {
        "nodeName": node,
        "containers": [{"name": "c", "image": "none"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}],
    }
    call(api_server, "POST", pods, {"metadata": {"name": "member"}, "spec": spec})
    try:
        (found,) = json.loads(health(api_server, f"{node}/gpu-0", "-o", "json")[1])["gpus"]
        assert (found["claims"], found["pods"]) == ([f"{namespace}/shared"], [f"{namespace}/member"])
        asked: Json = {"apiVersion": "draco.dev/v1alpha1", "kind": "DeviceMaintenance", "metadata": {"name": node}}
        call(api_server, "POST", MAINTENANCES, {**asked, "spec": {"deviceSelector": {"pool": node}}})
        held = {"driver": "gpu.nvidia.com", "pool": node, "device": "gpu-0", "claims": [f"{namespace}/shared"]}
        seen = {**asked, "status": {"devices": [held]}}
        call(api_server, "PATCH", f"{MAINTENANCES}/{node}/status?fieldManager=tests", seen)
        for command in (["status"], ["maintain", "status"]):
            with redirect_stdout(io.StringIO()) as out:
                assert run([*command, "--kubeconfig", str(api_server.kubeconfig), "-o", "json"]) == 0
            document = json.loads(out.getvalue())
            (shown,) = [
                each for each in document.get("maintenances", document.get("maintenance")) if each["name"] == node
            ]
            assert shown["pods"] == [f"{namespace}/member"], command
    finally:
        call(api_server, "DELETE", f"{MAINTENANCES}/{node}")
        call(api_server, "DELETE", f"{pods}/member?gracePeriodSeconds=0")


def test_what_is_not_known_of_a_gpu_and_a_gpu_that_can_be_given_to_nobody_are_named(api_server: ControlPlane) -> None:
    name = f"odd-{uuid.uuid4().hex[:6]}"
    head = {"apiVersion": "draco.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}}
    call(api_server, "POST", GPU_NODES, head)
    note = "published without memory: This GPU does not support NVML's nvmlDeviceGetMemoryInfo."
    gpus = [{"device": "gpu-1", "uuid": f"GPU-{name}-1", "health": "Healthy", "notes": [note]}]
    nameless = [{"index": 0, "uuid": f"GPU-{name}-0", "message": "The GPU has no minor number."}]
    status = {"driver": "gpu.nvidia.com", "gpus": gpus, "unidentified": nameless}
    call(api_server, "PATCH", f"{GPU_NODES}/{name}/status?fieldManager=tests", {**head, "status": status})
    try:
        for arguments in ((), (name,)):
            text = health(api_server, *arguments)[1]
            assert note in text
            assert f"{name}: GPU GPU-{name}-0 takes no claims. The GPU has no minor number." in text
            assert "are healthy" not in text
        found = json.loads(health(api_server, f"GPU-{name}-0", "-o", "json")[1])
        assert (found["gpus"], [each["index"] for each in found["unidentified"]]) == ([], [0])
    finally:
        call(api_server, "DELETE", f"{GPU_NODES}/{name}")
