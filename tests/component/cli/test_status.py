"""`draco status` on a real API server: what it reads, and how it ends when it cannot."""

import asyncio
import io
import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from draco.cli import run
from draco.resources.api.meta import micro_time
from draco_local.cluster import ports
from draco_local.cluster.controlplane import ControlPlane
from tests.doubles.faultproxy import FaultProxy, answer, plain
from tests.requests import call

DRIVER = "gpu.example.com"


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    exit_code: int
    stdout: str
    stderr: str


def draco_status(*options: object) -> Ended:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = run(["status", *map(str, options)])
    return Ended(status, out.getvalue(), err.getvalue())


@pytest.fixture
def node(api_server: ControlPlane, crds: None) -> Iterator[str]:
    """A node with two devices of an unknown driver, one of them tainted by a rule."""
    name = f"plain-{uuid.uuid4().hex[:6]}"
    call(api_server, "POST", "/api/v1/nodes", {"metadata": {"name": name}})
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    call(
        api_server,
        "PATCH",
        f"/api/v1/nodes/{name}/status?fieldManager=tests",
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, **ready},
    )
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "gpu-0"}, {"name": "gpu-1", "attributes": {"model": {"string": "Wonder 9000"}}}]
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    call(api_server, "POST", "/apis/resource.k8s.io/v1/resourceslices", {"metadata": {"name": name}, "spec": spec})
    rule = {
        "taint": {"key": "example.com/broken", "effect": "NoSchedule"},
        "deviceSelector": {"driver": DRIVER, "pool": name, "device": "gpu-1"},
    }
    rules = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
    call(api_server, "POST", rules, {"metadata": {"name": f"{name}-broken"}, "spec": rule})
    yield name
    for path in (f"{rules}/{name}-broken", f"/apis/resource.k8s.io/v1/resourceslices/{name}", f"/api/v1/nodes/{name}"):
        call(api_server, "DELETE", path)


def document(plane: ControlPlane, *options: object) -> dict[str, Any]:
    result = draco_status("--kubeconfig", plane.kubeconfig, "-o", "json", *options)
    assert result.exit_code == 0, result.stderr
    decoded: dict[str, Any] = json.loads(result.stdout)
    return decoded


def test_any_drivers_devices_are_shown(api_server: ControlPlane, node: str) -> None:
    status = document(api_server)
    states = {view["device"]: (view["state"], view["product"]) for view in status["deviceList"] if view["node"] == node}
    assert states == {"gpu-0": ("free", ""), "gpu-1": ("tainted", "Wonder 9000")}
    rule = next(view for view in status["taintRules"] if view["name"] == f"{node}-broken")
    assert rule["devices"] == [f"{DRIVER}/{node}/gpu-1"]
    assert status["server"] == api_server.server
    assert not any("GpuNode" in item["name"] for item in status["missing"])


def test_the_screen_shows_them_too(api_server: ControlPlane, node: str) -> None:
    result = draco_status("--kubeconfig", api_server.kubeconfig, "-o", "wide")
    assert result.exit_code == 0, result.stderr
    assert "\x1b[" not in result.stdout
    assert not any(line.endswith(" ") for line in result.stdout.splitlines())
    line = next(line for line in result.stdout.splitlines() if "Wonder 9000" in line)
    assert "tainted" in line
    assert "example.com/broken:NoSchedule" in line


def test_what_troubles_the_leader_is_a_warning(api_server: ControlPlane, node: str, namespace: str) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    spec = {"holderIdentity": "one", "leaseDurationSeconds": 60, "renewTime": micro_time(datetime.now(UTC))}
    annotations = {"draco.dev/troubles": f"Kopf does not run in {namespace}."}
    call(api_server, "POST", leases, {"metadata": {"name": "draco-operator", "annotations": annotations}, "spec": spec})
    assert f"Kopf does not run in {namespace}." in document(api_server)["warnings"]
    call(api_server, "DELETE", f"{leases}/draco-operator")
    assert f"Kopf does not run in {namespace}." not in document(api_server)["warnings"]


