"""The `existing` provider: simulated nodes and the operator, attached to someone else's cluster.

Owns what is added to that cluster and taken away again. Never stops, changes or removes anything that it did not put there.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from draco.kube.errors import NotFound
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import DEVICE_CLASSES, NODES
from draco.resources.names import LABEL_SIMULATED
from draco_local.cluster import attach, ports
from draco_local.cluster.errors import ClusterError
from draco_local.cluster.files import write_atomically
from draco_local.cluster.pki import Authority
from draco_local.cluster.process import Processes
from draco_local.cluster.progress import Progress
from draco_local.cluster.providers.local import make_sockets_folder, remove_sockets_folder
from draco_local.cluster.state import ClusterSpec, Record


class _Attached(msgspec.Struct, frozen=True):
    """Written before anything is put onto the cluster: `device_classes` are those that were not there before."""

    device_classes: list[str]


class ExistingCluster:
    """A cluster that somebody else runs, and Draco's processes beside it."""

    def __init__(self, record: Record, wanted: ClusterSpec) -> None:
        self._record = record
        self._wanted = wanted
        self._processes = Processes(record.folder)
        self._attached = record.folder / "attached.json"

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig that was named."""
        return Path(self._wanted.existing)

    @property
    def nodes(self) -> list[str]:
        """The simulated nodes."""
        return attach.simulated_node_names(self._wanted)

    def runs(self) -> bool:
        """Whether one of its processes runs."""
        return any(self._processes.alive(each) for each in self._processes.records())

    def check(self) -> None:
        """Raise ClusterError unless the kubeconfig exists."""
        if not self.kubeconfig.is_file():
            raise ClusterError(f"There is no kubeconfig at {self.kubeconfig}, which --existing names.")

    def create(self, progress: Progress, *, wait_s: float) -> None:
        """Attach; see `Cluster.create`."""
        with progress.step(f"Looking at the cluster of {self.kubeconfig}"):
            asyncio.run(self._check_cluster())
        self.attach(progress, wait_s=wait_s)

    def attach(self, progress: Progress, *, wait_s: float) -> None:
        """Install what is missing and start Draco's processes. From here on, `destroy` may delete nodes with their names."""
        with progress.step("Installing Draco's kinds and DeviceClasses"):
            asyncio.run(self._install())
        self.start(progress, wait_s=wait_s, nodes=self.nodes)

    def start(self, progress: Progress, *, wait_s: float, nodes: Sequence[str]) -> None:
        """Start Draco's processes, and wait until `nodes`, which may include others than theirs, have their GPUs."""
        if self._wanted.nodes:
            with progress.step(f"Starting {self._wanted.nodes} simulated nodes"):
                sockets = make_sockets_folder(self._record)
                authority = Authority.create("simulated-nodes")  # the cluster's own signs only for its owner
                attach.start_simulated_nodes(self._processes, self.kubeconfig, self._wanted, sockets, authority)
        operator_port = ports.pick()
        if self._wanted.operator:
            with progress.step("Starting the operator"):
                attach.start_operator(self._processes, self.kubeconfig, operator_port)
        if wait_s > 0:
            attach.wait_until_ready(
                self.kubeconfig,
                nodes,
                self._wanted,
                self._processes,
                operator_port=operator_port,
                timeout_s=wait_s,
                progress=progress,
            )

    def destroy(self, progress: Progress) -> None:
        """Stop Draco's processes, and delete their nodes and DeviceClasses from the cluster if it can be reached.

        Draco's kinds stay: deleting them would delete every object of theirs, also those made by others.
        """
        self.detach()
        if not self._attached.exists():
            return
        try:
            asyncio.run(self._remove(msgspec.json.decode(self._attached.read_bytes(), type=_Attached)))
        except ClusterError as error:
            left = ", ".join([*self.nodes[:3], "..."][: len(self.nodes)])
            classes = ", ".join(each.metadata.name for each in attach.device_classes())
            progress.note(f"   Nodes {left} and DeviceClasses {classes} may be left in the cluster: {error}")

    def detach(self) -> None:
        """Stop Draco's processes and touch nothing in the cluster."""
        names = [attach.OPERATOR_PROCESS, attach.NODES_PROCESS]
        self._processes.stop_each(names, grace_s=5.0)
        self._processes.stop_strays()
        remove_sockets_folder(self._record)

    async def _check_cluster(self) -> None:
        async with attach.client_of(self.kubeconfig) as client:
            await attach.check_dra(client, whose=f"The cluster of {self.kubeconfig}")
            taken = {node.metadata.name for node in await client.list(NODES)} & set(self.nodes)
            if taken:
                raise ClusterError(
                    f"The cluster of {self.kubeconfig} already has a node {min(taken)}: "
                    f"choose other names for the simulated nodes with --node-prefix."
                )

    async def _install(self) -> None:
        async with attach.client_of(self.kubeconfig) as client:
            classes = {each.metadata.name for each in await client.list(DEVICE_CLASSES)}
            ours = [each.metadata.name for each in attach.device_classes()]
            attached = _Attached(device_classes=[name for name in ours if name not in classes])
            write_atomically(self._attached, msgspec.json.encode(attached))
            await attach.install(client)

    async def _remove(self, attached: _Attached) -> None:
        async with attach.client_of(self.kubeconfig) as client:
            ours = set(self.nodes)
            for node in await client.list(NODES, label_selector=f"{LABEL_SIMULATED}=true"):
                if node.metadata.name in ours:
                    await client.delete(NODES, node.metadata.key, uid=node.metadata.uid)
            for name in attached.device_classes:
                with contextlib.suppress(NotFound):
                    await client.delete(DEVICE_CLASSES, ObjectKey("", name))
