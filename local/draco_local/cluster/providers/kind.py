"""The `kind` provider: the cluster is kind's (Docker), with the gates and CDI that DRA with GPUs needs.

Owns kind's configuration file, the calls of `kind`, and which Docker Engine it uses: the machine's own where that has kind's
node image, else a private one (`kindnode`). Real nodes are kind's workers, with GPUs where Draco is installed from
an image; simulated nodes and the operator are attached as to any existing cluster.
"""

import platform
import shutil
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec.structs import replace

from draco_local.cluster import attach, chart
from draco_local.cluster.files import write_atomically
from draco_local.cluster.kindnode import images, node_image
from draco_local.cluster.kindnode.docker import Docker
from draco_local.cluster.kindnode.engine import PrivateEngine
from draco_local.cluster.kindnode.machines import KindMachines
from draco_local.cluster.programs import binaries, versions
from draco_local.cluster.progress import Progress
from draco_local.cluster.providers.existing import ExistingCluster
from draco_local.cluster.providers.local import HELM_WITHIN_S, REAL_NODES_FOLDER
from draco_local.cluster.realnode import image
from draco_local.cluster.realnode.config import LABEL_REAL
from draco_local.cluster.state import ClusterSpec, Record

CONFIG = "kind.yaml"
_CDI_PATCH = '[plugins."io.containerd.grpc.v1.cri"]\n  enable_cdi = true\n'
_RESTARTS_LATEST_AFTER: Final = "1s"
_SINCE_RESTARTS_CAN_BE_SOON: Final = (1, 35)


def config(wanted: ClusterSpec, *, machines: KindMachines | None = None, address: str = "") -> dict[str, Any]:
    """Kind's configuration: one control plane, `real_nodes` workers, DRA's gates and API versions, CDI.

    `machines` have GPUs; `address` is where the engine publishes the API server, unless that is loopback.
    """
    minor = versions.minor_of(wanted.kubernetes, wanted.features)
    workers: list[dict[str, Any]] = [{"role": "worker"} for _ in range(wanted.real_nodes)]
    if machines:
        for worker, node in zip(workers, machines.nodes, strict=True):
            worker |= {"labels": {LABEL_REAL: "true", **chart.GPU_PRESENT}, "extraMounts": machines.mounts(node)}
    document: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "featureGates": dict(minor.gates),
        "runtimeConfig": dict(each.split("=", 1) for each in minor.runtime_config),
        "containerdConfigPatches": [_CDI_PATCH],
        "kubeadmConfigPatches": [yaml.safe_dump(kubelet_config(wanted.kubernetes), sort_keys=False)],
        "nodes": [{"role": "control-plane"}, *workers],
    }
    networking: dict[str, Any] = {}
    if address:
        networking["apiServerAddress"] = address
    if wanted.port:
        networking["apiServerPort"] = wanted.port
    return {**document, "networking": networking} if networking else document


def kubelet_config(kubernetes: str) -> dict[str, Any]:
    """Kubelet's settings that differ from the default: it retries failures soon, as people try things out here."""
    document: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "syncFrequency": "5s",
    }
    if versions.parse(kubernetes)[:2] >= _SINCE_RESTARTS_CAN_BE_SOON:
        document["crashLoopBackOff"] = {"maxContainerRestartPeriod": _RESTARTS_LATEST_AFTER}
    return document


