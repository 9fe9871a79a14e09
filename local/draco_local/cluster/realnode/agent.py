"""The node agent on a real node: the product's own, with a driver whose GPUs are simulated below NVML.

Owns the driver that it finds, and the command lines of both. The agent connects as a pod would, with the files of a mounted
service account; `join` writes the token there. Must not start anything.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from draco.agent.settings import AgentSettings
from draco_local.cluster.programs import binaries
from draco_local.cluster.realnode import cgroup
from draco_local.cluster.realnode.config import AGENT_MOUNT, DRIVER_ROOT, LIMIT_LIBRARY
from draco_local.cluster.realnode.init import Service
from draco_local.simulator.accidents import faults
from draco_local.simulator.driver import root
from draco_local.simulator.gpus import procfs, state, sysfs

SEEING_VERSION_2: Final = (
    *("unshare", "--mount", "--propagation", "slave"),
    *("sh", "-c", 'mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"', "sh"),
)
"""Goes before the command line of a program that is to see cgroups of version 2 alone."""


def gpu_state_file(disk: Path) -> Path:
    """Return where the state of a node's GPUs is, seen from outside the node."""
    return disk / "fs" / state.ON_A_NODE.relative_to("/")


def boot_gpus(disk: Path) -> None:
    """Do to GPUs what a boot does: instances and holders are gone, lost GPUs are not found."""
    path = gpu_state_file(disk)
    faults.reboot(path)
    gpus = state.load(path)
    sysfs.build(sysfs.tree(path), gpus)
    procfs.build(path, gpus)


def create_gpus(disk: Path, *, board: str, gpus: int, node: str) -> None:
    """Put GPUs into a node: their state lies on the node's disk and survives a power-off."""
    path = gpu_state_file(disk)
    path.parent.mkdir(parents=True, exist_ok=True)
    state.create(path, board=board, gpus=gpus, node_name=node)


def install_driver(disk: Path, version: str = "") -> None:
    """Install the simulated driver where NVIDIA's GPU operator has it: `version`, or the loaded one. Raises NotCompiled."""
    loaded = state.load(gpu_state_file(disk)).driver.version
    root.install(_driver_root(disk), version or loaded, cache=_driver_cache())


def install_nvidia_smi(disk: Path) -> None:
    """Put the driver's nvidia-smi back. Raises NotCompiled."""
    root.install_nvidia_smi(_driver_root(disk), cache=_driver_cache())


def remove_nvidia_smi(disk: Path) -> None:
    """Take nvidia-smi out of the driver."""
    root.remove_nvidia_smi(_driver_root(disk))


def _driver_root(disk: Path) -> Path:
    return disk / "fs" / DRIVER_ROOT.lstrip("/")


def _driver_cache() -> Path:
    return binaries.cache_folder() / "driver"


def driver_service() -> Service:
    """Return the service that answers the simulated driver's library."""
    command = [
        *_seeing(),
        sys.executable,
        "-m",
        "draco_local.simulator.driver.service",
        "--state",
        str(state.ON_A_NODE),
    ]
    return Service(name="driver", argv=command, environment={"PYTHONUNBUFFERED": "1"})


def mps_service() -> Service:
    """Return the keeper of MPS daemons."""
    folder = AgentSettings(node_name="").mps_folder
    command = [sys.executable, "-m", "draco", "mps", "--mps-folder", str(folder), "--driver-root", DRIVER_ROOT]
    return Service(name="mps", argv=command, environment={"PYTHONUNBUFFERED": "1"})


def agent_service(node: str, *, api_host: str, api_port: int) -> Service:
    """Return the agent, started once it has a token. Files beside the GPUs' state stand in for the kernel's /sys and /proc."""
    kernel = (
        *("--sysfs-root", str(sysfs.tree(state.ON_A_NODE)), "--proc-root", str(procfs.tree(state.ON_A_NODE))),
        *("--driver-root", DRIVER_ROOT, "--limit-library", LIMIT_LIBRARY),
    )
    return Service(
        name="agent",
        argv=[*_seeing(), sys.executable, "-m", "draco", "agent", "--node-name", node, *kernel],
        environment={
            "KUBERNETES_SERVICE_HOST": api_host,
            "KUBERNETES_SERVICE_PORT": str(api_port),
            "PYTHONUNBUFFERED": "1",
        },
        after=f"{AGENT_MOUNT}/token",
    )


def _seeing() -> Sequence[str]:
    """The driver limits cgroups of version 2. Where version 1 is mounted, too, only kubelet and the runtime see that.

    The runtime gives containers a cgroup of the same path in both.
    """
    return SEEING_VERSION_2 if cgroup.mounted().unified else ()
