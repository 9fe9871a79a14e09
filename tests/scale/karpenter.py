"""Karpenter beside a local control plane, with kwok as the kubelet of the nodes that it adds, and real agents on them.

Owns how the programs start, and what a node has: eight simulated H100s, described to Karpenter by `draco autoscale template`. An
agent starts when its node appears, and ends when it goes. Karpenter's decisions are its own.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import yaml

from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.kinds import NODES
from draco.resources.names import LABEL_KARPENTERS
from draco_local.cluster import ports
from draco_local.cluster.controlplane import ControlPlane
from tests.agents import SimulatedNode
from tests.component.controller.replicas import until
from tests.requests import RefusedError, call
from tests.scale import daemons, programs

KARPENTER: Final = "/apis/karpenter.sh/v1"
NODE_CLASSES: Final = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
GPUS: Final = 8
BOARD: Final = "H100-80GB"
_TYPE: Final = "gpus-8x"
_CPUS: Final = "plain-8x"
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_ZONE: Final = "zone-a"
_LOOK_S: Final = 0.2


@contextmanager
def karpenter(plane: ControlPlane, folder: Path, *, policy: dict[str, Any] | None = None) -> Iterator[daemons.Daemon]:
    """Run Karpenter and kwok during the block, with a NodePool whose nodes' GPUs follow the MigPolicy `policy`."""
    found, kwok = programs.find("karpenter"), programs.find("kwok")
    made = _definitions(plane, found / programs.FILES)
    types, templates = folder / "types.json", folder / "templates.json"
    types.write_text(json.dumps([_instance_type(_TYPE, "64", 32.0), _instance_type(_CPUS, "8", 0.4)]))
    templates.write_text(slice_templates(folder, policy))
    base = os.environ | {"KUBECONFIG": str(plane.kubeconfig), "HOME": str(folder)}
    settings = {
        "DISABLE_LEADER_ELECTION": "true",
        "SYSTEM_NAMESPACE": "kube-system",
        "IGNORE_DRA_REQUESTS": "false",  # by default, Karpenter ignores pods with claims
        "INSTANCE_TYPES_FILE_PATH": str(types),
        "SLICE_TEMPLATES": str(templates),
    }
    as_kubelet = [
        *("--kubeconfig", str(plane.kubeconfig)),
        *("--manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake"),
        *("--node-lease-duration-seconds", "40"),
        *("--server-address", f"127.0.0.1:{ports.pick()}"),
        *("--node-ip", "10.0.0.1"),
    ]
    try:
        for path, name, spec in ((NODE_CLASSES, "gpus", {}), (f"{KARPENTER}/nodepools", "gpus", _POOL)):
            call(plane, "POST", path, _object(path, name, spec))
            made.append(f"{path}/{name}")
        with (
            daemons.running(kwok / "kwok", as_kubelet, environ=base, folder=folder),
            daemons.running(found / "karpenter", [], environ=base | settings, folder=folder) as daemon,
        ):
            yield daemon
    finally:
        for path in reversed(made):
            call(plane, "DELETE", path)


def slice_templates(folder: Path, policy: dict[str, Any] | None) -> str:
    """What a node will publish, as `draco autoscale template` prints it."""
    command = [str(Path(sys.executable).with_name("draco")), "autoscale", "template", "--board", BOARD]
    command += ["--count", str(GPUS), "--name", _TYPE, "-o", "json"]
    if policy is not None:
        file = folder / "policy.yaml"
        file.write_text(yaml.safe_dump(policy))
        command += ["--policy", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@asynccontextmanager
async def agents(client: Client) -> AsyncIterator[dict[str, SimulatedNode]]:
    """Run an agent on every node that Karpenter adds, while the node exists. Yields the agents by node name."""
    found: dict[str, SimulatedNode] = {}
    stop = asyncio.Event()
    task = asyncio.create_task(_follow(client, found, stop))
    try:
        yield found
    finally:
        stop.set()  # not cancelled: an agent that is just stopping would take the cancellation for its own
        await task


async def _follow(client: Client, found: dict[str, SimulatedNode], stop: asyncio.Event) -> None:
    ends: dict[str, AsyncExitStack] = {}
    while not stop.is_set():
        there = {each.metadata.name for each in await client.list(NODES, label_selector=LABEL_KARPENTERS)}
        for name in there - ends.keys():
            stack = ends[name] = AsyncExitStack()
            node = found[name] = SimulatedNode(client, gpus=GPUS, board=BOARD, name=name)
            await stack.enter_async_context(node.running())
        for name in ends.keys() - there:
            await _end(ends.pop(name), found.pop(name))
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _LOOK_S)
    for name, stack in ends.items():
        await _end(stack, found[name])


async def _end(stack: AsyncExitStack, node: SimulatedNode) -> None:
    await stack.aclose()
    await node.delete()


async def nodes_of(client: Client) -> set[str]:
    """Karpenter's nodes, by name."""
    return {each.metadata.name for each in await client.list(NODES, label_selector=LABEL_KARPENTERS)}


async def until_nodes(client: Client, count: int, *, within_s: float = 120.0) -> set[str]:
    """The names of Karpenter's nodes, once there are `count`."""

    async def look() -> set[str] | None:
        names = await nodes_of(client)
        return names or {""} if len(names) == count else None

    return await until(look, what=f"Karpenter has {count} nodes", within_s=within_s) - {""}


def node_claims(plane: ControlPlane) -> list[dict[str, Any]]:
    """Karpenter's NodeClaims."""
    found: list[dict[str, Any]] = call(plane, "GET", f"{KARPENTER}/nodeclaims")["items"]
    return found


def remove_nodes(plane: ControlPlane) -> None:
    """Delete all of Karpenter's NodeClaims, without waiting."""
    for each in node_claims(plane):
        with suppress(RefusedError, NotFound):
            call(plane, "DELETE", f"{KARPENTER}/nodeclaims/{each['metadata']['name']}")


def _definitions(plane: ControlPlane, files: Path) -> list[str]:
    """Apply Karpenter's CRDs, and wait until they are served."""
    made = []
    for file in sorted(files.glob("**/crds/*.yaml")):
        definition = yaml.load(file.read_text(), yaml.CSafeLoader)
        path = f"{_DEFINITIONS}/{definition['metadata']['name']}"
        call(plane, "PATCH", f"{path}?fieldManager=tests&force=true", definition)
        made.append(path)
    for path in made:
        daemons.eventually(lambda path=path: _served(call(plane, "GET", path)), what=f"{path} is served")
    return made


def _served(definition: dict[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _object(path: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    kind = {"kwoknodeclasses": "KWOKNodeClass", "nodepools": "NodePool"}[path.rpartition("/")[2]]
    version = path.removeprefix("/apis/").rpartition("/")[0]
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


_POOL: Final[dict[str, Any]] = {
    "template": {
        "spec": {
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "gpus"},
            "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}],
            "expireAfter": "Never",
        }
    },
    "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "5s"},
}


def _instance_type(name: str, cpus: str, price: float) -> dict[str, Any]:
    where = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": _ZONE}
    requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in where.items()]
    return {
        "name": name,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": cpus, "memory": "256Gi", "ephemeral-storage": "100Gi", "pods": "110"},
        "offerings": [{"Price": price, "Available": True, "Requirements": requirements}],
    }
