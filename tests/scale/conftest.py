"""A separate control plane for each third-party program, with simulated nodes whose GPUs Draco may allocate."""

import pytest

from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import MIG_POLICIES
from tests.component.allocation import conftest as allocation
from tests.component.simulator import test_nodes

cluster, folder = test_nodes.cluster, test_nodes.folder
guarded, handed_over = allocation.guarded, allocation.handed_over


@pytest.fixture(scope="session")
def chart_options() -> tuple[str, ...]:
    """Options for helm, which also create a DeviceClass for each profile of an H100."""
    return ("--set", "operator.allocate=true,operator.boardClasses={h100}")


@pytest.fixture
async def all_dracos(handed_over: Client) -> Client:
    """All GPUs of all nodes, handed over to Draco."""
    await handed_over.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"nodeSelector": None}})
    return handed_over
