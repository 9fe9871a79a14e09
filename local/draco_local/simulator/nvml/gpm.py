"""Simulated NVML: performance monitoring (GPM), from Hopper on: how busy a GPU, or one of its instances, is between two samples.

A sample is memory of the library's, named by its pointer; one that was freed, never allocated, or is of a session that has ended
crashes the caller. The only metric is the part of the time in which a kernel ran: the mean of what the two samples found. Boards
before Hopper answer NOT_SUPPORTED.
"""
# ruff: noqa: N802, N803 - the names are pynvml's

import ctypes
import itertools
import time
from typing import Any

import msgspec
import pynvml

from draco_local.simulator.gpus.boards import Architecture
from draco_local.simulator.gpus.state import GpuState
from draco_local.simulator.nvml.handles import ProcessKilled
from draco_local.simulator.nvml.session import Session, board_of, invalid_argument, not_supported

_FIRST, _SPACING = 0x5E0000000000, 0x40


class _Sample(msgspec.Struct, frozen=True):
    of: tuple[str, int | None]
    at_ns: int
    busy: int


class GpmCalls:
    """Samples of this process, by the address of each; None until it is filled."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._samples: dict[int, _Sample | None] = {}
        session.when_stopped(self._samples.clear)
        self._addresses = itertools.count(_FIRST, _SPACING)

    def nvmlGpmQueryDeviceSupport(self, device: Any) -> Any:
        """Whether the board has GPM."""
        found = pynvml.c_nvmlGpmSupport_t()
        found.version = pynvml.NVML_GPM_SUPPORT_VERSION
        found.isSupportedDevice = int(_has_gpm(self._session.gpu(device)))
        return found

    def nvmlGpmSampleAlloc(self) -> Any:
        """Memory for a sample."""
        self._session.live_state()
        address = next(self._addresses)
        self._samples[address] = None
        return ctypes.cast(ctypes.c_void_p(address), pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, gpmSample: Any) -> None:
        """Give it back."""
        self._session.live_state()
        del self._samples[self._known(gpmSample)]

    def nvmlGpmSampleGet(self, device: Any, gpmSample: Any) -> Any:
        """A sample of the whole GPU."""
        return self._fill(self._session.gpu(device), None, gpmSample)

    def nvmlGpmMigSampleGet(self, device: Any, gpuInstanceId: int, gpmSample: Any) -> Any:
        """A sample of a GPU instance, which its GPU and its id name."""
        gpu = self._session.gpu(device)
        if not gpu.mig_current:
            raise not_supported()
        if all(each.id != gpuInstanceId for each in gpu.instances):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self._fill(gpu, gpuInstanceId, gpmSample)

    def nvmlGpmMetricsGet(self, metricsGet: Any) -> Any:
        """The metrics between two samples of the same device; each has an error of its own."""
        self._session.live_state()
        if metricsGet.version != pynvml.NVML_GPM_METRICS_GET_VERSION:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        first, second = (self._samples[self._known(each)] for each in (metricsGet.sample1, metricsGet.sample2))
        if first is None or second is None or first.of != second.of or first.at_ns >= second.at_ns:
            raise invalid_argument()
        for metric in metricsGet.metrics[: metricsGet.numMetrics]:
            has_it = metric.metricId == pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
            metric.nvmlReturn = pynvml.NVML_SUCCESS if has_it else pynvml.NVML_ERROR_NOT_SUPPORTED
            metric.value = (first.busy + second.busy) / 2 if has_it else 0.0
        return metricsGet

    def _fill(self, gpu: GpuState, instance: int | None, given: Any) -> Any:
        if not _has_gpm(gpu):
            raise not_supported()
        processes = (each for each in gpu.processes if each.listed)
        busy = sum(each.utilization for each in processes if instance is None or each.gpu_instance == instance)
        self._samples[self._known(given)] = _Sample((gpu.uuid, instance), time.monotonic_ns(), min(100, busy))
        return given

    def _known(self, given: Any) -> int:
        address = ctypes.cast(given, ctypes.c_void_p).value if given else None
        if address is None:
            raise invalid_argument()
        if address not in self._samples:
            raise ProcessKilled(f"{address:#x} is no sample")
        return address


def _has_gpm(gpu: GpuState) -> bool:
    return board_of(gpu).architecture >= Architecture.HOPPER
