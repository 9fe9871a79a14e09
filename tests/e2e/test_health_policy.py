"""From a fault to a repaired GPU, automatically: real scheduler, controllers, operator and agents; NVML is simulated."""

import json
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import provider
from tests.e2e.conftest import draco
from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.partitions import NODE
from tests.e2e.test_maintain import JOBS, a_claim, a_cron_job, a_pod, held_by, pods

POLICY = "resets"


@pytest.fixture
def clean(kube: Kubectl) -> Iterator[Kubectl]:
    """Kubectl. Afterwards no GPU is faulty, tainted or held."""
    yield kube
    kube.run("delete", "healthpolicies", "--all")
    kube.run("delete", "devicemaintenances", "--all")
    kube.run("delete", "pods", "--all", "--grace-period=0", "--force")
    kube.run("delete", "resourceclaims", "--all", "--wait=true")
    kube.run("delete", "cronjobs,jobs", "--all", "-n", JOBS)
    accident("reload-driver")
    eventually(lambda: not any(taints(kube).values()), within_s=120, what="no GPU is tainted any more")


def accident(command: str, *arguments: str) -> None:
    """Inject an event on the node's GPUs."""
    done = draco("cluster", "gpu", command, "--name", provider.CLUSTER, NODE, *arguments)
    assert done.returncode == 0, done.stderr


def a_policy(**rule: Any) -> dict[str, Any]:
    condition = f'gpu.node == "{NODE}" && (fault.xid == 95 || fault.name == "NeedsReset")'
    return {
        "apiVersion": "draco.dev/v1alpha1",
        "kind": "HealthPolicy",
        "metadata": {"name": POLICY},
        "spec": {"rules": [{"name": "reset", "condition": condition, **rule}]},
    }


def taints(kube: Kubectl) -> dict[str, list[str]]:
    """Taints of the node's published devices: keys and effects."""
    return {
        device["name"]: [f"{each['key']}:{each['effect']}" for each in device.get("taints", [])]
        for each in kube.objects("resourceslices")
        if each["spec"].get("nodeName") == NODE
        for device in each["spec"].get("devices", [])
    }


def falls_sick(kube: Kubectl, number: str) -> None:
    """Inject an XID until the agent hears it: one right after a driver reload is lost."""
    sent_s = -math.inf

    def heard() -> bool:
        nonlocal sent_s
        if "draco.dev/xid:NoSchedule" in taints(kube)[f"gpu-{number}"]:
            return True
        if time.monotonic() - sent_s > 10.0:
            accident("xid", number, "95")
            sent_s = time.monotonic()
        return False

    eventually(heard, what="the agent hears of the XID")


def requests(kube: Kubectl) -> list[dict[str, Any]]:
    return [
        each
        for each in kube.objects("devicemaintenances")
        if "draco.dev/remediates" in each["metadata"].get("labels", {})
    ]


def reaches(kube: Kubectl, phase: str, *, within_s: float = 90.0) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        found, *more = requests(kube)
        assert not more, [(each["metadata"]["name"], each.get("status", {}).get("message")) for each in (found, *more)]
        status = found.get("status", {})
        assert status.get("phase") == phase, f"{status.get('phase')}: {status.get('message')}"
        return found

    found: dict[str, Any] = eventually(look, what=f"the request is {phase}", within_s=within_s)
    return found


def worked(kube: Kubectl) -> tuple[dict[str, Any], dict[str, Any]]:
    found, jobs = requests(kube), kube.objects("jobs", namespace=JOBS)
    assert (len(found), len(jobs)) == (1, 1)
    [request], [job] = found, jobs
    assert job.get("status", {}).get("succeeded") == 1, request.get("status")
    return request, job


def said(kube: Kubectl) -> str:
    return str(kube.get("healthpolicy", POLICY).get("status", {}).get("message", ""))


def test_a_sick_gpu_is_tainted_emptied_reset_verified_and_given_back_by_itself(clean: Kubectl) -> None:
    kube = clean
    kube.apply_objects(a_cron_job("reset-gpu", seconds="1"))
    kube.apply_objects(a_claim("held"), a_claim("other"), a_pod("victim", "held"), a_pod("bystander", "other"))
    kube.running("victim", "bystander")
    device = held_by(kube, "held")
    number = device.removeprefix("gpu-")
    falls_sick(kube, number)
    # Before the policy: a Job that succeeds before the driver asks for a reset counts as a reset.
    accident("recovery", number, "reset")
    kube.apply_objects(a_policy(effect="Evict", remediation={"fromCronJob": "reset-gpu"}))
    eventually(lambda: pods(kube) == {"bystander"}, what="the pod that holds the GPU is evicted, and no other")
    request, job = eventually(lambda: worked(kube), within_s=90, what="the Job that does the work is through")
    assert request["spec"]["deviceSelector"]["device"] == device
    assert request["spec"]["drain"]["policy"] == "Evict"
    assert request["metadata"]["name"] in {each["name"] for each in job["metadata"]["ownerReferences"]}
    eventually(lambda: kube.get("healthpolicy", POLICY)["status"]["remediating"] == 1, what="the policy counts it")
    accident("reset", number)  # as the Job's container would do
    reaches(kube, "Completed", within_s=120)
    eventually(lambda: taints(kube)[device] == [], what="the GPU is offered again")
    eventually(lambda: "has a fault that a rule matches" in said(kube), what="the policy has nothing left to do")
    assert kube.get("gpunode", NODE).get("spec", {}).get("health", []) == []


