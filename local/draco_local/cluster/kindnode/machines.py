"""Kind's workers as machines with GPUs: their disks, device nodes, power and images.

Owns what is mounted into kind's containers, and what `docker` does to them. Their GPUs are stored where those of the `local`
provider's real nodes are, so that the same commands change them. Must not make or delete clusters.
"""

import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from draco_local.cluster.errors import ClusterError
from draco_local.cluster.kindnode.docker import Docker
from draco_local.cluster.realnode.agent import boot_gpus, create_gpus, gpu_state_file, install_driver
from draco_local.cluster.realnode.config import DRIVER_ROOT, gpu_devices
from draco_local.cluster.realnode.nodes import disk_of
from draco_local.simulator.gpus import state

_BOOT: Final = "boot.sh"
_AT_BOOT: Final = "/etc/systemd/system/kubelet.service.d/20-draco.conf"
_WITHIN_S: Final = 60.0
_BOOT_SCRIPT: Final = """\
# Make the device nodes of a booted machine, and a new boot id, by which kubelet and the agent recognise a reboot.
set -eu
mkdir -p /run/draco
[ ! -e /run/draco/boot_id ] || exit 0
for device in {devices}; do
  mkdir -p "/dev/$(dirname "$device")"
  [ -e "/dev/$device" ] || mknod -m 666 "/dev/$device" c 1 3
done
cat /proc/sys/kernel/random/uuid > /run/draco/boot_id.unfinished
mv /run/draco/boot_id.unfinished /run/draco/boot_id
mount --bind /run/draco/boot_id /proc/sys/kernel/random/boot_id
"""


class KindMachines:
    """The workers of one cluster; `folder` holds their disks."""

    def __init__(self, nodes: Sequence[str], folder: Path, docker: Docker) -> None:
        self.nodes = list(nodes)
        self.folder = folder
        self._docker = docker

    def prepare(self, *, board: str, gpus: int) -> None:
        """Give each node its GPUs and their driver, before kind makes it. Raises NotCompiled without a C compiler."""
        for node in self.nodes:
            disk = disk_of(self.folder, node)
            create_gpus(disk, board=board, gpus=gpus, node=node)
            install_driver(disk)
            script = _BOOT_SCRIPT.format(devices=shlex.join(gpu_devices(gpus)))
            (self._own_folder(node) / _BOOT).write_text(script)
            inside = state.ON_A_NODE.parent / _BOOT
            (disk / "kubelet.conf").write_text(f"[Service]\nExecStartPre=/bin/sh {inside}\n")

    def mounts(self, node: str) -> list[dict[str, Any]]:
        """Return the mounts in kind's configuration of a node."""
        driver = disk_of(self.folder, node) / "fs" / DRIVER_ROOT.lstrip("/")
        return [
            {"hostPath": str(driver), "containerPath": DRIVER_ROOT, "readOnly": True},
            {"hostPath": str(self._own_folder(node)), "containerPath": str(state.ON_A_NODE.parent)},
            {"hostPath": str(disk_of(self.folder, node) / "kubelet.conf"), "containerPath": _AT_BOOT, "readOnly": True},
        ]

    def load_image(self, archive: Path) -> None:
        """Put the images of an archive onto each node."""
        importing = ["ctr", "--namespace=k8s.io", "images", "import", "--all-platforms", "--digests", "-"]
        commands = [["docker", "exec", "--interactive", node, *importing] for node in self.nodes]
        with ThreadPoolExecutor() as side_by_side:
            list(side_by_side.map(lambda command: self._docker.run(command, given=archive), commands))

    def power_off(self, node: str) -> None:
        """Cut the node's power: everything on it ends at once. Does nothing if it is off."""
        if self.powered(node):
            self._docker.run(["docker", "kill", node])

    def power_on(self, node: str) -> None:
        """Boot a node that is off: its disk is unchanged, its containers and GPU instances are gone."""
        if not self.powered(node):
            boot_gpus(disk_of(self.folder, node))
            self._docker.run(["docker", "start", node])

    def powered(self, node: str) -> bool:
        """Whether the node is on."""
        self._known(node)
        return self._docker.run(["docker", "inspect", "--format", "{{.State.Running}}", node]).strip() == "true"

    def exec_on_node(self, node: str, argv: Sequence[str | Path]) -> "subprocess.CompletedProcess[str]":
        """Run a program on the node and return what it said; its exit status is not checked."""
        self._known(node)
        return self._docker.try_run(["docker", "exec", node, *argv], timeout_s=_WITHIN_S)

    def _own_folder(self, node: str) -> Path:
        return gpu_state_file(disk_of(self.folder, node)).parent

    def _known(self, node: str) -> None:
        if node not in self.nodes:
            known = ", ".join(self.nodes) or "none"
            raise ClusterError(f"The cluster has no real node {node}; it has {known}.")
