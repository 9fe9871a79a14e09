"""`draco maintain` and `draco health` on a whole cluster: a GPU goes out of service and comes back, command by command."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import draco
from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.test_taint import a_claim, a_pod

Json = dict[str, Any]


@pytest.fixture
def clean(kube: Kubectl) -> Iterator[Kubectl]:
    """Kubectl. Afterwards there is neither a request nor a budget."""
    yield kube
    kube.run("delete", "devicemaintenances,maintenancebudgets", "--all", "--wait=true")


def maintain(kube: Kubectl, *arguments: str) -> str:
    done = tried(kube, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tried(kube: Kubectl, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return draco("maintain", *arguments, kubeconfig=kube.kubeconfig)


def phase(kube: Kubectl, name: str) -> str:
    (view,) = json.loads(maintain(kube, "status", name, "-o", "json"))["maintenances"]
    found: str = view["phase"]
    return found


def in_phase(kube: Kubectl, name: str, wanted: str) -> None:
    eventually(lambda: phase(kube, name) == wanted, what=f"{name} is {wanted}")


def test_a_gpu_goes_out_of_service_and_comes_back_command_by_command(clean: Kubectl) -> None:
    kube = clean
    kube.apply_objects(a_claim("held"), a_pod("worker", "held"))
    kube.running("worker")
    (held,) = kube.devices("held")
    device = "/".join(held)

    started = maintain(kube, "start", "swap", "--pool", held[0], "--device", held[1], "--require-approval")
    assert "work starts when 1 pod has ended; no pod is evicted" in started
    assert "Starts after `draco maintain approve swap`." in started
    in_phase(kube, "swap", "Rehearsed")
    assert not kube.objects("devicetaintrules")
    assert "has not begun" in tried(kube, "finish", "swap").stderr

    assert "1 pod" in maintain(kube, "approve", "swap", "--yes")
    in_phase(kube, "swap", "Isolated")
    one = maintain(kube, "status", "swap")
    assert "/worker" in one
    assert device in one
    assert "draco maintain cancel swap" in one
    assert "not ready for work yet" in tried(kube, "finish", "swap").stderr
    status = draco("status", kubeconfig=kube.kubeconfig).stdout
    assert "DeviceMaintenance swap (isolated)" in status

    kube.run("delete", "pod", "worker", "--wait=true")
    kube.run("delete", "resourceclaim", "held", "--wait=true")
    in_phase(kube, "swap", "InMaintenance")
    assert "draco maintain finish swap" in maintain(kube, "status", "swap")
    maintain(kube, "finish", "swap")
    in_phase(kube, "swap", "Completed")
    assert not kube.objects("devicetaintrules")
    assert "is completed already" in tried(kube, "cancel", "swap").stderr


def test_a_cancelled_request_gives_the_gpu_back_and_a_pause_holds_the_next_one_up(clean: Kubectl) -> None:
    kube = clean
    node = kube.objects("resourceslices")[0]["spec"]["nodeName"]
    maintain(kube, "start", "first", "--pool", node, "--device", "gpu-1")
    in_phase(kube, "first", "InMaintenance")
    maintain(kube, "cancel", "first")
    in_phase(kube, "first", "Cancelled")
    eventually(lambda: not kube.objects("devicetaintrules"), what="no rule is left")

    maintain(kube, "pause")
    maintain(kube, "start", "second", "--pool", node, "--device", "gpu-1")
    in_phase(kube, "second", "Rehearsed")
    assert "paused" in draco("status", kubeconfig=kube.kubeconfig).stdout
    assert not kube.objects("devicetaintrules")
    maintain(kube, "resume")
    in_phase(kube, "second", "InMaintenance")


def test_health_lists_every_gpu_and_says_that_all_are_well(kube: Kubectl) -> None:
    done = draco("health", "--all", "-o", "json", kubeconfig=kube.kubeconfig)
    document = json.loads(done.stdout)
    assert document["total"] == len(document["gpus"]) > 0
    assert {each["health"] for each in document["gpus"]} == {"Healthy"}
    first = document["gpus"][0]
    about_one = draco("health", f"{first['node']}/{first['device']}", kubeconfig=kube.kubeconfig)
    assert first["uuid"] in about_one.stdout
    assert "did you mean" in draco("health", f"{first['node']}/gpu0", kubeconfig=kube.kubeconfig).stderr
