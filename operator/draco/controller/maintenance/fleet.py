"""The fleet's physical GPUs as maintenance counts them, by pool, updated with what is published.

Owns the cache per pool and the GPUs of each class. A pool is read again when changed; reading all yields the event loop.
"""

from collections.abc import Collection, Iterable, Mapping

from cachetools import LRUCache, TTLCache

from draco.allocation.fleet.supply import Supply
from draco.cel import DeviceTest
from draco.controller.loop_watch import CooperativeWork
from draco.controller.view import BY_POOL, ClusterView
from draco.kube.watch.store import Change
from draco.maintenance.selecting.fleet import ClassSupply, FleetPool, FreeGpus, PhysicalGpu, sick_devices
from draco.maintenance.selecting.rehearsal import PoolSelection, Selected
from draco.maintenance.selecting.selectors import test_of, test_of_class
from draco.resources.api.claims import DeviceClass
from draco.resources.api.maintenance import MaintainedDevice, MaintenanceSelector
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import ResourceSlice
from draco.resources.names import DeviceKey, PoolKey

_FREE_FOR_S = 1.0
"""How long the set of free GPUs stays valid: it is only for display."""
_SELECTED_FOR_S = 0.5
_SELECTIONS = 64


class MaintenanceFleet:
    """All published pools."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._pools: dict[PoolKey, tuple[list[ResourceSlice], FleetPool]] = {}
        self._change = 0
        self._all: tuple[int, list[FleetPool]] = (0, [])
        """All pools, with the slice version they were read at."""
        view.slices.subscribe(self._slice_changed)
        view.classes.subscribe(self._forget_class)
        self._tests: dict[str, DeviceTest | str] = {}
        self._of_class: dict[tuple[str, PoolKey], tuple[DeviceTest, FleetPool, frozenset[PhysicalGpu]]] = {}
        self._selected: LRUCache[str, tuple[float, Selected]] = LRUCache(_SELECTIONS)
        self._known_free: TTLCache[None, FreeGpus] = TTLCache(1, _FREE_FOR_S, view.clock.monotonic)

    def pool(self, key: PoolKey) -> FleetPool:
        """One pool as published now, even if nothing of it is published."""
        slices = self._view.slices.store.by_index(BY_POOL, key)
        known = self._pools.get(key)
        if known is None or list(map(id, known[0])) != list(map(id, slices)):
            known = self._pools[key] = (slices, FleetPool(key, slices))
        return known[1]

    async def pools(self) -> list[FleetPool]:
        """All pools. Some may change before the last one is read."""
        change = self._change
        if self._all[0] == change:
            return self._all[1]
        work = CooperativeWork(self._view.clock)
        keys = {item.pool for item in self._view.slices.store.values()}
        for gone in self._pools.keys() - keys:
            del self._pools[gone]
        for gone_of in [each for each in self._of_class if each[1] not in keys]:
            del self._of_class[gone_of]
        found = []
        for key in sorted(keys):
            found.append(self.pool(key))
            await work.pause()
        self._all = (change, found)
        return found

    def _slice_changed(self, _: Change[ResourceSlice]) -> None:
        self._change += 1

    def _forget_class(self, change: Change[DeviceClass]) -> None:
        name = change.key.name
        self._tests.pop(name, None)
        for known in [each for each in self._of_class if each[0] == name]:
            del self._of_class[known]

    def gpus(self, devices: Iterable[DeviceKey | MaintainedDevice]) -> frozenset[PhysicalGpu]:
        """The GPUs of these devices, now or when they were isolated."""
        found = set()
        for each in devices:
            uuid = each.uuid if isinstance(each, MaintainedDevice) else ""
            found.add(self.pool(PoolKey(each.driver, each.pool)).gpu(each.device, uuid))
        return frozenset(found)

    async def select(self, selector: MaintenanceSelector) -> Selected:
        """The devices of a selector. A recent result is reused while nothing has begun."""
        now = self._view.clock.monotonic()
        known = self._selected.get(selector_key := repr(selector))
        if known is None or now - known[0] >= _SELECTED_FOR_S:
            known = self._selected[selector_key] = (now, await self._select(selector))
        return known[1]

    async def _select(self, selector: MaintenanceSelector) -> Selected:
        classes = self._view.classes_by_name
        asked = PoolSelection(test_of(selector, classes))
        work = CooperativeWork(self._view.clock)
        for pool in await self.pools():
            asked.add(pool)
            await work.pause()
        return asked.result()

    async def of_class(self, name: str) -> frozenset[PhysicalGpu]:
        """The GPUs of a class; none if it does not exist, all if its selectors cannot be evaluated."""
        known = self._view.classes.store.get(ObjectKey("", name))
        if known is None:
            return frozenset()
        test = self.test(name)
        work = CooperativeWork(self._view.clock)
        found: set[PhysicalGpu] = set()
        for pool in await self.pools():
            found |= pool.gpus.keys() if isinstance(test, str) else self._members(name, test, pool)
            await work.pause()
        return frozenset(found)

    async def classes_of(self, gpus: Collection[PhysicalGpu]) -> list[ClassSupply]:
        """The classes that contain any of these GPUs."""
        concerned = {gpu.pool_key for gpu in gpus}
        found = []
        for device_class in self._view.classes.store.values():
            name = device_class.metadata.name
            test = self.test(name)
            if isinstance(test, str):
                continue
            if any(not self._members(name, test, self.pool(pool)).isdisjoint(gpus) for pool in concerned):
                members = await self.of_class(name)
                found.append(ClassSupply(name, members, (await self._free()).of(members, device_class)))
        return found

    def node_labels(self) -> Mapping[str, Mapping[str, str]]:
        """The labels of nodes."""
        return {node.metadata.name: node.metadata.labels for node in self._view.nodes.store.values()}

    def test(self, name: str) -> DeviceTest | str:
        """The test for devices of a class, or why there is none."""
        known = self._view.classes.store.get(ObjectKey("", name))
        if known is None:
            return "it does not exist"
        if name not in self._tests:
            self._tests[name] = test_of_class(known)
        return self._tests[name]

    def _members(self, name: str, test: DeviceTest, pool: FleetPool) -> frozenset[PhysicalGpu]:
        known = self._of_class.get((name, pool.key))
        if known is None or known[0] is not test or known[1] is not pool:
            known = self._of_class[name, pool.key] = (test, pool, pool.of_class(test))
        return known[2]

    async def _free(self) -> FreeGpus:
        if (known := self._known_free.get(None)) is not None:
            return known
        view, work = self._view, CooperativeWork(self._view.clock)
        nodes = {node.metadata.name: node for node in view.nodes.store.values()}
        sick = sick_devices(view.gpu_nodes.store.values())
        claims = [each for each in view.claims.store.values() if each.status.allocation is not None]
        found = FreeGpus(Supply(rules=view.rules.store.values(), claims=claims, nodes=nodes, sick=sick))
        for pool in await self.pools():
            found.add(pool)
            await work.pause()
        self._known_free[None] = found
        return found
