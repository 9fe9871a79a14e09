"""`draco taint` on a real API server: what it writes, what it says before, and how it fails."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from draco.cli import root
from draco_local.cluster.controlplane import ControlPlane
from tests.requests import RefusedError, call

DRIVER = "gpu.example.com"
RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
V1 = "/apis/resource.k8s.io/v1"
Json = dict[str, Any]


def apply_status(plane: ControlPlane, path: str, api_version: str, kind: str, status: Json) -> None:
    call(
        plane, "PATCH", f"{path}/status?fieldManager=tests", {"apiVersion": api_version, "kind": kind, "status": status}
    )


@pytest.fixture
def node(api_server: ControlPlane) -> Iterator[str]:
    """A node with two devices that only this test uses; its rules are deleted afterwards."""
    name = f"node-{uuid.uuid4().hex[:6]}"
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}
    call(api_server, "POST", f"{V1}/resourceslices", {"metadata": {"name": name}, "spec": spec})
    yield name
    for rule in call(api_server, "GET", RULES)["items"]:
        if rule["spec"]["deviceSelector"].get("pool") == name:
            call(api_server, "DELETE", f"{RULES}/{rule['metadata']['name']}")
    call(api_server, "DELETE", f"{V1}/resourceslices/{name}")


@pytest.fixture
def used(api_server: ControlPlane, node: str, namespace: str) -> str:
    """A claim on the first device that two running pods share, and a budget that lets one of them go. The namespace."""
    claims = f"{V1}/namespaces/{namespace}/resourceclaims"
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    call(api_server, "POST", claims, {"metadata": {"name": "shared"}, "spec": {"devices": {"requests": [request]}}})
    call(api_server, "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    users = []
    for name in ("web-0", "web-1"):
        pods = f"/api/v1/namespaces/{namespace}/pods"
        spec: Json = {
            "nodeName": node,
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}],
        }
        pod = call(api_server, "POST", pods, {"metadata": {"name": name, "labels": {"app": "web"}}, "spec": spec})
        users.append({"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]})
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": "gpu-0"}
    status: Json = {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}
    apply_status(api_server, f"{claims}/shared", "resource.k8s.io/v1", "ResourceClaim", status)
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    call(api_server, "POST", budgets, {"metadata": {"name": "web"}, "spec": spec})
    status = {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
    apply_status(api_server, f"{budgets}/web", "policy/v1", "PodDisruptionBudget", status)
    return namespace


def taint(plane: ControlPlane, action: str, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(
        root, ["taint", action, "--kubeconfig", str(plane.kubeconfig), *arguments], input=stdin, catch_exceptions=True
    )


def rules_of(plane: ControlPlane, node: str) -> list[Json]:
    """The rules for devices of the node."""
    items: list[Json] = call(plane, "GET", RULES)["items"]
    return [item["spec"] for item in items if item["spec"]["deviceSelector"].get("pool") == node]


def test_a_taint_is_added_changed_and_removed(api_server: ControlPlane, node: str) -> None:
    added = taint(api_server, "add", f"{node}/gpu-0", f"{node}/gpu-1", "example.com/broken=fan:NoSchedule")
    assert added.exit_code == 0, added.output
    assert "keeps new claims off 2 devices" in added.output
    assert added.output.count(" created\n") == 2
    selectors = [{"driver": DRIVER, "pool": node, "device": device} for device in ("gpu-0", "gpu-1")]
    assert [rule["deviceSelector"] for rule in rules_of(api_server, node)] == selectors
    assert {rule["taint"]["value"] for rule in rules_of(api_server, node)} == {"fan"}

    again = taint(api_server, "add", f"{node}/gpu-0", "example.com/broken=fan:NoSchedule")
    assert " unchanged\n" in again.output
    other = taint(api_server, "add", f"{node}/gpu-0", "example.com/broken:NoExecute")
    assert "--overwrite" in str(other.exception)
    changed = taint(api_server, "add", "--overwrite", f"{node}/gpu-0", "example.com/broken:None")
    assert " configured\n" in changed.output
    now = next(rule["taint"] for rule in rules_of(api_server, node) if rule["deviceSelector"]["device"] == "gpu-0")
    assert (now["effect"], now.get("value", "")) == ("None", "")

    kept = taint(api_server, "remove", "--dry-run", f"{node}/gpu-0", "example.com/broken")
    assert "deleted (dry run)" in kept.output
    assert len(rules_of(api_server, node)) == 2
    removed = taint(api_server, "remove", f"{node}/gpu-0", f"{node}/gpu-1", "example.com/broken")
    assert removed.exit_code == 0, removed.output
    assert not rules_of(api_server, node)


def test_a_dry_run_says_what_would_be_and_writes_nothing(api_server: ControlPlane, node: str, used: str) -> None:
    result = taint(api_server, "add", "--dry-run", f"{node}/gpu-0", "example.com/broken:NoExecute")
    assert result.exit_code == 0, result.output
    assert f"deletes 2 pods: {used}/web-0, {used}/web-1" in result.output
    assert "created (dry run)" in result.output
    assert not rules_of(api_server, node)


def test_pods_are_deleted_only_by_somebody_who_was_asked(api_server: ControlPlane, node: str, used: str) -> None:
    nobody = taint(api_server, "add", f"{node}/gpu-0", "example.com/broken:NoExecute", stdin="y\n")
    assert "--yes" in str(nobody.exception)  # input from a pipe is not a person's answer
    assert not rules_of(api_server, node)
    free = taint(api_server, "add", f"{node}/gpu-1", "example.com/broken:NoExecute")
    assert free.exit_code == 0, free.output
    agreed = taint(api_server, "add", "--yes", f"{node}/gpu-0", "example.com/broken:NoExecute")
    assert agreed.exit_code == 0, agreed.output
    assert len(rules_of(api_server, node)) == 2


def test_a_preview_names_who_is_hit_and_the_budget_that_breaks(api_server: ControlPlane, node: str, used: str) -> None:
    result = taint(api_server, "preview", f"{node}/gpu-0", "example.com/broken:NoExecute")
    assert result.exit_code == 0, result.output
    assert f"breaks PodDisruptionBudget {used}/web (allows 1 of 2)" in result.output
    assert not rules_of(api_server, node)
    (view,) = json.loads(taint(api_server, "preview", "-o", "json", f"{node}/gpu-0", "example.com/broken:None").stdout)[
        "taintRules"
    ]
    assert (view["claims"], view["budgets"]) == ([f"{used}/shared"], [f"{used}/web"])
    assert view["evicted"] == view["pods"] == [f"{used}/web-0", f"{used}/web-1"]


def test_rules_are_listed_with_what_they_hit(api_server: ControlPlane, node: str, used: str) -> None:
    spec = {
        "taint": {"key": "example.com/noisy", "effect": "None"},
        "deviceSelector": {"driver": DRIVER, "pool": node},
    }
    call(api_server, "POST", RULES, {"metadata": {"name": f"{node}-noisy"}, "spec": spec})
    listed = taint(api_server, "list")
    assert listed.exit_code == 0, listed.output
    header, *rows = listed.output.splitlines()
    row = next(line.split() for line in rows if line.startswith(f"{node}-noisy"))
    assert header.split() == ["NAME", "TAINT", "SELECTS", "DEVICES", "CLAIMS", "PODS", "FOR"]
    assert row[-4:] == ["2", "1", "2", "-"]
    named = taint(api_server, "preview", f"{node}-noisy")
    assert "only announces (effect None) a taint on 2 devices" in named.output
    assert taint(api_server, "remove", f"{node}-noisy").exit_code == 0
    assert not rules_of(api_server, node)


def test_a_rule_of_a_maintenance_request_is_not_removed(api_server: ControlPlane, crds: None, node: str) -> None:
    requests = "/apis/draco.dev/v1alpha1/devicemaintenances"
    spec = {"deviceSelector": {"driver": DRIVER, "pool": node, "device": "gpu-0"}}
    kind = {"apiVersion": "draco.dev/v1alpha1", "kind": "DeviceMaintenance"}
    made = call(api_server, "POST", requests, {**kind, "metadata": {"name": f"swap-{node}"}, "spec": spec})
    rule = f"draco-maintenance-{node}"
    body = {
        "metadata": {"name": rule, "labels": {"draco.dev/maintenance": made["metadata"]["uid"]}},
        "spec": {"taint": {"key": "draco.dev/maintenance", "effect": "NoSchedule"}, **spec},
    }
    call(api_server, "POST", RULES, body)
    assert f"swap-{node}" in str(taint(api_server, "remove", rule).exception)
    call(api_server, "DELETE", f"{requests}/swap-{node}")
    assert taint(api_server, "remove", rule).exit_code == 0
    with pytest.raises(RefusedError, match="404"):
        call(api_server, "GET", f"{RULES}/{rule}")


def test_nothing_is_written_if_one_of_the_devices_is_unknown(api_server: ControlPlane, node: str) -> None:
    result = taint(api_server, "add", f"{node}/gpu-0", f"{node}/gpu-7", "example.com/broken:NoSchedule")
    assert "no device" in str(result.exception)
    assert not rules_of(api_server, node)
