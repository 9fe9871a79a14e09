"""How much memory an agent takes: `python -m benchmarks.agent_memory`.

Starts an API server and a real agent process on a node with eight simulated H100s, with a service account as in a pod. Lets it
publish, register, prepare eight claims and answer a scrape, and reads its resident memory from /proc. The product's own command,
`draco agent`, is measured beside it: on a machine without GPUs it serves everything except GPUs. The larger figure counts.
"""

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import grpc.aio

from benchmarks import table
from draco.agent.plugin import wire
from draco.agent.plugin.api import dra_v1_pb2, registration_pb2
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.kinds import CLAIMS, NODES, SLICES
from draco.resources.names import NVIDIA_DRIVER
from draco_local.cluster.controlplane import STORE, ControlPlane, Settings
from draco_local.cluster.programs import binaries
from draco_local.simulator.gpus import state

TARGET_MB = 80.0
GPUS = 8
START_S = 20.0
NAMESPACE = "default"

PYTHON = Path(sys.executable)
PROGRAMS = {
    "draco agent": [PYTHON.with_name("draco"), "agent"],
    "on simulated GPUs": [PYTHON, "-m", "draco_local.simulator.agent"],
}


@click.command()
@click.option("--settle", "settle_s", default=5.0, show_default=True, help="Seconds to let it idle before reading.")
def main(settle_s: float) -> None:
    """Measure and print one line."""
    with tempfile.TemporaryDirectory(prefix="draco-bench-") as name:
        folder = Path(name)
        plane = ControlPlane(folder / "plane", Settings(programs=binaries.find(*STORE)))
        plane.start()
        try:
            asyncio.run(_prepare_cluster(plane, folder))
            sizes = {label: _measure(plane, folder, label, settle_s) for label in PROGRAMS}
        finally:
            plane.stop()
    shown = ", ".join(f"{label} {size:.1f} MB" for label, size in sizes.items())
    print(f"agent resident memory while serving {GPUS} GPUs and {GPUS} claims: {shown} (target {TARGET_MB:g} MB)")
    largest = max(sizes.values())
    table.tell(
        table.Row(
            "agent RSS, 8 GPUs and 8 claims", f"{largest:.0f} MB", "-", f"<= {TARGET_MB:g} MB", largest <= TARGET_MB
        )
    )
    sys.exit(largest > TARGET_MB)


async def _prepare_cluster(plane: ControlPlane, folder: Path) -> None:
    """A service account's folder, and per agent a node with simulated GPUs and claims allocated to it."""
    async with Client(await connect(plane.kubeconfig)) as client:
        account = folder / "account"
        account.mkdir()
        (account / "ca.crt").write_bytes(plane.authority.certificate)
        binding = {
            "metadata": {"name": "agent"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": NAMESPACE}],
        }
        post = client.connection.request
        accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        await post("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body=json.dumps(binding).encode())
        await post("POST", accounts, body=b'{"metadata": {"name": "agent"}}')
        token = json.loads(await post("POST", f"{accounts}/agent/token", body=b'{"spec": {}}'))
        (account / "token").write_text(token["status"]["token"])
        for label in PROGRAMS:
            node = _node(label)
            await client.create(NODES, Node(metadata=ObjectMeta(name=node)))
            state.create(folder / node / "gpus.json", gpus=GPUS, node_name=node)
            for index in range(GPUS):
                await _allocated(client, node, index)


async def _allocated(client: Client, node: str, index: int) -> None:
    exactly = {"deviceClassName": NVIDIA_DRIVER, "allocationMode": "ExactCount", "count": 1}
    key = ObjectKey(NAMESPACE, f"{node}-{index}")
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    await client.create(CLAIMS, {"metadata": {"name": key.name, "namespace": key.namespace}, "spec": spec})
    result = {"request": "gpu", "driver": NVIDIA_DRIVER, "pool": node, "device": f"gpu-{index}"}
    allocation = {"status": {"allocation": {"devices": {"results": [result]}}}}
    await client.patch(CLAIMS, key, allocation, subresource="status")


def _measure(plane: ControlPlane, folder: Path, label: str, settle_s: float) -> float:
    """Resident memory in MB of 10^6 bytes, after everything an agent does has been done once."""
    node = _node(label)
    port = _free_port()
    with _agent(plane, folder, label, port) as process:
        asyncio.run(_exercise(plane, folder / node, node, port, served="simulated" in label))
        time.sleep(settle_s)
        if process.poll() is not None:
            raise SystemExit(f"the agent ended: {(folder / node / 'log').read_text()}")
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit("the kernel did not report how much memory the agent has")


@contextmanager
def _agent(plane: ControlPlane, folder: Path, label: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    home = folder / _node(label)
    options: dict[str, object] = {
        "node-name": _node(label),
        "kubelet-dir": home,
        "cdi-dir": home / "cdi",
        "service-account": folder / "account",
        "listen": f"127.0.0.1:{port}",
    }
    if "simulated" in label:
        options["state"] = home / "gpus.json"
    argv = [*map(str, PROGRAMS[label]), *(f"--{name}={value}" for name, value in options.items())]
    host, _, server_port = plane.server.removeprefix("https://").rpartition(":")
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": server_port, "PATH": "/usr/bin:/bin"}
    home.mkdir(exist_ok=True)
    with (home / "log").open("wb") as log, subprocess.Popen(argv, env=environment, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)


async def _exercise(plane: ControlPlane, home: Path, node: str, port: int, *, served: bool) -> None:
    registry = home / "plugins_registry" / f"{NVIDIA_DRIVER}-reg.sock"
    deadline = time.monotonic() + START_S
    async with Client(await connect(plane.kubeconfig)) as client:
        while not registry.exists() or (
            served and not await client.list(SLICES, field_selector=f"spec.nodeName={node}")
        ):
            if time.monotonic() > deadline:
                raise SystemExit(f"the agent did not start: {(home / 'log').read_text()}")
            await asyncio.sleep(0.1)
        claims = [one for one in await client.list(CLAIMS) if one.metadata.name.startswith(f"{node}-")]
    async with grpc.aio.insecure_channel(f"unix:{registry}") as channel:
        await wire.unary(channel, wire.REGISTRATION, "GetInfo")(registration_pb2.InfoRequest())
        accepted = registration_pb2.RegistrationStatus(plugin_registered=True)
        await wire.unary(channel, wire.REGISTRATION, "NotifyRegistrationStatus")(accepted)
    request = dra_v1_pb2.NodePrepareResourcesRequest(
        claims=[
            dra_v1_pb2.Claim(namespace=one.metadata.namespace, name=one.metadata.name, uid=one.metadata.uid)
            for one in claims
        ]
    )
    async with grpc.aio.insecure_channel(f"unix:{home / 'plugins' / NVIDIA_DRIVER / 'dra.sock'}") as channel:
        answer = await wire.unary(channel, wire.DRA_V1, "NodePrepareResources")(request)
    errors = {one.error for one in answer.claims.values()}
    if served and errors != {""}:
        raise SystemExit(f"claims were not prepared: {errors}")
    await asyncio.to_thread(_scrape, port)


def _scrape(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        answer.read()


def _node(label: str) -> str:
    return "node-simulated" if "simulated" in label else "node-product"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
