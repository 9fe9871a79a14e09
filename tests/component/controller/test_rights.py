"""The operator needs no more rights than the chart grants."""

import subprocess
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from draco.controller.limits.unused_claims import EVICTED_REASON, NOT_READABLE
from draco.controller.mig.release import RELEASED_REASON
from draco.kube.connect.client import Client
from draco.resources.api.maintenance import MaintenancePhase
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import (
    CLAIMS,
    DEVICE_LIMITS,
    DEVICE_MAINTENANCES,
    EVENTS,
    GPU_NODES,
    MIG_POLICIES,
    PODS,
    SLICES,
    Kind,
)
from draco_local.cluster.controlplane import ControlPlane
from draco_local.cluster.programs import binaries
from tests.builders import a_claim, a_mig_node, a_slice
from tests.component.chart.rendering import IMAGE
from tests.component.controller.repair_lab import Lab
from tests.component.controller.replicas import Process, until
from tests.component.controller.test_unused_claims import UnusedLab

pytestmark = pytest.mark.usefixtures("crds")

CHART = Path(__file__).parents[3] / "charts" / "draco"
USER = "draco-operator-under-test"
RBAC = "rbac.authorization.k8s.io"
SUBJECTS = [{"apiGroup": RBAC, "kind": "User", "name": USER}]


def kind(name: str, *, namespaced: bool) -> Kind[Any]:
    return Kind(RBAC, "v1", f"{name.lower()}s", name, namespaced, dict)


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[Lab]:
    """An idle claim with a status from its driver, which may be released for a pod."""
    made = Lab(client, namespace)
    await made.make(repair={"idleClaims": "Release"})
    idle = await made.claim("idle", "1g.10gb", "0:1g.10gb@0")
    device = {"driver": "gpu.nvidia.com", "pool": made.node, "device": "gpu-0-mig-1g10gb-19-0"}
    await client.patch(CLAIMS, idle, {"status": {"devices": [device]}}, subresource="status")
    await made.claim("large", "4g.40gb")
    await made.refused_pod("large")
    yield made
    await made.clean()


