"""`draco check` on a real API server: what it reads, and how it ends."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout

import pytest

from draco.cli import run
from draco_local.cluster.controlplane import ControlPlane
from tests.requests import call

APPS = "/apis/apps/v1/namespaces"


def draco_check(plane: ControlPlane, *options: str) -> tuple[int, str]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = run(["check", "--kubeconfig", str(plane.kubeconfig), *options])
    return status, out.getvalue() + err.getvalue()


@pytest.fixture
def operator(api_server: ControlPlane, namespace: str) -> str:
    """The operator's Deployment as the chart makes it, with one of two replicas ready."""
    labels = {"app.kubernetes.io/name": "draco", "app.kubernetes.io/component": "operator"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    body = {
        "metadata": {"name": "operator", "labels": labels},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }
    call(api_server, "POST", f"{APPS}/{namespace}/deployments", body)
    path = f"{APPS}/{namespace}/deployments/operator"
    status = {"replicas": 2, "readyReplicas": 1}
    call(api_server, "PUT", f"{path}/status", {**call(api_server, "GET", path), "status": status})
    return namespace


@pytest.mark.usefixtures("crds")
def test_it_says_what_fails_and_what_to_do_and_ends_with_1(api_server: ControlPlane, operator: str) -> None:
    code, said = draco_check(api_server, "-n", operator)
    assert code == 1
    assert "failed   operator  1 of 2 replicas is ready." in said
    assert f"kubectl describe pods -n {operator} -l app.kubernetes.io/component=operator" in said
    assert "ok       kinds     Draco's kinds are served." in said
    assert said.endswith("Some checks failed (see above).\n")


@pytest.mark.usefixtures("crds")
def test_programs_get_one_document(api_server: ControlPlane, operator: str) -> None:
    code, said = draco_check(api_server, "-n", operator, "-o", "json", "--wait", "2.5")
    report = json.loads(said)
    assert (code, report["schema"], report["healthy"]) == (1, "draco.dev/check/v1", False)
    assert {each["verdict"] for each in report["findings"]} >= {"ok", "failed"}


def test_a_namespace_without_draco_is_a_failure(api_server: ControlPlane, namespace: str) -> None:
    code, said = draco_check(api_server, "-n", namespace)
    assert code == 1
    assert "No operator is installed" in said


@pytest.mark.usefixtures("crds")
def test_a_class_whose_claims_two_may_allocate_is_named(api_server: ControlPlane, operator: str) -> None:
    name = f"both-{operator}"
    classes, slices = ("/apis/resource.k8s.io/v1/deviceclasses", "/apis/resource.k8s.io/v1/resourceslices")
    selector = {"cel": {"expression": 'device.driver == "check.example.com"'}}
    meta = {"name": name, "labels": {"draco.dev/allocator": "operator"}}
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "check.example.com", "allNodes": True, "pool": pool, "devices": [{"name": "gpu-0"}]}
    call(api_server, "POST", classes, {"metadata": meta, "spec": {"selectors": [selector]}})
    call(api_server, "POST", slices, {"metadata": {"name": name}, "spec": spec})
    try:
        _, said = draco_check(api_server, "-n", operator)
    finally:
        call(api_server, "DELETE", f"{classes}/{name}")
        call(api_server, "DELETE", f"{slices}/{name}")
    assert f"DeviceClass {name}: both Draco and kube-scheduler may allocate its claims" in said
    assert "Add the selector" in said
