"""What every provider of a cluster can do.

Owns the one interface that the command line uses.
"""

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

    def runs(self) -> bool:
        """Whether anything of it runs, even if some of its processes have died."""

    def check(self) -> None:
        """Raise unless this machine has what the cluster needs; it makes nothing, so that a refusal leaves nothing behind."""

    def create(self, progress: Progress, *, wait_s: float) -> None:
        """Start everything; with `wait_s` above 0 return when nodes are Ready and GPUs published, or raise."""

    def destroy(self, progress: Progress) -> None:
        """Stop everything this cluster runs and remove what it left outside its state folder."""
