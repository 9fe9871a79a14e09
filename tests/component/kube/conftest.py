"""A client whose every request goes through a fault proxy to the real API server."""

from collections.abc import AsyncIterator

import pytest

from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from tests.doubles.faultproxy import FaultProxy


@pytest.fixture
async def through(proxy: FaultProxy) -> AsyncIterator[Client]:
    """A client of the proxy."""
    async with Client(Connection(proxy.url)) as client:
        yield client
