"""Simulated nodes whose GPUs Draco may allocate: the chart's account, rights and admission policies, and a MigPolicy."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import MIG_POLICIES
from draco_local.cluster.controlplane import ControlPlane
from tests.component.allocation.lab import ALLOCATE, USER, ChartParts, Guarded
from tests.component.simulator import test_nodes

cluster, folder = test_nodes.cluster, test_nodes.folder


@pytest.fixture(scope="session")
def chart_options() -> tuple[str, ...]:
    """Helm's options."""
    return ALLOCATE


@pytest.fixture(scope="module")
def chart_parts(control_plane: ControlPlane, chart_options: tuple[str, ...]) -> Iterator[ChartParts]:
    """Kept for all tests of a file: Kubernetes re-evaluates all roles whenever one is created or deleted."""
    parts = ChartParts(control_plane, chart_options)
    yield parts
    parts.uninstall()


@pytest.fixture
def guarded(control_plane: ControlPlane, crds: None, chart_parts: ChartParts, tmp_path: Path) -> Iterator[Guarded]:
    """The operator's part of the chart, without its Deployment."""
    chart_parts.install()
    kubeconfig = tmp_path / "operator"
    control_plane.write_kubeconfig(kubeconfig, USER)
    yield Guarded(kubeconfig)
    chart_parts.forget_register()


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
