"""Real nodes of either provider as machines: their services and their power.

Owns the differences between Draco's own nodes, where the agent runs outside of pods, and kind's, where it is a pod and systemd
runs the rest.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from draco_local.cluster import clusters
from draco_local.cluster.kindnode.machines import KindMachines
from draco_local.cluster.providers.kind import KindCluster
from draco_local.cluster.providers.local import LocalCluster
from draco_local.cluster.realnode.init import RUN_FOLDER
from tests.e2e import provider

REAL_CLUSTER = provider.CLUSTER if provider.FROM_IMAGE else f"e2e-real-{os.getpid()}"
"""The cluster whose nodes these tests use."""

AGENT = "draco_local.simulator.image agent"
"""Part of the command line of an agent in a pod."""


class Machines(Protocol):
    """The real nodes of a cluster."""

    folder: Path

    @property
    def nodes(self) -> list[str]:
        """Their names."""

    def power_off(self, node: str) -> None:
        """Take a node's power."""

    def power_on(self, node: str) -> None:
        """Boot a node that is off."""

    def powered(self, node: str) -> bool:
        """Whether a node is on."""

    def exec_on_node(self, node: str, argv: Sequence[str | Path]) -> "subprocess.CompletedProcess[str]":
        """Run a program on a node."""


def machines_of(cluster: str) -> Machines:
    """The real nodes of the cluster of this name."""
    opened = clusters.opened(cluster)
    assert isinstance(opened, LocalCluster | KindCluster)
    return opened.real_nodes


def service_pid(machines: Machines, node: str, service: str) -> int | None:
    """The process id, on the node, of "kubelet", "containerd", "kube-proxy" or "agent"; None while it does not run."""
    command: list[str | Path]
    if not isinstance(machines, KindMachines):
        command = ["cat", RUN_FOLDER / f"{service}.pid"]
    elif service == "agent":
        command = ["pgrep", "--full", "--oldest", AGENT]
    else:
        command = ["pgrep", "--exact", "--oldest", service]
    done = machines.exec_on_node(node, command)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else None
