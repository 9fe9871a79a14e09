"""All devices that are published, and what taints them.

Owns the slices and rules as they come and go, grouped by pool, and the columns of their devices. A change costs what it
touches: a slice its own devices, a rule the pools it names. What claims hold is not known here.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from draco.allocation.columns import Columns
from draco.allocation.pools import BLOCKING_EFFECTS, Entry, Pool, PoolView
from draco.allocation.selectors import Compile, Selectors, View
from draco.cel import compile_selector, device_view
from draco.resources.core import Node
from draco.resources.names import PoolKey
from draco.resources.slices import Device, ResourceSlice
from draco.resources.taints import DeviceTaint, DeviceTaintRule


class Inventory:
    """The devices of a cluster.

    `compile_selector` and `view` say how selectors are compiled and what they see of a device.
    """

    def __init__(self, compile_selector: Compile = compile_selector, view: View = device_view) -> None:
        self.columns = Columns()
        self.selectors = Selectors(self.columns, compile_selector, view)
        self._pools: dict[PoolKey, Pool] = {}
        self._slices: dict[str, PoolKey] = {}
        self._pools_of_node: dict[str, Counter[PoolKey]] = {}
        """How many slices of a pool name the node; under "" those that name none."""
        self._rules: dict[str, DeviceTaintRule] = {}

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def pools(self) -> Iterable[Pool]:
        """All pools, in no particular order."""
        return self._pools.values()

    def put_slice(self, published: ResourceSlice) -> None:
        """Take a slice as it now is, by its name. Raises QuantityError if a counter is none."""
        name, spec = published.metadata.name, published.spec
        key = PoolKey(spec.driver, spec.pool.name)
        before = self._entry(name)
        if before is not None and self._slices[name] != key:
            self.remove_slice(name)
            before = None
        devices, rows = self._take_rows(before, spec.driver, spec.devices)
        entry = Entry(
            name=name,
            spec=msgspec.structs.replace(spec, devices=devices),
            rows=rows,
            taints=self._taints(key, devices),
        )
        if before is not None:
            self._count(before, key, -1)
        self._pools.setdefault(key, Pool(key)).put(entry)
        self._slices[name] = key
        self._count(entry, key, +1)

    def remove_slice(self, name: str) -> None:
        """Forget a slice; nothing happens if it is not known."""
        key = self._slices.pop(name, None)
        if key is None:
            return
        pool = self._pools[key]
        entry = pool.remove(name)
        if not pool:
            del self._pools[key]
        self._count(entry, key, -1)
        for row, device in zip(entry.rows, entry.spec.devices, strict=True):
            self.columns.remove(row, entry.spec.driver, device)

    def put_rule(self, rule: DeviceTaintRule) -> None:
        """Take a taint rule as it now is, by its name."""
        before = self._rules.get(rule.metadata.name)
        self._rules[rule.metadata.name] = rule
        self._taint_again([rule] if before is None else [before, rule])

    def remove_rule(self, name: str) -> None:
        """Forget a taint rule; nothing happens if it is not known."""
        rule = self._rules.pop(name, None)
        if rule is not None:
            self._taint_again([rule])

    def views(self, node: Node) -> list[PoolView]:
        """The pools that have something for a node, in the order in which they are tried.

        Pools without binding conditions come first; within both groups, by driver and name. Raises AllocationError if a node
        selector is not valid.
        """
        keys = {*self._pools_of_node.get(node.metadata.name, ()), *self._pools_of_node.get("", ())}
        views = [view for key in sorted(keys) if (view := self._pools[key].view(node)) is not None]
        return sorted(views, key=lambda view: view.has_binding_conditions)

    def _entry(self, name: str) -> Entry | None:
        key = self._slices.get(name)
        return None if key is None else self._pools[key].get(name)

    def _count(self, entry: Entry, key: PoolKey, step: int) -> None:
        node = entry.spec.node_name or ""
        counts = self._pools_of_node.setdefault(node, Counter())
        counts[key] += step
        if not counts[key]:
            del counts[key]
        if not counts:
            del self._pools_of_node[node]

    def _take_rows(self, before: Entry | None, driver: str, devices: list[Device]) -> tuple[list[Device], list[int]]:
        """Rows for the devices of a slice; those that are as before keep theirs."""
        known: dict[str, list[tuple[int, Device]]] = {}
        if before is not None:
            for row, device in zip(before.rows, before.spec.devices, strict=True):
                known.setdefault(device.name, []).append((row, device))
        taken = []
        for device in devices:
            same = known.get(device.name)
            if same and same[-1][1] == device:
                taken.append(same.pop())
            else:
                taken.append(self.columns.add(driver, device))
        for left in known.values():
            for row, device in left:
                self.columns.remove(row, driver, device)
        return [device for _, device in taken], [row for row, _ in taken]

    def _taints(self, key: PoolKey, devices: list[Device]) -> list[tuple[DeviceTaint, ...]]:
        rules = [rule for _, rule in sorted(self._rules.items()) if _names(rule, key)]
        return [
            (
                *(taint for taint in device.taints if taint.effect in BLOCKING_EFFECTS),
                *(rule.spec.taint for rule in rules if _hits(rule, device.name)),
            )
            for device in devices
        ]

    def _taint_again(self, rules: list[DeviceTaintRule]) -> None:
        for key in {key for rule in rules for key in self._keys(rule)}:
            pool = self._pools[key]
            for entry in list(pool.entries):
                pool.put(msgspec.structs.replace(entry, taints=self._taints(key, entry.spec.devices)))

    def _keys(self, rule: DeviceTaintRule) -> Iterable[PoolKey]:
        selector = rule.spec.device_selector
        if selector is not None and selector.driver is not None and selector.pool is not None:
            key = PoolKey(selector.driver, selector.pool)
            return [key] if key in self._pools else []
        return [key for key in self._pools if _names(rule, key)]


def _names(rule: DeviceTaintRule, key: PoolKey) -> bool:
    selector = rule.spec.device_selector
    return (
        selector is not None
        and rule.spec.taint.effect in BLOCKING_EFFECTS
        and selector.driver in {None, key.driver}
        and selector.pool in {None, key.pool}
    )


def _hits(rule: DeviceTaintRule, device: str) -> bool:
    selector = rule.spec.device_selector
    return selector is not None and selector.device in {None, device}
