"""Every right that the chart grants is used, none is missing, and no admission policy refuses what its programs do.

The API server's audit log of whole scenarios, with everything switched on, shows this.

Operator and agents run with tokens of pods of their service accounts, as kubelet would give them.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from draco.kube.connect.client import Client
from draco.kube.errors import AlreadyExists, ApiError
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, NODES, Kind
from draco_local.cluster.controlplane import ALL, APISERVER, ControlPlane, Settings
from draco_local.cluster.programs import binaries
from tests.component.chart import audit
from tests.component.chart.accounts import SCENARIOS, a_record_is_damaged
from tests.component.chart.programs import JOB_SPACE, NODE_NAMES, TENANT, Cluster, an_allocation
from tests.component.chart.rendering import CHART, IMAGE, NAMESPACE, helm, render
from tests.component.controller.replicas import Process, until
from tests.conftest import DIES_WITH_THE_TESTS
from tests.requests import call
from tests.side_by_side import REPORTS

VALUES = (
    *("--set", "operator.releaseIdleClaims=true,operator.runJobs=true,operator.jobTemplates={probe,reset}"),
    *("--set", "operator.allocate=true,operator.evictUnused=true,operator.replicas=1"),
)
"""Switches on everything that needs a right or adds an admission policy."""
ASKED_BY_THE_SERVER = {
    audit.Right("resource.k8s.io", "resourceclaims/driver", "associated-node:patch", "gpu.nvidia.com"),
    audit.Right("resource.k8s.io", "resourceclaims/binding", "patch"),
}
"""Rights that no request names: the API server looks for them when a claim's status is written. A test takes each away."""
NAMESPACES: Kind[Any] = Kind("", "v1", "namespaces", "Namespace", False, dict)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="draco-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane with the chart and an audit log of its accounts' requests."""
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
        here = ("--kubeconfig", plane.kubeconfig, "--namespace", NAMESPACE)
        done = helm("install", "draco", CHART, *here, "--create-namespace", *IMAGE, *VALUES)
        assert done.returncode == 0, done.stderr
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def served(plane: ControlPlane) -> ControlPlane:
    """The server of `client`."""
    return plane


async def test_each_right_is_used_and_none_is_missing(plane: ControlPlane, client: Client, folder: Path) -> None:
    with suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": TENANT}})
    cluster = Cluster(plane, client, folder)
    operator = None
    try:
        async with cluster.nodes():
            options = (
                "--namespace",
                NAMESPACE,
                "--settle",
                "0.1",
                "--pending-after",
                "0",
                "--idle-grace",
                "0.2",
                "--run-jobs",
                "--allocate",
                "--handover-settle",
                "0.5",
            )
            metrics = (
                *("--metrics-listen", f"127.0.0.1:{cluster.metrics_ports[0]}"),
                *("--metrics-certificates", str(cluster.certificates)),
            )
            operator = await Process.start(plane, folder, "--kubeconfig", str(cluster.kubeconfig()), *options, *metrics)

            async def leads(running: Process = operator) -> bool:
                return any(each["event"] == "election.leading" for each in running.events())

            await until(leads, what="the operator leads")
            for scenario in SCENARIOS:
                await scenario(cluster)
        [record] = (folder / "n" / NODE_NAMES[0]).rglob("checkpoint*")
        record.write_bytes(b"nonsense")
        await a_record_is_damaged(cluster)
    finally:
        if operator:
            await operator.end()
    documents = render(*VALUES)
    found: dict[str, tuple[list[str], dict[str, str]]] = {}
    for account in ("draco-operator", "draco-agent"):
        rights = audit.granted(documents, account)
        requests = audit.Requests(folder / "audit.log", account)
        assert not {right for right in rights if "*" in right or right.resource == "secrets"}
        idle = audit.unused(rights - ASKED_BY_THE_SERVER, requests)
        refused = {str(right): uri for right, uri in requests.refused.items()}
        found[account] = ([str(right) for right in idle], refused)
        REPORTS.append(f"{account}: {len(rights)} rights granted, unused: {found[account][0]}, missing: {refused}")
    assert found == {"draco-operator": ([], {}), "draco-agent": ([], {})}


async def test_what_an_admission_policy_refuses_counts_as_missing(
    plane: ControlPlane, client: Client, folder: Path
) -> None:
    """Such a refusal has another code than a missing right."""
    cluster = Cluster(plane, client, folder)
    claim = {"metadata": {"name": "of-nobody", "namespace": JOB_SPACE}, "spec": {"devices": {}}}
    async with Client(cluster.connection("draco-operator", "refused")) as operator:

        async def refused() -> bool:
            with suppress(ApiError):
                await operator.create(CLAIMS, claim)
            return audit.Right("resource.k8s.io", "resourceclaims", "create") in (
                right._replace(name="") for right in audit.Requests(folder / "audit.log", "draco-operator").refused
            )

        await until(refused, what="the refusal in the audit log")


async def without(plane: ControlPlane, right: audit.Right, account: str) -> None:
    """Remove a right, and wait until the API server enforces that."""
    path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{account}"
    role = call(plane, "GET", path)
    for rule in role["rules"]:
        if right.resource in rule["resources"]:
            rule["resources"] = [each for each in rule["resources"] if each != right.resource]
    role["rules"] = [rule for rule in role["rules"] if rule["resources"]]
    call(plane, "PUT", path, role)


@pytest.mark.parametrize(
    ("account", "right"),
    [("draco-agent", right) for right in ASKED_BY_THE_SERVER if right.resource.endswith("driver")]
    + [("draco-operator", right) for right in ASKED_BY_THE_SERVER if right.resource.endswith("binding")],
)
async def test_a_right_that_no_request_names_is_needed_all_the_same(
    plane: ControlPlane, client: Client, folder: Path, account: str, right: audit.Right
) -> None:
    cluster, node = Cluster(plane, client, folder), "sim-9"
    name = account.removeprefix("draco-")
    with suppress(AlreadyExists):
        await client.create(NODES, {"metadata": {"name": node}})
    with suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": TENANT}})
    device = {"driver": "gpu.nvidia.com", "pool": node, "device": "gpu-0"}
    await cluster.claim(name)
    key = ObjectKey(TENANT, name)
    await client.patch(CLAIMS, key, {"status": {"allocation": an_allocation(node)}}, subresource="status")
    report = {"status": {"devices": [device]}}
    release = {"status": {"allocation": None}}

    async def write(writer: Client) -> None:
        if account == "draco-agent":
            await writer.apply(CLAIMS, key, report, manager="agent", subresource="status")
        else:
            await writer.patch(CLAIMS, key, release, subresource="status")

    async with Client(cluster.connection(account, node)) as writer:
        await without(plane, right, account)

        async def refused() -> bool:
            try:
                await write(writer)
            except ApiError as error:
                return right.resource in str(error)
            await client.patch(
                CLAIMS, key, {"status": {"devices": None, "allocation": an_allocation(node)}}, subresource="status"
            )
            return False

        await until(refused, what="the API server goes by the smaller role")
        here = ("--kubeconfig", plane.kubeconfig, "--namespace", NAMESPACE)
        done = helm("upgrade", "draco", CHART, *here, *IMAGE, *VALUES, "--force-conflicts")
        assert done.returncode == 0, done.stderr

        async def permitted() -> bool:
            with suppress(ApiError):
                await write(writer)
                return True
            return False

        await until(permitted, what="the API server goes by the whole role")
