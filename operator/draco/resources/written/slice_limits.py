"""What an API server refuses in ResourceSlices. Source: k8s.io/api/resource/v1 and its validation, Kubernetes 1.36."""

from collections.abc import Iterator, Sequence
from typing import Final

from draco.resources.api.meta import NodeSelector
from draco.resources.api.slices import CapacityRequestPolicy, Device, DeviceAttribute, ResourceSliceSpec
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer
from draco.resources.written.forms import (
    ChosenKey,
    Place,
    ValueRefusal,
    check_count,
    check_distinct,
    check_driver,
    check_label,
    check_pool,
    check_qualified,
    check_taint,
    short,
)

_MAX_DEVICES: Final = 128
_MAX_ADVANCED_DEVICES: Final = 64
_MAX_ATTRIBUTES: Final = 32
_MAX_TEXT: Final = 64
_MAX_TAINTS: Final = 16
_MAX_COUNTER_SETS: Final = 8
_MAX_COUNTERS: Final = 32
_MAX_CONSUMPTIONS: Final = 2
_MAX_CONDITIONS: Final = 4
_MAX_VALUES: Final = 10
_MAX_INT64: Final = 2**63 - 1
_VALUES_OF_OPERATORS: Final = {
    "In": "at least one item",
    "NotIn": "at least one item",
    "Exists": "no items",
    "DoesNotExist": "no items",
    "Gt": "exactly one item",
    "Lt": "exactly one item",
}


def slice_refusals(spec: ResourceSliceSpec, at: Place) -> Iterator[ValueRefusal]:
    """All reasons why an API server would refuse a slice whose spec is at that place."""
    yield from check_driver(spec.driver, (*at, "driver"))
    yield from _pool(spec, (*at, "pool"))
    where = {
        "nodeName": spec.node_name,
        "nodeSelector": spec.node_selector is not None,
        "allNodes": spec.all_nodes,
        "perDeviceNodeSelection": spec.per_device_node_selection,
    }
    given = [name for name, value in where.items() if value]
    if len(given) != 1:
        has = " and ".join(given) or "none of them"
        yield ValueRefusal(at, f"must have exactly one of {', '.join(where)}, but has {has}")
    yield from _nodes(spec.node_selector, (*at, "nodeSelector"))
    if spec.devices and spec.shared_counters:
        text = "must not have both devices and sharedCounters: publish the counters in a slice of their own"
        yield ValueRefusal(at, text)
    advanced = any(_is_advanced(device) for device in spec.devices)
    most = _MAX_ADVANCED_DEVICES if advanced else _MAX_DEVICES
    reason = " where any has taints, counters or lists" if advanced else ""
    devices = (*at, "devices")
    if len(spec.devices) > most:
        text = f"has {len(spec.devices)} devices, and a slice takes at most {most}{reason}: use several slices"
        yield ValueRefusal(devices, text)
    yield from check_distinct(devices, "devices", (device.name for device in spec.devices))
    for index, device in enumerate(spec.devices):
        yield from _device(device, (*devices, index), per_device=bool(spec.per_device_node_selection))
    sets = (*at, "sharedCounters")
    yield from check_count(sets, spec.shared_counters, _MAX_COUNTER_SETS)
    yield from check_distinct(sets, "counter sets", (each.name for each in spec.shared_counters))
    for index, counters in enumerate(spec.shared_counters):
        yield from check_label(counters.name, (*sets, index, "name"), "the name of a counter set")
        yield from _counters(list(counters.counters), (*sets, index, "counters"))


def _pool(spec: ResourceSliceSpec, at: Place) -> Iterator[ValueRefusal]:
    name = spec.pool.name
    if not name:
        yield ValueRefusal((*at, "name"), "is empty: name the pool, usually after its node")
    else:
        yield from check_pool(name, (*at, "name"))
    if spec.pool.resource_slice_count < 1:
        text = "must be at least 1: it counts the slices of the pool, this one included"
        yield ValueRefusal((*at, "resourceSliceCount"), text)
    if spec.pool.generation < 0:
        yield ValueRefusal((*at, "generation"), "must not be negative")


def _is_advanced(device: Device) -> bool:
    lists = any(isinstance(attribute.value, list) for attribute in device.attributes.values())
    return bool(device.taints or device.consumes_counters or lists)


def _device(device: Device, at: Place, *, per_device: bool) -> Iterator[ValueRefusal]:
    yield from check_label(device.name, (*at, "name"), "a device name")
    count = len(device.attributes) + len(device.capacity)
    if count > _MAX_ATTRIBUTES:
        yield ValueRefusal(at, f"has {count} attributes and capacities, and a device takes at most {_MAX_ATTRIBUTES}")
    for name, attribute in device.attributes.items():
        place = (*at, "attributes", ChosenKey(name))
        yield from check_qualified(name, place, "an attribute")
        yield from _attribute(attribute, place)
    for name, capacity in device.capacity.items():
        place = (*at, "capacity", ChosenKey(name))
        yield from check_qualified(name, place, "a capacity")
        if capacity.request_policy is not None:
            yield from _policy(capacity.request_policy, (*place, "requestPolicy"), capacity.value)
    yield from check_count((*at, "taints"), device.taints, _MAX_TAINTS)
    for index, taint in enumerate(device.taints):
        yield from check_taint(taint, (*at, "taints", index))
    consumed = (*at, "consumesCounters")
    yield from check_count(consumed, device.consumes_counters, _MAX_CONSUMPTIONS)
    yield from check_distinct(consumed, "counter sets", (each.counter_set for each in device.consumes_counters))
    for index, each in enumerate(device.consumes_counters):
        yield from check_label(each.counter_set, (*consumed, index, "counterSet"), "the name of a counter set")
        yield from _counters(list(each.counters), (*consumed, index, "counters"))
    yield from check_count((*at, "bindingConditions"), device.binding_conditions, _MAX_CONDITIONS)
    yield from check_count((*at, "bindingFailureConditions"), device.binding_failure_conditions, _MAX_CONDITIONS)
    given = sum(bool(each) for each in (device.node_name, device.node_selector is not None, device.all_nodes))
    if per_device and given != 1:
        text = "must have exactly one of nodeName, nodeSelector, allNodes, as spec.perDeviceNodeSelection is true"
        yield ValueRefusal(at, text)
    if not per_device and given:
        text = "names nodes of its own, which needs spec.perDeviceNodeSelection: true in place of the slice's own"
        yield ValueRefusal(at, text)
    yield from _nodes(device.node_selector, (*at, "nodeSelector"))


