"""What an uninstallation leaves behind: compares the API server's whole content before and after Draco.

Operator and agents are real and have tokens of their accounts; so has the chart's hook.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import Forbidden, Invalid
from draco.maintenance.isolating.node_conditions import REASON
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import (
    CLAIM_TEMPLATES,
    CLAIMS,
    DEVICE_MAINTENANCES,
    DEVICE_RESERVATIONS,
    LEASES,
    MIG_POLICIES,
    NODES,
    PODS,
    SLICES,
    TAINT_RULES,
)
from draco.resources.names import ANNOTATION_HELD, LABEL_SIMULATED, SCHEDULING_GATE
from draco_local.cluster.controlplane import ALL, APISERVER, ControlPlane, Settings
from draco_local.cluster.programs import binaries
from tests.component.chart import audit
from tests.component.chart.programs import JOB_SPACE, NODE_NAMES, RAW_PODS, TENANT, Cluster
from tests.component.chart.rendering import CHART, IMAGE, NAMESPACE, helm
from tests.component.controller.replicas import Process, until
from tests.conftest import DIES_WITH_THE_TESTS
from tests.requests import call

VALUES = (
    "--set",
    "operator.allocate=true,operator.runJobs=true,operator.jobTemplates={reset-gpu},operator.replicas=1,withdraw.force=true",
)
OPTIONS = (*("--settle", "0.1"), *("--pending-after", "0"), *("--handover-settle", "0.5"), "--run-jobs", "--allocate")
ACCOUNT = "draco-withdraw"
ASKED_BY_THE_SERVER = {
    audit.Right("resource.k8s.io", "resourceclaims/driver", "arbitrary-node:patch", "gpu.nvidia.com")
}
"""Rights that no request names: the API server checks them when a claim's status is written."""
NOT_WRITTEN_HERE = {
    audit.Right("batch", "jobs", "delete"),
    audit.Right("lifecycle.k8s.io", "evictionrequests", "delete"),
}
"""This Kubernetes takes no EvictionRequests, and no Job works on a GPU."""
TRIED = {"waits", "used", NODE_NAMES[0]}
TIDES = {"events", "leases", "endpointslices", "componentstatuses", "controllerrevisions"}
"""Kinds that a cluster writes all the time."""
AGGREGATED = ("admin", "edit", "view")
TTL = "node.alpha.kubernetes.io/ttl"
THEIRS: dict[str, Any] = {
    "metadata": {"name": "theirs"},
    "spec": {
        "deviceSelector": {"driver": "nic.example.com"},
        "taint": {"key": "example.com/broken", "effect": "NoSchedule"},
    },
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="draco-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane with an audit log of the requests by accounts of Draco's namespace."""
    version = binaries.kubernetes_version()
    (folder / "audit.yaml").write_text(audit.POLICY)
    flags = ("--audit-policy-file", str(folder / "audit.yaml"), "--audit-log-path", str(folder / "audit.log"))
    settings = Settings(
        programs=binaries.find(*ALL, kubernetes=version),
        kubernetes=version,
        enter=DIES_WITH_THE_TESTS,
        extra_flags={APISERVER: flags},
    )
    plane = ControlPlane(folder / "state", settings)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def served(plane: ControlPlane) -> ControlPlane:
    """Where `client` is."""
    return plane


def content(plane: ControlPlane) -> dict[str, Any]:
    """All objects but those of Draco's own kinds, by kind and name, without server-managed metadata."""
    found: dict[str, Any] = {}
    groups = [group["preferredVersion"]["groupVersion"] for group in call(plane, "GET", "/apis")["groups"]]
    for version in ["v1", *(each for each in groups if not each.startswith("draco.dev/"))]:
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        for resource in call(plane, "GET", root)["resources"]:
            if "list" not in resource["verbs"] or "/" in resource["name"] or resource["name"] in TIDES:
                continue
            for item in call(plane, "GET", f"{root}/{resource['name']}")["items"] or []:
                meta = item["metadata"]
                for own in ("managedFields", "resourceVersion", "generation"):
                    meta.pop(own, None)
                found[f"{resource['name']}.{version} {meta.get('namespace', '')}/{meta['name']}"] = item
    return found


def rights() -> list[dict[str, Any]]:
    """The hook's account and its roles, as the chart renders them."""
    where = ("template", "draco", CHART, "-n", NAMESPACE, "--show-only", "templates/withdraw/hook.yaml")
    return [each for each in yaml.safe_load_all(helm(*where, *IMAGE, *VALUES).stdout) if each["kind"] != "Job"]


def by_hand(plane: ControlPlane) -> None:
    """Create the account's roles before helm does."""
    apply = [str(binaries.find("kubectl")["kubectl"]), "--kubeconfig", str(plane.kubeconfig), "apply", "-f", "-"]
    subprocess.run(apply, input=yaml.safe_dump_all(rights()), text=True, check=True, capture_output=True)


def kubeconfig(plane: ControlPlane, folder: Path) -> Path:
    """Kubeconfig of the hook's pod."""
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    token = call(plane, "POST", account, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    authority = str(plane.pki / "ca.crt")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": plane.server, "certificate-authority": authority}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    path = folder / "withdraw.kubeconfig"
    path.write_text(json.dumps(config))
    return path


async def withdraw(kubeconfig: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "draco", "withdraw", "--kubeconfig", str(kubeconfig), "--timeout", "60", *options]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)


async def everything_is_written(cluster: Cluster) -> None:
    """GPUs are handed over, allocated, reserved and in maintenance, and pods wait: everything that Draco writes exists."""
    client, (first, second) = cluster.client, NODE_NAMES
    await cluster.claim("used")
    await cluster.pod("used", "used", node=second)
    await until(lambda: cluster.running("used"), what="a pod with a GPU")
    selector = {"driver": "gpu.nvidia.com", "pool": second, "device": "gpu-0"}
    spec = {"deviceSelector": selector, "allowMostOfClass": True}
    await client.create(DEVICE_MAINTENANCES, {"metadata": {"name": "mend"}, "spec": spec})
    only = {"matchLabels": {"kubernetes.io/hostname": first}}
    spec = {"mode": "Disabled", "allocator": "Operator", "nodeSelector": only}
    await client.create(MIG_POLICIES, {"metadata": {"name": "handed-over"}, "spec": spec})
    await cluster.claim("dracos", device_class="gpu.draco.dev")

    async def held() -> bool:
        return ANNOTATION_HELD in (await client.get(NODES, ObjectKey("", first))).metadata.annotations

    await until(held, what="a node held against scale-down")
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.draco.dev"}}
    template = {"spec": {"devices": {"requests": [request]}}}
    await client.create(CLAIM_TEMPLATES, {"metadata": {"name": "one", "namespace": TENANT}, "spec": template})
    await client.create(
        DEVICE_RESERVATIONS, {"metadata": {"name": "kept", "namespace": TENANT}, "spec": {"templateName": "one"}}
    )
    await cluster.claim("waits", device_class="gpu.draco.dev")
    pod: dict[str, Any] = {
        "containers": [{"name": "main", "image": "none"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "waits"}],
        "schedulingGates": [{"name": SCHEDULING_GATE}, {"name": "example.com/theirs"}],
    }
    await client.create(PODS, {"metadata": {"name": "waits", "namespace": TENANT}, "spec": pod})

    async def said() -> bool:
        node = await client.get(NODES, ObjectKey("", second))
        claims = {each.metadata.name: each for each in await client.list(CLAIMS, namespace=TENANT)}
        return (
            any(each.reason == REASON for each in node.status.conditions)
            and bool(claims["used"].status.devices)
            and any("draco.dev/reservation" in each.metadata.labels for each in claims.values())
            and len(await client.list(TAINT_RULES[1])) == 2
            and len(await client.list(LEASES, namespace=NAMESPACE)) == 1 + len(NODE_NAMES)
        )

    await until(said, what="a node's conditions, a claim's devices, a reservation's claim, a rule and three leases")


async def a_cluster_without_draco(plane: ControlPlane, client: Client) -> None:
    """A cluster before Draco, with a person's taint rule and a person's annotation against the removal of nodes."""
    for name in (TENANT, NAMESPACE):
        call(plane, "POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    call(plane, "POST", TAINT_RULES[1].path(), THEIRS)
    for name in NODE_NAMES:
        labels, annotations = {"kubernetes.io/hostname": name}, {"karpenter.sh/do-not-disrupt": "true"}
        await client.create(NODES, {"metadata": {"name": name, "labels": labels, "annotations": annotations}})


def controllers_are_at_work(content: dict[str, Any]) -> bool:
    """Whether Kubernetes' controllers have started: all are built before one runs."""
    accounts = {name.partition(" ")[2] for name in content if name.startswith("serviceaccounts.")}
    return (
        {f"{name}/default" for name in (TENANT, NAMESPACE)} <= accounts
        and all(content[f"nodes.v1 /{name}"]["metadata"]["annotations"].get(TTL) for name in NODE_NAMES)
        and all(content[f"clusterroles.rbac.authorization.k8s.io/v1 /{name}"]["rules"] for name in AGGREGATED)
        and "status" in content.get("servicecidrs.networking.k8s.io/v1 /kubernetes", {})
    )


async def it_may_do_no_more(kubeconfig: Path) -> None:
    """The account's roles let it patch pods, nodes and claims; its admission policies restrict which fields."""
    node, pod, claim = ObjectKey("", NODE_NAMES[0]), ObjectKey(TENANT, "waits"), ObjectKey(TENANT, "used")
    finalizers = {"metadata": {"finalizers": None}}
    async with Client(await connect(kubeconfig)) as stolen:
        for kind, key, patch, subresource in (
            (PODS, pod, [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}], ""),
            (PODS, pod, {"metadata": {"labels": {"a": "b"}}}, ""),
            (NODES, node, {"metadata": {"labels": {"a": "b"}}}, ""),
            (NODES, node, {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "false"}}}, ""),
            (NODES, node, {"spec": {"unschedulable": True}}, ""),
            (NODES, node, {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "status"),
            (CLAIMS, claim, finalizers, ""),
            (CLAIMS, claim, {"status": {"allocation": None}}, "status"),
            (CLAIMS, claim, {"status": {"reservedFor": None}}, "status"),
        ):
            with pytest.raises((Invalid, Forbidden), match=r"draco withdraw may only|resourceclaims/binding"):
                await stolen.patch(kind, key, patch, subresource=subresource)
        with pytest.raises((Invalid, Forbidden), match="draco withdraw may only delete claims that Draco created"):
            await stolen.delete(CLAIMS, claim)


