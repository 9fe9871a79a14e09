"""Simulated nodes for the tests of this folder."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from draco_local.simulator.gpus.state import create, mutate
from draco_local.simulator.nvml.library import SimulatedNvml

StateFile = Callable[..., Path]


@pytest.fixture
def a_state_file(tmp_path: Path) -> StateFile:
    """Creates the state file of a node: `a_state_file(board="T4", gpus=2)`."""

    def make(board: str = "H100-80GB", gpus: int = 8) -> Path:
        path = tmp_path / f"{board}.json"
        create(path, board=board, gpus=gpus, node_name="node-1")
        return path

    return make


@pytest.fixture
def path(a_state_file: StateFile) -> Path:
    """The state file of a node with eight H100s."""
    return a_state_file()


@pytest.fixture
def nvml(path: Path) -> SimulatedNvml:
    """An initialised session on that node."""
    return opened(path)


def opened(path: Path) -> SimulatedNvml:
    library = SimulatedNvml(path)
    library.nvmlInit()
    return library


class Mig:
    """A session with one GPU in MIG mode, and the calls with which programs create instances."""

    def __init__(self, path: Path, *, gpu: int = 0) -> None:
        self.nvml = opened(path)
        self.device = self.nvml.nvmlDeviceGetHandleByIndex(gpu)
        with mutate(path) as state:
            state.gpus[gpu].mig_current = state.gpus[gpu].mig_pending = 1

    def make(self, profile_id: int, start: int) -> Any:
        """Create a GPU instance at a placement."""
        info = self.nvml.nvmlDeviceGetGpuInstanceProfileInfoById(self.device, profile_id)
        count, array = ctypes.c_uint(16), (pynvml.c_nvmlGpuInstancePlacement_t * 16)()
        self.nvml.nvmlDeviceGetGpuInstancePossiblePlacements(self.device, info.id, array, ctypes.byref(count))
        placement = pynvml.c_nvmlGpuInstancePlacement_t(start, array[0].size)
        return self.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(self.device, profile_id, ctypes.byref(placement))

    def fill(self, instance: Any) -> Any:
        """Create a compute instance that takes a whole GPU instance."""
        slices = {0: 4, 5: 3, 9: 2, 14: 1}  # by GPU instance profile of the boards with seven slices
        profile = slices.get(self.nvml.nvmlGpuInstanceGetInfo(instance).profileId, 0)
        return self.nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile)

    def made(self, profile_id: int, start: int) -> tuple[Any, Any]:
        """Create both."""
        instance = self.make(profile_id, start)
        return instance, self.fill(instance)

    def placements(self) -> dict[int, tuple[int, int, int]]:
        """The profile, start and size of every GPU instance by id, queried profile by profile."""
        found = {}
        for profile_id in (19, 20, 15, 14, 9, 5, 0):
            array, count = (pynvml.c_nvmlGpuInstance_t * 8)(), ctypes.c_uint()
            self.nvml.nvmlDeviceGetGpuInstances(self.device, profile_id, array, ctypes.byref(count))
            for handle in array[: count.value]:
                info = self.nvml.nvmlGpuInstanceGetInfo(handle)
                found[info.id] = (info.profileId, info.placement.start, info.placement.size)
        return found

    def devices(self) -> dict[int, str]:
        """The UUID of every MIG device by slot, as found by iterating over the slots."""
        found = {}
        for slot in range(self.nvml.nvmlDeviceGetMaxMigDeviceCount(self.device)):
            try:
                handle = self.nvml.nvmlDeviceGetMigDeviceHandleByIndex(self.device, slot)
            except pynvml.NVMLError_NotFound:
                continue
            found[slot] = self.nvml.nvmlDeviceGetUUID(handle)
        return found


@pytest.fixture
def mig(path: Path) -> Mig:
    """The first of eight H100s, in MIG mode."""
    return Mig(path)
