"""A control plane that knows PodGroups and schedules gangs, and simulated nodes whose GPUs are all Draco's."""

from collections.abc import Iterator

import pytest

from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import MIG_POLICIES
from draco_local.cluster.controlplane import ALL, APISERVER, CONTROLLER_MANAGER, SCHEDULER, ControlPlane
from tests.component.allocation import conftest as allocation
from tests.component.allocation.lab import ALLOCATE
from tests.component.simulator import test_nodes
from tests.conftest import start_control_plane

cluster, folder = test_nodes.cluster, test_nodes.folder
guarded, handed_over = allocation.guarded, allocation.handed_over
_GATES = ("--feature-gates", "GenericWorkload=true,GangScheduling=true,DRAWorkloadResourceClaims=true")
_SERVED = ("--runtime-config", "scheduling.k8s.io/v1alpha2=true")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The API server with kube-controller-manager and kube-scheduler, and gangs."""
    flags = {APISERVER: [*_GATES, *_SERVED], CONTROLLER_MANAGER: _GATES, SCHEDULER: _GATES}
    yield from start_control_plane(tmp_path_factory.mktemp("gangs") / "state", ALL, flags)


@pytest.fixture(scope="session")
def chart_options() -> tuple[str, ...]:
    """What helm is given, on a cluster that has PodGroups."""
    return (*ALLOCATE, "--api-versions", "scheduling.k8s.io/v1alpha2/PodGroup")


@pytest.fixture
async def all_dracos(handed_over: Client) -> Client:
    """All GPUs of all nodes handed over."""
    await handed_over.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"nodeSelector": None}})
    return handed_over
