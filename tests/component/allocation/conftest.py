"""Simulated nodes whose GPUs Draco may allocate: the chart's account, rights and admission policies, and a MigPolicy."""

from collections.abc import AsyncIterator, Iterator

import pytest

from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CONFIG_MAPS, MIG_POLICIES
from draco_local.cluster.controlplane import ControlPlane
from tests.component.allocation.lab import REGISTER, Guarded
from tests.component.chart.rendering import NAMESPACE, render
from tests.component.simulator import test_nodes
from tests.requests import call

cluster, folder = test_nodes.cluster, test_nodes.folder
USER = f"system:serviceaccount:{NAMESPACE}:draco-operator"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
PATHS = {
    "ConfigMap": f"/api/v1/namespaces/{NAMESPACE}/configmaps",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "Role": f"{_RBAC}/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"{_RBAC}/namespaces/{NAMESPACE}/rolebindings",
    "ClusterRole": f"{_RBAC}/clusterroles",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings",
    "ValidatingAdmissionPolicy": f"{_ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{_ADMISSION}/validatingadmissionpolicybindings",
}


@pytest.fixture(scope="session")
def chart_options() -> tuple[str, ...]:
    """What helm is given."""
    return ("--set", "operator.allocate=true")


@pytest.fixture(scope="session")
def guarded(
    control_plane: ControlPlane, chart_options: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    """The chart's part for the operator, its Deployment apart, for as long as the server is used.

    Once its last policy with ConfigMaps as parameters is deleted, an API server (1.36.3) never reads a ConfigMap for one again.
    """
    made = []
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    call(control_plane, "PATCH", f"/api/v1/namespaces/{NAMESPACE}?fieldManager=tests", namespace)
    try:
        for document in render(*chart_options):
            name, path = document["metadata"]["name"], PATHS.get(document["kind"])
            if path and "agent" not in name and not name.endswith(".nvidia.com"):
                call(control_plane, "PATCH", f"{path}/{name}?fieldManager=tests&force=true", document)
                made.append(f"{path}/{name}")
        kubeconfig = tmp_path_factory.mktemp("operator") / "kubeconfig"
        control_plane.write_kubeconfig(kubeconfig, USER)
        yield Guarded(kubeconfig)
    finally:
        for each in reversed(made):
            call(control_plane, "DELETE", each)


@pytest.fixture
async def handed_over(guarded: Guarded, cluster: Client) -> AsyncIterator[Client]:
    """A policy that hands over the GPUs of one node."""
    policy = {
        "mode": "Disabled",
        "allocator": "Operator",
        "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "sim-1"}},
    }
    await cluster.create(MIG_POLICIES, {"metadata": {"name": "draco"}, "spec": policy})
    yield cluster
    await cluster.delete(MIG_POLICIES, ObjectKey("", "draco"))
    await cluster.patch(CONFIG_MAPS, REGISTER, {"data": None})
