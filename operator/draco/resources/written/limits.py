"""What an API server refuses to store, although it can be decoded.

Owns the validation rules of resource.k8s.io that people and drivers run into. Reports every error with its place and the fix:
`draco lint` shows all, readers of files the first. Does not compile selectors. Source: k8s.io/api/resource/v1 and its validation,
Kubernetes 1.36; a test asks a real API server about each rule.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from draco.resources.api.claims import (
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
    OpaqueConfiguration,
    ResourceClaim,
    ResourceClaimTemplate,
)
from draco.resources.api.core import Container, Pod, PodSpec
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import EFFECTS, DeviceTaintRule, DeviceTaintSelector, DeviceToleration
from draco.resources.names import EXTENDED_BY_CLASS, is_extended_resource
from draco.resources.quantity import Quantity
from draco.resources.written.forms import (
    MAX_NAME,
    SUBDOMAIN,
    TAINT_KEY,
    ChosenKey,
    Place,
    ValueRefusal,
    check_count,
    check_distinct,
    check_driver,
    check_label,
    check_label_value,
    check_pool,
    check_qualified,
    check_taint,
    short,
)
from draco.resources.written.manifests import Object
from draco.resources.written.slice_limits import slice_refusals

_MAX_REQUESTS: Final = 32
_MAX_ALTERNATIVES: Final = 8
_MAX_SELECTORS: Final = 32
_MAX_EXPRESSION: Final = 10 * 1024
_MAX_INT64: Final = 2**63 - 1


def refusal(item: Object, *, at: Place = ()) -> str:
    """Return the first reason why an API server would refuse the object, as a sentence without its end; "" if it would not.

    `at` is where the pod of a workload is in it.
    """
    return next((str(each.within(at)) for each in refusals(item)), "")


def refusals(item: Object) -> Iterator[ValueRefusal]:
    """All reasons why an API server would refuse the object."""
    match item:
        case ResourceSlice():
            yield from slice_refusals(item.spec, ("spec",))
        case ResourceClaim():
            yield from _claim(item.spec.devices, ("spec", "devices"))
        case ResourceClaimTemplate():
            yield from _claim(item.spec.spec.devices, ("spec", "spec", "devices"))
        case DeviceClass():
            yield from _selectors(item.spec.selectors, ("spec", "selectors"))
            yield from check_count(("spec", "config"), item.spec.config, _MAX_REQUESTS)
            for index, config in enumerate(item.spec.config):
                yield from _opaque(config.opaque, ("spec", "config", index))
            if item.spec.extended_resource_name is not None:
                yield from _extended_resource(item.spec.extended_resource_name, ("spec", "extendedResourceName"))
        case DeviceTaintRule():
            if item.spec.device_selector is not None:
                yield from _exact_selector(item.spec.device_selector, ("spec", "deviceSelector"))
            yield from check_taint(item.spec.taint, ("spec", "taint"))
        case Pod():
            yield from _pod(item.spec, ("spec",))


def _pod(spec: PodSpec, at: Place) -> Iterator[ValueRefusal]:
    """Check the pod's extended resources, and the labels by which it chooses its nodes."""
    yield from _containers(spec.init_containers, (*at, "initContainers"))
    yield from _containers(spec.containers, (*at, "containers"))
    for key, value in spec.node_selector.items():
        yield from check_label_value(value, (*at, "nodeSelector", ChosenKey(key)))
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    terms = (*at, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    for number, term in enumerate(required.node_selector_terms if required is not None else ()):
        for index, wanted in enumerate(term.match_expressions):
            place = (*terms, number, "matchExpressions", index, "values")
            for each, value in enumerate(wanted.values):
                yield from check_label_value(value, (*place, each))


def _containers(containers: Sequence[Container], at: Place) -> Iterator[ValueRefusal]:
    """Check the extended resources of containers."""
    for index, container in enumerate(containers):
        resources = container.resources
        for field, amounts in (("limits", resources.limits), ("requests", resources.requests)):
            for name, amount in amounts.items():
                place = (*at, index, "resources", field, ChosenKey(name))
                known = Quantity.read(str(amount)) if is_extended_resource(name) else None
                if known is not None and known.nanos % 10**9:
                    yield ValueRefusal(place, f"is {amount}: an extended resource is counted in whole numbers")
                elif known is not None and Quantity.read(str(resources.limits.get(name, ""))) != known:
                    yield ValueRefusal(place, "must equal the limit of this extended resource: write the limit alone")


def _exact_selector(selector: DeviceTaintSelector, at: Place) -> Iterator[ValueRefusal]:
    for field, value in (("driver", selector.driver), ("pool", selector.pool), ("device", selector.device)):
        if value is not None and "*" in value:
            yield ValueRefusal((*at, field), f'"{short(value)}" has a wildcard, and there are none: name one {field}')
            return
    if selector.driver is not None:
        yield from check_driver(selector.driver, (*at, "driver"))
    if selector.pool is not None:
        yield from check_pool(selector.pool, (*at, "pool"))
    if selector.device is not None:
        yield from check_label(selector.device, (*at, "device"), "the name of a device, such as gpu-0")


def _extended_resource(name: str, at: Place) -> Iterator[ValueRefusal]:
    if not is_extended_resource(name) or name.startswith(EXTENDED_BY_CLASS) or not TAINT_KEY.fullmatch(name):
        yield ValueRefusal(
            at, f'"{short(name)}" is not the name of an extended resource: write for example example.com/gpu'
        )


def _claim(claim: DeviceClaim, at: Place) -> Iterator[ValueRefusal]:
    requests = (*at, "requests")
    yield from check_count(requests, claim.requests, _MAX_REQUESTS)
    yield from check_distinct(requests, "requests", (request.name for request in claim.requests))
    for index, request in enumerate(claim.requests):
        yield from _request(request, (*requests, index))
    yield from check_count((*at, "constraints"), claim.constraints, _MAX_REQUESTS)
    names = {name for request in claim.requests for name in _names_of(request)}
    for index, constraint in enumerate(claim.constraints):
        yield from _constraint(constraint, (*at, "constraints", index))
        yield from _known(constraint.requests, names, (*at, "constraints", index, "requests"))
    yield from check_count((*at, "config"), claim.config, _MAX_REQUESTS)
    for index, config in enumerate(claim.config):
        yield from _opaque(config.opaque, (*at, "config", index))
        yield from _known(config.requests, names, (*at, "config", index, "requests"))


def _names_of(request: DeviceRequest) -> Iterator[str]:
    yield request.name
    yield from (f"{request.name}/{each.name}" for each in request.first_available)


def _known(named: Sequence[str], names: set[str], at: Place) -> Iterator[ValueRefusal]:
    for index, name in enumerate(named):
        if name not in names:
            yield ValueRefusal(
                (*at, index), f'"{short(name)}" is not a request of this claim: it has {", ".join(sorted(names))}'
            )
    yield from check_distinct(at, "requests", named)


def _request(request: DeviceRequest, at: Place) -> Iterator[ValueRefusal]:
    if not request.name:
        yield ValueRefusal((*at, "name"), "is empty: name the request")
    else:
        yield from check_label(request.name, (*at, "name"), "the name of a request")
    if request.exactly is None and not request.first_available:
        text = "has neither exactly nor firstAvailable: put deviceClassName and the fields beside it under exactly"
        yield ValueRefusal(at, text)
    if request.exactly is not None and request.first_available:
        yield ValueRefusal(at, "has both exactly and firstAvailable: keep one of them")
    if request.exactly is not None:
        yield from _asked(request.exactly, (*at, "exactly"))
    alternatives = (*at, "firstAvailable")
    yield from check_count(alternatives, request.first_available, _MAX_ALTERNATIVES)
    yield from check_distinct(alternatives, "alternatives", (each.name for each in request.first_available))
    for index, each in enumerate(request.first_available):
        yield from check_label(each.name, (*alternatives, index, "name"), "the name of an alternative")
        yield from _asked(each, (*alternatives, index))


def _asked(asked: ExactDeviceRequest | DeviceSubRequest, at: Place) -> Iterator[ValueRefusal]:
    name = asked.device_class_name
    if not name:
        yield ValueRefusal((*at, "deviceClassName"), "is empty: name a DeviceClass")
    elif "/" in name:
        text = (
            f'"{short(name)}" is an extended resource, not a DeviceClass: see `kubectl get deviceclasses` for its class'
        )
        yield ValueRefusal((*at, "deviceClassName"), text)
    elif not SUBDOMAIN.fullmatch(name) or len(name) > MAX_NAME:
        text = f'"{short(name)}" is not the name of a DeviceClass: use lower-case letters, digits, - and .'
        yield ValueRefusal((*at, "deviceClassName"), text)
    mode = asked.allocation_mode
    if mode not in {"ExactCount", "All"}:
        yield ValueRefusal((*at, "allocationMode"), f'"{short(mode)}" is unknown: write ExactCount or All')
    if mode == "ExactCount" and not 0 < asked.count <= _MAX_INT64:
        yield ValueRefusal((*at, "count"), "must be greater than zero")
    if mode == "All" and asked.count != 1:  # 1 stands for a count that is left out
        yield ValueRefusal((*at, "count"), "must be left out where allocationMode is All, which takes every device")
    yield from _selectors(asked.selectors, (*at, "selectors"))
    for index, toleration in enumerate(asked.tolerations):
        yield from _toleration(toleration, (*at, "tolerations", index))


def _toleration(toleration: DeviceToleration, at: Place) -> Iterator[ValueRefusal]:
    if toleration.operator not in {"Exists", "Equal"}:
        text = f'"{short(toleration.operator)}" is unknown: write Exists or Equal'
        yield ValueRefusal((*at, "operator"), text)
    elif toleration.operator == "Exists" and toleration.value:
        yield ValueRefusal((*at, "value"), "must be empty where the operator is Exists")
    if toleration.key and not TAINT_KEY.fullmatch(toleration.key):
        text = f'"{short(toleration.key)}" is not a label key: write a name such as example.com/broken'
        yield ValueRefusal((*at, "key"), text)
    if toleration.effect and toleration.effect not in EFFECTS:
        text = f'"{short(toleration.effect)}" is unknown: write NoSchedule or NoExecute, or leave it out'
        yield ValueRefusal((*at, "effect"), text)


def _constraint(constraint: DeviceConstraint, at: Place) -> Iterator[ValueRefusal]:
    named = {"matchAttribute": constraint.match_attribute, "distinctAttribute": constraint.distinct_attribute}
    given = {field: name for field, name in named.items() if name is not None}
    if not given:
        yield ValueRefusal(at, f"must have one of {', '.join(named)}")
    for field, name in given.items():
        yield from check_qualified(name, (*at, field), "an attribute", full=True)


def _opaque(opaque: OpaqueConfiguration | None, at: Place) -> Iterator[ValueRefusal]:
    if opaque is None:
        yield ValueRefusal((*at, "opaque"), "is missing: say for which driver the configuration is, and its parameters")
        return
    yield from check_driver(opaque.driver, (*at, "opaque", "driver"))
    if not isinstance(opaque.parameters, dict):
        yield ValueRefusal((*at, "opaque", "parameters"), "must be an object")


def _selectors(selectors: Sequence[DeviceSelector], at: Place) -> Iterator[ValueRefusal]:
    yield from check_count(at, selectors, _MAX_SELECTORS)
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            yield ValueRefusal((*at, index, "cel"), "is missing: a selector is a CEL expression")
        elif len(selector.cel.expression.encode()) > _MAX_EXPRESSION:
            yield ValueRefusal((*at, index, "cel", "expression"), "is longer than 10 KiB")
