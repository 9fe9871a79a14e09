"""A thief's attempts with a stolen token, and an API server of a given version to try them on."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from draco.kube.connect.client import Client
from draco.kube.errors import ApiError
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, EVENTS, GPU_NODES, LEASES, NODES, SLICES, Kind
from draco_local.cluster.controlplane import APISERVER, STORE, ControlPlane, Settings
from draco_local.cluster.programs import binaries
from tests.component.chart.rendering import NAMESPACE
from tests.component.chart.stolen import DRIVER, JOB_SPACE, MINE, OTHER, TENANT, Cluster, a_result, a_slice, an_event
from tests.conftest import DIES_WITH_THE_TESTS

RAW_SLICES: Kind[Any] = Kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False, dict)
JOBS: Kind[Any] = Kind("batch", "v1", "jobs", "Job", True, dict)
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Prepared",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def named(name: str) -> ObjectKey:
    return ObjectKey("", name)


def claim(name: str) -> ObjectKey:
    return ObjectKey(TENANT, name)


def event(name: str, namespace: str = "default") -> ObjectKey:
    return ObjectKey(namespace, name)


def report(pool: str = MINE, driver: str = DRIVER, **more: Any) -> dict[str, Any]:
    return {"driver": driver, "pool": pool, "device": "gpu-0", "conditions": [READY], **more}


def a_lease(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"holderIdentity": "thief"}}


Attempt = Callable[[Client], Awaitable[object]]


class Theft(NamedTuple):
    """An attempt: the token's owner, the request, and why it is refused."""

    token: str
    what: str
    attempt: Attempt
    refused: str

    def __str__(self) -> str:
        return f"{self.token}: {self.what}"


def status_of(name: str, **status: Any) -> Attempt:
    """Forced server-side apply to a claim's status."""
    return lambda client: client.apply(CLAIMS, claim(name), {"status": status}, manager="thief", subresource="status")


def merged_status_of(name: str, **status: Any) -> Attempt:
    """A merge patch of a claim's status: it replaces lists and deletes fields that are None."""
    return lambda client: client.patch(CLAIMS, claim(name), {"status": status}, subresource="status")


def publish(name: str, **of: Any) -> Attempt:
    return lambda client: client.create(SLICES, a_slice(name, **of))


def taken_over(name: str) -> Attempt:
    """Read an existing lease and replace its holder."""

    async def attempt(client: Client) -> object:
        found = await client.get(LEASES, ObjectKey(NAMESPACE, name))
        spec = msgspec.structs.replace(found.spec, holder_identity="thief")
        return await client.replace(LEASES, found.metadata.key, msgspec.structs.replace(found, spec=spec))

    return attempt


async def rewritten(client: Client, name: str, **spec: Any) -> object:
    """List an existing slice (an agent may not get one) and replace fields of its spec."""
    [found] = await client.list(RAW_SLICES, field_selector=f"metadata.name={name}")
    return await client.replace(RAW_SLICES, named(name), {**found, "spec": {**found["spec"], **spec}})


def a_condition(kind: str, status: str = "True") -> dict[str, Any]:
    return {**READY, "type": kind, "status": status, "lastHeartbeatTime": READY["lastTransitionTime"]}


def told_of_a_node(*conditions: dict[str, Any], metadata: dict[str, Any] | None = None, **status: Any) -> Attempt:
    """Forced server-side apply to a node's status: conditions are merged by type."""
    said = {"conditions": list(conditions), **status} if conditions else status
    body = {"metadata": metadata or {}, "status": said}
    return lambda client: client.apply(NODES, named(OTHER), body, manager="thief", subresource="status")


def owned(kind: str = "DeviceMaintenance") -> list[dict[str, Any]]:
    return [{"apiVersion": "draco.dev/v1alpha1", "kind": kind, "name": "swap-fan", "uid": "swap-fan"}]


def a_job(name: str, *, namespace: str = JOB_SPACE, owners: Any = (), template: str = "plain") -> Attempt:
    """A Job like the plain template."""
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [OTHER]}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
    containers = [{"name": "main", "image": "none"}]
    pod = {"restartPolicy": "Never", "containers": containers, "affinity": {"nodeAffinity": affinity}}
    labels = {"draco.dev/template": template}
    metadata = {"name": name, "namespace": namespace, "ownerReferences": list(owners), "labels": labels}
    return lambda client: client.create(JOBS, {"metadata": metadata, "spec": {"template": {"spec": pod}}})


def a_claim_of_a_job(name: str, *, namespace: str = JOB_SPACE, owners: Any = ()) -> Attempt:
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}
    metadata = {"name": name, "namespace": namespace, "ownerReferences": list(owners)}
    return lambda client: client.create(CLAIMS, {"metadata": metadata, "spec": {"devices": devices}})


@contextmanager
def a_cluster(version: str, folder: Path) -> Iterator[Cluster]:
    """An API server of this version, with the chart and all its policies enforced."""
    environ = {
        name: value for name, value in os.environ.items() if name != "KUBEBUILDER_ASSETS"
    }  # served by one version only
    settings = Settings(
        programs=binaries.find(*STORE, kubernetes=version, environ=environ),
        kubernetes=version,
        enter=DIES_WITH_THE_TESTS,
        extra_flags={APISERVER: ("--runtime-config", "resource.k8s.io/v1beta2=true")},
    )
    plane = ControlPlane(folder / "state", settings)
    try:
        plane.start()
        made = Cluster(plane)
        made.install()
        made.make_claim("idle", on=MINE, results=[a_result(MINE, "gpu-1")], reserved=False)
        made.make_claim("elsewhere", on=MINE, results=[a_result("elsewhere")])
        asyncio.run(in_force(made))
        yield made
    finally:
        plane.stop()


async def in_force(cluster: Cluster) -> None:
    """Wait until the API server enforces every policy, which happens a moment after it was stored."""
    probes: list[tuple[str, Attempt]] = [
        ("agent", publish("probe", nodeName="nowhere", pool="nowhere")),
        ("agent", lambda client: client.create(GPU_NODES, {"metadata": {"name": "probe"}})),
        ("agent", lambda client: client.create(EVENTS, an_event("probe", "nowhere"))),
        ("agent", lambda client: client.create(LEASES, a_lease("probe"))),
        ("agent", status_of("probe", devices=[report(pool="elsewhere")])),
        ("releasing", status_of("probe", reservedFor=[{"resource": "pods", "name": "me", "uid": "me"}])),
        ("working", a_claim_of_a_job("probe")),
        ("working", a_job("probe")),
        ("working", a_job("probe", owners=owned(), template="missing")),
        *((token, told_of_a_node(a_condition("Probe"))) for token in ("operator", "releasing", "working")),
    ]
    cluster.make_claim("probe", on=MINE, results=[a_result("elsewhere")])
    async with asyncio.timeout(60):
        for token, probe in probes:
            async with cluster.holding(token) as client:
                while True:
                    try:
                        await probe(client)
                    except ApiError as error:
                        if "denied request" in str(error):
                            break
                    await asyncio.sleep(0.1)