@pytest.fixture
def installed(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The chart's documents for the test's values."""
    values = [value for marker in request.node.iter_markers("values") for value in marker.args]
    command = [str(binaries.find("helm")["helm"]), "template", "draco", str(CHART), *IMAGE]
    command += [word for value in values for word in ("--set", value)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [document for document in yaml.load_all(rendered, yaml.CSafeLoader) if document]


@pytest.fixture
async def rights(client: Client, namespace: str, installed: list[dict[str, Any]]) -> AsyncIterator[None]:
    """The chart's operator roles, bound to a user in the test's namespace."""
    role, cluster_role = (
        next(d["rules"] for d in installed if d["kind"] == wanted and d["metadata"]["name"] == "draco-operator")
        for wanted in ("Role", "ClusterRole")
    )
    name = f"draco-{namespace}"
    everywhere, here = ObjectKey("", name), ObjectKey(namespace, name)
    await client.apply(kind("ClusterRole", namespaced=False), everywhere, {"rules": cluster_role}, manager="tests")
    await client.apply(kind("Role", namespaced=True), here, {"rules": role}, manager="tests")
    for wanted, key in (("ClusterRole", everywhere), ("Role", here)):
        reference = {"apiGroup": RBAC, "kind": wanted, "name": name}
        binding = kind(f"{wanted}Binding", namespaced=bool(key.namespace))
        await client.apply(binding, key, {"roleRef": reference, "subjects": SUBJECTS}, manager="tests")
    yield
    await client.delete(kind("ClusterRoleBinding", namespaced=False), everywhere)
    await client.delete(kind("ClusterRole", namespaced=False), everywhere)


@pytest.mark.usefixtures("rights")
async def test_everything_the_operator_does_it_may_do(
    served: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    served.write_kubeconfig(tmp_path / "kubeconfig", USER)
    pool = f"node-{namespace}"
    await client.create(SLICES, a_slice(pool, driver="gpu.example.com", name=pool))
    claim = msgspec.json.decode(msgspec.json.encode(a_claim(device_class="no-such-class").spec))
    await client.create(CLAIMS, {"metadata": {"name": "waiting", "namespace": namespace}, "spec": claim})
    await client.apply(
        Kind("", "v1", "serviceaccounts", "ServiceAccount", True, dict),
        ObjectKey(namespace, "default"),
        {},
        manager="tests",
    )
    spec = {
        "containers": [{"name": "main", "image": "none"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "waiting"}],
    }
    await client.create(PODS, {"metadata": {"name": "train", "namespace": namespace}, "spec": spec})
    request = ObjectKey("", f"fan-{namespace}")
    selector = {"driver": "gpu.example.com", "pool": pool, "device": "gpu-0"}
    wanted = {"deviceSelector": selector, "verification": {"mode": "Person"}}  # there is no agent to ask
    await client.create(DEVICE_MAINTENANCES, {"metadata": {"name": request.name}, "spec": wanted})
    policy, gpu_node = ObjectKey("", f"mig-{namespace}"), ObjectKey("", pool)
    await client.create(GPU_NODES, {"metadata": {"name": gpu_node.name}})
    seen = msgspec.json.decode(msgspec.json.encode(a_mig_node(pool, driver="gpu.example.com").status))
    await client.patch(GPU_NODES, gpu_node, {"status": seen}, subresource="status")
    await client.create(MIG_POLICIES, {"metadata": {"name": policy.name}, "spec": {"mode": "Disabled"}})

    async def events() -> list[str]:
        return [event.message for event in await client.list(EVENTS, namespace=namespace)]

    async def phase_is(phase: MaintenancePhase) -> bool:
        return (await client.get(DEVICE_MAINTENANCES, request)).status.phase == phase

    async def policy_stands() -> bool:
        wanted = (await client.get(GPU_NODES, gpu_node)).spec.gpus
        return bool(wanted and (await client.get(MIG_POLICIES, policy)).status.message)

    operator = await Process.start(
        served,
        tmp_path,
        *("--kubeconfig", str(tmp_path / "kubeconfig"), "--namespace", namespace),
        *("--retry-period", "0.3", "--settle", "0.1", "--pending-after", "0"),
    )
    try:
        await until(lambda: phase_is(MaintenancePhase.IN_MAINTENANCE), what="InMaintenance")
        await until(events, what="an Event")
        await until(policy_stands, what="what the policy wants")
        await client.delete(PODS, ObjectKey(namespace, "train"), grace_period_s=0)

        async def withdrawn() -> bool:
            return not await events()

        await until(withdrawn, what="the withdrawal of the Event")
        await client.patch(DEVICE_MAINTENANCES, request, {"spec": {"finished": True}})
        await until(lambda: phase_is(MaintenancePhase.COMPLETED), what="Completed")
        assert await operator.end() == 0
        said = [str(event).lower() for event in operator.events() if event["level"] != "debug"]
        refused = [line for line in said if "forbidden" in line]
        assert refused == []
    finally:
        await operator.kill()
        await client.delete(DEVICE_MAINTENANCES, request)
        await client.delete(SLICES, ObjectKey("", pool))
        await client.delete(MIG_POLICIES, policy)
        await client.delete(GPU_NODES, gpu_node)


def operator_of(served: ControlPlane, namespace: str, folder: Path) -> Awaitable[Process]:
    """An operator with the rights of the test's user."""
    served.write_kubeconfig(folder / "kubeconfig", USER)
    options = ("--kubeconfig", str(folder / "kubeconfig"), "--namespace", namespace, "--idle-grace", "0.2")
    return Process.start(served, folder, *options)


@pytest.mark.values("operator.releaseIdleClaims=true")
@pytest.mark.usefixtures("rights")
async def test_where_it_may_it_releases_a_claim_and_with_it_what_a_driver_says_of_the_devices(
    served: ControlPlane, client: Client, namespace: str, lab: Lab, tmp_path: Path
) -> None:
    async def released() -> bool:
        status = (await client.get(CLAIMS, ObjectKey(namespace, "idle"))).status
        return status.allocation is None and not status.devices

    async def told() -> bool:
        return (await lab.said(RELEASED_REASON)).keys() == {"idle"}

    operator = await operator_of(served, namespace, tmp_path)
    try:
        await until(released, what="the release")
        await until(told, what="the Event")
    finally:
        await operator.kill()


@pytest.mark.usefixtures("rights")
async def test_by_default_it_releases_nothing_and_says_how_to_permit_it_where_people_look(
    served: ControlPlane, namespace: str, lab: Lab, tmp_path: Path
) -> None:
    async def told() -> bool:
        said = [*(await lab.said()).values(), (await lab.of_policy()).status.message]
        return len(said) == 3 and all(
            "does not let Draco release claim" in each
            and "set the chart's value operator.releaseIdleClaims to true" in each
            for each in said
        )

    operator = await operator_of(served, namespace, tmp_path)
    try:
        await until(told, what="the remedy")
        assert await lab.allocated(ObjectKey(namespace, "idle")) == [True]
        refusals = [event for event in operator.events() if event["event"] == "claim.not_taken_back"]
        assert len(refusals) == 1
        assert "Traceback" not in operator.output
    finally:
        await operator.kill()


@pytest.fixture
async def unused_gpu(client: Client, namespace: str) -> AsyncIterator[UnusedLab]:
    """A pod whose GPU nobody has used for an hour, and a limit of five minutes."""
    made = UnusedLab(client, namespace)
    await made.publish()
    await made.hold("idle", "gpu-0")
    await made.runs("idle-0", "idle")
    await made.report(("idle", "gpu-0"))
    await made.limit()
    yield made
    await made.clean()


@pytest.mark.values("operator.evictUnused=true")
@pytest.mark.usefixtures("rights")
async def test_where_it_may_it_evicts_pods_that_use_nothing(
    served: ControlPlane, namespace: str, unused_gpu: UnusedLab, tmp_path: Path
) -> None:
    operator = await operator_of(served, namespace, tmp_path)
    try:
        await unused_gpu.gone("idle-0")
        await unused_gpu.until_said(EVICTED_REASON.name, "idle-0")
    finally:
        await operator.kill()


@pytest.mark.usefixtures("rights")
async def test_by_default_it_reads_no_usage_and_the_limit_says_how_to_permit_it(
    served: ControlPlane, client: Client, namespace: str, unused_gpu: UnusedLab, tmp_path: Path
) -> None:
    async def told() -> bool:
        return NOT_READABLE in (await client.get(DEVICE_LIMITS, ObjectKey("", namespace))).status.message

    operator = await operator_of(served, namespace, tmp_path)
    try:
        await until(told, what="the remedy")
        assert await unused_gpu.exists("idle-0")
        assert "Traceback" not in operator.output
    finally:
        await operator.kill()
