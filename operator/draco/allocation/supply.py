"""What is published, and what stands in the way of each device, whoever asks.

Owns the survey of slices, rules, claims and nodes into groups of like devices. A survey of a whole cluster is made once and
then answers for any number of claims: what differs between claims (drivers, tolerations, administrative access) is applied to
the groups, not to the devices. Does not evaluate selectors, shared counters or consumable capacity.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from draco.resources.claims import ResourceClaim
from draco.resources.core import Node
from draco.resources.names import DeviceKey
from draco.resources.slices import Device, ResourceSlice, current_slices
from draco.resources.taints import BLOCKING_EFFECTS, DeviceTaint, DeviceTaintRule, DeviceTaintSelector


class DeviceState(StrEnum):
    """What stands in the way of a device; the first that applies, in this order."""

    POOL_INCOMPLETE = "PoolIncomplete"
    NODE_MISSING = "NodeMissing"
    NODE_NOT_READY = "NodeNotReady"
    NODE_CORDONED = "NodeCordoned"
    IN_USE = "InUse"
    TAINTED = "Tainted"
    FREE = "Free"


class Taint(msgspec.Struct, frozen=True, order=True):
    """A taint without its time: what groups devices."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class Group(msgspec.Struct, frozen=True):
    """Devices of one driver that differ in nothing that matters here. `taints` are the blocking ones."""

    driver: str
    state: DeviceState
    taints: tuple[Taint, ...] = ()


class Supply(msgspec.Struct, frozen=True, kw_only=True):
    """The survey. `nodes` counts a group's devices per node ("" for devices that are not bound to one)."""

    groups: Mapping[Group, int]
    nodes: Mapping[Group, Mapping[str, int]]
    holders: Mapping[str, tuple[str, ...]]
    """Claims ("namespace/name", sorted) that hold devices, by driver."""
    incomplete: Mapping[str, tuple[str, ...]]
    """Pools, sorted, of which not all slices of the newest generation are there, by driver."""
    partitioned: frozenset[str]
    """Drivers with devices that draw from shared counters: of two free devices one may rule out the other."""

    @property
    def drivers(self) -> list[str]:
        """Every driver that publishes devices, sorted."""
        return sorted({group.driver for group in self.groups})

    def states(self) -> Counter[tuple[str, DeviceState]]:
        """Devices by driver and state."""
        counts: Counter[tuple[str, DeviceState]] = Counter()
        for group, count in self.groups.items():
            counts[group.driver, group.state] += count
        return counts


def survey(
    slices: Iterable[ResourceSlice],
    rules: Iterable[DeviceTaintRule],
    claims: Iterable[ResourceClaim],
    nodes: Mapping[str, Node],
) -> Supply:
    """Survey the cluster. Linear in devices, plus devices times rules that name no single device."""
    used = _used_devices(claims)
    tainting = _Rules(rules)
    groups: Counter[Group] = Counter()
    by_node: dict[Group, Counter[str]] = defaultdict(Counter)
    holders: dict[str, set[str]] = defaultdict(set)
    incomplete: dict[str, set[str]] = defaultdict(set)
    partitioned: set[str] = set()
    for pool, parts in current_slices(slices).items():
        complete = len(parts) == parts[0].spec.pool.resource_slice_count
        if not complete:
            incomplete[pool.driver].add(pool.pool)
        for part in parts:
            for device in part.spec.devices:
                key = DeviceKey(pool.driver, pool.pool, device.name)
                node = device.node_name or part.spec.node_name or ""
                by = used.get(key, ())
                holders[pool.driver].update(by)
                if device.consumes_counters:
                    partitioned.add(pool.driver)
                taints = tainting.on(key, device)
                in_use = bool(by) and not device.allow_multiple_allocations
                if not complete:
                    state = DeviceState.POOL_INCOMPLETE
                else:
                    state = _node_state(node, nodes) or _own_state(taints, in_use=in_use)
                group = Group(pool.driver, state, taints)
                groups[group] += 1
                by_node[group][node] += 1
    return Supply(
        groups=groups,
        nodes=by_node,
        holders={driver: tuple(sorted(names)) for driver, names in holders.items()},
        incomplete={driver: tuple(sorted(names)) for driver, names in incomplete.items()},
        partitioned=frozenset(partitioned),
    )


def _used_devices(claims: Iterable[ResourceClaim]) -> dict[DeviceKey, tuple[str, ...]]:
    used: dict[DeviceKey, tuple[str, ...]] = {}
    for claim in claims:
        for device in claim.devices_held:
            used[device] = (*used.get(device, ()), str(claim.metadata.key))
    return used


def _node_state(name: str, nodes: Mapping[str, Node]) -> DeviceState | None:
    if not name:
        return None
    node = nodes.get(name)
    if node is None:
        return DeviceState.NODE_MISSING
    if not node.ready:
        return DeviceState.NODE_NOT_READY
    return DeviceState.NODE_CORDONED if node.spec.unschedulable else None


def _own_state(taints: tuple[Taint, ...], *, in_use: bool) -> DeviceState:
    if in_use:
        return DeviceState.IN_USE
    return DeviceState.TAINTED if taints else DeviceState.FREE


class _Rules:
    """Taint rules, ready to be asked for one device at a time."""

    def __init__(self, rules: Iterable[DeviceTaintRule]) -> None:
        self._exact: dict[DeviceKey, list[DeviceTaint]] = defaultdict(list)
        self._wide: list[tuple[DeviceTaintSelector, DeviceTaint]] = []
        for rule in rules:
            selector = rule.spec.device_selector
            if selector is None:
                continue
            if selector.driver and selector.pool and selector.device:
                self._exact[DeviceKey(selector.driver, selector.pool, selector.device)].append(rule.spec.taint)
            else:
                self._wide.append((selector, rule.spec.taint))

    def on(self, key: DeviceKey, device: Device) -> tuple[Taint, ...]:
        """Blocking taints of the device, from its slice and from rules."""
        exact = self._exact.get(key)
        if not (device.taints or exact or self._wide):
            return ()
        taints = [*device.taints, *(exact or ())]
        taints += [taint for selector, taint in self._wide if selector.matches(key)]
        return tuple(sorted({Taint(t.key, t.value, t.effect) for t in taints if t.effect in BLOCKING_EFFECTS}))
