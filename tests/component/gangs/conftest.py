"""A control plane that knows PodGroups and schedules gangs, and simulated nodes whose GPUs are all Draco's."""

from collections.abc import Iterator

import pytest

from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import MIG_POLICIES
from draco_local.cluster.controlplane import ALL, ControlPlane
from tests.component.allocation import conftest as allocation
from tests.component.allocation.lab import ALLOCATE
from tests.component.gangs.lab import POD_GROUP
from tests.component.simulator import test_nodes
from tests.conftest import start_control_plane

cluster, folder = test_nodes.cluster, test_nodes.folder
chart_parts, guarded, handed_over = allocation.chart_parts, allocation.guarded, allocation.handed_over


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The API server with kube-controller-manager and kube-scheduler, and gangs."""
    yield from start_control_plane(tmp_path_factory.mktemp("gangs") / "state", ALL, features="gangs")


@pytest.fixture(scope="session")
def chart_options() -> tuple[str, ...]:
    """Helm's options on a cluster with PodGroups."""
    return (*ALLOCATE, "--api-versions", f"{POD_GROUP.api_version}/PodGroup")


@pytest.fixture
async def all_dracos(handed_over: Client) -> Client:
    """All GPUs of all nodes handed over."""
    await handed_over.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"nodeSelector": None}})
    return handed_over
