"""Simulated NVML: how programs share a GPU, by its compute mode and the time slice that each gets.

The time slice has no function in NVML: nvidia-smi sets it by a private way of the driver, `time_slice` here.
"""
# ruff: noqa: N802 - the names are pynvml's

from typing import Any, Final

import pynvml

from draco_local.simulator.gpus.boards import Architecture
from draco_local.simulator.gpus.state import GpuState, SimulatedNodeState
from draco_local.simulator.nvml.session import Session, board_of, invalid_argument, not_supported

TIME_SLICES: Final = ("Default", "Short", "Medium", "Long")


class SharingCalls:
    """Compute mode and time slice. Both are lost when the driver is reloaded."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def nvmlDeviceGetComputeMode(self, handle: Any) -> int:
        """Of a GPU or a MIG device."""
        found = self._session.device(handle)
        return (found.compute or found.gpu).compute_mode

    def nvmlDeviceSetComputeMode(self, handle: Any, mode: int) -> None:
        """Set the mode; of a GPU in MIG mode it is always the default, and only its MIG devices have others.

        INVALID_ARGUMENT for an unknown mode. NOT_SUPPORTED for EXCLUSIVE_THREAD, which drivers no longer have: estimated.
        """
        self._session.device(handle)
        if not 0 <= mode < pynvml.NVML_COMPUTEMODE_COUNT:
            raise invalid_argument()
        if mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD:
            raise not_supported()

        def change(state: SimulatedNodeState) -> None:
            found = self._session.device(handle, state)
            if found.compute is None and found.gpu.mig_current:
                raise not_supported()
            (found.compute or found.gpu).compute_mode = mode

        self._session.change(change)

    def time_slice(self, handle: Any, value: int | None = None) -> int:
        """Return the time slice, after setting it to `value` if that is given.

        NOT_SUPPORTED for boards that cannot interrupt a computation. That it is so in MIG mode, too, is estimated.
        """
        _check_time_slices(self._session.gpu(handle))
        if value is not None:

            def change(state: SimulatedNodeState) -> None:
                gpu = self._session.device(handle, state).gpu
                _check_time_slices(gpu)
                gpu.time_slice = value

            self._session.change(change)
        return self._session.gpu(handle).time_slice


def _check_time_slices(gpu: GpuState) -> None:
    if board_of(gpu).architecture <= Architecture.PASCAL or gpu.mig_current:
        raise not_supported()
