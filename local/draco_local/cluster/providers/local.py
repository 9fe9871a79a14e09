"""The `local` provider: a control plane of plain processes, simulated nodes, and real nodes in namespaces.

Owns the order in which these start and stop. The parts are in `controlplane`, `attach` and `realnode`.
"""

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from draco.kube.clock import SystemClock
from draco.kube.connect.retry import retry
from draco.resources.texts import counted
from draco_local.cluster import allocator, attach, chart, controlplane, ports
from draco_local.cluster.controlplane import ControlPlane
from draco_local.cluster.process import Processes
from draco_local.cluster.programs import binaries
from draco_local.cluster.progress import Progress
from draco_local.cluster.realnode import check, join, nodes
from draco_local.cluster.realnode.nodes import RealNodes, RealNodeSettings
from draco_local.cluster.state import ClusterSpec, Record

REAL_NODES_FOLDER = "real-nodes"
SOCKETS_LINK = "sockets"
OPERATOR_ACCESS = "operator.kubeconfig"
"""The kubeconfig of an operator that allocates: admission policies know it by its account."""
HELM_WITHIN_S = 180.0


class LocalCluster:
    """A cluster on this machine; everything of it is in the record's folder or carries that folder's path."""

    def __init__(self, record: Record, wanted: ClusterSpec, *, mirror: str = "") -> None:
        self._record = record
        self._wanted = wanted
        self._mirror = mirror
        self._processes = Processes(record.folder)
        self._real = RealNodes(record.name, record.folder / REAL_NODES_FOLDER)

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig."""
        return self._record.folder / "kubeconfig"

    @property
    def nodes(self) -> list[str]:
        """Simulated nodes, then real ones."""
        return [*attach.simulated_node_names(self._wanted), *self._real.nodes]

    @property
    def real_nodes(self) -> RealNodes:
        """The real nodes, for what only they can do."""
        return self._real

    def runs(self) -> bool:
        """Whether one of its processes runs."""
        return any(self._processes.alive(each) for each in self._processes.records())

    def check(self) -> None:
        """Raise MissingRequirement if real nodes lack root or a program, before minutes are spent on building others."""
        if self._wanted.real_nodes:
            check.require(self._real.folder, self._wanted.real_nodes)

    def create(self, progress: Progress, *, wait_s: float) -> None:
        """Start everything; see `Cluster.create`."""
        wanted = self._wanted
        programs = self._programs(progress)
        if wanted.real_nodes:
            with progress.step("Preparing a network for real nodes"):
                self._real.prepare_network()
        plane = ControlPlane(self._record.folder, self._control_plane_settings(programs))
        with progress.step(f"Starting the control plane (Kubernetes {wanted.kubernetes})"):
            plane.start()
        operator_port = 0
        if wanted.from_image:
            self._boot(progress, plane, programs)
            image = chart.image_of(Path(wanted.from_image))
            with progress.step(f"Installing Draco with helm, from image {image}"):
                chart.install(
                    programs["helm"],
                    self.kubeconfig,
                    image,
                    operator=wanted.operator,
                    allocate=wanted.allocate,
                    within_s=wait_s or HELM_WITHIN_S,
                )
            self._simulate(progress, plane)
        else:
            with progress.step("Installing Draco's kinds and the GPU DeviceClass"):
                asyncio.run(self._install(programs))
            self._simulate(progress, plane)
            operator_port = ports.pick(taken=frozenset({plane.port}))
            if wanted.operator:
                with progress.step("Starting the operator"):
                    self._start_operator(plane, operator_port)
            self._boot(progress, plane, programs)
        if wait_s > 0:
            attach.wait_until_ready(
                self.kubeconfig,
                self.nodes,
                wanted,
                self._processes,
                operator_port=operator_port,
                timeout_s=wait_s,
                progress=progress,
            )

    def _start_operator(self, plane: ControlPlane, port: int) -> None:
        if not self._wanted.allocate:
            attach.start_operator(self._processes, self.kubeconfig, port)
            return
        access = self._record.folder / OPERATOR_ACCESS
        plane.write_kubeconfig(access, allocator.ACCOUNT)
        attach.start_operator(self._processes, access, port, "--allocate")

    def _simulate(self, progress: Progress, plane: ControlPlane) -> None:
        wanted = self._wanted
        if wanted.nodes:
            with progress.step(f"Starting {counted(wanted.nodes, 'simulated node')}"):
                attach.start_simulated_nodes(
                    self._processes,
                    self.kubeconfig,
                    wanted,
                    make_sockets_folder(self._record),
                    plane.authority,
                    enter=plane.settings.enter,
                )

    def _boot(self, progress: Progress, plane: ControlPlane, programs: dict[str, Path]) -> None:
        wanted = self._wanted
        if wanted.real_nodes:
            with progress.step(f"Booting {counted(wanted.real_nodes, 'real node')}"):
                settings = RealNodeSettings(
                    programs=programs,
                    kubernetes=wanted.kubernetes,
                    features=wanted.features,
                    gpus=wanted.gpus,
                    board=wanted.board,
                    labels=chart.GPU_PRESENT,
                    agent=not wanted.from_image,
                    images=[Path(wanted.from_image)] if wanted.from_image else [],
                )
                names = self._real.boot(wanted.real_nodes, plane, settings)
                asyncio.run(self._join(names))

    def destroy(self, progress: Progress) -> None:  # noqa: ARG002 - the interface's
        """Stop everything by force: nothing that these processes hold outlives them."""
        plane = ControlPlane(self._record.folder, controlplane.Settings(programs={}))
        self._processes.stop_each([attach.OPERATOR_PROCESS, attach.NODES_PROCESS], grace_s=0.0)
        plane.stop()
        self._real.destroy()
        self._processes.stop_strays()
        remove_sockets_folder(self._record)

    def _programs(self, progress: Progress) -> dict[str, Path]:
        names = [*controlplane.ALL, "kubectl", *(nodes.PROGRAMS if self._wanted.real_nodes else ())]
        if self._wanted.from_image or self._wanted.allocate:
            names.append("helm")
        return binaries.find(
            *names,
            kubernetes=self._wanted.kubernetes,
            bin_dir=Path(self._wanted.bin_dir) if self._wanted.bin_dir else None,
            progress=progress,
            mirror=self._mirror,
        )

    def _control_plane_settings(self, programs: dict[str, Path]) -> controlplane.Settings:
        wanted = self._wanted
        servers = {name: programs[name] for name in controlplane.ALL}
        if not wanted.real_nodes:
            return controlplane.Settings(
                programs=servers,
                kubernetes=wanted.kubernetes,
                features=wanted.features,
                port=wanted.port,
                name=self._record.name,
            )
        return controlplane.Settings(
            programs=servers,
            kubernetes=wanted.kubernetes,
            features=wanted.features,
            address=self._real.address,
            port=wanted.port or nodes.API_PORT,
            enter=self._real.enter,
            name=self._record.name,
        )

    async def _install(self, programs: dict[str, Path]) -> None:
        async with attach.client_of(self.kubeconfig) as client:
            await retry(lambda: attach.install(client), clock=SystemClock())
            if self._wanted.allocate:
                await allocator.install(client, programs["helm"], self.kubeconfig)

    async def _join(self, names: Sequence[str]) -> None:
        async def once() -> None:
            await join.join(client, self._real, names, agents=not self._wanted.from_image)

        async with attach.client_of(self.kubeconfig) as client:
            # On a busy machine the API server may not answer for a while.
            await retry(once, clock=SystemClock())


def make_sockets_folder(record: Record) -> Path:
    """Make a folder with a short path, for Unix sockets; a link in the record's folder names it before it exists."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    folder = base / f"draco-{secrets.token_hex(4)}"
    (record.folder / SOCKETS_LINK).symlink_to(folder)
    folder.mkdir(mode=0o700)
    return folder


def remove_sockets_folder(record: Record) -> None:
    """Remove that folder, if it was made."""
    link = record.folder / SOCKETS_LINK
    if link.is_symlink():
        shutil.rmtree(link.readlink(), ignore_errors=True)
        link.unlink()
