"""A fault proxy before the real API server, for whoever wants requests to go wrong."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from draco_local.cluster.controlplane import ControlPlane
from tests.doubles.faultproxy import FaultProxy


@pytest.fixture
async def proxy(api_server: ControlPlane) -> AsyncIterator[FaultProxy]:
    proxy = FaultProxy(api_server)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


@pytest.fixture
def proxied(proxy: FaultProxy, tmp_path: Path) -> Path:
    """A kubeconfig of the proxy."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "proxy", "cluster": {"server": proxy.url}}],
        "users": [{"name": "proxy", "user": {}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        "current-context": "proxy",
    }
    kubeconfig = tmp_path / "proxied"
    kubeconfig.write_text(yaml.safe_dump(config))
    return kubeconfig


@pytest.fixture
def through_proxy(proxy: FaultProxy, proxied: Path) -> tuple[FaultProxy, Path]:
    """The proxy, and a kubeconfig of it."""
    return proxy, proxied
