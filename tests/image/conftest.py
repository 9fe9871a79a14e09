"""One cluster with Draco as helm installs it, for all tests of this folder."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from draco_local.cluster import clusters
from draco_local.cluster.programs import binaries
from draco_local.cluster.providers.interface import Cluster
from tests.e2e import provider
from tests.e2e.conftest import pytest_collection_modifyitems  # noqa: F401 - pytest takes the hook from here
from tests.e2e.kubectl import Kubectl
from tests.e2e.real_nodes.conftest import draco
from tests.image.installed import GPUS, NODES


@pytest.fixture(scope="session")
def opened() -> Iterator[Cluster]:
    """Two real nodes with two GPUs each, and Draco as helm installs it."""
    name = f"image-{os.getpid()}"
    equipment = ("--nodes", "0", "--real-nodes", str(NODES), "--gpus", str(GPUS))
    try:
        draco("cluster", "up", "--name", name, *equipment, *provider.installed())
        yield clusters.opened(name)
    finally:
        draco("cluster", "down", "--name", name)


@pytest.fixture(scope="session")
def cluster(opened: Cluster) -> Kubectl:
    """An administrator's kubectl."""
    return Kubectl(binary=binaries.find("kubectl")["kubectl"], kubeconfig=opened.kubeconfig)


@pytest.fixture
def kube(cluster: Kubectl, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kubectl]:
    """Kubectl in the test's own namespace."""
    name = request.node.name.replace("_", "-")[:50].strip("-")
    cluster.run("create", "namespace", name)
    yield cluster.in_namespace(name, tmp_path)
    cluster.run("delete", "pods", "--all", "-n", name, "--grace-period=1", "--wait=false")
    cluster.run("delete", "namespace", name, "--wait=false")