def _counters(names: Sequence[str], at: Place) -> Iterator[ValueRefusal]:
    if not names:
        yield ValueRefusal(at, "is empty: name at least one counter")
    yield from check_count(at, names, _MAX_COUNTERS)
    for name in names:
        yield from check_label(name, (*at, ChosenKey(name)), "the name of a counter")


def _attribute(attribute: DeviceAttribute, at: Place) -> Iterator[ValueRefusal]:
    values = [getattr(attribute, name) for name in attribute.__struct_fields__]
    given = [value for value in values if value is not None]
    if len(given) != 1:
        text = f"must have exactly one of int, bool, string, version and their lists, but has {len(given)}"
        yield ValueRefusal(at, text)
        return
    inner = given[0] if isinstance(given[0], list) else given
    if not inner:
        yield ValueRefusal(at, "is an empty list: leave the attribute out")
    versions = attribute.version is not None or attribute.versions is not None
    for value in inner:
        if isinstance(value, str):
            if len(value.encode()) > _MAX_TEXT:
                yield ValueRefusal(at, f"is longer than {_MAX_TEXT} bytes")
            elif versions and SemVer.read(value) is None:
                yield ValueRefusal(at, f'"{short(value)}" is not a semantic version: write {_version_meant(value)}')
        elif abs(value) > _MAX_INT64:
            yield ValueRefusal(at, "is beyond 64 bits")


def _version_meant(written: str) -> str:
    """What to write instead of a version that is none, such as a driver's with a leading zero or a fourth number."""
    meant = SemVer.read(written, loosely=True)
    return str(meant) if meant is not None else "three numbers, such as 1.2.3, or publish it as a string"


def _policy(policy: CapacityRequestPolicy, at: Place, total: str) -> Iterator[ValueRefusal]:
    """Check how a capacity may be requested; invalid quantities are reported elsewhere."""
    values, found = policy.valid_values, policy.valid_range
    if values and found is not None:
        yield ValueRefusal(at, "has both validValues and validRange: keep one of them")
    if policy.default is None and (values or found is not None):
        yield ValueRefusal((*at, "default"), "is missing: say how much a claim gets that asks for none")
        return
    if policy.default is None:
        return
    default, most = Quantity.parse(policy.default), Quantity.parse(total)
    if values:
        amounts = list(map(Quantity.parse, values))
        if len(values) > _MAX_VALUES:
            yield ValueRefusal((*at, "validValues"), f"has {len(values)} items, and at most {_MAX_VALUES} are allowed")
        if default not in amounts:
            yield ValueRefusal((*at, "default"), f"{policy.default} is not one of the validValues")
        if amounts != sorted(set(amounts)):
            yield ValueRefusal((*at, "validValues"), "must be in ascending order, each once")
    elif default > most:
        yield ValueRefusal((*at, "default"), f"{policy.default} is more than the capacity, {total}")
    if found is not None and default < Quantity.parse(found.min):
        yield ValueRefusal((*at, "default"), f"{policy.default} is less than validRange.min, {found.min}")
    if found is not None and found.max is not None and default > Quantity.parse(found.max):
        yield ValueRefusal((*at, "default"), f"{policy.default} is more than validRange.max, {found.max}")


def _nodes(selector: NodeSelector | None, at: Place) -> Iterator[ValueRefusal]:
    """Check the node selector of a slice or device: one term, and known operators."""
    if selector is None:
        return
    terms = (*at, "nodeSelectorTerms")
    if len(selector.node_selector_terms) != 1:
        yield ValueRefusal(terms, f"must have exactly one item, but has {len(selector.node_selector_terms)}")
    for number, term in enumerate(selector.node_selector_terms):
        for field, requirements in (("matchExpressions", term.match_expressions), ("matchFields", term.match_fields)):
            for index, each in enumerate(requirements):
                place = (*terms, number, field, index)
                wanted = _VALUES_OF_OPERATORS.get(each.operator)
                if wanted is None:
                    there = ", ".join(_VALUES_OF_OPERATORS)
                    yield ValueRefusal((*place, "operator"), f'"{short(each.operator)}" is unknown: there are {there}')
                elif not _fits(wanted, len(each.values)):
                    yield ValueRefusal((*place, "values"), f"must have {wanted} for {each.operator}")


def _fits(wanted: str, count: int) -> bool:
    return {"no items": count == 0, "exactly one item": count == 1}.get(wanted, count > 0)
