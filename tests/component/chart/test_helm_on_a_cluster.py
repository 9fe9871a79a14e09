"""Helm and the chart on a real API server: impossible installations are refused with the fix, and users' objects survive."""

import io
import shutil
import time
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from draco.allocation.ownership.handover import GpuPlace
from draco.cli import run
from draco.controller.allocation.ownership.register import RegisterStore
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import ALLOCATION_REGISTERS
from draco.resources.names import ALLOCATION_REGISTER
from draco_local.cluster import controlplane
from draco_local.cluster.controlplane import APISERVER, STORE, ControlPlane, Settings
from draco_local.cluster.errors import ProcessFailed
from draco_local.cluster.programs import binaries
from tests.component.chart.rendering import CHART, IMAGE, NAMESPACE, helm, refusal
from tests.conftest import DIES_WITH_THE_TESTS, start_control_plane
from tests.requests import RefusedError, call

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLICIES = "/apis/draco.dev/v1alpha1/migpolicies"
POLICY = {
    "apiVersion": "draco.dev/v1alpha1",
    "kind": "MigPolicy",
    "metadata": {"name": "kept"},
    "spec": {"mode": "Disabled"},
}
OPERATOR_ONLY = ("--set", "profile=operator-only")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from start_control_plane(tmp_path_factory.mktemp("helm") / "state", STORE)


class Release:
    """One release name in one namespace of a cluster."""

    def __init__(self, plane: ControlPlane, name: str = "draco", namespace: str = NAMESPACE) -> None:
        self.plane, self.name, self.namespace = plane, name, namespace

    def helm(self, verb: str, *arguments: str | Path) -> tuple[int, str]:
        done = helm(verb, self.name, *arguments, "--kubeconfig", self.plane.kubeconfig, "--namespace", self.namespace)
        return done.returncode, done.stderr

    def install(self, *arguments: str | Path, chart: Path = CHART) -> None:
        code, said = self.helm("install", chart, "--create-namespace", *IMAGE, *arguments)
        assert code == 0, said

    def upgrade(self, *arguments: str | Path, chart: Path = CHART) -> None:
        code, said = self.helm("upgrade", chart, *IMAGE, *arguments)
        assert code == 0, said

    def refused(self, *arguments: str) -> str:
        code, said = self.helm("install", CHART, "--create-namespace", *IMAGE, *arguments)
        assert code != 0
        return said

    def uninstall(self) -> None:
        code, said = self.helm("uninstall", "--no-hooks")  # without nodes the hook's Job cannot run
        assert code == 0, said


@pytest.fixture
def release(plane: ControlPlane) -> Iterator[Release]:
    """Draco, installed and uninstalled. The definitions stay, as they do for users."""
    made = Release(plane)
    made.install()
    yield made
    made.uninstall()


