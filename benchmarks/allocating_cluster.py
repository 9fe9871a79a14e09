"""A cluster on which kube-scheduler and Draco allocate in turn: nodes, the operator as the chart's account, pods and claims."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from benchmarks.operator_scale import (
    SERVICE_ACCOUNTS,
    OperatorProcess,
    a_node,
    a_slice,
    an_operator,
    in_parallel,
    until,
)
from draco.kube.connect.client import Client
from draco.kube.errors import Invalid, NotFound
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.api.taints import DeviceTaint
from draco.resources.kinds import (
    CLAIM_TEMPLATES,
    CLAIMS,
    DEVICE_CLASSES,
    GPU_NODES,
    MIG_POLICIES,
    NODES,
    PODS,
    SLICES,
    Kind,
)
from draco.resources.names import (
    ALLOCATED_BY_OPERATOR,
    ATTRIBUTE_ALLOCATOR,
    NVIDIA_DEVICE_CLASS,
    NVIDIA_DRIVER,
    TAINT_OPERATOR_ALLOCATED,
)
from draco_local.cluster.controlplane import ControlPlane
from tests.component.allocation.lab import ALLOCATE, USER, ChartParts
from tests.component.chart.rendering import NAMESPACE
from tests.component.chart.webhook import GATING, LocalWebhook

AT_ONCE = 32
"""Requests of the benchmark."""
OPERATORS_CLASS = "gpu.draco.dev"


async def publish_for_the_scheduler(
    plane: ControlPlane, client: Client, nodes: int, gpus: int, chart: tuple[str, ...] = ALLOCATE
) -> None:
    """Install the chart's objects for an operator that allocates, and create nodes whose GPUs the scheduler allocates."""
    ChartParts(plane, chart).install()
    selector = {"cel": {"expression": f"device.driver == '{NVIDIA_DRIVER}'"}}
    await client.create(DEVICE_CLASSES, {"metadata": {"name": NVIDIA_DEVICE_CLASS}, "spec": {"selectors": [selector]}})
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
    await in_parallel([add_node(client, each, gpus) for each in range(nodes)], AT_ONCE)
    await until(lambda: claims_are_admitted(client), 60, pause_s=0.2)


async def gate_pods(client: Client, webhook: LocalWebhook, port: int) -> None:
    """From now on the chart's webhook adds Draco's scheduling gate to new pods."""
    await client.create(GATING, webhook.gating("draco", [port]))

    async def gives_it() -> bool:
        probe = await add_pod(client, "probe", OPERATORS_CLASS)
        await clear(client)
        return bool(probe.spec.scheduling_gates)

    await until(gives_it, 60, pause_s=0.2)


@contextlib.asynccontextmanager
async def handed_over(
    plane: ControlPlane, client: Client, folder: Path, nodes: int, gpus: int, *options: str
) -> AsyncIterator[None]:
    """Draco allocates all GPUs of the nodes, and its operator runs with these extra options."""
    await in_parallel([hand_over(client, each, gpus) for each in range(nodes)], AT_ONCE)
    policy = {"mode": "Disabled", "allocator": "Operator"}
    async with allocating(plane, client, folder, nodes * gpus, policy, *options):
        yield


@contextlib.asynccontextmanager
async def allocating(
    plane: ControlPlane, client: Client, folder: Path, gpus: int, policy: dict[str, str], *options: str
) -> AsyncIterator[OperatorProcess]:
    """The operator as the chart's account, once it has taken over this many GPUs and has nothing more to do."""
    await client.create(MIG_POLICIES, {"metadata": {"name": "draco"}, "spec": policy})
    kubeconfig = folder / "operator"
    write_login(plane, kubeconfig, await a_token(client))
    options = ("--namespace", NAMESPACE, "--allocate", "--handover-settle", "1", *options)
    async with an_operator(plane, folder, *options, kubeconfig=kubeconfig) as operator:
        await operator.until_ready(120)

        async def owned() -> bool:
            said = [each for each in operator.events() if each["event"] == "handover.owned"]
            return bool(said) and len(said[-1]["gpus"]) == gpus

        await until(owned, 120, pause_s=0.2)
        await operator.until_idle(120)
        yield operator


async def a_token(client: Client) -> str:
    """A token of the chart's account, as the operator has in a cluster."""
    account = ObjectKey(NAMESPACE, USER.rpartition(":")[2])
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": account.name, "namespace": account.namespace}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    answer = await client.create_subresource(SERVICE_ACCOUNTS, account, "token", request)
    return str(answer["status"]["token"])