class KindCluster:
    """A cluster that kind made for Draco."""

    def __init__(self, record: Record, wanted: ClusterSpec, *, mirror: str = "") -> None:
        self._record = record
        self._wanted = wanted
        self._mirror = mirror
        self._name = f"draco-{record.name}"
        self._engine = PrivateEngine()

    @property
    def kubeconfig(self) -> Path:
        """Kind's administrator kubeconfig."""
        return self._record.folder / "kubeconfig"

    @property
    def nodes(self) -> list[str]:
        """The simulated nodes, then kind's workers."""
        return [*attach.simulated_node_names(self._wanted), *self._workers()]

    @property
    def real_nodes(self) -> KindMachines:
        """Kind's workers, for what only they can do."""
        return self._machines(self._docker())

    def runs(self) -> bool:
        """Whether kind's control plane runs."""
        if self._engine.used_by(self._record.folder) and not self._engine.running():
            return False
        return self._docker().has("exec", f"{self._name}-control-plane", "true")

    def check(self) -> None:
        """Raise MissingRequirement unless a Docker answers or a private engine can be started here."""
        if not Docker().answers():
            self._engine.check("No Docker answers here", otherwise="start Docker")

    def create(self, progress: Progress, *, wait_s: float) -> None:
        """Have kind make the cluster, then attach; see `Cluster.create`."""
        wanted = self._wanted
        docker, node_image_, kind = self._prepared(progress)
        machines = self._machines(docker)
        if wanted.from_image:
            machines.prepare(board=wanted.board, gpus=wanted.gpus)
        path = self._record.folder / CONFIG
        document = config(wanted, machines=machines if wanted.from_image else None, address=docker.address)
        write_atomically(path, yaml.safe_dump(document, sort_keys=False).encode())
        with progress.step(f"Creating kind's cluster from {node_image_} (usually half a minute)"):
            command = [kind, "create", "cluster", "--name", self._name, "--config", path, "--image", node_image_]
            # With an image, helm waits for more than this.
            docker.run([*command, "--kubeconfig", self.kubeconfig, "--wait", "0s" if wanted.from_image else "180s"])
        if wanted.from_image:
            self._install(progress, machines, within_s=wait_s or HELM_WITHIN_S)
            self._attached().start(progress, wait_s=wait_s, nodes=self.nodes)
        else:
            self._attached().attach(progress, wait_s=wait_s)

    def destroy(self, progress: Progress) -> None:
        """Stop Draco's processes, let kind delete its cluster, and release the private engine, which ends with the last one."""
        self._attached().detach()
        private = self._engine.used_by(self._record.folder)
        if (self._record.folder / CONFIG).exists():
            # An engine that died, or went with the machine's last boot, still has the cluster.
            docker = self._engine.acquire(self._record.folder, progress) if private else Docker()
            kind = self._kind(progress)
            docker.run([kind, "delete", "cluster", "--name", self._name, "--kubeconfig", self.kubeconfig])
        if private:
            self._engine.release(self._record.folder, progress)

    def _prepared(self, progress: Progress) -> tuple[Docker, str, str | Path]:
        """The engine, the node image that it has, and the `kind` that goes with it."""
        docker, image_ = Docker(), images.official(self._wanted.kubernetes)
        if docker.answers():
            if docker.has_image(image_):
                return docker, image_, self._kind(progress)
            # Draco pulls none: it has no digests of these images to compare, and a registry may change what a name stands for.
            unable = f"Docker has no {image_}"
            self._engine.check(
                unable, otherwise=f"run `docker pull {image_}`, if you trust who serves it, or `docker load`"
            )
            progress.note(f" • {unable}: one is made here, for a private engine")
        programs = self._programs(*node_image.PROGRAMS, progress=progress)
        docker = self._engine.acquire(self._record.folder, progress)
        made = images.ensure(docker, self._wanted.kubernetes, programs, folder=self._engine.folder, progress=progress)
        return docker, made, programs["kind"]

    def _install(self, progress: Progress, machines: KindMachines, *, within_s: float) -> None:
        helm = self._programs("helm", progress=progress)["helm"]
        archive = Path(self._wanted.from_image)
        name = chart.image_of(archive)
        with progress.step(f"Loading image {name} into kind's nodes"):
            machines.load_image(archive)
            if image.BUSYBOX_PROGRAM.exists():  # what examples run, where nothing can be pulled
                busybox = self._record.folder / "busybox.tar"
                image.write_archive(image.busybox_image(), busybox, machine=platform.machine())
                machines.load_image(busybox)
        with progress.step(f"Installing Draco with helm, from image {name}"):
            wanted = self._wanted
            operator, allocate = wanted.operator, wanted.allocate
            chart.install(helm, self.kubeconfig, name, operator=operator, allocate=allocate, within_s=within_s)

    def _docker(self) -> Docker:
        return self._engine.client() if self._engine.used_by(self._record.folder) else Docker()

    def _machines(self, docker: Docker) -> KindMachines:
        return KindMachines(self._workers(), self._record.folder / REAL_NODES_FOLDER, docker)

    def _kind(self, progress: Progress) -> str | Path:
        return shutil.which("kind") or self._programs("kind", progress=progress)["kind"]

    def _programs(self, *names: str, progress: Progress) -> dict[str, Path]:
        return binaries.find(
            *names,
            kubernetes=self._wanted.kubernetes,
            bin_dir=Path(self._wanted.bin_dir) if self._wanted.bin_dir else None,
            progress=progress,
            mirror=self._mirror,
        )

    def _attached(self) -> ExistingCluster:
        operator = self._wanted.operator and not self._wanted.from_image
        return ExistingCluster(self._record, replace(self._wanted, existing=str(self.kubeconfig), operator=operator))

    def _workers(self) -> list[str]:
        count = self._wanted.real_nodes
        return [f"{self._name}-worker{index if index > 1 else ''}" for index in range(1, count + 1)]
