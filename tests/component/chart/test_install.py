"""The chart installed into a real API server: its rights are sufficient for each program's work and permit no more."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.kube.errors import AlreadyExists, ApiError, Forbidden, Invalid
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_MAINTENANCES, GPU_NODES, NODES, PODS, SLICES, TAINT_RULES, Kind
from draco_local.cluster.controlplane import STORE, ControlPlane
from tests.component.chart.rendering import CHART, IMAGE, NAMESPACE, helm
from tests.conftest import start_control_plane
from tests.doubles.token import FixedToken
from tests.requests import call

DRIVER = "gpu.nvidia.com"
SERVED_TAINT_RULES = TAINT_RULES[1]
SERVICE_ACCOUNTS: Kind[Any] = Kind("", "v1", "serviceaccounts", "ServiceAccount", True, dict)
SECRETS: Kind[Any] = Kind("", "v1", "secrets", "Secret", True, dict)
LEASES: Kind[Any] = Kind("coordination.k8s.io", "v1", "leases", "Lease", True, dict)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate API server: helm refuses to adopt definitions that another test has created."""
    yield from start_control_plane(tmp_path_factory.mktemp("chart") / "state", STORE)


@pytest.fixture
def served(release: ControlPlane) -> ControlPlane:
    """The server of `client` and `namespace`."""
    return release


@pytest.fixture(scope="module")
def release(plane: ControlPlane) -> Iterator[ControlPlane]:
    """The chart with default values, installed by the real helm; uninstalled afterwards."""
    here = ("--kubeconfig", plane.kubeconfig, "--namespace", NAMESPACE)
    done = helm("install", "draco", CHART, *here, *IMAGE, "--create-namespace")
    assert done.returncode == 0, done.stderr
    yield plane
    done = helm("uninstall", "draco", *here, "--no-hooks")  # no node runs the hook's Job
    assert done.returncode == 0, done.stderr
    for kind in ("gpunodes", "devicemaintenances", "migpolicies"):
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}.draco.dev"
        assert call(plane, "GET", path)["metadata"]["name"] == f"{kind}.draco.dev"


@pytest.fixture
async def administrator(release: ControlPlane, client: Client) -> Client:
    for name in ("node-a", "node-b"):
        await client.apply(NODES, ObjectKey("", name), {"metadata": {"name": name}}, manager="test")
    return client


@pytest.fixture
async def agent(release: ControlPlane, administrator: Client) -> AsyncIterator[Client]:
    """An agent's client: a token bound to a pod on node-a. The admission policies are enforced."""
    async with as_pod_of(release, administrator, "draco-agent", node="node-a") as client:
        await policies_in_force(client, administrator)
        yield client


@pytest.fixture
async def operator(release: ControlPlane, administrator: Client) -> AsyncIterator[Client]:
    async with as_pod_of(release, administrator, "draco-operator", node="node-b") as client:
        yield client


def as_pod_of(release: ControlPlane, administrator: Client, account: str, *, node: str) -> "PodIdentity":
    return PodIdentity(release, administrator, account, node)


class PodIdentity:
    """A client with the token that kubelet would give a pod of this account on this node."""

    def __init__(self, release: ControlPlane, administrator: Client, account: str, node: str) -> None:
        self._release, self._administrator, self._account, self._node = release, administrator, account, node

    async def __aenter__(self) -> Client:
        key = ObjectKey(NAMESPACE, f"{self._account}-pod")
        await self._administrator.create(
            PODS,
            {  # a pod needs more than the fields Draco reads
                "metadata": {"name": key.name, "namespace": NAMESPACE},
                "spec": {
                    "serviceAccountName": self._account,
                    "nodeName": self._node,
                    "containers": [{"name": "main", "image": "busybox"}],
                },
            },
        )
        pod = await self._administrator.get(PODS, key)
        bound = {"apiVersion": "v1", "kind": "Pod", "name": key.name, "uid": pod.metadata.uid}
        answer = await self._administrator.create_subresource(
            SERVICE_ACCOUNTS,
            ObjectKey(NAMESPACE, self._account),
            "token",
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": 600, "boundObjectRef": bound},
            },
        )
        self._connection = Connection(
            self._release.server,
            tls=ssl.create_default_context(cafile=str(self._release.pki / "ca.crt")),
            credentials=FixedToken(answer["status"]["token"]),
        )
        return Client(self._connection)

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()
        await self._administrator.delete(PODS, ObjectKey(NAMESPACE, f"{self._account}-pod"), grace_period_s=0)


