"""Limits on a GPU's memory for the processes of one cgroup, which the driver holds from release 615 on.

Owns these calls and what their refusals mean. A limit is for cgroups of version 2 and never for MIG devices. Only hard limits are
set: the driver forgets one with its cgroup, whereas it adds a soft limit to every cgroup above and leaves it there.
Source: NVIDIA's page on memory partitioning with MPS.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pynvml

from draco.agent.hardware.nvml_errors import GpuUnknown, NotSupported

CGROUPS: Final = Path("/sys/fs/cgroup")
MARK: Final = "cgroup.controllers"
"""A file of every cgroup of version 2, and of no other."""


class MemoryLimit(msgspec.Struct, frozen=True):
    """A cgroup's hard limit on one GPU in bytes, None if there is none, and what its processes use."""

    hard: int | None
    used: int


class LimitReader:
    """Reads limits. `call` raises the errors of `nvml_errors`; `own` is the agent's cgroup, None without version 2."""

    def __init__(self, call: Callable[..., Any], own: Path | None) -> None:
        self._call = call
        self._own = own

    def holds(self, handle: Any) -> bool:
        """Whether the driver holds limits of containers on a GPU that is not divided; the agent runs in one. Raises CallError."""
        if self._own is None:
            return False
        try:
            self.read(handle, self._own)
        except (NotSupported, GpuUnknown):  # an older driver, RmMemacctMode=0, or a container's cgroup without dmem
            return False
        return True

    def read(self, handle: Any, cgroup: Path) -> MemoryLimit:
        """A cgroup's limit. Raises CallError: GpuUnknown for one that is gone, or in which the kernel keeps no account."""
        found = pynvml.c_nvmlGetMemoryLimits_v1_t(str(cgroup).encode())
        self._call("nvmlDeviceGetMemoryLimits_v1", handle, found)
        unlimited = found.hardLimit == pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
        return MemoryLimit(None if unlimited else int(found.hardLimit), int(found.currentUsed))


def own_cgroup(cgroups: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> Path | None:
    """The folder of the agent's own cgroup; None if the node uses version 1.

    In a cgroup namespace of its own the agent is at the root of what it sees, else at its place on the node.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    folder = None if path is None else cgroups / path.lstrip("/")
    return folder if folder is not None and (folder / MARK).is_file() else None
