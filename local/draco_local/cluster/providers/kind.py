"""The `kind` provider: the cluster is kind's (Docker), with the gates and CDI that DRA with GPUs needs.

Owns kind's configuration file and the calls of `kind` and `docker`. Real nodes are kind's workers; simulated nodes and the
operator are attached as to any existing cluster.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from draco_local.cluster import attach
from draco_local.cluster.errors import ClusterError, MissingRequirement
from draco_local.cluster.files import write_atomically
from draco_local.cluster.programs import versions
from draco_local.cluster.progress import Progress
from draco_local.cluster.providers.existing import ExistingCluster
from draco_local.cluster.state import ClusterSpec, Record

CONFIG = "kind.yaml"
_CDI_PATCH = '[plugins."io.containerd.grpc.v1.cri"]\n  enable_cdi = true\n'


def config(wanted: ClusterSpec) -> dict[str, Any]:
    """Kind's configuration: one control plane, `real_nodes` workers, DRA's gates and API versions, CDI."""
    minor = versions.minor_of(wanted.kubernetes)
    document: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "featureGates": dict(minor.gates),
        "runtimeConfig": dict(each.split("=", 1) for each in minor.runtime_config),
        "containerdConfigPatches": [_CDI_PATCH],
        "nodes": [{"role": "control-plane"}, *({"role": "worker"} for _ in range(wanted.real_nodes))],
    }
    if wanted.port:
        document["networking"] = {"apiServerPort": wanted.port}
    return document


class KindCluster:
    """A cluster that kind made for us."""

    def __init__(self, record: Record, wanted: ClusterSpec) -> None:
        self._record = record
        self._wanted = wanted
        self._name = f"draco-{record.name}"

    @property
    def kubeconfig(self) -> Path:
        """Kind's administrator kubeconfig."""
        return self._record.folder / "kubeconfig"

    @property
    def nodes(self) -> list[str]:
        """The simulated nodes, then kind's workers."""
        return [*attach.simulated_node_names(self._wanted), *self._workers()]

    def check(self) -> None:
        """Kind must be installed."""
        _require("kind")

    def create(self, progress: Progress, *, wait_s: float) -> None:
        """Have kind make the cluster, then attach; see `Cluster.create`."""
        path = self._record.folder / CONFIG
        write_atomically(path, yaml.safe_dump(config(self._wanted), sort_keys=False).encode())
        image = f"kindest/node:v{self._wanted.kubernetes}"
        with progress.step(f"Creating kind's cluster from {image} (usually a minute, more if the image is pulled)"):
            command = ["kind", "create", "cluster", "--name", self._name, "--config", str(path), "--image", image]
            _run([*command, "--kubeconfig", str(self.kubeconfig), "--wait", "180s"])
        self._attached().attach(progress, wait_s=wait_s)

    def destroy(self, progress: Progress) -> None:  # noqa: ARG002 - the interface's
        """Stop our processes and have kind delete its cluster."""
        self._attached().detach()
        if (self._record.folder / CONFIG).exists():
            _require("kind")
            _run(["kind", "delete", "cluster", "--name", self._name, "--kubeconfig", str(self.kubeconfig)])

    def _attached(self) -> ExistingCluster:
        return ExistingCluster(self._record, replace(self._wanted, existing=str(self.kubeconfig)))

    def _workers(self) -> list[str]:
        count = self._wanted.real_nodes
        return [f"{self._name}-worker{index if index > 1 else ''}" for index in range(1, count + 1)]


def _require(program: str) -> None:
    if shutil.which(program) is None:
        raise MissingRequirement(
            f"--provider kind needs the program {program}, which is not on PATH: install it, "
            f"or use the default provider, which needs neither kind nor Docker."
        )


def _run(command: Sequence[str]) -> None:
    _require(command[0])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        error = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "it wrote nothing")
        raise ClusterError(f"`{' '.join(command[:3])}` failed: {error}")
