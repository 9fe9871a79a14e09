"""Draining and Jobs of a DeviceMaintenance: real scheduler, controllers, operator and agents; NVML is simulated."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.partitions import NODE

JOBS = "draco-jobs"


@pytest.fixture
def clean(kube: Kubectl) -> Iterator[Kubectl]:
    """Kubectl. Afterwards nothing is tainted or held."""
    yield kube
    kube.run("delete", "devicemaintenances", "--all")
    kube.run("delete", "deployments,pods,poddisruptionbudgets", "--all", "--grace-period=0", "--force")
    kube.run("delete", "resourceclaims", "--all", "--wait=true")
    kube.run("delete", "cronjobs,jobs,resourceclaims", "--all", "-n", JOBS)


def a_pod(name: str, claim: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, **metadata},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"kubernetes.io/hostname": NODE},
            "containers": [
                {"name": "main", "image": "registry.example/any", "resources": {"claims": [{"name": "gpu"}]}}
            ],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
        },
    }


def a_claim(name: str) -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu.nvidia.com"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def a_budget(name: str, app: str) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": app}}},
    }


def a_cron_job(name: str, *, seconds: str = "0.2", suspend: bool = True, **job: Any) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example/any"}]}
    template = {"metadata": {"annotations": {"draco.dev/run-seconds": seconds}}, "spec": pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": name, "namespace": JOBS},
        "spec": {
            "schedule": "0 0 31 2 *",
            "suspend": suspend,
            "jobTemplate": {"spec": {"template": template, **job}},
        },
    }


def maintain(kube: Kubectl, name: str, device: str, **spec: Any) -> None:
    selector = {"driver": "gpu.nvidia.com", "pool": NODE, **({"device": device} if device else {})}
    kube.apply_objects(
        {
            "apiVersion": "draco.dev/v1alpha1",
            "kind": "DeviceMaintenance",
            "metadata": {"name": name},
            "spec": {"deviceSelector": selector, **spec},
        }
    )


def status(kube: Kubectl, name: str) -> dict[str, Any]:
    return dict(kube.get("devicemaintenance", name).get("status", {}))


def reaches(kube: Kubectl, name: str, phase: str, *, within_s: float = 60.0) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = status(kube, name)
        assert found.get("phase") == phase, f"{found.get('phase')}: {found.get('message')}"
        return found

    found: dict[str, Any] = eventually(look, what=f"{name} is {phase}", within_s=within_s)
    return found


def says(kube: Kubectl, name: str, text: str) -> str:
    def look() -> str:
        said = str(status(kube, name).get("message", ""))
        assert text in said, said
        return said

    return str(eventually(look, what=f"{name} says {text}"))


def pods(kube: Kubectl) -> set[str]:
    return {each["metadata"]["name"] for each in kube.objects("pods") if "deletionTimestamp" not in each["metadata"]}


def held_by(kube: Kubectl, claim: str) -> str:
    ((node, device),) = kube.devices(claim)
    assert node == NODE
    return str(device)


def test_only_holders_are_evicted_and_a_budget_is_heeded_until_it_goes(clean: Kubectl) -> None:
    """Two pods share the claim; one has a budget that can never be met."""
    kube = clean
    kube.apply_objects(a_claim("shared"), a_claim("other"), a_budget("keep", "guarded"))
    kube.apply_objects(a_pod("free", "shared"), a_pod("guarded", "shared"), a_pod("bystander", "other"))
    kube.running("free", "guarded", "bystander")
    device = held_by(kube, "shared")
    maintain(kube, "drain", device, drain={"policy": "Evict"})
    eventually(lambda: pods(kube) == {"guarded", "bystander"}, what="the pod without a budget is evicted")
    says(kube, "drain", "/keep can never be met, its maxUnavailable is 0")
    assert reaches(kube, "drain", "Draining")["inUse"] == 1
    kube.run("delete", "poddisruptionbudget", "keep")
    found = reaches(kube, "drain", "InMaintenance", within_s=90)
    assert found["drainingAt"] <= found["startedAt"]
    assert pods(kube) == {"bystander"}
    kube.run("patch", "devicemaintenance", "drain", "--type=merge", "-p", '{"spec":{"finished":true}}')
    reaches(kube, "drain", "Completed")


def test_no_execute_comes_last_and_overrules_the_budget(clean: Kubectl) -> None:
    kube = clean
    kube.apply_objects(a_claim("held"), a_budget("keep", "guarded"), a_pod("guarded", "held"))
    kube.running("guarded")
    uid = kube.get("pod", "guarded")["metadata"]["uid"]
    maintain(kube, "force", held_by(kube, "held"), drain={"policy": "NoExecute", "noExecuteAfter": "1m"})
    says(kube, "force", "/keep can never be met")
    began = time.monotonic()
    assert kube.get("pod", "guarded")["metadata"]["uid"] == uid
    effects = {each["spec"]["taint"]["effect"] for each in kube.objects("devicetaintrules")}
    assert effects == {"NoSchedule"}
    reaches(kube, "force", "InMaintenance", within_s=120)
    assert time.monotonic() - began > 30, "the budget was heeded at first"
    assert "guarded" not in pods(kube)


def test_work_and_verification_by_jobs_bring_a_gpu_back_by_themselves(clean: Kubectl) -> None:
    kube = clean
    maintain(
        kube,
        "reset",
        "gpu-2",
        work={"fromCronJob": "reset-gpu"},
        verification={"mode": "Job", "fromCronJob": "probe-gpu"},
    )
    says(kube, "reset", "CronJob reset-gpu, the template of the work Jobs, does not exist in draco-jobs")
    kube.apply_objects(a_cron_job("reset-gpu"), a_cron_job("probe-gpu", seconds="2"))
    reaches(kube, "reset", "Verifying", within_s=90)
    seen = eventually(
        lambda: [
            each["status"]["allocation"]["devices"]["results"][0]
            for each in kube.objects("resourceclaims", namespace=JOBS)
            if each.get("status", {}).get("allocation")
        ],
        what="the verification holds the GPU",
    )
    assert {(each["pool"], each["device"]) for each in seen} == {(NODE, "gpu-2")}
    reaches(kube, "reset", "Completed", within_s=90)
    jobs = kube.objects("jobs", namespace=JOBS)
    assert {each["metadata"]["labels"]["draco.dev/purpose"] for each in jobs} == {"work", "verification"}
    assert all(each["status"].get("succeeded") == 1 for each in jobs)
    uuids = {
        entry["value"]
        for each in jobs
        for entry in each["spec"]["template"]["spec"]["containers"][0]["env"]
        if entry["name"] == "DRACO_GPU_UUID"
    }
    assert uuids == {status(kube, "reset")["devices"][0]["uuid"]}
    kube.run("delete", "devicemaintenance", "reset")
    eventually(
        lambda: not kube.objects("jobs", namespace=JOBS) and not kube.objects("resourceclaims", namespace=JOBS),
        what="Jobs and claims go with their request",
    )


def test_a_job_that_fails_keeps_the_gpu_isolated_and_deleting_it_tries_again(clean: Kubectl) -> None:
    kube = clean
    kube.apply_objects(a_cron_job("reset-gpu", seconds="600", activeDeadlineSeconds=2))
    maintain(kube, "reset", "gpu-2", work={"fromCronJob": "reset-gpu"}, verification={"mode": "Person"})
    failed = reaches(kube, "reset", "Failed")
    assert "DeadlineExceeded" in failed["message"]
    assert "delete the Job to try again" in failed["message"]
    assert [each["spec"]["deviceSelector"]["device"] for each in kube.objects("devicetaintrules")] == ["gpu-2"]
    kube.apply_objects(a_cron_job("reset-gpu"))
    (job,) = kube.objects("jobs", namespace=JOBS)
    kube.run("delete", "job", "-n", JOBS, job["metadata"]["name"])
    reaches(kube, "reset", "Completed", within_s=90)


def test_a_cron_job_that_runs_by_itself_is_not_used(clean: Kubectl) -> None:
    kube = clean
    kube.apply_objects(a_cron_job("reset-gpu", suspend=False))
    maintain(kube, "reset", "gpu-2", work={"fromCronJob": "reset-gpu"})
    says(kube, "reset", "is not suspended, so it runs automatically: set its spec.suspend to true")
    kube.apply_objects(a_cron_job("reset-gpu"))
    eventually(lambda: kube.objects("jobs", namespace=JOBS), what="the Job is made")


def conditions(kube: Kubectl) -> dict[str, str]:
    return {
        each["type"]: each["status"]
        for each in kube.get("node", NODE)["status"]["conditions"]
        if each.get("reason") == "DeviceMaintenance"
    }


def test_a_node_says_that_all_its_gpus_are_in_maintenance_and_takes_it_back(clean: Kubectl) -> None:
    kube = clean
    maintain(kube, "one", "gpu-0")
    reaches(kube, "one", "InMaintenance")
    assert conditions(kube) == {}
    kube.run("delete", "devicemaintenance", "one")
    maintain(kube, "all", "", allowMostOfClass=True)
    reaches(kube, "all", "InMaintenance")
    wanted = {
        "MaintenancePlanned": "False",
        "MaintenanceInProgress": "True",
        "DrainInProgress": "False",
        "Drained": "True",
    }
    eventually(lambda: conditions(kube) == wanted, what="the node's conditions")
    assert "unschedulable" not in kube.get("node", NODE)["spec"], "the node is not cordoned"
    kube.run("delete", "devicemaintenance", "all")
    eventually(lambda: conditions(kube) == {}, what="the conditions are taken back")
