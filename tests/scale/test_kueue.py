"""Kueue admits gangs with Draco's claims: gangs that wait for quota get no GPU, admitted ones get all their GPUs or none.

Also tests the table of what Kueue and ResourceQuota count (docs/concepts/allocation.md), row by row.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draco.kube.connect.client import Client
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIM_TEMPLATES, EVENTS, JOBS, PODS
from draco_local.cluster.controlplane import ControlPlane
from tests.component.allocation.lab import ALLOCATING, Guarded
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import allocated_claims, make_member, make_template
from tests.component.simulator.test_nodes import running, until_running
from tests.requests import call
from tests.scale.kueue import KUEUE, kueue, make
from tests.scale.rows import BOARD, PROFILE, ROWS, looking_on

MAPPINGS = {"gpus.draco": ["gpu.draco.dev", BOARD], "mig-1g.draco": [PROFILE]}
GPUS, INSTANCES = 8, 4
"""Quota of the queue."""
QUEUE = {"kueue.x-k8s.io/queue-name": "team"}


@pytest.fixture(scope="module")
def queues(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kueue, with a ClusterQueue that has a quota of GPUs and of instances."""
    made: list[str] = []
    quota = {"cpu": "100", "memory": "100Gi", "gpus.draco": GPUS, "mig-1g.draco": INSTANCES}
    flavor = {"name": "default", "resources": [{"name": name, "nominalQuota": most} for name, most in quota.items()]}
    cluster_queue = {
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": list(quota), "flavors": [flavor]}],
    }
    with kueue(control_plane, tmp_path_factory.mktemp("kueue"), MAPPINGS):
        try:
            made.append(make(control_plane, "resourceflavors", _object("ResourceFlavor", "default", {})))
            made.append(make(control_plane, "clusterqueues", _object("ClusterQueue", "team", cluster_queue)))
            yield
        finally:
            for path in reversed(made):
                call(control_plane, "DELETE", path)


@pytest.fixture
def team(control_plane: ControlPlane, queues: None, namespace: str) -> Iterator[str]:
    """A namespace with a LocalQueue. Its workloads are deleted afterwards, since the next test needs the whole quota."""
    queue = _object("LocalQueue", "team", {"clusterQueue": "team"})
    path = make(control_plane, "localqueues", queue, namespace=namespace)
    yield namespace
    for each in (f"/apis/batch/v1/namespaces/{namespace}/jobs", f"{KUEUE}/namespaces/{namespace}/workloads"):
        call(control_plane, "DELETE", f"{each}?propagationPolicy=Background")
    call(control_plane, "DELETE", path)


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}


def gang(name: str, size: int) -> dict[str, Any]:
    """The labels and annotations of a pod in a group that Kueue admits as a whole."""
    return {
        "labels": {**QUEUE, "kueue.x-k8s.io/pod-group-name": name},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": str(size)},
    }


async def members(client: Client, namespace: str, group: str, size: int, template: str) -> list[str]:
    names = [f"{group}-{number}" for number in range(size)]
    for name in names:
        await make_member(client, namespace, name, template=template, **gang(group, size))
    return names


def workloads(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(plane, "GET", f"{KUEUE}/namespaces/{namespace}/workloads")["items"]
    return found


def refusal(workload: dict[str, Any]) -> str:
    """Why Kueue reserved no quota: reason and message; empty if it has not said."""
    conditions = workload.get("status", {}).get("conditions", [])
    return next(
        (f"{each['reason']}: {each['message']}" for each in conditions if _is_refusal(each)),
        "",
    )


def _is_refusal(condition: dict[str, Any]) -> bool:
    return bool(condition["type"] == "QuotaReserved" and condition["status"] == "False")


async def test_a_gang_has_no_gpu_while_the_quota_is_used_up_and_all_of_its_gpus_once_it_is_admitted(
    control_plane: ControlPlane, guarded: Guarded, all_dracos: Client, team: str, folder: Path
) -> None:
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, team, "four", gpus=4)
        first = await members(all_dracos, team, "first", 2, "four")  # the whole quota of eight; the cluster has 24 GPUs
        await until_running(all_dracos, team, *first)
        second = await members(all_dracos, team, "second", 2, "four")

        async def waits() -> bool:
            said = [refusal(each) for each in workloads(control_plane, team)]
            return any("insufficient unused quota for gpus.draco" in each for each in said)

        await until(waits, what="Kueue finds the quota used up")
        assert len(await allocated_claims(all_dracos, team)) == len(first)
        call(
            control_plane, "DELETE", f"{KUEUE}/namespaces/{team}/workloads/first"
        )  # Kueue owns its pods and deletes them
        await until_running(all_dracos, team, *second)


