"""Rehearses requests that have not begun: what they select, the effect, and what speaks against it.

Owns the reading for that, which yields the event loop.
"""

import msgspec
from cachetools import TTLCache

from draco.controller.loop_watch import CooperativeWork
from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.view import ClusterView
from draco.maintenance.gate import SelectionProblem
from draco.maintenance.selecting.fleet import takes_most
from draco.maintenance.selecting.matching import MaintenanceSelection, is_exact, scope_of
from draco.maintenance.selecting.rehearsal import rehearsal_of, scope_devices
from draco.resources.api.core import PodDisruptionBudget
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceRehearsal
from draco.resources.names import DeviceKey, PoolKey

_BUDGETS_FOR_S = 30.0
"""Their status changes with every pod; a waiting request must not be written as often."""


class Rehearsed(msgspec.Struct, frozen=True):
    """What a request selects, the effect of isolating it, and why it cannot begin."""

    selection: MaintenanceSelection
    summary: MaintenanceRehearsal | None = None
    problem: SelectionProblem | None = None


class Rehearsals:
    """Rehearses one request at a time."""

    def __init__(self, view: ClusterView, fleet: MaintenanceFleet) -> None:
        self._view = view
        self._fleet = fleet
        self._budgets: TTLCache[frozenset[str], list[PodDisruptionBudget]] = TTLCache(
            512, _BUDGETS_FOR_S, timer=view.clock.monotonic
        )

    async def of(self, request: DeviceMaintenance) -> Rehearsed:
        """Rehearse the request with the current state."""
        selector = request.spec.device_selector
        selection = MaintenanceSelection(selector=selector)
        if not is_exact(selector):
            selected = await self._fleet.select(selector)
            selection = MaintenanceSelection(selector=selector, devices=selected.devices)
            if selected.problem is not None:
                return Rehearsed(selection, problem=selected.problem)
        devices = await self._devices(selection)
        gpus = self._fleet.gpus(devices)
        classes = await self._fleet.classes_of(gpus)
        keys = {device.pool_key for device in devices}
        claims = {claim.metadata.key: claim for key in keys for claim in self._view.claims_in(key)}
        pods = {
            pod.metadata.key: pod
            for claim in claims.values()
            if not devices.isdisjoint(claim.devices_held)
            for pod in self._view.pods_of(claim.metadata.key)
        }
        namespaces = frozenset(key.namespace for key in pods)
        summary = rehearsal_of(
            devices,
            gpus,
            claims=claims.values(),
            pods=pods.values(),
            disruption_budgets=self._budgets.setdefault(namespaces, self._view.budgets_in(namespaces)),
            classes=classes,
        )
        problem = takes_most(request, gpus, classes)
        return Rehearsed(selection, _steady(request.status.rehearsal, summary), problem)

    async def _devices(self, selection: MaintenanceSelection) -> frozenset[DeviceKey]:
        """All devices of the selection now, and those on the same hardware."""
        selector, keys = selection.selector, set[PoolKey]()
        if selection.devices is not None:
            keys = {device.pool_key for device in selection.devices}
        elif selector.driver and selector.pool:
            keys = {PoolKey(selector.driver, selector.pool)}
        else:
            keys = {item.pool for item in self._view.slices.store.values() if selection.may_match(item.pool)}
        found: set[DeviceKey] = set()
        work = CooperativeWork(self._view.clock)
        for key in keys:
            found.update(scope_devices(scope_of(selection, {key: self._fleet.pool(key).hardware})))
            await work.pause()
        return frozenset(found)


def _steady(before: MaintenanceRehearsal | None, now: MaintenanceRehearsal) -> MaintenanceRehearsal:
    """The rehearsal to write. The number of free GPUs changes constantly and alone is not worth a write."""
    if before is None or [each.name for each in before.classes] != [each.name for each in now.classes]:
        return now
    return before if msgspec.structs.replace(now, classes=before.classes) == before else now