def a_slice(name: str, node: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }


async def test_an_agent_publishes_for_its_own_node_only(agent: Client) -> None:
    key = ObjectKey("", "node-a-slice")
    other = ObjectKey("", "node-b-slice")
    await agent.create(SLICES, a_slice(key.name, "node-a"))
    await agent.delete(SLICES, key)
    with pytest.raises(ApiError, match="the agent of node node-a may write only slices for that node alone"):
        await agent.create(SLICES, a_slice(other.name, "node-b"))


async def test_an_agent_writes_its_own_gpunode_only(agent: Client, administrator: Client) -> None:
    mine, other = ObjectKey("", "node-a"), ObjectKey("", "node-b")
    await agent.create(GPU_NODES, {"metadata": {"name": mine.name}})
    await agent.apply(GPU_NODES, mine, {"status": {"driver": DRIVER}}, manager="test", subresource="status")
    await administrator.apply(GPU_NODES, other, {"spec": {}}, manager="test")
    with pytest.raises(ApiError, match="may not write the GpuNode of node node-b"):
        await agent.apply(GPU_NODES, other, {"status": {"driver": "x"}}, manager="test", subresource="status")
    for key in (mine, other):
        await administrator.delete(GPU_NODES, key)


async def test_an_agent_reports_devices_of_its_driver_on_its_node(
    agent: Client, administrator: Client, namespace: str
) -> None:
    key = await an_allocated_claim(administrator, namespace, node="node-a")
    claim = await agent.apply(CLAIMS, key, a_report("node-a"), manager="agent", subresource="status")
    assert [device.device for device in claim.status.devices] == ["gpu-0"]


async def test_an_agent_cannot_report_for_a_claim_on_another_node(
    agent: Client, administrator: Client, namespace: str
) -> None:
    key = await an_allocated_claim(administrator, namespace, node="node-b")
    with pytest.raises(Invalid):
        await agent.apply(CLAIMS, key, a_report("node-b"), manager="agent", subresource="status")


async def test_an_agent_cannot_allocate_or_read_secrets_or_write_rules(
    agent: Client, administrator: Client, namespace: str
) -> None:
    key = await an_allocated_claim(administrator, namespace, node="node-a")
    with pytest.raises((Invalid, Forbidden)):
        await agent.patch(CLAIMS, key, {"status": {"allocation": None}}, subresource="status")
    with pytest.raises(Forbidden):
        await agent.list(SECRETS)
    with pytest.raises(Forbidden):
        await agent.create(SERVED_TAINT_RULES, a_rule("by-agent"))
    with pytest.raises(Forbidden):
        await agent.patch(NODES, ObjectKey("", "node-a"), {"spec": {"unschedulable": True}})


async def test_the_operator_isolates_devices_and_reports(operator: Client, administrator: Client) -> None:
    rule = ObjectKey("", "by-operator")
    await operator.apply(SERVED_TAINT_RULES, rule, a_rule(rule.name), manager="test")
    await operator.delete(SERVED_TAINT_RULES, rule)
    request = ObjectKey("", "a-request")
    await administrator.apply(
        DEVICE_MAINTENANCES, request, {"spec": {"deviceSelector": {"driver": DRIVER}}}, manager="test"
    )
    status = {"status": {"phase": "Pending", "message": "no device yet"}}
    await operator.apply(DEVICE_MAINTENANCES, request, status, manager="test", subresource="status")
    await administrator.delete(DEVICE_MAINTENANCES, request)


async def test_the_operator_leads_with_its_own_lease_only(operator: Client) -> None:
    lease = {"metadata": {"name": "draco-operator", "namespace": NAMESPACE}, "spec": {"holderIdentity": "me"}}
    stored = await operator.create(LEASES, lease)
    await operator.replace(LEASES, ObjectKey(NAMESPACE, "draco-operator"), stored)
    with pytest.raises(Forbidden):
        await operator.list(LEASES, namespace="kube-system")


