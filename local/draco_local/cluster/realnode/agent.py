"""The node agent on a real node: the same program a DaemonSet would run, on simulated GPUs.

Owns its command line and the GPUs it finds. It connects as a pod would, by the files of a mounted service account; who
writes the token there is in `join`. Must not start anything.
"""

import sys
from pathlib import Path

from draco_local.cluster.realnode.config import AGENT_MOUNT
from draco_local.cluster.realnode.init import Service
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import state


def gpu_state_file(disk: Path) -> Path:
    """Return where the state of a node's GPUs is, seen from outside the node."""
    return disk / "fs" / state.ON_A_NODE.relative_to("/")


def boot_gpus(disk: Path) -> None:
    """Do to GPUs what a boot does: instances and holders are gone, lost GPUs are not found."""
    faults.reboot(gpu_state_file(disk))


def create_gpus(disk: Path, *, board: str, gpus: int, node: str) -> None:
    """Put GPUs into a node: their state lies on the node's disk and survives a power-off."""
    path = gpu_state_file(disk)
    path.parent.mkdir(parents=True, exist_ok=True)
    state.create(path, board=board, gpus=gpus, node_name=node)


def agent_service(node: str, *, api_host: str, api_port: int) -> Service:
    """Return the agent, started once it has a token."""
    return Service(
        name="agent",
        argv=[
            sys.executable,
            "-m",
            "draco_local.simulator.agent",
            "--node-name",
            node,
            "--state",
            str(state.ON_A_NODE),
        ],
        environment={
            "KUBERNETES_SERVICE_HOST": api_host,
            "KUBERNETES_SERVICE_PORT": str(api_port),
            "PYTHONUNBUFFERED": "1",
        },
        after=f"{AGENT_MOUNT}/token",
    )