async def uninstalled(plane: ControlPlane, client: Client, folder: Path, planned: set[str]) -> None:
    """Uninstall with helm. The test runs what the hook's pod would run."""
    where = ("--kubeconfig", plane.kubeconfig, "--namespace", NAMESPACE, "--timeout", "180s")
    gone = asyncio.create_task(asyncio.to_thread(helm, "uninstall", "draco", *where))

    async def of_hook() -> dict[str, Any] | None:
        job = f"batch.kubernetes.io/job-name={ACCOUNT}"
        return next(iter(await client.list(RAW_PODS, namespace=NAMESPACE, label_selector=job)), None)

    pod = await until(of_hook, what="the pod of helm's hook")
    hook = kubeconfig(plane, folder)
    assert pod["spec"]["serviceAccountName"] == ACCOUNT
    [container] = pod["spec"]["containers"]
    command, *options = container["args"]
    done = await withdraw(hook, *options)
    assert (command, done.returncode, planned - set(done.stdout.splitlines())) == ("withdraw", 0, set()), done.stderr
    again = await withdraw(hook, *options)
    assert (again.returncode, again.stdout.splitlines()[:-1]) == (0, []), "the second time nothing is left to do"
    key = ObjectKey(NAMESPACE, pod["metadata"]["name"])
    await client.patch(PODS, key, {"status": {"phase": "Succeeded"}}, subresource="status")
    said = await gone
    assert said.returncode == 0, said.stderr

    async def empty() -> bool:
        return not await client.list(RAW_PODS, namespace=NAMESPACE)

    await until(empty, what="no pod of Draco's")


