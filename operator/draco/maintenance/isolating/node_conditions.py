"""The maintenance conditions of a Node on which every device of a driver is in maintenance; no others get any.

Owns that rule and the conditions, named as in Kubernetes 1.37 (KEP-5683). A node with one GPU at work is not under maintenance.
No condition keeps pods off, and the node is never cordoned.
"""

from collections.abc import Iterable, Mapping

from draco.allocation.fleet.hardware import PoolHardware
from draco.resources.api.maintenance import DeviceMaintenance, MaintenancePhase
from draco.resources.api.meta import Condition
from draco.resources.names import PoolKey
from draco.resources.texts import listed

REASON = "DeviceMaintenance"
"""The reason of all conditions that Draco writes; conditions with another reason belong to others."""
PLANNED, IN_PROGRESS, DRAINING, DRAINED = (
    "MaintenancePlanned",
    "MaintenanceInProgress",
    "DrainInProgress",
    "Drained",
)
TYPES = (PLANNED, IN_PROGRESS, DRAINING, DRAINED)
_PROGRESS: Mapping[MaintenancePhase, str] = {
    MaintenancePhase.REHEARSED: PLANNED,
    MaintenancePhase.ISOLATED: DRAINING,
    MaintenancePhase.DRAINING: DRAINING,
    MaintenancePhase.IN_MAINTENANCE: DRAINED,
    MaintenancePhase.VERIFYING: DRAINED,
    MaintenancePhase.FAILED: DRAINED,
}
_ORDER = (PLANNED, DRAINING, DRAINED)


def node_conditions(pools: Mapping[PoolKey, PoolHardware], requests: Iterable[DeviceMaintenance]) -> list[Condition]:
    """The conditions of a node with these pools; none unless each device of some driver is in a request."""
    requests = list(requests)
    by_driver: dict[str, list[PoolKey]] = {}
    for pool in pools:
        by_driver.setdefault(pool.driver, []).append(pool)
    standing: list[str] = []
    names: set[str] = set()
    for keys in by_driver.values():
        least = [_standing(pool, pools[pool], requests, names) for pool in keys]
        if least and all(least):
            standing.append(min(least, key=_ORDER.index))
    if not standing:
        return []
    # If several drivers are in maintenance, the least advanced counts.
    now = min(standing, key=_ORDER.index)
    true = {PLANNED: {PLANNED}, DRAINING: {IN_PROGRESS, DRAINING}, DRAINED: {IN_PROGRESS, DRAINED}}[now]
    message = f"All its devices are in maintenance: {listed(sorted(names))}."
    return [
        Condition(type=each, status="True" if each in true else "False", reason=REASON, message=message)
        for each in TYPES
    ]


def _standing(pool: PoolKey, hardware: PoolHardware, requests: Iterable[DeviceMaintenance], names: set[str]) -> str:
    """The state of the pool's least advanced device; "" if one of them is in no request."""
    found: dict[str, str] = {}
    concerned: set[str] = set()
    for request in requests:
        at = _phase(request)
        for each in request.status.devices if at else ():
            if (each.driver, each.pool) != pool or each.overlaps:
                continue
            concerned.add(request.metadata.name)
            for device in {each.device, *hardware.overlapping(each.device)} & hardware.expected:
                found[device] = max(found.get(device, PLANNED), at, key=_ORDER.index)
    if not hardware.expected or hardware.expected - found.keys():
        return ""
    names |= concerned
    return min(found.values(), key=_ORDER.index)


def _phase(request: DeviceMaintenance) -> str:
    phase = request.status.phase
    if phase is MaintenancePhase.FAILED and request.status.in_use:
        return DRAINING
    return _PROGRESS.get(phase, "") if phase else ""
