"""Reads what of a GPU a Job for verification could claim now, out of what is watched.

Owns that reading: which published devices stand for the GPU, their taints, and which classes have them. What
the claim is to be is `maintenance.working.claiming`'s to say; nothing is written here.
"""

from collections.abc import Iterable

from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.view import BY_RULED_POOL, WIDE, ClusterView
from draco.maintenance.working.claiming import OfferedDevice, ProbedGpu
from draco.maintenance.working.jobs import JobTarget
from draco.resources.api.maintenance import OVER, DeviceMaintenance
from draco.resources.names import ATTRIBUTE_PROFILE, DeviceKey, read_partition_name


class GpuProbing:
    """One GPU at a time."""

    def __init__(self, view: ClusterView, fleet: MaintenanceFleet) -> None:
        self._view = view
        self._fleet = fleet

    def gpu(self, request: DeviceMaintenance, target: JobTarget) -> ProbedGpu:
        """The device that is meant as it is published now, or its partitions where the GPU is not published whole."""
        pool = target.device.pool_key
        hardware = self._view.hardware(pool)
        names = [target.device.device]
        if names[0] not in hardware.published:
            parts = ((each, read_partition_name(each)) for each in hardware.published)
            names = sorted(each for each, part in parts if part is not None and part.parent == names[0])
        rules = [rule for where in (pool, WIDE) for rule in self._view.rule_store.by_index(BY_RULED_POOL, where)]
        found = []
        for name in names:
            if (device := hardware.published_as(name)) is not None:
                key = DeviceKey(*pool, name)
                hits = (each.spec.taint for each in rules if (by := each.spec.device_selector) and by.matches(key))
                found.append(OfferedDevice(key, device, (*device.taints, *hits)))
        others = {
            each.spec.taint.key for each in self._view.maintenances.store.values() if each.status.phase not in OVER
        }
        return ProbedGpu(
            devices=tuple(found),
            key=request.spec.taint.key,
            other_keys=frozenset(others),
            selects=lambda name: self._selects(name, found),
        )

    def profile(self, target: JobTarget) -> str:
        """The profile of a partition that is verified; "" for a whole GPU, and where it is not known."""
        device = self._view.hardware(target.device.pool_key).published_as(target.device.device)
        is_part = read_partition_name(target.device.device) is not None
        return device.text(ATTRIBUTE_PROFILE, target.device.driver) if is_part and device is not None else ""

    def _selects(self, name: str, devices: Iterable[OfferedDevice]) -> bool:
        """Whether the class has one of the devices. Where its selectors fail nobody knows."""
        test = self._fleet.test(name)
        return isinstance(test, str) or any(test.says(each.key.driver, each.device) is not False for each in devices)