def rights_are_used_and_enough(folder: Path) -> None:
    """The hook's account has the rights that it needs and no others."""
    requests = audit.Requests(folder / "audit.log", ACCOUNT)
    granted = audit.granted(rights(), ACCOUNT) - ASKED_BY_THE_SERVER
    assert set(audit.unused(granted, requests)) == NOT_WRITTEN_HERE, "a right of the hook is used by nothing"
    assert {right for right in requests.refused if right.name not in TRIED} == set()


def tenants_have_what_is_theirs(after: dict[str, Any]) -> None:
    """Devices in use stay allocated, and nothing of Draco's blocks pods and claims or their deletion."""
    waits = after[f"pods.v1 {TENANT}/waits"]
    assert waits["spec"]["schedulingGates"] == [{"name": "example.com/theirs"}]
    claims = {name: each for name, each in after.items() if name.startswith("resourceclaims.")}
    assert {each["metadata"]["name"] for each in claims.values()} == {"used", "dracos", "waits"}
    by_name = {each["metadata"]["name"]: each for each in claims.values()}
    assert "finalizers" not in by_name["waits"]["metadata"]
    assert by_name["used"]["status"]["allocation"], "a running pod keeps its GPU"
    assert "devices" not in by_name["used"]["status"]
    assert by_name["dracos"]["status"]["allocation"], "an allocated claim is its owner's"


