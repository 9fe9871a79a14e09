"""Simulated NVML: limits on a GPU's memory for the processes of a cgroup, as from driver 615 on.

A hard limit bounds what the cgroup's processes take together; a soft limit is also added to every cgroup above it. The hard limit
goes with the cgroup; what a soft limit added above stays unless it is set to 0 first. A folder is a cgroup of version 2 if it has
the file `cgroup.controllers`, wherever it is. Source: NVIDIA's page on memory partitioning with MPS; return codes are estimated.
"""
# ruff: noqa: N802 - the names are pynvml's

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pynvml

from draco_local.simulator.gpus.state import CgroupMemoryLimit, GpuState, SimulatedNodeState
from draco_local.simulator.nvml.session import Session, invalid_argument, not_supported

_MARK: Final = "cgroup.controllers"


class MemoryLimitCalls:
    """nvmlDeviceSetMemoryLimits_v1 and its counterpart. `is_root`: whether the calling process may set limits."""

    def __init__(self, session: Session, *, is_root: bool) -> None:
        self._session = session
        self._is_root = is_root

    def nvmlDeviceSetMemoryLimits_v1(self, device: Any, limits: Any) -> None:
        """Set a cgroup's soft and hard limit, in bytes. INVALID_ARGUMENT for a soft limit above the hard one."""
        if not self._is_root:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        if limits.softLimit > limits.hardLimit:
            raise invalid_argument()
        folder = self._cgroup(device, limits.nameSpace)

        def change(state: SimulatedNodeState) -> None:
            known = self._session.device(device, state).gpu.memory_limits
            for gone in [name for name in known if not Path(name).is_dir()]:
                del known[gone]
            before = known.setdefault(str(folder), CgroupMemoryLimit())
            for above in _above(folder):
                kept = known.setdefault(str(above), CgroupMemoryLimit())
                kept.soft = max(0, kept.soft + limits.softLimit - before.soft)
            before.soft, before.hard = limits.softLimit, limits.hardLimit

        self._session.change(change)

    def nvmlDeviceGetMemoryLimits_v1(self, device: Any, limits: Any) -> None:
        """A cgroup's limits, and what its processes and those below it use."""
        folder = self._cgroup(device, limits.nameSpace)
        gpu = self._session.device(device).gpu
        known = gpu.memory_limits.get(str(folder), CgroupMemoryLimit())
        limits.softLimit, limits.hardLimit = known.soft, known.hard
        limits.currentUsed = used_in(gpu, folder) << 20

    def _cgroup(self, device: Any, name: str | None) -> Path:
        """NOT_SUPPORTED for MIG devices, in MIG mode and where the driver was told to keep no account."""
        found = self._session.device(device)
        if found.compute is not None or found.gpu.mig_current or not self._session.state().driver.memory_accounting:
            raise not_supported()
        if not name:
            raise invalid_argument()
        folder = Path(name)  # pynvml's structs give text
        if not (folder / _MARK).is_file():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return folder


def _above(folder: Path) -> Iterator[Path]:
    for each in folder.parents:
        if not (each / _MARK).is_file():
            return
        yield each


def used_in(gpu: GpuState, folder: Path) -> int:
    """MiB of the GPU that the processes of a cgroup and of those below it use."""
    own = "/" + str(folder.relative_to([folder, *_above(folder)][-1])).removeprefix(".")
    inside = own.rstrip("/") + "/"
    return sum(each.memory_mib for each in gpu.processes if each.cgroup == own or each.cgroup.startswith(inside))
