"""A cluster whose etcd is full: work without writes continues, every program says the fix, and recovers after it."""

import os
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
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_MAINTENANCES, GPU_NODES, NODES, Kind
from draco_local.cluster.controlplane import ETCD, STORE, ControlPlane, Settings
from draco_local.cluster.programs import binaries
from draco_local.simulator.accidents import faults
from tests.agents import SimulatedNode, eventually
from tests.component.agent.test_sick_gpus import taints
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
    """The server of `client`."""
    return plane


@pytest.fixture
async def node(client: Client, crds: None) -> AsyncIterator[tuple[SimulatedNode, ResourceClaim]]:
    """A node with a claim, in a cluster whose etcd is full from now on."""
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


async def free(plane: ControlPlane, client: Client) -> None:
    """Apply the fix: delete, compact, defragment, and disarm the alarm, as `etcdctl` does."""
    await client.connection.request("DELETE", "/api/v1/namespaces/default/configmaps")
    folder = os.open(plane.folder / "etcd", os.O_RDONLY)
    # The whole path may be too long for a socket.
    socket = aiohttp.UnixConnector(f"/proc/self/fd/{folder}/client:0")
    try:
        async with aiohttp.ClientSession(connector=socket, trust_env=False) as etcd:

            async def ask(method: str, **question: Any) -> Any:
                async with etcd.post(f"http://etcd/v3/{method}", json=question) as answer:
                    assert answer.status == 200, await answer.text()
                    return await answer.json()

            now = (await ask("kv/range", key="AA=="))["header"]["revision"]
            await ask("kv/compaction", revision=now, physical=True)
            await ask("maintenance/defragment")
            for alarm in (await ask("maintenance/alarm", action="GET"))["alarms"]:
                await ask("maintenance/alarm", action="DEACTIVATE", **alarm)
    finally:
        os.close(folder)


async def test_when_etcd_is_full_pods_start_and_all_go_on_by_themselves_when_it_is_not_any_more(
    plane: ControlPlane,
    client: Client,
    node: tuple[SimulatedNode, ResourceClaim],
    tmp_path: Path,
    unused_tcp_port: int,
) -> None:
    simulated, claim = node
    assert simulated.name in {each.metadata.name for each in await client.list(NODES)}, "reading goes on"
    operator = await Process.start(plane, tmp_path, "--namespace", "default")
    try:
        async with simulated.running(listen=("127.0.0.1", unused_tcp_port)) as agent:
            await simulated.register()
            assert (await simulated.prepare(claim))[claim.metadata.uid].error == ""
            faults.xid(simulated.gpus, 1, 79)

            async def ready() -> str:
                async with (
                    aiohttp.ClientSession(trust_env=False) as session,
                    session.get(f"http://127.0.0.1:{unused_tcp_port}/readyz") as response,
                ):
                    return await response.text()

            async def said() -> bool:
                return REMEDY in await ready()

            async def logged() -> bool:
                return any(REMEDY in str(each.get("error")) for each in operator.events())

            await until(said, what="the sentence at the agent's /readyz")
            await until(logged, what="the sentence in the operator's log")
            assert (await operator.get("/livez"))[0] == 200

            await free(plane, client)

            async def published() -> bool:
                return (await taints(simulated)) == {
                    "gpu-0": [],
                    "gpu-1": [("draco.dev/xid", "Xid79", "NoSchedule")],
                }

            async def reported() -> bool:
                devices = (await client.get(CLAIMS, claim.metadata.key)).status.devices
                return ("Ready", "True") in {(one.type, one.status) for device in devices for one in device.conditions}

            async def readable() -> bool:
                conditions = (await client.get(GPU_NODES, ObjectKey("", simulated.name))).status.conditions
                return ("Readable", "True") in {(one.type, one.status) for one in conditions}

            async def leads() -> bool:
                return "draco_leader 1.0" in (await operator.get("/metrics"))[1]

            await eventually(published)
            await eventually(reported)
            await eventually(readable)
            await until(leads, what="the operator leads")
            assert not agent.done()
            assert await ready() == "ok\n"
            made = await client.create(
                DEVICE_MAINTENANCES,
                {"metadata": {"name": "fan"}, "spec": {"deviceSelector": {"pool": simulated.name, "device": "gpu-1"}}},
            )

            async def followed() -> bool:
                return (await client.get(DEVICE_MAINTENANCES, made.metadata.key)).status.phase is not None

            await until(followed, what="the operator works")
    finally:
        await operator.kill()
