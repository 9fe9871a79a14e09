"""A cluster whose etcd is full: nothing can be written, what can be done without goes on, and everyone says what to do."""

import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from draco.kube.connect.client import Client
from draco.kube.errors import StoreFull
from draco.resources.api.claims import ResourceClaim
from draco.resources.kinds import NODES, Kind
from draco_local.cluster.controlplane import ETCD, STORE, ControlPlane, Settings
from draco_local.cluster.programs import binaries
from tests.agents import SimulatedNode
from tests.component.controller.replicas import Process, until
from tests.conftest import DIES_WITH_THE_TESTS

CONFIG_MAPS: Kind[Any] = Kind("", "v1", "configmaps", "ConfigMap", True, dict)
REMEDY = "the cluster's etcd is full and takes no writes: compact and defragment it and run `etcdctl alarm disarm`"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    version = binaries.kubernetes_version()
    settings = Settings(
        programs=binaries.find(*STORE, kubernetes=version),
        kubernetes=version,
        enter=DIES_WITH_THE_TESTS,
        extra_flags={ETCD: ("--quota-backend-bytes", str(12 << 20))},
    )
    plane = ControlPlane(tmp_path_factory.mktemp("full") / "state", settings)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def served(plane: ControlPlane) -> ControlPlane:
    """Where `client` is."""
    return plane


@pytest.fixture
async def node(client: Client, crds: None) -> AsyncIterator[tuple[SimulatedNode, ResourceClaim]]:
    """A node with a claim, in a cluster that is full from now on."""
    simulated = SimulatedNode(client)
    await simulated.create()
    claim = await simulated.claim("gpu-0")
    with pytest.raises(StoreFull, match=REMEDY):
        await fill(client)
    yield simulated, claim
    shutil.rmtree(simulated.folder)


async def fill(client: Client) -> None:
    while True:
        meta = {"name": uuid.uuid4().hex, "namespace": "default"}
        await client.create(CONFIG_MAPS, {"metadata": meta, "data": {"x": "x" * 500_000}})


async def test_when_etcd_is_full_pods_start_and_operator_and_agent_say_what_to_do(
    plane: ControlPlane,
    client: Client,
    node: tuple[SimulatedNode, ResourceClaim],
    tmp_path: Path,
    unused_tcp_port: int,
) -> None:
    simulated, claim = node
    assert simulated.name in {each.metadata.name for each in await client.list(NODES)}, "reading goes on"
    async with simulated.running(listen=("127.0.0.1", unused_tcp_port)):
        await simulated.register()
        assert (await simulated.prepare(claim))[claim.metadata.uid].error == ""

        async def said() -> bool:
            async with (
                aiohttp.ClientSession(trust_env=False) as session,
                session.get(f"http://127.0.0.1:{unused_tcp_port}/readyz") as response,
            ):
                return REMEDY in await response.text()

        await until(said, what="the sentence at the agent's /readyz")
    operator = await Process.start(plane, tmp_path, "--namespace", "default")
    try:

        async def logged() -> bool:
            return any(REMEDY in str(each.get("error")) for each in operator.events())

        await until(logged, what="the sentence in the operator's log")
        assert (await operator.get("/livez"))[0] == 200
    finally:
        await operator.kill()