async def test_an_admitted_gang_that_finds_no_room_gets_nothing_until_it_gets_everything(
    control_plane: ControlPlane, guarded: Guarded, all_dracos: Client, team: str, folder: Path
) -> None:
    """Kueue counts only quota: it admits a gang without room on any permitted node. Draco then allocates all of it or nothing."""
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, team, "six", gpus=6, device_class=BOARD)
        await make_template(all_dracos, team, "one", gpus=1, device_class=BOARD)
        there: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": "sim-2"}}
        for name in ("outsider", "other"):  # they are in no queue, so their GPUs do not count against the quota
            await make_member(all_dracos, team, name, template="six" if name == "other" else "one", **there)
        await until_running(all_dracos, team, "outsider", "other")
        for name in ("a", "b"):
            await make_member(all_dracos, team, name, template="one", **there, **gang("pair", 2))

        async def admitted() -> bool:
            return any(each.get("status", {}).get("admission") for each in workloads(control_plane, team))

        await until(admitted, what="Kueue admits the pair")

        async def told() -> str | None:
            events = await all_dracos.list(EVENTS, namespace=team)
            return next(
                (each.message for each in events if each.reason == "GroupWaiting" and "gate" not in each.message), None
            )

        await until(told, what="Draco says why the pair waits")
        assert len(await allocated_claims(all_dracos, team)) == 2
        await all_dracos.delete(PODS, ObjectKey(team, "outsider"))
        await until_running(all_dracos, team, "a", "b")


async def test_a_job_is_suspended_until_there_is_quota_for_all_its_pods(
    control_plane: ControlPlane, guarded: Guarded, all_dracos: Client, team: str, folder: Path
) -> None:
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, team, "two", gpus=2)
        for name in ("first", "second"):
            await make_job(all_dracos, team, name, 3, ["two"])  # six of the quota of eight

        async def one_of_them() -> list[Pod] | None:
            pods = await all_dracos.list(PODS, namespace=team)
            return pods if len(pods) == 3 and all(each.status.phase == "Running" for each in pods) else None

        pods = await until(one_of_them, what="one Job")
        assert any("4 more needed" in refusal(each) for each in workloads(control_plane, team))
        runs = pods[0].metadata.labels["batch.kubernetes.io/job-name"]
        call(control_plane, "DELETE", f"/apis/batch/v1/namespaces/{team}/jobs/{runs}?propagationPolicy=Background")

        async def the_other() -> bool:
            pods = await all_dracos.list(PODS, namespace=team)
            running_now = {
                each.metadata.labels["batch.kubernetes.io/job-name"] for each in pods if each.status.phase == "Running"
            }
            return bool(running_now) and runs not in running_now

        await until(the_other, what="the other Job")


async def make_job(
    client: Client, namespace: str, name: str, pods: int, templates: list[str], *, claim: str = ""
) -> None:
    claims = [{"name": f"c{number}", "resourceClaimTemplateName": each} for number, each in enumerate(templates)]
    if claim:
        claims.append({"name": "named", "resourceClaimName": claim})
    resources = {"claims": [{"name": each["name"]} for each in claims]}
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "none", "resources": resources}],
        "resourceClaims": claims,
    }
    spec = {"parallelism": pods, "completions": pods, "suspend": True, "template": {"spec": pod}}
    await client.create(JOBS, {"metadata": {"name": name, "namespace": namespace, "labels": QUEUE}, "spec": spec})


@pytest.mark.parametrize("row", ROWS)
async def test_what_kueue_counts_of_a_pod(
    control_plane: ControlPlane, guarded: Guarded, client: Client, team: str, row: str
) -> None:
    meta = {"name": "asked", "namespace": team}
    call(control_plane, "PATCH", f"/api/v1/namespaces/{team}?fieldManager=tests&force=true", looking_on(team))
    await client.create(CLAIM_TEMPLATES, {"metadata": meta, "spec": {"spec": {"devices": ROWS[row].devices}}})
    await make_job(client, team, "job", 1, ["asked"])
    found, expected = await verdict(control_plane, team), ROWS[row].kueue
    assert found == expected if isinstance(expected, dict) else expected in str(found)


async def test_a_claim_by_name_is_not_admitted(
    control_plane: ControlPlane, guarded: Guarded, client: Client, team: str
) -> None:
    await make_job(client, team, "job", 1, [], claim="mine")
    assert "does not support use of resource claims" in str(await verdict(control_plane, team))


async def verdict(plane: ControlPlane, namespace: str) -> dict[str, str] | str:
    """What Kueue counts for the only workload, or why it does not admit it."""

    async def look() -> dict[str, str] | str | None:
        for each in workloads(plane, namespace):
            if admission := each.get("status", {}).get("admission"):
                usage: dict[str, str] = admission["podSetAssignments"][0]["resourceUsage"]
                return {name: amount for name, amount in usage.items() if name in MAPPINGS}
            if said := refusal(each):
                return said
        return None

    return await until(look, what="Kueue's verdict")