def write_login(plane: ControlPlane, path: Path, token: str) -> None:
    """Write a kubeconfig with this token instead of a certificate."""
    plane.write_kubeconfig(path, USER)
    document = yaml.safe_load(path.read_text())
    document["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(document))


async def claims_are_admitted(client: Client) -> bool:
    """Whether the API server has loaded what its new policies read: until then it refuses every claim."""
    try:
        await add_claim(client, "probe", NVIDIA_DEVICE_CLASS)
    except Invalid:
        return False
    await client.delete(CLAIMS, ObjectKey("default", "probe"))
    return True


async def add_node(client: Client, number: int, gpus: int) -> None:
    """A Node that pods may run on, its GPUs, and what its agent would report of them."""
    name = f"node-{number:05}"
    await client.create(NODES, a_node(name))
    resources = {"cpu": "192", "memory": "2Ti", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "There is no kubelet."}
    status: dict[str, Any] = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
    await client.patch(NODES, ObjectKey("", name), {"status": status}, subresource="status")
    await client.patch(
        NODES, ObjectKey("", name), {"spec": {"taints": None}}
    )  # not-ready, which nobody else takes away
    await client.create(SLICES, a_slice(name, number, gpus))
    await client.create(GPU_NODES, {"metadata": {"name": name}})
    seen = [
        {"device": each["name"], "uuid": each["attributes"]["uuid"]["string"], "mig": {"capable": True}}
        for each in a_slice(name, number, gpus)["spec"]["devices"]
    ]
    status = {"driver": NVIDIA_DRIVER, "gpus": seen}
    await client.patch(GPU_NODES, ObjectKey("", name), {"status": status}, subresource="status")


async def hand_over(client: Client, number: int, gpus: int) -> None:
    """Publish the GPUs of a node with Draco's taint and attribute, as its agent would."""
    name = f"node-{number:05}"
    found = a_slice(name, number, gpus)
    found["spec"]["pool"]["generation"] = 2
    devices = msgspec.convert(found["spec"]["devices"], list[Device])
    found["spec"]["devices"] = msgspec.to_builtins([published_as_dracos(each) for each in devices])
    await client.patch(SLICES, ObjectKey("", found["metadata"]["name"]), {"spec": found["spec"]})


def published_as_dracos(device: Device) -> Device:
    """The device as an agent publishes it once its GPU is handed over."""
    attributes = device.attributes | {ATTRIBUTE_ALLOCATOR: DeviceAttribute(string=ALLOCATED_BY_OPERATOR)}
    taint = DeviceTaint(key=TAINT_OPERATOR_ALLOCATED, effect="NoSchedule")
    return msgspec.structs.replace(device, attributes=attributes, taints=[taint])


async def add_claim(client: Client, name: str, device_class: str, *, owner: Pod | None = None, gpus: int = 1) -> None:
    """A claim for this many GPUs; if a pod owns it, as a template creates it."""
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class, "count": gpus}}
    spec = {"devices": {"requests": [request]}}
    meta: dict[str, Any] = {"name": name, "namespace": "default"}
    if owner is not None:
        of_pod = {"apiVersion": "v1", "kind": "Pod", "name": owner.metadata.name, "uid": owner.metadata.uid}
        meta["ownerReferences"] = [{**of_pod, "controller": True}]
    await client.create(CLAIMS, {"metadata": meta, "spec": spec})


async def add_template(client: Client, device_class: str) -> None:
    """A template for one GPU of the class, named after the class."""
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class}}]}}}
    await client.create(CLAIM_TEMPLATES, {"metadata": {"name": device_class, "namespace": "default"}, "spec": spec})


async def add_pod(client: Client, name: str, template: str = "") -> Pod:
    """A pod with a claim from the template, or with the claim of its name, as first stored."""
    claim = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": name}
    spec = {
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", **claim}],
    }
    return await client.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})


async def end(client: Client, key: ObjectKey) -> None:
    """Delete a pod and its claim; what kube-controller-manager would do in between is done here.

    The claim is being deleted before it loses its allocation: otherwise it would wait for another one.
    """
    with contextlib.suppress(NotFound):
        await client.delete(PODS, key, grace_period_s=0)
    with contextlib.suppress(NotFound):  # one that was never allocated is gone immediately
        await client.delete(CLAIMS, key)
        await client.patch(CLAIMS, key, {"status": {"reservedFor": None, "allocation": None}}, subresource="status")
        await client.patch(CLAIMS, key, {"metadata": {"finalizers": None}})


async def clear(client: Client) -> None:
    """End all pods and claims."""
    kinds: tuple[Kind[Any], ...] = (PODS, CLAIMS)
    for kind in kinds:
        keys = [each.metadata.key for each in await client.list(kind, namespace="default")]
        await in_parallel([end(client, key) for key in keys], AT_ONCE)