def ended(kube: Kubectl, code: int, message: str = "") -> None:
    """End the only Job's container, as a real one would."""

    def running() -> dict[str, Any]:
        found = [each for each in kube.objects("pods", namespace=JOBS) if each["status"].get("phase") == "Running"]
        assert len(found) == 1, [each["metadata"]["name"] for each in found]
        return found[0]

    pod = eventually(running, what="the Job's pod runs", within_s=90)
    [container] = pod["status"]["containerStatuses"]
    state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}}
    told = {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [{**container, "ready": False, "started": False, "state": state}],
    }
    kube.run(
        *("patch", "pod", "-n", JOBS, pod["metadata"]["name"], "--subresource", "status", "--type", "merge"),
        *("-p", json.dumps({"status": told})),
    )


def test_a_reset_that_a_program_stood_in_the_way_of_is_tried_again_and_ends_what_nvml_told_once(
    clean: Kubectl,
) -> None:
    kube = clean
    kube.apply_objects(a_cron_job("reset-gpu", seconds="600", backoffLimit=0))
    kube.apply_objects(a_policy(remediation={"fromCronJob": "reset-gpu"}))
    accident("hold", "6", "--handle", "--program", "nvidia-persistenced", "--pid", "4242")
    falls_sick(kube, "6")  # with a driver that asks for no reset, the agent is not told of one
    refused = draco("cluster", "gpu", "reset", "--name", provider.CLUSTER, NODE, "6")
    assert "cannot be reset: process 4242 holds it" in refused.stderr
    ended(kube, 255, "held by nvidia-persistenced (4242), and nvidia-smi says: In use by another client")
    failed = reaches(kube, "Failed")
    assert "ended with code 255: held by nvidia-persistenced" in failed["status"]["message"]
    [sick] = [each for each in kube.get("gpunode", NODE)["status"]["gpus"] if each.get("faults")]
    assert [(sick["device"], fault["name"]) for fault in sick["faults"]] == [("gpu-6", "Xid95")]
    assert "draco.dev/xid:NoSchedule" in taints(kube)["gpu-6"]
    accident("release", "4242")
    (job,) = kube.objects("jobs", namespace=JOBS)
    kube.run("delete", "job", "-n", JOBS, job["metadata"]["name"])
    eventually(lambda: job["metadata"]["uid"] not in str(kube.objects("pods", namespace=JOBS)), what="its pod is gone")
    accident("reset", "6")  # as the next Job's container would do
    ended(kube, 0)
    reaches(kube, "Completed", within_s=120)
    eventually(lambda: taints(kube)["gpu-6"] == [], what="the GPU is offered again")
    eventually(lambda: "repaired" not in kube.get("gpunode", NODE)["spec"], what="the agent needs to be told no more")


def test_a_dry_run_touches_nothing(clean: Kubectl) -> None:
    kube = clean
    manifest = a_policy(effect="NoExecute", remediation={"fromCronJob": "reset-gpu"})
    manifest["spec"]["dryRun"] = True
    kube.apply_objects(manifest, a_claim("held"), a_pod("worker", "held"))
    kube.running("worker")
    device = held_by(kube, "held")
    falls_sick(kube, device.removeprefix("gpu-"))
    eventually(lambda: "Dry run: would treat Xid95 as NoExecute" in said(kube), what="what it would do")
    assert taints(kube)[device] == ["draco.dev/xid:NoSchedule"]
    assert requests(kube) == []
    assert pods(kube) == {"worker"}


def test_a_milder_rule_lifts_a_taint_and_its_end_brings_it_back(clean: Kubectl) -> None:
    kube = clean
    falls_sick(kube, "5")
    eventually(lambda: taints(kube)["gpu-5"] == ["draco.dev/xid:NoSchedule"], what="the agent's taint")
    kube.apply_objects(a_policy(effect="Record"))
    eventually(lambda: taints(kube)["gpu-5"] == [], what="the fault is only noted")
    kube.run("delete", "healthpolicy", POLICY)
    eventually(lambda: taints(kube)["gpu-5"] == ["draco.dev/xid:NoSchedule"], what="the agent's taint is back")
