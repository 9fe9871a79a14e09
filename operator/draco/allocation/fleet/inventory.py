"""All published devices and their taints: slices and rules, grouped by pool, and the columns of their devices.

An update costs only what it affects: a slice its own devices, a rule the pools it names. Does not know claims.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.columns import Columns
from draco.allocation.fleet.node_rows import SHARED, NodeRows
from draco.allocation.fleet.node_selection import selects
from draco.allocation.fleet.pools import Pool, PoolView, SliceEntry
from draco.allocation.fleet.selectors import Selectors
from draco.allocation.fleet.state import amount
from draco.resources.api.core import Node
from draco.resources.api.slices import Device, ResourceSlice, ResourceSliceSpec
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaint, DeviceTaintRule, TaintIdentity
from draco.resources.names import DeviceKey, PoolKey

_ANY_NODE: Final = Node()


class Inventory:
    """The published devices of a cluster."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.selectors = Selectors(self.columns)
        self.taints = self.columns.new_column()
        """By row: equal for devices whose blocking taints are equal by key, value and effect."""
        self.nodes = NodeRows()
        self.drawing = self.columns.new_marks()
        """1 for each row whose device consumes shared counters."""
        self._slice_states = self.columns.new_marks()
        self._outdated: set[PoolKey] = set()
        """Pools whose slices changed since their states were computed."""
        self._others: dict[PoolKey, Pool] = {}
        self._unsorted: set[PoolKey] = set()
        """Pools that changed since `others` was updated."""
        self._invalid_selectors: set[str] = set()
        self._per_device: set[str] = set()
        self._pools: dict[PoolKey, Pool] = {}
        self._slices: dict[str, PoolKey] = {}
        self._rules: dict[str, DeviceTaintRule] = {}
        self._rules_of: dict[PoolKey, dict[str, DeviceTaintRule]] = {}
        """Blocking rules that name one pool, by pool."""
        self._wide_rules: dict[str, DeviceTaintRule] = {}
        """Blocking rules that may concern several pools."""

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def rules(self) -> Iterable[DeviceTaintRule]:
        """All taint rules, sorted by name."""
        return [rule for _, rule in sorted(self._rules.items())]

    @property
    def wide_rules(self) -> Iterable[DeviceTaintRule]:
        """The taint rules that name no pool."""
        return self._wide_rules.values()

    def rules_for(self, key: PoolKey) -> Iterable[DeviceTaintRule]:
        """The taint rules that may concern a pool, sorted by name."""
        listed = self._wide_rules | self._rules_of.get(key, {})
        return [rule for _, rule in sorted(listed.items())]

    @property
    def pools(self) -> Iterable[Pool]:
        """All pools, in no particular order."""
        return self._pools.values()

    @property
    def others(self) -> Mapping[PoolKey, Pool]:
        """The pools that are not plain (see `Pool.plain`). Updated on access."""
        for key in self._unsorted:
            pool = self._pools.get(key)
            if pool is None or pool.plain:
                self._others.pop(key, None)
            else:
                self._others[key] = pool
        self._unsorted.clear()
        return self._others

    @property
    def slice_states(self) -> bytes:
        """By row: the SliceState of the device's slice. Updated on access."""
        for key in self._outdated:
            pool = self._pools.get(key)
            for entry, state in pool.slice_states() if pool is not None else ():
                for row in entry.rows:
                    self._slice_states[row] = state
        self._outdated.clear()
        return bytes(self._slice_states)

    def settle(self) -> None:
        """Update everything that is otherwise updated on access."""
        _ = self.others, self.slice_states
        self.nodes.settle()

    @property
    def has_invalid_node_selectors(self) -> bool:
        """Whether `views` may raise AllocationError."""
        return bool(self._invalid_selectors)

    @property
    def per_device_rows(self) -> Iterable[int]:
        """The rows of slices with per-device node selection: a node that reaches one of these devices sees the whole slice."""
        for name in self._per_device:
            entry = self.slice(name)
            if entry is not None:
                yield from entry.rows

    def key(self, row: int) -> DeviceKey:
        """The key of a row's device. Raises LookupError for an unused row."""
        device = self.columns.devices[row]
        if device is None:
            raise LookupError(f"row {row} is not in use")
        return DeviceKey(*self._slices[self.columns.sources[row]], device.name)

    def slice(self, name: str) -> SliceEntry | None:
        """The slice of that name, or None."""
        key = self._slices.get(name)
        return None if key is None else self._pools[key].get(name)

    def rows(self, device: DeviceKey) -> Sequence[int]:
        """The rows of a device: several while slices of several generations have it."""
        pool = self._pools.get(device.pool_key)
        return () if pool is None else pool.rows(device.device)

    def entry(self, row: int) -> SliceEntry:
        """The slice of a row's device. Raises LookupError for an unused row."""
        source = self.columns.sources[row]
        found = self.slice(source)
        if found is None:
            raise LookupError(f"row {row} is not in use")
        return found

    def taints_of(self, row: int) -> tuple[DeviceTaint, ...]:
        """The blocking taints of a row's device, from its slice and from rules."""
        entry = self.entry(row)
        return entry.taints[entry.rows.index(row)]

    def node_of(self, row: int) -> str:
        """The one node of a row's device; "" if it has none or several."""
        return self.nodes.of_row(row)

    def pool(self, key: PoolKey) -> Pool | None:
        """The pool of that name; None if nothing is published for it."""
        return self._pools.get(key)

    def pool_of(self, name: str) -> PoolKey | None:
        """The pool of a slice; None if the slice is not known."""
        return self._slices.get(name)

    def put_slice(self, published: ResourceSlice) -> None:
        """Add or replace a slice. Raises QuantityError, having changed nothing."""
        name, spec = published.metadata.name, published.spec
        _check_amounts(spec)
        key = published.pool
        before = self.slice(name)
        if before is not None and self._slices[name] != key:
            self.remove_slice(name)
            before = None
        if before is not None:
            self._let_go(before)
        devices, rows = self._take_rows(before, name, spec.driver, spec.devices)
        entry = SliceEntry(
            name=name,
            spec=msgspec.structs.replace(spec, devices=devices),
            rows=rows,
            taints=self._taints(key, devices),
        )
        self._slices[name] = key
        self._pools.setdefault(key, Pool(key)).put(entry)
        self._hold(entry)

    def remove_slice(self, name: str) -> None:
        """Remove a slice, if known."""
        entry, key = self.slice(name), self._slices.pop(name, None)
        if key is None or entry is None:
            return
        self._let_go(entry)
        pool = self._pools[key]
        pool.remove(name)
        if not pool:
            del self._pools[key]
        self._outdated.add(key)
        self._unsorted.add(key)
        for row, device in zip(entry.rows, entry.spec.devices, strict=True):
            self.columns.remove(row, entry.spec.driver, device)

    def _hold(self, entry: SliceEntry) -> None:
        """Add the rows of a slice to everything except the columns."""
        for row, taints in zip(entry.rows, entry.taints, strict=True):
            if taints:
                self.taints.put(row, _meaning(taints), None)
        self.nodes.put(entry)
        self._outdated.add(self._slices[entry.name])
        self._unsorted.add(self._slices[entry.name])
        if _has_invalid_selector(entry.spec):
            self._invalid_selectors.add(entry.name)
        for row, device in zip(entry.rows, entry.spec.devices, strict=True):
            if device.consumes_counters:
                self.drawing[row] = 1
        if entry.spec.per_device_node_selection:
            self._per_device.add(entry.name)

    def _let_go(self, entry: SliceEntry) -> None:
        for row, taints in zip(entry.rows, entry.taints, strict=True):
            if taints:
                self.taints.clear(row, _meaning(taints))
        self.nodes.remove(entry)
        self._invalid_selectors.discard(entry.name)
        self._per_device.discard(entry.name)

    def put_rule(self, rule: DeviceTaintRule) -> None:
        """Add or replace a taint rule."""
        before = self._rules.get(rule.metadata.name)
        if before is not None:
            self._unlist(before)
        self._rules[rule.metadata.name] = rule
        self._list(rule)
        self._taint_again([rule] if before is None else [before, rule])

    def remove_rule(self, name: str) -> None:
        """Remove a taint rule, if known."""
        rule = self._rules.pop(name, None)
        if rule is not None:
            self._unlist(rule)
            self._taint_again([rule])

    def views(self, node: Node) -> list[PoolView]:
        """The node's pools, those without binding conditions first, then by key. Raises AllocationError for a bad selector."""
        keys = self.nodes.pools(node.metadata.name) | self.nodes.pools(SHARED)
        views = [view for key in sorted(keys) if (view := self._pools[key].view(node)) is not None]
        return sorted(views, key=lambda view: view.has_binding_conditions)

    def pools_on(self, node: str) -> Iterable[PoolKey]:
        """The pools with slices or devices for this node alone, sorted by driver and name."""
        return sorted(self.nodes.pools(node))

    def _take_rows(
        self, before: SliceEntry | None, name: str, driver: str, devices: list[Device]
    ) -> tuple[list[Device], list[int]]:
        """Rows for the devices of a slice; unchanged devices keep theirs."""
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
                taken.append(self.columns.add(driver, device, name))
        for left in known.values():
            for row, device in left:
                self.columns.remove(row, driver, device)
        return [device for _, device in taken], [row for row, _ in taken]

    def _list(self, rule: DeviceTaintRule) -> None:
        pool = _only_pool(rule)
        if pool is not None:
            self._rules_of.setdefault(pool, {})[rule.metadata.name] = rule
        else:
            self._wide_rules[rule.metadata.name] = rule

    def _unlist(self, rule: DeviceTaintRule) -> None:
        pool = _only_pool(rule)
        if pool is None:
            del self._wide_rules[rule.metadata.name]
            return
        del self._rules_of[pool][rule.metadata.name]
        if not self._rules_of[pool]:
            del self._rules_of[pool]

    def _taints(self, key: PoolKey, devices: list[Device]) -> list[tuple[DeviceTaint, ...]]:
        listed = {name: rule for name, rule in self._wide_rules.items() if _names(rule, key)}
        listed.update((name, rule) for name, rule in self._rules_of.get(key, {}).items() if _names(rule, key))
        rules = [listed[name] for name in sorted(listed)]
        of_all = [rule for rule in rules if _device(rule) is None]
        named = {_device(rule) for rule in rules}
        return [
            (
                *(taint for taint in device.taints if taint.effect in BLOCKING_EFFECTS),
                *(
                    rule.spec.taint
                    for rule in (rules if device.name in named else of_all)
                    if _device(rule) in {None, device.name}
                ),
            )
            for device in devices
        ]

    def _taint_again(self, rules: list[DeviceTaintRule]) -> None:
        for key in {key for rule in rules for key in self._keys(rule)}:
            pool = self._pools[key]
            for entry in list(pool.entries):
                taints = self._taints(key, entry.spec.devices)
                if taints == entry.taints:
                    continue
                self._let_go(entry)
                changed = msgspec.structs.replace(entry, taints=taints)
                pool.put(changed)
                self._hold(changed)

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