@pytest.fixture
def empty(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A cluster where Draco was never installed."""
    remove_definitions(plane)
    yield plane
    remove_definitions(plane)


def remove_definitions(plane: ControlPlane, only: str = "") -> None:
    """Delete the definitions, or the one of this name, and wait until they are gone."""
    deadline = time.monotonic() + 60
    while found := [each for each in call(plane, "GET", CRDS)["items"] if only in {"", each["metadata"]["name"]}]:
        for each in found:
            with suppress(RefusedError):  # gone meanwhile
                call(plane, "DELETE", f"{CRDS}/{each['metadata']['name']}")
        assert time.monotonic() < deadline, f"{len(found)} definitions are still there"
        time.sleep(0.1)


def call_until_served(plane: ControlPlane, method: str, path: str, body: dict[str, Any] | None = None) -> None:
    """Repeat the request until the server serves the path: a new kind takes a moment."""
    deadline = time.monotonic() + 60
    while True:
        try:
            call(plane, method, path, body)
        except (RefusedError, urllib3.exceptions.HTTPError) as error:
            if time.monotonic() > deadline or (isinstance(error, RefusedError) and error.code not in (403, 404, 429)):
                raise
        else:
            return
        time.sleep(0.1)


def test_a_second_release_is_refused_and_names_the_first(release: Release) -> None:
    said = Release(release.plane, "another", "elsewhere").refused()
    assert "Draco is already installed as release draco in namespace draco-system" in said
    assert "helm uninstall draco -n draco-system" in said
    release.upgrade()  # the first one itself is not refused


def test_a_namespace_that_admits_no_privileged_pods_is_refused_before_anything_is_made(empty: ControlPlane) -> None:
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    call(empty, "POST", "/api/v1/namespaces", {"metadata": {"name": "strict", "labels": label}})
    said = Release(empty, namespace="strict").refused()
    assert "namespace strict admits only restricted pods" in said
    assert "kubectl label namespace strict pod-security.kubernetes.io/enforce=privileged --overwrite" in said
    assert call(empty, "GET", CRDS)["items"] == []
    operator = Release(empty, namespace="strict")
    operator.install(*OPERATOR_ONLY)  # the operator needs no privilege
    operator.uninstall()


def test_without_definitions_helm_says_how_to_get_them(empty: ControlPlane) -> None:
    said = Release(empty).refused("--set", "crds.enabled=false")
    assert "the cluster has no CustomResourceDefinition allocationregisters.draco.dev: set crds.enabled=true" in said


def test_an_installation_of_an_older_version_lacks_a_definition_and_helm_says_which(release: Release) -> None:
    """The operator does nothing until all its kinds are served."""
    remove_definitions(release.plane, "devicelimits.draco.dev")
    code, said = release.helm("upgrade", CHART, *IMAGE, "--set", "crds.enabled=false")
    assert code != 0
    assert "the cluster has no CustomResourceDefinition devicelimits.draco.dev" in said
    release.upgrade()


def test_helms_test_may_read_all_that_the_check_looks_at(release: Release, tmp_path: Path) -> None:
    rendered = helm(
        "template", "draco", CHART, "-n", NAMESPACE, *IMAGE, "--show-only", "templates/tests/check.yaml"
    ).stdout
    rights = [each for each in yaml.safe_load_all(rendered) if "rbac" in each["apiVersion"]]
    assert len(rights) == 2
    for each in rights:
        call(release.plane, "POST", f"/apis/{each['apiVersion']}/{each['kind'].lower()}s", each)
    release.plane.write_kubeconfig(tmp_path / "check", f"system:serviceaccount:{NAMESPACE}:draco-check")
    try:
        with redirect_stdout(io.StringIO()) as out:
            run(["check", "--kubeconfig", str(tmp_path / "check")])
    finally:
        for each in rights:
            call(release.plane, "DELETE", f"/apis/{each['apiVersion']}/{each['kind'].lower()}s/draco-check")
    assert "ok       kinds     Draco's kinds are served." in out.getvalue()
    assert "may not list" not in out.getvalue()


def test_the_certificates_of_metrics_are_kept_on_upgrades(release: Release) -> None:
    def keys() -> list[str]:
        path = f"/api/v1/namespaces/{release.namespace}/secrets/draco-{{}}-metrics"
        return [call(release.plane, "GET", path.format(part))["data"]["tls.key"] for part in ("operator", "agent")]

    before = keys()
    release.upgrade()
    assert keys() == before


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            "metrics.serviceMonitor.enabled=true",
            "does not serve ServiceMonitor of monitoring.coreos.com/v1: install the Prometheus",
        ),
        (
            "metrics.rules.enabled=true",
            "does not serve PrometheusRule of monitoring.coreos.com/v1: install the Prometheus",
        ),
        (
            "metrics.secure.certificates=CertManager",
            "does not serve cert-manager.io/v1: install cert-manager first",
        ),
        (
            "webhook.enabled=true,webhook.certManager=true",
            "does not serve cert-manager.io/v1: install cert-manager first",
        ),
    ],
)
def test_what_needs_another_operator_is_refused_without_it(empty: ControlPlane, values: str, sentence: str) -> None:
    assert sentence in Release(empty).refused("--set", values)


def test_an_old_kubernetes_is_refused() -> None:
    assert "chart requires kubeVersion: >=1.34.0-0 which is incompatible with Kubernetes v1.33.7" in refusal(
        "--kube-version", "1.33.7"
    )


def test_a_cluster_without_dynamic_resource_allocation_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = binaries.kubernetes_version()
    flags = {APISERVER: ("--runtime-config", "resource.k8s.io/v1=false")}
    programs = binaries.find(*STORE, kubernetes=version)
    settings = Settings(programs=programs, kubernetes=version, enter=DIES_WITH_THE_TESTS, extra_flags=flags)
    plane = ControlPlane(tmp_path / "state", settings)
    try:
        # With this API switched off, Kubernetes 1.36 serves all others but never becomes ready.
        monkeypatch.setattr(controlplane, "_READY_WITHIN_S", 0.0)
        with pytest.raises(ProcessFailed):
            plane.start()
        call_until_served(plane, "GET", "/api/v1/namespaces/kube-system")
        said = Release(plane).refused()
    finally:
        plane.stop()
    assert "does not serve resource.k8s.io/v1, the API of Dynamic Resource Allocation" in said
    assert "remove resource.k8s.io/v1=false from the API server's --runtime-config" in said


def test_definitions_are_upgraded_with_the_release_and_rolled_back_with_it(empty: ControlPlane, tmp_path: Path) -> None:
    older = tmp_path / "draco"
    shutil.copytree(CHART, older)
    file = older / "files" / "crds" / "migpolicies.yaml"
    definition = yaml.safe_load(file.read_text())
    columns = definition["spec"]["versions"][0]["additionalPrinterColumns"]
    del columns[-1]
    file.write_text(yaml.safe_dump(definition))

    def shown() -> int:
        return len(
            call(empty, "GET", f"{CRDS}/migpolicies.draco.dev")["spec"]["versions"][0]["additionalPrinterColumns"]
        )

    release = Release(empty)
    release.install(chart=older)
    call_until_served(empty, "POST", POLICIES, POLICY)
    assert shown() == len(columns)
    release.upgrade()
    assert shown() == len(columns) + 1
    code, said = release.helm("rollback", "1")
    assert code == 0, said
    assert shown() == len(columns)
    assert call(empty, "GET", f"{POLICIES}/kept")["spec"]["mode"] == "Disabled"
    release.uninstall()


def test_what_people_made_outlives_an_uninstall_and_is_there_for_the_next_release(empty: ControlPlane) -> None:
    first = Release(empty)
    first.install()
    call_until_served(empty, "POST", POLICIES, POLICY)
    first.uninstall()
    assert call(empty, "GET", f"{POLICIES}/kept")["metadata"]["name"] == "kept"
    first.install()
    first.uninstall()
    other = Release(empty, "other", "elsewhere")
    other.install("--take-ownership")
    assert call(empty, "GET", f"{POLICIES}/kept")["metadata"]["name"] == "kept"
    other.uninstall()


def test_definitions_go_with_the_release_where_that_is_asked_for(empty: ControlPlane) -> None:
    release = Release(empty)
    release.install("--set", "crds.keep=false")
    release.uninstall()
    left = [each for each in call(empty, "GET", CRDS)["items"] if not each["metadata"].get("deletionTimestamp")]
    assert left == []


async def test_gpus_stay_registered_through_upgrades_and_a_second_installation(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """The operator creates the register, so no upgrade empties it. It can be deleted only after allocating is switched off."""
    allocating = ("--set", "operator.allocate=true")
    gpus = frozenset({GpuPlace("gpu.nvidia.com", "node", "gpu-0")})
    plane.write_kubeconfig(tmp_path / "operator", f"system:serviceaccount:{NAMESPACE}:draco-operator")
    release = Release(plane)
    release.install(*allocating)
    try:
        async with await connect(tmp_path / "operator") as connection:
            store = RegisterStore(Client(connection))
            await store.write(await store.make(), gpus)
            release.upgrade(*allocating, "--set", "operator.replicas=1")
            assert (await store.read()).places == gpus
            release.uninstall()
            release.install(*allocating)
            assert (await store.read()).places == gpus
    finally:
        release.upgrade("--set", "operator.allocate=false")
        deleted = False
        while not deleted:  # the API server enforces the policy for another moment
            with suppress(RefusedError):
                call(plane, "DELETE", ALLOCATION_REGISTERS.path(ObjectKey("", ALLOCATION_REGISTER)))
                deleted = True
        release.uninstall()
