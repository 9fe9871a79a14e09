"""What Draco puts onto any cluster: its kinds, DeviceClasses, simulated nodes and the operator.

Owns installing them and waiting for them. Knows only a kubeconfig: the cluster may be local, kind's or someone else's.
"""

import asyncio
import contextlib
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import ApiError, KubeconfigError, NotFound
from draco.resources.api.claims import CelSelector, DeviceClass, DeviceClassSpec, DeviceSelector
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.kinds import DEVICE_CLASSES, NODES, SLICES, Kind
from draco.resources.names import (
    LABEL_MANAGED_BY,
    NVIDIA_DEVICE_CLASS,
    NVIDIA_DRIVER,
    NVIDIA_EXTENDED_RESOURCE,
    NVIDIA_MIG_DEVICE_CLASS,
)
from draco_local.cluster import data
from draco_local.cluster.errors import ClusterError, MissingRequirement, ProcessFailed
from draco_local.cluster.files import write_atomically
from draco_local.cluster.pki import Authority
from draco_local.cluster.process import Processes
from draco_local.cluster.progress import Progress
from draco_local.cluster.state import ClusterSpec

MANAGER = "draco-cluster"
NODES_PROCESS, OPERATOR_PROCESS = "simulated-nodes", "operator"
SYSTEM_NAMESPACE = "draco-system"
JOB_NAMESPACE = "draco-jobs"
"""Where the templates of maintenance Jobs are kept and the Jobs run."""
_NAMESPACES: Kind[Any] = Kind("", "v1", "namespaces", "Namespace", False, dict)
_DEFINITIONS: Kind[Any] = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, dict
)
_POLL_S = 0.1
_ESTABLISHED_WITHIN_S = 30.0


@contextlib.asynccontextmanager
async def client_of(kubeconfig: Path) -> AsyncIterator[Client]:
    """Open a client of the cluster that a kubeconfig names; an error of its API server becomes a ClusterError."""
    try:
        connection = await connect(kubeconfig)
    except KubeconfigError as error:
        raise ClusterError(str(error)) from error
    try:
        yield Client(connection, manager=MANAGER)
    except ApiError as error:
        raise ClusterError(f"The cluster of {kubeconfig} answered: {error.message}") from error
    finally:
        await connection.close()


async def check_dra(client: Client, *, whose: str) -> None:
    """Raise MissingRequirement unless the cluster serves resource.k8s.io/v1."""
    try:
        await client.connection.request("GET", "/apis/resource.k8s.io/v1")
    except NotFound:
        version = await server_version(client)
        raise MissingRequirement(
            f"{whose} (Kubernetes {version}) does not serve resource.k8s.io/v1, the API of Dynamic Resource Allocation: "
            f"use a cluster of Kubernetes 1.34 or newer that has it enabled."
        ) from None


async def server_version(client: Client) -> str:
    """Return the API server's version, like "1.36.3"."""
    answer = yaml.safe_load(await client.connection.request("GET", "/version"))
    return str(answer["gitVersion"]).removeprefix("v")


def device_classes() -> list[DeviceClass]:
    """NVIDIA's classes: one of whole GPUs, which also serves the extended resource `nvidia.com/gpu`, one of MIG partitions."""
    return [_class(NVIDIA_DEVICE_CLASS, "gpu", NVIDIA_EXTENDED_RESOURCE), _class(NVIDIA_MIG_DEVICE_CLASS, "mig")]


def _class(name: str, type_: str, extended_resource: str | None = None) -> DeviceClass:
    selector = f"device.driver == '{NVIDIA_DRIVER}' && device.attributes['{NVIDIA_DRIVER}'].type == '{type_}'"
    return DeviceClass(
        metadata=ObjectMeta(name=name, labels={LABEL_MANAGED_BY: MANAGER}),
        spec=DeviceClassSpec(
            selectors=[DeviceSelector(cel=CelSelector(expression=selector))], extended_resource_name=extended_resource
        ),
    )


async def install(client: Client) -> None:
    """Apply Draco's kinds, its namespace and the DeviceClasses, and wait until the kinds are served."""
    definitions = [
        document for file in sorted(data.crds().glob("*.yaml")) for document in yaml.safe_load_all(file.read_text())
    ]
    for definition in definitions:
        key = ObjectKey("", definition["metadata"]["name"])
        await client.apply(_DEFINITIONS, key, definition, manager=MANAGER)
    for namespace in (SYSTEM_NAMESPACE, JOB_NAMESPACE):
        await client.apply(_NAMESPACES, ObjectKey("", namespace), {}, manager=MANAGER)
    for each in device_classes():
        await _install_device_class(client, each)
    deadline = time.monotonic() + _ESTABLISHED_WITHIN_S
    for definition in definitions:
        name = definition["metadata"]["name"]
        while not _established(await client.get(_DEFINITIONS, ObjectKey("", name))):
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"The API server does not serve {name} {_ESTABLISHED_WITHIN_S:.0f} s after its definition was applied."
                )
            await asyncio.sleep(_POLL_S)


async def _install_device_class(client: Client, wanted: DeviceClass) -> None:
    """Apply a class, unless somebody else made one of this name: the cluster's own driver may depend on that."""
    key = wanted.metadata.key
    try:
        found = await client.get(DEVICE_CLASSES, key)
    except NotFound:
        found = None
    if found is None or found.metadata.labels.get(LABEL_MANAGED_BY) == MANAGER:
        await client.apply(DEVICE_CLASSES, key, wanted, manager=MANAGER)


