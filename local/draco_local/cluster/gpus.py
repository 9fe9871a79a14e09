"""Finds the state file of a node's simulated GPUs, for commands that change it.

Owns finding the file, and changing a real node's driver files with its state. The changes are in `faults`,
`hotplug` and `by_hand` of `draco_local.simulator.accidents`.
"""

import difflib
from pathlib import Path

from draco_local.cluster import attach, clusters
from draco_local.cluster.errors import ClusterError
from draco_local.cluster.providers import local
from draco_local.cluster.realnode.agent import gpu_state_file, install_driver, install_nvidia_smi, remove_nvidia_smi
from draco_local.cluster.realnode.nodes import disk_of
from draco_local.cluster.state import Record
from draco_local.simulator.accidents import faults
from draco_local.simulator.nodes import folder_of


def reload_driver(state_file: Path, *, version: str | None) -> None:
    """Reload a node's driver; on a real node, which has driver files, install those of another version, too."""
    faults.reload_driver(state_file, version=version)
    disk = _disk(state_file)
    if version is not None and disk is not None:
        install_driver(disk)


def nvidia_smi(state_file: Path, *, installed: bool) -> None:
    """Take nvidia-smi out of a node's driver, or put it back; on a real node, also the file."""
    faults.nvidia_smi(state_file, installed=installed)
    disk = _disk(state_file)
    if disk is not None:
        (install_nvidia_smi if installed else remove_nvidia_smi)(disk)


def _disk(state_file: Path) -> Path | None:
    """The disk of a real node."""
    return next((each for each in state_file.parents if gpu_state_file(each) == state_file), None)


def state_file(cluster: str, node: str) -> Path:
    """Return the file with the state of a node's GPUs. Raises ClusterError for an unknown node, or one that is not up yet."""
    record = Record(cluster)
    wanted = record.read().wanted
    nodes = clusters.opened(cluster).nodes
    if node not in nodes:
        near = difflib.get_close_matches(node, nodes, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        known = ", ".join(nodes[:5]) + (", ..." if len(nodes) > 5 else "") or "none"
        raise ClusterError(f"Cluster {cluster} has no node {node}; it has: {known}.{hint}")
    if node in attach.simulated_node_names(wanted):
        path = record.folder / local.SOCKETS_LINK / folder_of(node) / "gpus.json"
    else:
        path = gpu_state_file(disk_of(record.folder / local.REAL_NODES_FOLDER, node))
    if not path.exists():
        raise ClusterError(f"Node {node} has no GPUs yet: wait until `draco cluster status` calls it Ready.")
    return path