@pytest.fixture
def autoscalers(api_server: ControlPlane) -> Iterator[None]:
    """The traces of Karpenter and Cluster Autoscaler in a cluster: an API group and a ConfigMap."""
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"plural": "nodepools", "singular": "nodepool", "kind": "NodePool"}
    spec = {"group": "karpenter.sh", "scope": "Cluster", "names": names, "versions": [version]}
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    maps = "/api/v1/namespaces/kube-system/configmaps"
    call(api_server, "POST", crds, {"metadata": {"name": "nodepools.karpenter.sh"}, "spec": spec})
    call(api_server, "POST", maps, {"metadata": {"name": "cluster-autoscaler-status"}})
    yield
    call(api_server, "DELETE", f"{crds}/nodepools.karpenter.sh")
    call(api_server, "DELETE", f"{maps}/cluster-autoscaler-status")


@pytest.mark.usefixtures("node", "autoscalers")
def test_what_misleads_autoscalers_is_a_warning(api_server: ControlPlane, namespace: str) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    claim = {"metadata": {"name": "more"}, "spec": {"devices": {"requests": [request]}}}
    call(api_server, "POST", f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims", claim)
    pod = {
        "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "more"}],
    }
    call(api_server, "POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "waits"}, "spec": pod})
    deadline = time.monotonic() + 30
    while not all(  # a new kind is served after a moment
        any(f"{name} may add no node" in warning for warning in document(api_server, "-n", namespace)["warnings"])
        for name in ("Karpenter", "Cluster Autoscaler")
    ):
        assert time.monotonic() < deadline, document(api_server, "-n", namespace)["warnings"]
    call(api_server, "DELETE", f"/api/v1/namespaces/{namespace}/pods/waits", {"gracePeriodSeconds": 0})
    call(api_server, "DELETE", f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/more")


def test_claims_can_be_narrowed_to_a_namespace(api_server: ControlPlane, node: str, namespace: str) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    claim = {"metadata": {"name": "waits"}, "spec": {"devices": {"requests": [request]}}}
    call(api_server, "POST", f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims", claim)
    assert [view["name"] for view in document(api_server, "-n", namespace)["claimList"]] == ["waits"]
    assert document(api_server, "-n", "no-such-namespace")["claimList"] == []


def one_sentence(result: Ended) -> str:
    assert result.exit_code == 1
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    assert "Traceback" not in result.stderr
    return lines[0]


def test_a_cluster_that_does_not_answer_is_one_sentence(api_server: ControlPlane, tmp_path: Path) -> None:
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    nowhere = f"https://127.0.0.1:{ports.pick('127.0.0.1')}"
    config["clusters"][0]["cluster"]["server"] = nowhere
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    assert nowhere in one_sentence(draco_status("--kubeconfig", kubeconfig))


def test_a_kubeconfig_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    missing = tmp_path / "nothing"
    assert str(missing) in one_sentence(draco_status("--kubeconfig", missing))


def test_an_unknown_context_is_one_sentence(api_server: ControlPlane) -> None:
    result = draco_status("--kubeconfig", api_server.kubeconfig, "--context", "elsewhere")
    assert "elsewhere" in one_sentence(result)


def test_missing_permissions_are_named_in_a_sentence_each(api_server: ControlPlane, tmp_path: Path) -> None:
    """The lists are read at the same time, and the first refusal ends those that have no answer yet."""
    kubeconfig = tmp_path / "kubeconfig"
    api_server.write_kubeconfig(kubeconfig, "somebody")
    result = draco_status("--kubeconfig", kubeconfig)
    assert result.exit_code == 1
    lines = result.stderr.strip().splitlines()
    assert lines
    assert all(re.match("Error: These credentials may not list [a-z]+ in the whole cluster", each) for each in lines)


async def test_a_cluster_without_dra_is_one_sentence(through_proxy: tuple[FaultProxy, Path]) -> None:
    proxy, kubeconfig = through_proxy
    proxy.fault(lambda request: request.path.startswith("/apis/resource.k8s.io/"), answer(404, "NotFound"), times=1000)
    result = await asyncio.to_thread(draco_status, "--kubeconfig", kubeconfig)
    assert "does not serve resource.k8s.io/v1" in one_sentence(result)


async def test_a_cluster_without_dracos_kinds_is_shown_and_says_that_they_are_missing(
    through_proxy: tuple[FaultProxy, Path],
) -> None:
    proxy, kubeconfig = through_proxy
    proxy.fault(lambda request: request.path.startswith("/apis/draco.dev/"), answer(404, "NotFound"), times=1000)
    result = await asyncio.to_thread(draco_status, "--kubeconfig", kubeconfig, "-o", "json")
    assert result.exit_code == 0
    assert [item["name"] for item in json.loads(result.stdout)["missing"]] == [
        "GpuNode, DeviceMaintenance, MaintenanceBudget, MigPolicy, SharingPolicy, DeviceLimit, DeviceReservation"
    ]


async def test_an_object_that_cannot_be_read_is_left_out_and_said_so(
    through_proxy: tuple[FaultProxy, Path], node: str
) -> None:
    proxy, kubeconfig = through_proxy
    broken = {"metadata": {"name": "strange", "uid": "1"}, "spec": {"driver": 7}}
    page = {"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1", "metadata": {}, "items": [broken]}
    proxy.fault(
        lambda request: request.method == "GET" and request.path.endswith("/resourceslices"),
        plain(200, json.dumps(page)),
        times=1000,
    )
    result = await asyncio.to_thread(draco_status, "--kubeconfig", kubeconfig)
    assert result.exit_code == 0, result.stderr
    assert "- ResourceSlice strange is left out, because it cannot be read: " in result.stdout


async def test_pods_that_may_not_be_listed_cost_only_who_waits(
    through_proxy: tuple[FaultProxy, Path], node: str
) -> None:
    proxy, kubeconfig = through_proxy
    proxy.fault(lambda request: request.path == "/api/v1/pods", answer(403, "Forbidden"), times=1000)
    result = await asyncio.to_thread(draco_status, "--kubeconfig", kubeconfig)
    assert result.exit_code == 0, result.stderr
    assert "may not list pods in the whole cluster: which pods wait for a claim is not shown" in result.stdout


async def test_a_server_that_asks_for_patience_is_asked_again(through_proxy: tuple[FaultProxy, Path]) -> None:
    proxy, kubeconfig = through_proxy
    proxy.fault(lambda request: request.path.endswith("/resourceclaims"), answer(429, "TooManyRequests"), times=2)
    result = await asyncio.to_thread(draco_status, "--kubeconfig", kubeconfig)
    assert result.exit_code == 0, result.stderr


async def test_a_server_that_fails_is_one_sentence(through_proxy: tuple[FaultProxy, Path]) -> None:
    proxy, kubeconfig = through_proxy
    proxy.fault(lambda request: request.path.endswith("/resourceclaims"), answer(500, "InternalError"), times=1000)
    one_sentence(await asyncio.to_thread(draco_status, "--kubeconfig", kubeconfig))


async def test_kinds_of_draco_that_may_not_be_listed_cost_only_what_they_say(
    through_proxy: tuple[FaultProxy, Path], node: str
) -> None:
    proxy, kubeconfig = through_proxy
    proxy.fault(lambda request: request.path.startswith("/apis/draco.dev/"), answer(403, "Forbidden"), times=1000)
    result = await asyncio.to_thread(draco_status, "--kubeconfig", kubeconfig)
    assert result.exit_code == 0, result.stderr
    for sentence in (
        "may not list gpunodes in the whole cluster: no GPU health is shown.",
        "may not list devicemaintenances in the whole cluster: no maintenance requests are shown.",
        "may not list maintenancebudgets in the whole cluster: whether maintenance is paused is not shown.",
        "may not list migpolicies in the whole cluster: no MIG policies are shown.",
    ):
        assert sentence in result.stdout


def test_mig_policies_are_listed_with_what_the_operator_says_of_them(api_server: ControlPlane, node: str) -> None:
    path = "/apis/draco.dev/v1alpha1/migpolicies"
    meta = {"apiVersion": "draco.dev/v1alpha1", "kind": "MigPolicy", "metadata": {"name": node}}
    call(api_server, "POST", path, {**meta, "spec": {"mode": "Dynamic"}})
    try:
        assert [each["message"] for each in policies(api_server, node)] == [
            "The operator has not processed it yet; is it running?"
        ]
        said = {"observedGeneration": 1, "gpus": 3, "applied": 2, "changing": 1, "message": "1 of 3 GPUs not done yet."}
        call(api_server, "PATCH", f"{path}/{node}/status?fieldManager=tests", {**meta, "status": said})
        assert policies(api_server, node) == [
            {
                "name": node,
                "mode": "Dynamic",
                "layout": "",
                "gpus": 3,
                "applied": 2,
                "changing": 1,
                "failed": 0,
                "message": "1 of 3 GPUs not done yet.",
            }
        ]
    finally:
        call(api_server, "DELETE", f"{path}/{node}")


def policies(plane: ControlPlane, name: str) -> list[dict[str, Any]]:
    return [each for each in document(plane)["migPolicies"] if each["name"] == name]