def _established(definition: dict[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []  # null when just created
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def start_simulated_nodes(
    processes: Processes,
    kubeconfig: Path,
    wanted: ClusterSpec,
    sockets: Path,
    authority: Authority,
    *,
    enter: Sequence[str] = (),
) -> None:
    """Start the process in which all simulated nodes live.

    `authority` signs the certificate with which they answer on kubelet's port. `enter` goes before the command line, so that
    they share the API server's loopback.
    """
    serving = authority.issue("simulated-kubelets", hosts=["127.0.0.1"])
    certificate, key = processes.folder / "simulated-kubelets.crt", processes.folder / "simulated-kubelets.key"
    write_atomically(certificate, serving.certificate)
    write_atomically(key, serving.key)
    argv: list[str | Path] = [
        *enter,
        *(sys.executable, "-m", "draco_local.simulator.nodes", "--kubeconfig", kubeconfig),
        *("--nodes", str(wanted.nodes), "--gpus", str(wanted.gpus), "--board", wanted.board),
        *("--root", sockets, "--name-prefix", wanted.node_prefix),
        *("--kubelet-certificate", certificate, key),
        *("--namespace", SYSTEM_NAMESPACE),
    ]
    processes.start(NODES_PROCESS, argv)


def start_operator(processes: Processes, kubeconfig: Path, port: int, *options: str) -> None:
    """Start one replica of the operator with further options; its metrics and health are on loopback, on `port`."""
    argv: list[str | Path] = [
        *(sys.executable, "-m", "draco", "operator", "--kubeconfig", kubeconfig),
        *("--namespace", SYSTEM_NAMESPACE, "--listen", f"127.0.0.1:{port}"),
        "--run-jobs",
        *("--idle-grace", "5"),  # people try things out here and wait for the result
        *options,
    ]
    processes.start(OPERATOR_PROCESS, argv)


async def wait_for_operator(processes: Processes, port: int, *, timeout_s: float) -> None:
    """Wait until the operator knows the cluster; raises ProcessFailed if it ends or takes longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not await asyncio.to_thread(_answers, f"http://127.0.0.1:{port}/readyz"):
        _check_alive(processes)
        if time.monotonic() > deadline:
            raise ProcessFailed(
                f"The operator was not ready within {timeout_s:.0f} s: see {processes.log(OPERATOR_PROCESS)}."
            )
        await asyncio.sleep(_POLL_S)


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2.0):
            return True
    except OSError:  # refused, or an HTTP error
        return False


def simulated_node_names(wanted: ClusterSpec) -> list[str]:
    """Return the names of the simulated nodes, in order."""
    return [f"{wanted.node_prefix}-{index}" for index in range(wanted.nodes)]


def wait_until_ready(
    kubeconfig: Path,
    nodes: Sequence[str],
    wanted: ClusterSpec,
    processes: Processes,
    *,
    operator_port: int,
    timeout_s: float,
    progress: Progress,
) -> None:
    """Wait, as one step of an `up`, until these nodes are Ready with their GPUs, then until the operator is.

    Each of the two may take `timeout_s` seconds. Raises ProcessFailed.
    """

    async def wait(detail: Callable[[str], None]) -> None:
        async with client_of(kubeconfig) as client:
            names = set(nodes)
            await wait_for_nodes(
                client,
                names,
                publishing=names if wanted.gpus else set(),
                processes=processes,
                timeout_s=timeout_s,
                detail=detail,
            )
        if wanted.operator and not wanted.from_image:  # helm has waited for that one
            await wait_for_operator(processes, operator_port, timeout_s=timeout_s)

    with progress.step("Waiting for nodes and their GPUs") as detail:
        asyncio.run(wait(detail))


async def wait_for_nodes(
    client: Client,
    names: set[str],
    *,
    publishing: set[str],
    processes: Processes,
    timeout_s: float,
    detail: Callable[[str], None],
) -> None:
    """Wait until the nodes `names` are Ready and each of `publishing` has published its GPUs.

    Raises ProcessFailed when that takes longer than `timeout_s`, or when a background process ends meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        asked = time.monotonic()
        ready = {node.metadata.name for node in await client.list(NODES) if node.ready} & names
        slices = await client.list(SLICES, field_selector=f"spec.driver={NVIDIA_DRIVER}")
        published = {each.spec.node_name or "" for each in slices} & publishing
        if ready == names and published == publishing:
            return
        detail(f"{len(ready)} of {len(names)} nodes Ready, {len(published)} with GPUs")
        _check_alive(processes)
        if time.monotonic() > deadline:
            raise ProcessFailed(_not_ready(sorted((names - ready) | (publishing - published)), processes, timeout_s))
        # Listing thousands of devices takes long: wait three times as long in between, so that others are served.
        await asyncio.sleep(max(_POLL_S, 3 * (time.monotonic() - asked)))


def _check_alive(processes: Processes) -> None:
    for record in processes.records():
        if not processes.alive(record):
            raise ProcessFailed(
                f"{record.name} ended: {processes.last_words(record.name) or 'it wrote nothing'} "
                f"(its log is {processes.log(record.name)})"
            )


def _not_ready(missing: list[str], processes: Processes, timeout_s: float) -> str:
    shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
    return (
        f"{len(missing)} nodes ({shown}) were not Ready with their GPUs published within {timeout_s:.0f} s: "
        f"see {processes.log(NODES_PROCESS).parent}."
    )
