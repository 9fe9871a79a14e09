"""Converts older versions of resource.k8s.io to v1, and writes allocations as Kubernetes does.

Works on plain mappings before decoding, which it never changes, and only as far as needed, so that the decoder reports what is
wrong. Unlike structs, which omit defaults, it writes every field that the API server fills in. Source: k8s.io/api/resource.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from draco.resources.api.claims import AllocationResult

Json = Mapping[str, Any]

GROUP: Final = "resource.k8s.io"
VERSIONS: Final[Mapping[str, frozenset[str]]] = {
    "ResourceClaim": frozenset({"v1", "v1beta2", "v1beta1"}),
    "ResourceClaimTemplate": frozenset({"v1", "v1beta2", "v1beta1"}),
    "DeviceClass": frozenset({"v1", "v1beta2", "v1beta1"}),
    "ResourceSlice": frozenset({"v1", "v1beta2", "v1beta1"}),
    "DeviceTaintRule": frozenset({"v1", "v1beta2", "v1alpha3"}),
}
"""The readable versions of each kind. In older ones claims, classes and slices meant something else."""

OF_A_REQUEST: Final = (
    "deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity", "derivedAttributes",
)  # fmt: skip
"""Fields beside a request's name in v1beta1, and under `exactly` since."""


class NotConvertibleError(ValueError):
    """A field has no equivalent in v1; the text names it and an alternative."""


def to_v1(kind: str, version: str, manifest: Json) -> Json:
    """Convert a manifest of a kind of resource.k8s.io to v1. Raises NotConvertibleError."""
    convert = _CONVERSIONS.get((kind, version))
    return manifest if convert is None else convert(manifest)


def _claim(manifest: Json) -> Json:
    return _changed(manifest, "spec", _claim_spec)


def _claim_spec(spec: Json) -> Json:
    return _changed(spec, "devices", lambda devices: _each(devices, "requests", _request))


def _request(request: Json) -> Json:
    """v1beta1 has these fields beside the request's name; they go under `exactly`, even next to a list."""
    fields = {name: request[name] for name in OF_A_REQUEST if request.get(name) is not None}
    if not fields:
        return request
    rest = {name: value for name, value in request.items() if name not in OF_A_REQUEST}
    if "exactly" in rest:  # already v1: people change the fields and forget the version
        return request
    return {**rest, "exactly": fields}


def _slice_spec(spec: Json) -> Json:
    """Drop an empty nodeName and a false allNodes, which mean unset."""
    kept = {
        name: value
        for name, value in spec.items()
        if not (name == "nodeName" and value == "") and not (name == "allNodes" and value is False)
    }
    return _each(kept, "devices", _device)


def _device(device: Json) -> Json:
    """v1beta1 has everything but the name under `basic`."""
    basic = device.get("basic")
    if not isinstance(basic, Mapping):
        return device
    return {**{name: value for name, value in device.items() if name != "basic"}, **basic}


def _rule(manifest: Json) -> Json:
    """Refuse selection by class or expression, which v1alpha3 once had: without it a rule would match far more devices."""
    spec = manifest.get("spec")
    selector = spec.get("deviceSelector") if isinstance(spec, Mapping) else None
    for name in ("deviceClassName", "selectors"):
        if isinstance(selector, Mapping) and selector.get(name):
            raise NotConvertibleError(
                f"spec.deviceSelector.{name} was removed in Kubernetes 1.35 and would be ignored, so that the taint would hit "
                "more devices than meant; name driver, pool and device instead"
            )
    return manifest


def _changed(manifest: Json, name: str, change: Callable[[Json], Json]) -> Json:
    value = manifest.get(name)
    return {**manifest, name: change(value)} if isinstance(value, Mapping) else manifest


def _each(manifest: Json, name: str, change: Callable[[Json], Json]) -> Json:
    values = manifest.get(name)
    if not isinstance(values, list):
        return manifest
    return {**manifest, name: [change(value) if isinstance(value, Mapping) else value for value in values]}


_CONVERSIONS: Final[Mapping[tuple[str, str], Callable[[Json], Json]]] = {
    ("ResourceClaim", "v1beta1"): _claim,
    ("ResourceClaimTemplate", "v1beta1"): lambda manifest: _changed(manifest, "spec", _claim),
    ("ResourceSlice", "v1beta1"): lambda manifest: _changed(manifest, "spec", _slice_spec),
    ("DeviceTaintRule", "v1alpha3"): _rule,
    ("DeviceTaintRule", "v1beta2"): _rule,
    ("DeviceTaintRule", "v1"): _rule,
}


def written(result: AllocationResult) -> dict[str, Any]:
    """Write an allocation as kube-scheduler writes it into the claim's status."""
    plain: dict[str, Any] = msgspec.to_builtins(result)
    devices = plain.setdefault("devices", {})
    for device in devices.get("results", ()):
        for toleration in device.get("tolerations", ()):
            toleration.setdefault("operator", "Equal")
    for config in devices.get("config", ()):
        config.setdefault("source", "")
        if "opaque" in config:
            config["opaque"].setdefault("parameters", None)
    return plain
