"""Counts every published device by the first thing that keeps any claim from it.

Owns the counts of the whole cluster for its metrics. Looks at nothing that depends on the claim, such as selectors, shared
counters or consumable capacity: that is for explanations.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.slices import Device, Publication, ResourceSlice, publications
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule, DeviceTaintSelector
from draco.resources.names import DeviceKey


class SupplyState(StrEnum):
    """What stands in the way of a device; the first that applies, in this order."""

    POOL_INCOMPLETE = "PoolIncomplete"
    NODE_MISSING = "NodeMissing"
    NODE_NOT_READY = "NodeNotReady"
    NODE_CORDONED = "NodeCordoned"
    IN_USE = "InUse"
    TAINTED = "Tainted"
    FREE = "Free"


SupplyCounts = Counter[tuple[str, SupplyState]]
"""Devices by driver and state."""


def count_supply(
    slices: Iterable[ResourceSlice],
    rules: Iterable[DeviceTaintRule],
    claims: Iterable[ResourceClaim],
    nodes: Mapping[str, Node],
) -> SupplyCounts:
    """Count all devices. Linear in devices, plus devices times rules that name no single device."""
    used = {device for claim in claims for device in claim.devices_held}
    tainting = _Rules(rules)
    states: SupplyCounts = Counter()
    for pool, found in publications(slices).items():
        for part, complete in _parts(found):
            for device in part.spec.devices:
                key = DeviceKey(pool.driver, pool.pool, device.name)
                if not complete:
                    state = SupplyState.POOL_INCOMPLETE
                elif (of_node := _node_state(device.node_name or part.spec.node_name or "", nodes)) is not None:
                    state = of_node
                elif key in used and not device.allow_multiple_allocations:
                    state = SupplyState.IN_USE
                else:
                    state = SupplyState.TAINTED if tainting.hits(key, device) else SupplyState.FREE
                states[pool.driver, state] += 1
    return states


def _parts(found: Sequence[Publication]) -> Iterable[tuple[ResourceSlice, bool]]:
    """Each slice once, and whether it is complete for somebody."""
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
    """Taint rules, ready to be asked for one device at a time."""

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

    def hits(self, key: DeviceKey, device: Device) -> bool:
        """Whether the device has a blocking taint, from its slice or from a rule."""
        taints = [*device.taints, *self._exact.get(key, ())]
        taints += [taint for selector, taint in self._wide if selector.matches(key)]
        return any(taint.sets_aside for taint in taints)
