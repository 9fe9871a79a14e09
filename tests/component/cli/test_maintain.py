"""`draco maintain` on a real API server: what it writes, what it says before, and how it fails."""

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from draco.cli import root
from draco_local.cluster.controlplane import ControlPlane
from tests.component.cli.test_taint import apply_status
from tests.requests import RefusedError, call

DRIVER = "gpu.example.com"
REQUESTS = "/apis/draco.dev/v1alpha1/devicemaintenances"
BUDGETS = "/apis/draco.dev/v1alpha1/maintenancebudgets"
V1 = "/apis/resource.k8s.io/v1"
Json = dict[str, Any]

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
def node(api_server: ControlPlane) -> Iterator[str]:
    """A node with two devices; its requests are deleted afterwards."""
    name = f"node-{uuid.uuid4().hex[:6]}"
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}
    call(api_server, "POST", f"{V1}/resourceslices", {"metadata": {"name": name}, "spec": spec})
    yield name
    for item in call(api_server, "GET", REQUESTS)["items"]:
        if name in json.dumps(item["spec"]):
            call(api_server, "DELETE", f"{REQUESTS}/{item['metadata']['name']}")
    call(api_server, "DELETE", f"{V1}/resourceslices/{name}")


@pytest.fixture
def used(api_server: ControlPlane, node: str, namespace: str) -> str:
    """A claim on the first device that two running pods share, and a budget that lets none of them go. The namespace."""
    claims = f"{V1}/namespaces/{namespace}/resourceclaims"
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    call(api_server, "POST", claims, {"metadata": {"name": "shared"}, "spec": {"devices": {"requests": [request]}}})
    call(api_server, "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    users = []
    for name in ("web-0", "web-1"):
        spec: Json = {
            "nodeName": node,
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}],
        }
        body = {"metadata": {"name": name, "labels": {"app": "web"}}, "spec": spec}
        pod = call(api_server, "POST", f"/api/v1/namespaces/{namespace}/pods", body)
        users.append({"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]})
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": "gpu-0"}
    status: Json = {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}
    apply_status(api_server, f"{claims}/shared", "resource.k8s.io/v1", "ResourceClaim", status)
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}
    call(api_server, "POST", budgets, {"metadata": {"name": "web"}, "spec": spec})
    status = {"disruptionsAllowed": 0, "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 2}
    apply_status(api_server, f"{budgets}/web", "policy/v1", "PodDisruptionBudget", status)
    return namespace


@pytest.fixture
def unpaused(api_server: ControlPlane) -> Iterator[None]:
    """No budget before, and none afterwards."""
    yield
    for item in call(api_server, "GET", BUDGETS)["items"]:
        call(api_server, "DELETE", f"{BUDGETS}/{item['metadata']['name']}")


def maintain(plane: ControlPlane, action: str, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(
        root,
        ["maintain", action, "--kubeconfig", str(plane.kubeconfig), *arguments],
        input=stdin,
        catch_exceptions=True,
    )


def request_in(plane: ControlPlane, name: str) -> Json:
    found: Json = call(plane, "GET", f"{REQUESTS}/{name}")
    return found


def put_in_phase(plane: ControlPlane, name: str, phase: str, **status: Any) -> None:
    """Write the phase as the operator would."""
    before = request_in(plane, name)["metadata"]["generation"]
    body = {"phase": phase, "observedGeneration": before, **status}
    apply_status(plane, f"{REQUESTS}/{name}", "draco.dev/v1alpha1", "DeviceMaintenance", body)


def refused(result: Result) -> str:
    """The error message of a refused command."""
    assert result.exit_code != 0, result.output
    return str(result.exception)


def test_a_device_is_asked_for_by_its_name_and_the_request_says_what_it_is(api_server: ControlPlane, node: str) -> None:
    started = maintain(api_server, "start", f"{node}/gpu-1", "--reason", "noisy fan", "--deadline", "4h", "--give-up")
    assert started.exit_code == 0, started.output
    assert f"devicemaintenance/{node}-gpu-1 created" in started.output
    assert "No claim holds any of them." in started.output
    spec = request_in(api_server, f"{node}-gpu-1")["spec"]
    assert spec["deviceSelector"] == {"driver": DRIVER, "pool": node, "device": "gpu-1"}
    assert (spec["reason"], spec["deadline"]) == ("noisy fan", {"after": "4h", "action": "Cancel"})
    again = maintain(api_server, "start", f"{node}/gpu-1")
    assert f"devicemaintenance/{node}-gpu-1-2 created" in again.output


@pytest.mark.usefixtures("unled")
def test_that_no_operator_runs_is_said_where_a_request_is_made(api_server: ControlPlane, node: str) -> None:
    assert "No operator of Draco leads" in maintain(api_server, "start", f"{node}/gpu-1").stderr


def test_a_preview_names_pods_and_the_budgets_that_block_them(api_server: ControlPlane, node: str, used: str) -> None:
    result = maintain(api_server, "start", f"{node}/gpu-0", "--evict", "--dry-run")
    assert result.exit_code == 0, result.output
    assert f"evicts 2 pods, as their disruption budgets allow: {used}/web-0, {used}/web-1" in result.output
    assert f"PodDisruptionBudgets that would block evictions now: {used}/web" in result.output
    assert "created (server dry run)" in result.output
    with pytest.raises(RefusedError):
        request_in(api_server, f"{node}-gpu-0")
    document = json.loads(maintain(api_server, "start", f"{node}/gpu-0", "-o", "json").stdout)
    assert (document["rehearsal"]["pods"], document["rehearsal"]["claims"]) == (2, 1)


def test_pods_are_evicted_only_by_somebody_who_was_asked(api_server: ControlPlane, node: str, used: str) -> None:
    assert "this evicts 2 pods" in refused(maintain(api_server, "start", f"{node}/gpu-0", "--evict", stdin="y\n"))
    assert maintain(api_server, "start", f"{node}/gpu-0", "--wait").exit_code == 0
    agreed = maintain(api_server, "start", f"{node}/gpu-0", "--no-execute", "--yes", "--drain-wait", "30m")
    assert agreed.exit_code == 0, agreed.output
    drain = request_in(api_server, f"{node}-gpu-0-2")["spec"]["drain"]
    assert (drain["policy"], drain["wait"]) == ("NoExecute", "30m")


@pytest.mark.parametrize("last", ["Completed", "Failed", "Cancelled", "deleted"])
def test_a_request_is_followed_until_it_is_over_and_only_completion_is_success(
    api_server: ControlPlane, node: str, last: str
) -> None:
    maintain(api_server, "start", name := f"{node}-followed", "--pool", node, "--allow-most-of-class")
    limit = "0s" if last == "Completed" else "2m"  # 0s means no timeout
    options = ["--watch", "--timeout", limit, "--kubeconfig", str(api_server.kubeconfig)]
    followed = subprocess.Popen(
        [sys.executable, "-m", "draco", "maintain", "status", name, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert followed.stdout
    assert "has not processed it yet" in followed.stdout.readline()
    put_in_phase(api_server, name, "Isolated", message="Waits for a pod.")
    assert followed.stdout.readline() == "Isolated: Waits for a pod.\n"
    if last == "deleted":
        call(api_server, "DELETE", f"{REQUESTS}/{name}")
    else:
        put_in_phase(api_server, name, last, message="That is all.")
    output, errors = followed.communicate(timeout=60)
    assert followed.returncode == (0 if last == "Completed" else 1), errors
    assert output == ("" if last == "deleted" else f"{last}: That is all.\n")
    assert "Traceback" not in errors
    assert (last.lower() in errors) is (last == "deleted")


def test_following_gives_up_after_the_time_that_it_is_given(api_server: ControlPlane, node: str) -> None:
    maintain(api_server, "start", f"{node}/gpu-1")
    ended = refused(maintain(api_server, "status", f"{node}-gpu-1", "-w", "--timeout", "1s"))
    assert f"{node}-gpu-1 is not completed after 1s: Pending" in ended
    assert "is not a duration" in refused(maintain(api_server, "status", f"{node}-gpu-1", "-w", "--timeout", "soon"))
    assert "give its NAME" in refused(maintain(api_server, "status", "-w"))
    assert "add --watch" in refused(maintain(api_server, "status", f"{node}-gpu-1", "--timeout", "1s"))


def test_the_manifest_that_is_printed_is_the_one_that_would_be_made(api_server: ControlPlane, node: str) -> None:
    options = ("--window", "Sat,Sun 22:00 4h Europe/Berlin", "--verify", "job:probe", "--require-approval")
    printed = yaml.safe_load(maintain(api_server, "start", f"{node}/gpu-1", *options, "-o", "yaml").stdout)
    assert maintain(api_server, "start", f"{node}/gpu-1", *options).exit_code == 0
    made = request_in(api_server, f"{node}-gpu-1")["spec"]
    assert printed["spec"].items() <= {name: made[name] for name in printed["spec"]}.items()
    window = {"days": ["Sat", "Sun"], "start": "22:00", "duration": "4h", "timeZone": "Europe/Berlin"}
    assert printed["spec"]["schedule"] == {"windows": [window]}
    assert printed["spec"]["approval"] == "Required"


def test_a_request_goes_from_approval_to_its_end_in_commands(api_server: ControlPlane, node: str, used: str) -> None:
    name = f"{node}-gpu-0"
    assert maintain(api_server, "start", f"{node}/gpu-0", "--evict", "--require-approval").exit_code == 0
    assert "has not begun" in refused(maintain(api_server, "finish", name))
    put_in_phase(api_server, name, "Rehearsed", rehearsal={"devices": 1, "claims": 1, "pods": 2})
    assert f"draco maintain approve {name}" in maintain(api_server, "status", name).output
    assert "without a terminal to confirm it, add --yes" in refused(maintain(api_server, "approve", name))
    approved = maintain(api_server, "approve", name, "--yes")
    assert approved.exit_code == 0, approved.output
    assert "evicts 2 pods" in approved.output
    assert request_in(api_server, name)["spec"]["approved"] is True
    assert "unchanged" in maintain(api_server, "approve", name, "--yes").output

    devices = [{"driver": DRIVER, "pool": node, "device": "gpu-0", "claims": [f"{used}/shared"]}]
    put_in_phase(api_server, name, "Draining", inUse=1, devices=devices)
    assert "still in use" in refused(maintain(api_server, "finish", name))
    one = maintain(api_server, "status", name).output
    assert f"Pods that use them: {used}/web-0, {used}/web-1" in one
    (view,) = json.loads(maintain(api_server, "status", name, "-o", "json").stdout)["maintenances"]
    assert (view["waitsFor"], view["pods"]) == ("1 device in use", [f"{used}/web-0", f"{used}/web-1"])

    put_in_phase(api_server, name, "InMaintenance", inUse=0)
    assert f"draco maintain finish {name}" in maintain(api_server, "status", name).output
    assert "finished" in maintain(api_server, "finish", name).output
    assert request_in(api_server, name)["spec"]["finished"] is True
    put_in_phase(api_server, name, "Completed")
    for action in ("approve", "finish", "cancel"):
        assert "is completed already" in refused(maintain(api_server, action, name))


def test_a_cancelled_request_stays_cancelled(api_server: ControlPlane, node: str) -> None:
    name = f"{node}-gpu-1"
    assert maintain(api_server, "start", f"{node}/gpu-1").exit_code == 0
    assert f"devicemaintenance/{name} cancelled" in maintain(api_server, "cancel", name).output
    assert request_in(api_server, name)["spec"]["cancelled"] is True
    assert "unchanged" in maintain(api_server, "cancel", name).output
    assert "was cancelled" in refused(maintain(api_server, "finish", name))


def test_a_request_or_device_that_is_not_there_is_answered_with_the_nearest(
    api_server: ControlPlane, node: str
) -> None:
    assert f"did you mean {node}/gpu-1?" in refused(maintain(api_server, "start", f"{node}/gpu1"))
    assert maintain(api_server, "start", f"{node}/gpu-1").exit_code == 0
    assert f"did you mean {node}-gpu-1?" in refused(maintain(api_server, "finish", f"{node}-gpu1"))


def test_pause_is_one_switch_and_says_how_to_go_on(api_server: ControlPlane, unpaused: None) -> None:
    assert "draco maintain resume" in maintain(api_server, "pause").output
    assert call(api_server, "GET", f"{BUDGETS}/pause")["spec"]["paused"] is True
    assert maintain(api_server, "pause").exit_code == 0
    assert "MaintenanceBudget pause is paused" in maintain(api_server, "status").stderr
    assert "is resumed" in maintain(api_server, "resume").output
    assert call(api_server, "GET", f"{BUDGETS}/pause")["spec"]["paused"] is False
    call(api_server, "POST", BUDGETS, {**_own("by-hand"), "spec": {"paused": True}})
    assert "still paused" in refused(maintain(api_server, "resume"))


def _own(name: str) -> Json:
    return {"apiVersion": "draco.dev/v1alpha1", "kind": "MaintenanceBudget", "metadata": {"name": name}}
