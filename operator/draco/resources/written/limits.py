"""What an API server refuses to store, although it can be read.

Owns the limits of resource.k8s.io that people and drivers run into: how many, how long, which of several fields, names that stand
twice. Says the first thing that is wrong, with its place and what would be right. Selectors are compiled elsewhere.
Source: k8s.io/api/resource/v1 and its validation, Kubernetes 1.36.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from draco.resources.api.claims import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimTemplate,
)
from draco.resources.api.slices import Device, DeviceAttribute, ResourceSlice, ResourceSliceSpec
from draco.resources.api.taints import EFFECTS, DeviceTaint, DeviceTaintRule, DeviceToleration
from draco.resources.semver import SemVer
from draco.resources.written.manifests import Object

_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_TAINT_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_TAINT_KEY: Final = re.compile(rf"(?:{_SUBDOMAIN.pattern}/)?{_TAINT_VALUE.pattern}")
_MAX_DRIVER: Final = 63
_MAX_DEVICES: Final = 128
_MAX_ADVANCED_DEVICES: Final = 64
_MAX_ATTRIBUTES: Final = 32
_MAX_TEXT: Final = 64
_MAX_TAINTS: Final = 16
_MAX_COUNTER_SETS: Final = 8
_MAX_COUNTERS: Final = 32
_MAX_CONSUMPTIONS: Final = 2
_MAX_CONDITIONS: Final = 4
_MAX_REQUESTS: Final = 32
_MAX_ALTERNATIVES: Final = 8
_MAX_SELECTORS: Final = 32
_MAX_EXPRESSION: Final = 10 * 1024
_MAX_INT64: Final = 2**63 - 1


def refusal(item: Object) -> str:
    """Say for what an API server would refuse the object first, as a sentence without its end; "" if it would not."""
    return next(_refusals(item), "")


def _refusals(item: Object) -> Iterator[str]:
    match item:
        case ResourceSlice():
            yield from _slice(item.spec)
        case ResourceClaim():
            yield from _claim(item.spec.devices, "spec.devices")
        case ResourceClaimTemplate():
            yield from _claim(item.spec.spec.devices, "spec.spec.devices")
        case DeviceClass():
            yield from _selectors(item.spec.selectors, "spec.selectors")
        case DeviceTaintRule():
            yield from _taint(item.spec.taint, "spec.taint")


def _slice(spec: ResourceSliceSpec) -> Iterator[str]:
    if not _SUBDOMAIN.fullmatch(spec.driver) or len(spec.driver) > _MAX_DRIVER:
        yield f'spec.driver "{_short(spec.driver)}" is not a driver name: write a domain such as gpu.example.com'
    if not spec.pool.name:
        yield "spec.pool.name is empty: name the pool, usually after its node"
    if spec.pool.resource_slice_count < 1:
        yield "spec.pool.resourceSliceCount must be at least 1: it counts the slices of the pool, this one included"
    if spec.pool.generation < 0:
        yield "spec.pool.generation must not be negative"
    where = {
        "nodeName": spec.node_name,
        "nodeSelector": spec.node_selector is not None,
        "allNodes": spec.all_nodes,
        "perDeviceNodeSelection": spec.per_device_node_selection,
    }
    given = [name for name, value in where.items() if value]
    if len(given) != 1:
        has = " and ".join(given) or "none of them"
        yield f"spec must have exactly one of {', '.join(where)}, but has {has}"
    if spec.devices and spec.shared_counters:
        yield "spec must not have both devices and sharedCounters: publish the counters in a slice of their own"
    advanced = any(_is_advanced(device) for device in spec.devices)
    most = _MAX_ADVANCED_DEVICES if advanced else _MAX_DEVICES
    reason = " where any has taints, counters or lists" if advanced else ""
    if len(spec.devices) > most:
        yield f"spec.devices has {len(spec.devices)} devices, and a slice takes at most {most}{reason}: use several slices"
    yield from _twins("spec.devices", "devices", (device.name for device in spec.devices))
    for index, device in enumerate(spec.devices):
        yield from _device(device, f"spec.devices[{index}]", per_device=bool(spec.per_device_node_selection))
    yield from _many("spec.sharedCounters", spec.shared_counters, _MAX_COUNTER_SETS)
    yield from _twins("spec.sharedCounters", "counter sets", (each.name for each in spec.shared_counters))
    for index, counters in enumerate(spec.shared_counters):
        yield from _many(f"spec.sharedCounters[{index}].counters", list(counters.counters), _MAX_COUNTERS)


def _is_advanced(device: Device) -> bool:
    lists = any(isinstance(attribute.value, list) for attribute in device.attributes.values())
    return bool(device.taints or device.consumes_counters or lists)


def _device(device: Device, where: str, *, per_device: bool) -> Iterator[str]:
    if not _LABEL.fullmatch(device.name):
        yield f'{where}.name "{_short(device.name)}" is not a device name: use at most 63 lower-case letters, digits and dashes'
    count = len(device.attributes) + len(device.capacity)
    if count > _MAX_ATTRIBUTES:
        yield f"{where} has {count} attributes and capacities, and a device takes at most {_MAX_ATTRIBUTES}"
    for name, attribute in device.attributes.items():
        yield from _attribute(attribute, f"{where}.attributes[{_short(name)}]")
    yield from _many(f"{where}.taints", device.taints, _MAX_TAINTS)
    for index, taint in enumerate(device.taints):
        yield from _taint(taint, f"{where}.taints[{index}]")
    yield from _many(f"{where}.consumesCounters", device.consumes_counters, _MAX_CONSUMPTIONS)
    yield from _twins(
        f"{where}.consumesCounters", "counter sets", (each.counter_set for each in device.consumes_counters)
    )
    yield from _many(f"{where}.bindingConditions", device.binding_conditions, _MAX_CONDITIONS)
    yield from _many(f"{where}.bindingFailureConditions", device.binding_failure_conditions, _MAX_CONDITIONS)
    given = sum(bool(each) for each in (device.node_name, device.node_selector is not None, device.all_nodes))
    if per_device and given != 1:
        yield f"{where} must have exactly one of nodeName, nodeSelector, allNodes, as spec.perDeviceNodeSelection is true"
    if not per_device and given:
        yield f"{where} names nodes of its own, which needs spec.perDeviceNodeSelection: true in place of the slice's own"


def _attribute(attribute: DeviceAttribute, where: str) -> Iterator[str]:
    values = [getattr(attribute, name) for name in attribute.__struct_fields__]
    given = [value for value in values if value is not None]
    if len(given) != 1:
        yield f"{where} must have exactly one of int, bool, string, version and their lists, but has {len(given)}"
        return
    inner = given[0] if isinstance(given[0], list) else given
    if not inner:
        yield f"{where} is an empty list: leave the attribute out"
    versions = attribute.version is not None or attribute.versions is not None
    for value in inner:
        if isinstance(value, str):
            if len(value.encode()) > _MAX_TEXT:
                yield f"{where} is longer than {_MAX_TEXT} bytes"
            if versions and SemVer.read(value) is None:
                yield f'{where} "{_short(value)}" is not a semantic version: write for example 1.2.3'
        elif abs(value) > _MAX_INT64:
            yield f"{where} is beyond 64 bits"


def _taint(taint: DeviceTaint, where: str) -> Iterator[str]:
    if not taint.key:
        yield f"{where}.key is empty: name the taint"
    elif not _TAINT_KEY.fullmatch(taint.key):
        yield f'{where}.key "{_short(taint.key)}" is not a label key: write a name such as example.com/broken'
    if taint.value and not _TAINT_VALUE.fullmatch(taint.value):
        yield f'{where}.value "{_short(taint.value)}" is not a label value: use at most 63 letters, digits, -, _ and .'
    if taint.effect not in EFFECTS:
        yield f'{where}.effect "{_short(taint.effect)}" is unknown: write None, NoSchedule or NoExecute'


def _claim(claim: DeviceClaim, where: str) -> Iterator[str]:
    yield from _many(f"{where}.requests", claim.requests, _MAX_REQUESTS)
    yield from _twins(f"{where}.requests", "requests", (request.name for request in claim.requests))
    for index, request in enumerate(claim.requests):
        yield from _request(request, f"{where}.requests[{index}]")
    yield from _many(f"{where}.constraints", claim.constraints, _MAX_REQUESTS)
    yield from _many(f"{where}.config", claim.config, _MAX_REQUESTS)


def _request(request: DeviceRequest, where: str) -> Iterator[str]:
    if not request.name:
        yield f"{where}.name is empty: name the request"
    if request.exactly is None and not request.first_available:
        yield f"{where} has neither exactly nor firstAvailable: put deviceClassName and the fields beside it under exactly"
    if request.exactly is not None and request.first_available:
        yield f"{where} has both exactly and firstAvailable: keep one of them"
    if request.exactly is not None:
        yield from _asked(request.exactly, f"{where}.exactly")
    yield from _many(f"{where}.firstAvailable", request.first_available, _MAX_ALTERNATIVES)
    yield from _twins(f"{where}.firstAvailable", "alternatives", (each.name for each in request.first_available))
    for index, each in enumerate(request.first_available):
        yield from _asked(each, f"{where}.firstAvailable[{index}]")


def _asked(asked: ExactDeviceRequest | DeviceSubRequest, where: str) -> Iterator[str]:
    if not asked.device_class_name:
        yield f"{where}.deviceClassName is empty: name a DeviceClass"
    if asked.allocation_mode not in {"ExactCount", "All"}:
        yield f'{where}.allocationMode "{_short(asked.allocation_mode)}" is unknown: write ExactCount or All'
    if asked.allocation_mode == "ExactCount" and not 0 < asked.count <= _MAX_INT64:
        yield f"{where}.count must be greater than zero"
    yield from _selectors(asked.selectors, f"{where}.selectors")
    for index, toleration in enumerate(asked.tolerations):
        yield from _toleration(toleration, f"{where}.tolerations[{index}]")


def _toleration(toleration: DeviceToleration, where: str) -> Iterator[str]:
    if toleration.operator not in {"Exists", "Equal"}:
        yield f'{where}.operator "{_short(toleration.operator)}" is unknown: write Exists or Equal'
    elif toleration.operator == "Exists" and toleration.value:
        yield f"{where}.value must be empty where the operator is Exists"
    if toleration.effect and toleration.effect not in EFFECTS:
        yield f'{where}.effect "{_short(toleration.effect)}" is unknown: write NoSchedule or NoExecute, or leave it out'


def _selectors(selectors: Sequence[DeviceSelector], where: str) -> Iterator[str]:
    yield from _many(where, selectors, _MAX_SELECTORS)
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            yield f"{where}[{index}].cel is missing: a selector is a CEL expression"
        elif len(selector.cel.expression.encode()) > _MAX_EXPRESSION:
            yield f"{where}[{index}].cel.expression is longer than 10 KiB"


def _many(where: str, items: Sequence[object], most: int) -> Iterator[str]:
    if len(items) > most:
        yield f"{where} has {len(items)} items, and at most {most} are allowed"


def _twins(where: str, what: str, names: Iterable[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f'{where} has {count} {what} of the name "{_short(name)}": names must differ'
            return


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}…"
