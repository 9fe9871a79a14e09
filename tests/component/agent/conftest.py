from collections.abc import AsyncIterator

import pytest

from draco.kube.connect.client import Client
from tests.agents import SimulatedNode


@pytest.fixture
async def node(client: Client, namespace: str) -> AsyncIterator[SimulatedNode]:
    """A node with two simulated H100s that the API server knows; no agent runs on it yet."""
    simulated = SimulatedNode(client)
    simulated.namespace = namespace
    await simulated.create()
    yield simulated
    await simulated.delete()
