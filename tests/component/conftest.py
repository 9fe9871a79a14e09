"""Shared by tests on an API server: a fault proxy in front of it, and a cluster without a leading operator."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from draco_local.cluster.controlplane import ControlPlane
from tests.doubles.faultproxy import FaultProxy
from tests.requests import call

COORDINATION = "/apis/coordination.k8s.io/v1"


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
    """The proxy and its kubeconfig."""
    return proxy, proxied


@pytest.fixture
def unled(api_server: ControlPlane) -> None:
    """No operator leads: deletes the lease that another test's operator may not have released."""
    for lease in call(api_server, "GET", f"{COORDINATION}/leases")["items"]:
        if (meta := lease["metadata"])["name"] == "draco-operator":
            call(api_server, "DELETE", f"{COORDINATION}/namespaces/{meta['namespace']}/leases/draco-operator")