async def test_the_operator_cannot_touch_nodes_pods_slices_or_claims(
    operator: Client, administrator: Client, namespace: str
) -> None:
    key = await an_allocated_claim(administrator, namespace, node="node-a")
    with pytest.raises(Forbidden):
        await operator.patch(NODES, ObjectKey("", "node-a"), {"spec": {"unschedulable": True}})
    with pytest.raises(Forbidden):
        await operator.delete(PODS, ObjectKey(NAMESPACE, "draco-operator-pod"))
    with pytest.raises(Forbidden):
        await operator.create(SLICES, a_slice("by-operator", "node-a"))
    with pytest.raises(Forbidden):
        await operator.patch(CLAIMS, key, {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Forbidden):
        await operator.patch(CLAIMS, key, {"status": {"allocation": None}}, subresource="status")
    with pytest.raises(Forbidden):
        await operator.list(SECRETS)


def test_an_upgrade_keeps_the_webhooks_certificate_and_makes_one_that_was_deleted(release: ControlPlane) -> None:
    here = ("--kubeconfig", release.kubeconfig, "--namespace", NAMESPACE)
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/draco-operator-webhook"
    hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/draco-operator-webhook"

    def certificate() -> dict[str, str]:
        done = helm("upgrade", "draco", CHART, *here, *IMAGE, "--set", "webhook.enabled=true")
        assert done.returncode == 0, done.stderr
        data: dict[str, str] = call(release, "GET", path)["data"]
        webhooks = call(release, "GET", hooks)["webhooks"]
        assert {webhook["clientConfig"]["caBundle"] for webhook in webhooks} == {data["ca.crt"]}
        return data

    first = certificate()
    assert certificate() == first
    call(release, "DELETE", path)
    assert certificate() != first


async def policies_in_force(agent: Client, administrator: Client) -> None:
    """Wait until the API server enforces each policy, which happens some time after it was stored."""
    nobodys = ObjectKey("", "node-of-nobody")
    with contextlib.suppress(AlreadyExists):
        await an_allocated_claim(administrator, "default", node="node-b")
    claim = ObjectKey("default", "claim-node-b")
    probes: list[Callable[[], Awaitable[object]]] = [
        lambda: agent.create(SLICES, a_slice(nobodys.name, nobodys.name)),
        lambda: agent.create(GPU_NODES, {"metadata": {"name": nobodys.name}}),
        lambda: agent.apply(CLAIMS, claim, a_report("node-b"), manager="agent", subresource="status"),
    ]
    async with asyncio.timeout(30):
        for probe in probes:
            while True:
                try:
                    await probe()
                except Invalid:
                    break
                except AlreadyExists:
                    pass
                await asyncio.sleep(0.1)


def a_rule(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"deviceSelector": {"device": "gpu-0"}, "taint": {"key": "a.dev/b", "effect": "NoSchedule"}},
    }


def a_report(node: str) -> dict[str, Any]:
    """An agent's report on gpu-0 of a node, for the status of a claim."""
    device = {"driver": DRIVER, "pool": node, "device": "gpu-0", "conditions": [a_ready_condition()]}
    return {"status": {"devices": [device]}}


def a_ready_condition() -> dict[str, str]:
    return {
        "type": "Ready",
        "status": "True",
        "reason": "Prepared",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


async def an_allocated_claim(administrator: Client, namespace: str, *, node: str) -> ObjectKey:
    """A claim that the scheduler has given gpu-0 of a node."""
    key = ObjectKey(namespace, f"claim-{node}")
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    await administrator.create(
        CLAIMS,
        {
            "metadata": {"name": key.name, "namespace": namespace},
            "spec": {"devices": {"requests": [request]}},
        },
    )
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    allocation = {
        "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": node, "device": "gpu-0"}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }
    await administrator.patch(CLAIMS, key, {"status": {"allocation": allocation}}, subresource="status")
    return key