async def test_an_uninstallation_leaves_nothing_on_what_is_not_dracos(
    plane: ControlPlane, client: Client, folder: Path
) -> None:
    """Tenants' objects created meanwhile end up as without Draco; devices in use stay allocated."""
    await a_cluster_without_draco(plane, client)

    async def as_it_is() -> dict[str, Any] | None:
        found = await asyncio.to_thread(content, plane)
        return found if controllers_are_at_work(found) else None

    before = await until(as_it_is, what="Kubernetes' controllers at work")
    here = ("--kubeconfig", plane.kubeconfig, "--namespace", NAMESPACE)
    done = helm("install", "draco", CHART, *here, *IMAGE, *VALUES)
    assert done.returncode == 0, done.stderr
    cluster = Cluster(plane, client, folder)
    operator = None
    try:
        async with cluster.nodes():
            where = ("--kubeconfig", str(cluster.kubeconfig()), "--namespace", NAMESPACE)
            operator = await Process.start(plane, folder, *where, *OPTIONS)
            await everything_is_written(cluster)
            by_hand(plane)
            hook = kubeconfig(plane, folder)
            refused = await withdraw(hook)
            assert refused.returncode == 1
            assert "1 device in maintenance (sim-1/gpu-0) would return to service unverified" in refused.stderr
            assert len(await client.list(SLICES)) == len(NODE_NAMES), "nothing is done before that is agreed to"
            assert call(plane, "GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/draco-operator")
            await it_may_do_no_more(hook)
    finally:
        if operator:
            await operator.end()
    # The kubelets ended with the agents: their nodes get no new pods, and old ones end.
    for node in NODE_NAMES:
        await client.patch(NODES, ObjectKey("", node), {"spec": {"unschedulable": True}})
    for each in await client.list(PODS, namespace=NAMESPACE):
        await client.delete(PODS, each.metadata.key, grace_period_s=0)
    told = await withdraw(hook, "--dry-run", "--force")
    assert told.returncode == 0, told.stderr
    planned = {line.removesuffix(" (dry run)") for line in told.stdout.splitlines()}
    assert "1 claim of running pods keep" in told.stderr
    assert len(await client.list(SLICES)) == len(NODE_NAMES), "a dry run writes nothing"
    await uninstalled(plane, client, folder, planned)
    rights_are_used_and_enough(folder)
    tenants_have_what_is_theirs(content(plane))

    def differences() -> set[str]:
        after = content(plane)
        for name in filter(lambda name: name.startswith("nodes."), before):
            # Kubelet's node status is not Draco's.
            assert not [one for one in after[name]["status"]["conditions"] if one["reason"] == REASON]
            assert {key for key in after[name]["metadata"]["labels"] if "draco.dev" in key} <= {LABEL_SIMULATED}
            before[name]["status"], before[name]["spec"] = after[name]["status"], after[name]["spec"]
            before[name]["metadata"]["labels"] = after[name]["metadata"]["labels"]
        changed = {name for name, each in before.items() if after.get(name) != each}
        # The Jobs' namespace has administrators' templates, so it stays.
        new = {name for name in after if name not in before and TENANT not in name and JOB_SPACE not in name}
        return changed | {name for name in new if not name.endswith((".draco.dev", "/kube-root-ca.crt"))}

    async def as_before() -> bool:
        return not differences()

    # Kubernetes, too, removes the chart's rules from its aggregated roles only after a while.
    with suppress(AssertionError):
        await until(as_before, within_s=30.0)
    assert differences() == set()