def _device(rule: DeviceTaintRule) -> str | None:
    return rule.spec.device_selector.device if rule.spec.device_selector is not None else None


def _only_pool(rule: DeviceTaintRule) -> PoolKey | None:
    selector = rule.spec.device_selector
    if selector is None or selector.driver is None or selector.pool is None:
        return None
    return PoolKey(selector.driver, selector.pool)


def _meaning(taints: Sequence[DeviceTaint]) -> tuple[TaintIdentity, ...]:
    return tuple(taint.identity for taint in taints)


def _check_amounts(spec: ResourceSliceSpec) -> None:
    """Parse every quantity, so that later steps cannot fail. Raises QuantityError."""
    for device in spec.devices:
        for capacity in device.capacity.values():
            amount(capacity.value)
            policy = capacity.request_policy
            if policy is not None:
                allowed = policy.valid_range
                limits = (allowed.min, allowed.max, allowed.step) if allowed is not None else ()
                for text in (policy.default, *policy.valid_values, *limits):
                    if text is not None:
                        amount(text)
        for consumed in device.consumes_counters:
            for counter in consumed.counters.values():
                amount(counter.value)
    for counter_set in spec.shared_counters:
        for counter in counter_set.counters.values():
            amount(counter.value)


def _has_invalid_selector(spec: ResourceSliceSpec) -> bool:
    try:
        for each in (spec.node_selector, *(device.node_selector for device in spec.devices)):
            if each is not None:
                selects(each, _ANY_NODE)
    except AllocationError:
        return True
    return False
