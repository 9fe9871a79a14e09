"""Which published devices a new claim can get, and the obstacles for the others.

Owns that answer for the cluster's metrics, `draco status`, and what a maintenance leaves of a class. Ignores what depends on the
claim, such as selectors, shared counters or requested capacity. Which allocator a device belongs to is not an obstacle.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from draco.allocation.fleet.hardware import amount_of
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.slices import Device, Publication, ResourceSlice, publications
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule, DeviceTaintSelector
from draco.resources.names import TAINT_OPERATOR_ALLOCATED, DeviceKey


class SupplyState(StrEnum):
    """The obstacle of a device: the first that applies, in this order."""

    POOL_INCOMPLETE = "PoolIncomplete"
    NODE_MISSING = "NodeMissing"
    NODE_NOT_READY = "NodeNotReady"
    NODE_CORDONED = "NodeCordoned"
    IN_USE = "InUse"
    TAINTED = "Tainted"
    UNHEALTHY = "Unhealthy"
    """Its agent reports it sick without a taint. Metrics ignore this."""
    FREE = "Free"


SupplyCounts = Counter[tuple[str, SupplyState]]
"""Number of devices by driver and state."""


def count_supply(
    slices: Iterable[ResourceSlice],
    rules: Iterable[DeviceTaintRule],
    claims: Iterable[ResourceClaim],
    nodes: Mapping[str, Node],
) -> SupplyCounts:
    """Count all devices. Linear in devices, plus devices times rules that do not name a single device."""
    supply = Supply(rules=rules, claims=claims, nodes=nodes)
    states: SupplyCounts = Counter()
    for pool, found in publications(slices).items():
        for part, complete in _parts(found):
            for device in part.spec.devices:
                key = DeviceKey(pool.driver, pool.pool, device.name)
                obstacles = supply.obstacles(key, device, device.node_name or part.spec.node_name or "")
                if not complete:
                    obstacles.add(SupplyState.POOL_INCOMPLETE)
                states[pool.driver, next((each for each in SupplyState if each in obstacles), SupplyState.FREE)] += 1
    return states


class Supply:
    """What makes devices unavailable. Nodes are ignored without `nodes`; `sick` devices are those their agents report."""

    def __init__(
        self,
        *,
        rules: Iterable[DeviceTaintRule],
        claims: Iterable[ResourceClaim],
        nodes: Mapping[str, Node] | None = None,
        sick: Collection[DeviceKey] = frozenset(),
    ) -> None:
        self._rules = _Rules(rules)
        self._nodes = nodes
        self._sick = sick
        self._held: dict[DeviceKey, Counter[str]] = {}
        for claim in claims:
            for result in claim.results:
                if not result.admin_access:
                    taken = self._held.setdefault(result.key, Counter())
                    taken.update({name: amount_of(text) for name, text in result.consumed_capacity.items()})

    @property
    def held(self) -> Collection[DeviceKey]:
        """All devices that claims hold, published or not. Administrative access holds nothing."""
        return self._held.keys()

    def obstacles(self, key: DeviceKey, device: Device, node: str) -> set[SupplyState]:
        """All obstacles of a device for new claims; empty if it is free. Draco being its allocator is none."""
        found = {_node_state(node, self._nodes)} if self._nodes is not None else set[SupplyState | None]()
        found.add(SupplyState.IN_USE if self.is_used_up(key, device) else None)
        found.add(SupplyState.TAINTED if any(taint.sets_aside for taint in self.taints(key, device)) else None)
        found.add(SupplyState.UNHEALTHY if key in self._sick else None)
        return {each for each in found if each is not None}

    def is_used_up(self, key: DeviceKey, device: Device) -> bool:
        """Whether a claim holds it; for a shared device, whether one of its capacities is used up."""
        taken = self._held.get(key)
        if taken is None or not device.allow_multiple_allocations:
            return taken is not None
        return any(taken[name] >= amount_of(each.value) for name, each in device.capacity.items() if taken[name])

    def is_operators(self, key: DeviceKey, device: Device) -> bool:
        """Whether it was handed over, so that only Draco allocates it."""
        return any(taint.key == TAINT_OPERATOR_ALLOCATED for taint in self.taints(key, device))

    def taints(self, key: DeviceKey, device: Device) -> list[DeviceTaint]:
        """All taints of a device, from its slice and from rules."""
        return [*device.taints, *self._rules.of(key)]


def _parts(found: Sequence[Publication]) -> Iterable[tuple[ResourceSlice, bool]]:
    """Each slice once, and whether it is part of a complete publication."""
    if len(found) == 1:
        return [(part, found[0].complete) for part in found[0].slices]
    incomplete_first = sorted(found, key=lambda each: each.complete)
    return {id(part): (part, each.complete) for each in incomplete_first for part in each.slices}.values()


def _node_state(name: str, nodes: Mapping[str, Node]) -> SupplyState | None:
    if not name:
        return None
    node = nodes.get(name)
    if node is None:
        return SupplyState.NODE_MISSING
    if not node.ready:
        return SupplyState.NODE_NOT_READY
    return SupplyState.NODE_CORDONED if node.spec.unschedulable else None


class _Rules:
    """Taint rules, indexed by device."""

    def __init__(self, rules: Iterable[DeviceTaintRule]) -> None:
        self._exact: dict[DeviceKey, list[DeviceTaint]] = defaultdict(list)
        self._wide: list[tuple[DeviceTaintSelector, DeviceTaint]] = []
        for rule in rules:
            selector = rule.spec.device_selector
            if selector is None:
                continue
            if selector.named:
                self._exact[selector.named].append(rule.spec.taint)
            else:
                self._wide.append((selector, rule.spec.taint))

    def of(self, key: DeviceKey) -> list[DeviceTaint]:
        return [*self._exact.get(key, ()), *(taint for selector, taint in self._wide if selector.matches(key))]
