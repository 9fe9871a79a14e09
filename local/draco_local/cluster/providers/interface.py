"""What every provider of a cluster can do.

Owns the one interface that the command line, tests and benchmarks use.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from draco_local.cluster.progress import Progress


class Cluster(Protocol):
    """One cluster of one provider. Methods raise ClusterError with one sentence for a person."""

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig."""

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes that Draco made, simulated ones first."""

    def check(self) -> None:
        """Raise unless this machine has what the cluster needs; nothing is made, so that a refusal leaves nothing behind."""

    def create(self, progress: Progress, *, wait_s: float) -> None:
        """Start everything; with `wait_s` above 0 return when nodes are Ready and GPUs published, or raise."""

    def destroy(self, progress: Progress) -> None:
        """Stop everything this cluster runs and remove what it left outside its state folder."""

    def load_image(self, archive: Path) -> None:
        """Make the images of a docker or OCI archive available on every node that runs containers."""

    def exec_on_node(self, node: str, argv: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Run a program on a node that runs containers, and return its output; its status is not checked."""

    def power_off(self, node: str) -> None:
        """Cut a node's power, as far as the provider can."""

    def power_on(self, node: str) -> None:
        """Boot a node that was powered off."""
