"""The kubelet port of simulated nodes, with requests like an API server's."""

import asyncio
import contextlib
import ssl
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import NODES, PODS
from draco_local.cluster.controlplane import ControlPlane
from draco_local.cluster.pki import Authority
from draco_local.cluster.programs import binaries
from draco_local.simulator.kubelet.port import SENTENCE, ServingCertificate, answering
from draco_local.simulator.nodes import SimulatedNodes, run_nodes

LOGS = "GET /containerLogs/default/one-gpu/main HTTP/1.1\r\nHost: n\r\n\r\n"
EXEC = (
    "POST /exec/default/one-gpu/main HTTP/1.1\r\nHost: n\r\n"
    "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"
)


def serving(folder: Path, authority: Authority) -> ServingCertificate:
    issued = authority.issue("simulated-kubelets", hosts=["127.0.0.1"])
    files = ServingCertificate(folder / "kubelet.crt", folder / "kubelet.key")
    files.certificate.write_bytes(issued.certificate)
    files.key.write_bytes(issued.key)
    return files


async def ask(address: str, port: int, request: str) -> str:
    """The whole response until the connection closes."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # as an API server without a certificate authority for kubelets
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(address, port, ssl=context)
        writer.write(request.encode())
        answer = (await reader.read()).decode()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return answer


async def test_five_hundred_nodes_answer_at_once_with_one_sentence(tmp_path: Path) -> None:
    addresses = [f"127.80.{index // 250}.{index % 250 + 1}" for index in range(500)]
    async with answering(addresses, serving(tmp_path, Authority.create("ca"))) as ports:
        assert set(ports) == set(addresses)
        for address in (addresses[0], addresses[-1]):
            for request in (LOGS, EXEC):
                answer = await ask(address, ports[address], request)
                assert answer.startswith("HTTP/1.1 400 ")
                assert answer.endswith(SENTENCE)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(addresses[0], ports[addresses[0]])


@pytest.fixture
async def pod(api_server: ControlPlane, client: Client, namespace: str, tmp_path: Path) -> AsyncIterator[str]:
    """A pod that runs on a simulated node whose kubelet's port answers."""
    with tempfile.TemporaryDirectory(prefix="draco-", dir="/tmp") as folder:
        files = serving(tmp_path, api_server.authority)
        nodes = SimulatedNodes(root=Path(folder), count=1, gpus=0, prefix="mute", serving=files)
        task = asyncio.create_task(run_nodes(nodes, client, clock=SystemClock()))
        try:
            spec = {"nodeName": "mute-0", "containers": [{"name": "main", "image": "none"}]}
            await client.create(PODS, {"metadata": {"name": "p", "namespace": namespace}, "spec": spec})
            async with asyncio.timeout(60):
                while (await client.get(PODS, ObjectKey(namespace, "p"))).status.phase != "Running":
                    assert not task.done(), task.exception()
                    await asyncio.sleep(0.05)
            yield "p"
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await client.delete(PODS, ObjectKey(namespace, "p"), grace_period_s=0)
            await client.delete(NODES, ObjectKey("", "mute-0"))


async def test_kubectl_is_told_at_once_that_containers_are_simulated(
    api_server: ControlPlane, namespace: str, pod: str
) -> None:
    kubectl = str(binaries.find("kubectl")["kubectl"])
    for command in (["logs", pod], ["exec", pod, "--", "true"], ["attach", pod]):
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            kubectl,
            *("--kubeconfig", str(api_server.kubeconfig), "-n", namespace, *command),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode != 0
        assert SENTENCE in said.decode(), command
        assert time.monotonic() - began < 10
