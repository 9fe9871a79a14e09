"""The metrics of usage, with dcgm-exporter's label names, so that the two can be joined.

Every process is counted in exactly one series of a container, so sums over any label are right. A device's own figures are in
series of their own.
"""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from draco.agent.hardware.gpus import Gpu, device_name
from draco.agent.hardware.nvml_usage import DeviceUse
from draco.agent.mig.users import HeldDevice
from draco.agent.usage.exceeded import asked_memory
from draco.agent.usage.names import profile_name
from draco.agent.usage.reading import UsageReading
from draco.agent.usage.unused import UnusedDevices
from draco.resources.names import GpuUuid

OF_DEVICE: Final = ("gpu", "UUID", "GPU_I_ID", "GPU_I_PROFILE")
OF_CONTAINER: Final = (*OF_DEVICE, "namespace", "pod", "container", "dra_claim_name")
OF_CLAIM: Final = (*OF_DEVICE, "namespace", "dra_claim_name")
"""Labels; docs/reference/metrics.md has them from here."""
STALE_S: Final = 60.0
"""Readings that are older are not shown."""


class UsageMetrics:
    """The gauges of one agent."""

    def __init__(self, registry: CollectorRegistry, unused: UnusedDevices) -> None:
        self._devices = unused
        self._total = Gauge(
            "draco_gpu_memory_total_bytes",
            "Memory of a GPU, or of a MIG device.",
            OF_DEVICE,
            registry=registry,
        )
        self._used = Gauge(
            "draco_gpu_memory_used_bytes",
            "Used memory of a GPU, or of a MIG device.",
            OF_DEVICE,
            registry=registry,
        )
        self._busy = Gauge(
            "draco_gpu_utilization_ratio",
            "Part of the time in which a kernel ran on a GPU, or on a MIG device of a Hopper or newer GPU.",
            OF_DEVICE,
            registry=registry,
        )
        self._memory = Gauge(
            "draco_container_gpu_memory_bytes",
            "GPU memory that a container uses; without namespace and pod, of processes outside pods, or unknown ones.",
            OF_CONTAINER,
            registry=registry,
        )
        self._utilization = Gauge(
            "draco_container_gpu_utilization_ratio",
            "Part of the time in which a container's kernels ran on a GPU, or on a MIG device of its own (Hopper and newer).",
            OF_CONTAINER,
            registry=registry,
        )
        self._processes = Gauge(
            "draco_container_gpu_processes",
            "Processes of a container on a GPU; 0, without container, for a claim whose device nobody uses.",
            OF_CONTAINER,
            registry=registry,
        )
        self._unused = Gauge(
            "draco_claim_unused_seconds",
            "Seconds for which no program has used a device of a claim; 0 while one does.",
            OF_CLAIM,
            registry=registry,
        )
        self._asked = Gauge(
            "draco_claim_gpu_memory_asked_bytes",
            "Memory of a shared GPU that a claim asked for; none for claims that asked for no memory.",
            OF_CLAIM,
            registry=registry,
        )
        self._age = Gauge(
            "draco_agent_usage_reading_age_seconds",
            "Seconds since usage was last read; above 60, no usage is shown.",
            registry=registry,
        )
        self._unread = Gauge("draco_agent_usage_unread_gpus", "GPUs whose usage could not be read.", registry=registry)

    def set(self, latest: UsageReading | None, *, now_s: float) -> None:
        """Show a reading, unless it is too old."""
        figures = (self._total, self._used, self._busy, self._memory, self._utilization, self._processes, self._unused)
        for gauge in (*figures, self._asked):
            gauge.clear()
        if latest is None:
            return
        self._age.set(now_s - latest.at_s)
        self._unread.set(len(latest.unread))
        if now_s - latest.at_s > STALE_S:
            return
        gpus = {gpu.uuid: gpu for gpu in latest.gpus}
        for device in latest.devices:
            _add(self._total, _labels(device, gpus), device.total_bytes)
            _add(self._used, _labels(device, gpus), device.used_bytes)
            _add(self._busy, _labels(device, gpus), device.utilization, 100)
        for use in latest.uses:
            who = (use.namespace, use.pod, use.place.name, use.claim.name if use.claim else "")
            labels = (*_labels(use.device, gpus), *who)
            _add(self._processes, labels, use.processes)
            _add(self._memory, labels, use.memory_bytes)
            _add(self._utilization, labels, use.utilization, 100)
        asked = asked_memory(latest.claims)
        for use in latest.uses:
            for claim in use.claims:
                if memory := asked.get(HeldDevice(claim.uid, use.device.uuid)):
                    self._asked.labels(*_labels(use.device, gpus), claim.namespace, claim.name).set(memory)
                since = self._devices.since.get(HeldDevice(claim.uid, use.device.uuid), latest.at)
                of_claim = (*_labels(use.device, gpus), claim.namespace, claim.name)
                self._unused.labels(*of_claim).set((latest.at - since).total_seconds())


def _add(gauge: Gauge, labels: tuple[str, ...], value: int | None, unit: int = 1) -> None:
    """Add what is known: containers without names have the same labels."""
    if value is not None:
        gauge.labels(*labels).inc(value / unit)


def _labels(device: DeviceUse, gpus: Mapping[GpuUuid, Gpu]) -> tuple[str, str, str, str]:
    gpu, instance = gpus[device.gpu], device.instance
    if instance is None:
        return device_name(gpu), device.gpu, "", ""
    return device_name(gpu), device.gpu, str(instance.gi), profile_name(gpu, device)
