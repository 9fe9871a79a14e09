"""The load of GPU instances, by NVML's performance monitoring (GPM), which Hopper and newer boards have.

NVML measures between two samples. Owns the samples, two for each instance: the last one, and one to fill next. An instance that
is seen for the first time is measured for a moment; later ones since the last reading. What cannot be measured has no load here,
never 0. Samples of another session are left to the library that allocated them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pynvml

from draco.agent.hardware.gpus import Gpu, Instance
from draco.agent.hardware.nvml_errors import CallError, optional
from draco.resources.names import GpuUuid

FIRST_MEASURED_S: Final = 0.1
"""NVIDIA asks for at least that much between two samples."""


class InstanceLoads:
    """The samples of one node's instances. `call` calls NVML, `pause` sleeps."""

    def __init__(self, call: Callable[..., Any], *, pause: Callable[[float], None]) -> None:
        self._call = call
        self._pause = pause
        self._session = 0
        self._capable: dict[GpuUuid, bool] = {}
        self._samples: dict[str, tuple[GpuUuid, Any, Any]] = {}  # by the UUID of a MIG device

    def read(self, gpu: Gpu, handle: Any, *, session: int) -> Mapping[str, int]:
        """In how many percent of the time a kernel ran, by the UUID of a MIG device. Raises DriverError."""
        if session != self._session:
            self._session, self._capable, self._samples = session, {}, {}
        there = {one.uuid: one for one in gpu.instances if one.uuid is not None}
        self._forget([uuid for uuid, (of, *_) in self._samples.items() if of == gpu.uuid and uuid not in there])
        if not there or not self._is_capable(gpu, handle):
            return {}
        new = [one for uuid, one in there.items() if uuid not in self._samples and self._begin(gpu, handle, one)]
        if new:
            self._pause(FIRST_MEASURED_S)
        known = [one for uuid, one in there.items() if uuid in self._samples]
        return {str(one.uuid): load for one in known if (load := self._load(handle, one)) is not None}

    def _is_capable(self, gpu: Gpu, handle: Any) -> bool:
        if gpu.uuid not in self._capable:
            try:
                found = optional(self._call, "nvmlGpmQueryDeviceSupport", handle)
            except CallError:
                return False  # asked again at the next reading
            self._capable[gpu.uuid] = found is not None and bool(found.isSupportedDevice)
        return self._capable[gpu.uuid]

    def _begin(self, gpu: Gpu, handle: Any, one: Instance) -> bool:
        """Take the first sample of an instance; whether it could be taken."""
        try:
            last, spare = self._call("nvmlGpmSampleAlloc"), self._call("nvmlGpmSampleAlloc")
        except CallError:
            return False
        self._samples[str(one.uuid)] = gpu.uuid, last, spare
        try:
            self._call("nvmlGpmMigSampleGet", handle, one.gi, last)
        except CallError:
            self._forget([str(one.uuid)])
            return False
        return True

    def _load(self, handle: Any, one: Instance) -> int | None:
        gpu, last, spare = self._samples[str(one.uuid)]
        try:
            self._call("nvmlGpmMigSampleGet", handle, one.gi, spare)
            self._samples[str(one.uuid)] = gpu, spare, last
            return self._between(last, spare)
        except CallError:
            self._forget([str(one.uuid)])  # begins again at the next reading
            return None

    def _between(self, first: Any, second: Any) -> int | None:
        asked = pynvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
        asked.sample1, asked.sample2 = first, second
        asked.metrics[0].metricId = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
        found = self._call("nvmlGpmMetricsGet", asked).metrics[0]
        if found.nvmlReturn != pynvml.NVML_SUCCESS or not math.isfinite(found.value):
            return None
        return min(100, max(0, round(float(found.value))))

    def _forget(self, uuids: Sequence[str]) -> None:
        for uuid in uuids:
            _, *samples = self._samples.pop(uuid)
            for sample in samples:
                self._call("nvmlGpmSampleFree", sample)
