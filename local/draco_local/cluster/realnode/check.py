"""Whether this machine can host real nodes, and the one sentence for each thing it lacks.

Owns the list of what real nodes need. Must not change anything.
"""

import os
import platform
import shutil
from collections.abc import Callable
from ctypes import CDLL
from pathlib import Path
from typing import Final

from draco_local.cluster.errors import MissingRequirement
from draco_local.cluster.realnode.image import BUSYBOX_PROGRAM

STDIO: Final = Path("/usr/include/stdio.h")
CNI_BIN: Final = Path("/usr/lib/cni")
_CAP_SYS_RESOURCE: Final = 24
_WATCHERS: Final = Path("/proc/sys/fs/inotify/max_user_instances")
_WATCHERS_OF_A_NODE: Final = 16
"""Inotify instances of kubelet, containerd and what starts on a node, with some to spare."""
_HIDDEN: Final = ("/run", "/dev", "/etc", "/proc", "/sys", "/var")
"""Folders that each node replaces with its own: the cluster's state must lie outside them."""


def require(state_dir: Path, nodes: int = 1) -> None:
    """Raise MissingRequirement with one sentence for what is missing for `nodes` real nodes with state in `state_dir`."""
    if platform.system() != "Linux":
        raise MissingRequirement("Real nodes run on Linux only: use simulated nodes (--nodes) here.")
    if os.geteuid() != 0:
        raise MissingRequirement(
            "Real nodes need root: run `sudo draco cluster up --real-nodes …`, or use simulated nodes (--nodes)."
        )
    packages = missing_packages()
    if packages:
        line = f"apt-get install --no-install-recommends {' '.join(packages)}"
        raise MissingRequirement(f"Real nodes need programs that this machine lacks: run `{line}`.")
    hidden = next((top for top in _HIDDEN if state_dir.resolve().is_relative_to(top)), None)
    if hidden:
        raise MissingRequirement(
            f"The state of a cluster with real nodes cannot lie below {hidden}, which every node replaces with its own: "
            "set XDG_STATE_HOME to another folder."
        )
    if not can_watch(nodes * _WATCHERS_OF_A_NODE):
        raise MissingRequirement(
            f"Programs on this machine use nearly all inotify instances (fs.inotify.max_user_instances is "
            f"{_WATCHERS.read_text().strip()}), and kubelet needs some: run `sysctl fs.inotify.max_user_instances=1024`."
        )


def can_watch(instances: int) -> bool:
    """Whether this user may have this many more inotify instances."""
    libc, made = CDLL(None), list[int]()
    try:
        while len(made) < instances and (descriptor := libc.inotify_init()) >= 0:
            made.append(descriptor)
        return len(made) == instances
    finally:
        for each in made:
            os.close(each)


def missing_packages(
    find: Callable[[str], str | None] = shutil.which, *, cni_bin: Path = CNI_BIN, header: Path = STDIO
) -> list[str]:
    """Find the Debian packages that real nodes need and that are not installed."""
    needed = {
        "runc": bool(find("runc")),
        "containernetworking-plugins": all((cni_bin / plugin).exists() for plugin in ("ptp", "host-local", "portmap")),
        "nftables": bool(find("nft")),
        "iptables": bool(find("iptables")),
        "iproute2": bool(find("ip")),
        "util-linux": bool(find("nsenter") and find("unshare")),
        "mount": bool(find("mount") and find("umount")),
        "gcc": bool(find("cc") or find("gcc")),  # for the simulated driver's libraries
        "libc6-dev": header.exists(),
        "busybox-static": BUSYBOX_PROGRAM.exists() or bool(find("busybox")),
    }
    return [package for package, present in needed.items() if not present]


def may_lower_oom_score(status: str) -> bool:
    """Whether a process whose /proc/self/status is `status` may protect others from the out-of-memory killer."""
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
