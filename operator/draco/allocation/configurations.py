"""Opaque configurations of NVIDIA's kinds: which one applies to a device, and why Draco refuses it.

Owns the precedence (a DeviceClass's before the claim's own, later ones override earlier ones) and the strict decoding of NVIDIA's
driver (an unknown field is an error). Judges only the configuration that applies to a device, not those it overrides. Pure.
Source of the kinds: api/nvidia.com/resource/v1beta1 of kubernetes-sigs/dra-driver-nvidia-gpu, 25.8 and later.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from draco.resources.api.claims import DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim
from draco.resources.names import read_partition_name
from draco.resources.texts import nearest, shown

VERSION: Final = "resource.nvidia.com/v1beta1"
GPU_CONFIG: Final = "GpuConfig"
MIG_CONFIG: Final = "MigDeviceConfig"
FROM_CLASS: Final = "FromClass"
CLAIMS_OWN: Final = "the claim"
DEFAULT_INTERVAL: Final = "Default"
INTERVALS: Final = (DEFAULT_INTERVAL, "Short", "Medium", "Long")
_QUOTED: Final = 60

_Fields: TypeAlias = "Mapping[str, _Fields | None]"
_MPS: Final[_Fields] = dict.fromkeys(
    (
        "defaultActiveThreadPercentage",
        "defaultPinnedDeviceMemoryLimit",
        "defaultPerDevicePinnedMemoryLimit",
        "multiUser",
    )
)
_SLICING: Final[_Fields] = {"interval": None}
_FIELDS: Final[Mapping[str, _Fields]] = {
    GPU_CONFIG: {
        "apiVersion": None,
        "kind": None,
        "sharing": {"strategy": None, "timeSlicingConfig": _SLICING, "mpsConfig": _MPS},
    },
    MIG_CONFIG: {"apiVersion": None, "kind": None, "sharing": {"strategy": None, "mpsConfig": _MPS}},
}
_OF_OTHERS: Final[Mapping[str, str]] = {
    "VfioDeviceConfig": "Draco gives no GPU to a virtual machine",
    "ComputeDomainChannelConfig": "Draco makes no ComputeDomains",
    "ComputeDomainDaemonConfig": "Draco makes no ComputeDomains",
}
"""NVIDIA's kinds that do not apply to Draco's GPUs, with the reason."""


class RefusedConfiguration(NamedTuple):
    """A configuration that Draco refuses; `source` is "the claim" or "DeviceClass NAME"."""

    request: str
    source: str
    why: str

    def __str__(self) -> str:
        return f"{self.source}'s configuration for request {self.request} cannot be carried out, because {self.why}"


def refused(claim: ResourceClaim, driver: str) -> RefusedConfiguration | None:
    """The first configuration of an allocated claim that keeps the driver from preparing a device; None if there is none."""
    configs = claim.status.allocation.devices.config if claim.status.allocation is not None else []
    said = [
        _OpaqueConfiguration.of(each) for each in configs if each.opaque is not None and each.opaque.driver == driver
    ]
    said.sort(key=lambda each: not each.is_of_class)
    results = [each for each in claim.results if each.driver == driver]
    for result in results:
        about = [each for each in said if each.is_about(result)]
        is_partition = read_partition_name(result.device) is not None
        if about and (why := refusal(about[-1].parameters, is_partition=is_partition)):
            return RefusedConfiguration(result.request, _source(claim, about[-1], result), why)
    for each in said if results else ():  # a configuration that applies to no device is still checked
        if not each.requests and not any(map(each.is_about, results)) and (why := refusal(each.parameters)):
            return RefusedConfiguration(results[0].request, _source(claim, each, results[0]), why)
    return None


class _OpaqueConfiguration(NamedTuple):
    is_of_class: bool
    requests: Sequence[str]
    parameters: Any

    @classmethod
    def of(cls, config: DeviceAllocationConfiguration) -> "_OpaqueConfiguration":
        parameters = config.opaque.parameters if config.opaque is not None else None
        return cls(config.source == FROM_CLASS, config.requests, parameters)

    def is_about(self, result: DeviceRequestAllocationResult) -> bool:
        """Whether it names the device's request, or names no request and its kind suits the device."""
        if self.requests:
            return not {result.request, result.request.partition("/")[0]}.isdisjoint(self.requests)
        return is_for(self.parameters, is_partition=read_partition_name(result.device) is not None)


def _source(claim: ResourceClaim, said: _OpaqueConfiguration, result: DeviceRequestAllocationResult) -> str:
    if not said.is_of_class:
        return CLAIMS_OWN
    found = claim.class_of(result.request)
    return f"DeviceClass {found}" if found else "its DeviceClass"


def is_for(parameters: Any, *, is_partition: bool) -> bool:
    """Whether a configuration is for MIG devices (or else for whole GPUs); one of an unknown kind is for both."""
    kind = str(parameters.get("kind")) if isinstance(parameters, dict) else ""
    return kind not in _OF_OTHERS and (kind not in _FIELDS or is_partition is (kind == MIG_CONFIG))


def refusal(parameters: Any, *, is_partition: bool | None = None) -> str:
    """Why Draco refuses a configuration, to follow "because"; "" if it accepts it. `is_partition` is None if unknown."""
    return next(_troubles(parameters, is_partition), "")


def _troubles(parameters: Any, is_partition: bool | None) -> Iterator[str]:
    if not isinstance(parameters, dict):
        yield f"its parameters are {'a list' if isinstance(parameters, list) else 'no object'}; they must have a kind"
        return
    kind, version = parameters.get("kind"), parameters.get("apiVersion")
    if not isinstance(kind, str):
        yield f"it names no kind: there are {GPU_CONFIG}, for whole GPUs, and {MIG_CONFIG}, for MIG devices"
    elif kind in _OF_OTHERS:
        yield _OF_OTHERS[kind]
    elif kind not in _FIELDS:
        yield f"there is no kind {_said(kind)}{nearest(kind, _FIELDS).rstrip('.')}"
    else:
        if version != VERSION:
            yield f"its apiVersion is {_said(version)}: write {VERSION}"
        if is_partition is (kind == GPU_CONFIG):
            device, other = ("a MIG device", MIG_CONFIG) if is_partition else ("a whole GPU", GPU_CONFIG)
            yield f"{kind} is not for {device}: write {other}"
        yield from _unknown(parameters, _FIELDS[kind])
        if parameters.get("sharing") is not None:
            yield from _sharing(kind, parameters["sharing"])


def _unknown(value: Mapping[str, Any], fields: _Fields, path: str = "") -> Iterator[str]:
    """Unknown fields, and fields that must be objects but are not."""
    for name, inner in value.items():
        below = fields.get(name)
        if name not in fields:
            yield f"there is no field {path}{_said(name)}{nearest(str(name), fields).rstrip('.')}"
        elif below is not None and isinstance(inner, dict):
            yield from _unknown(inner, below, f"{path}{name}.")
        elif below is not None and inner is not None:
            yield f"{path}{name} must be an object"


def _sharing(kind: str, sharing: Mapping[str, Any]) -> Iterator[str]:
    """Why Draco does not share a device this way; nothing for the default, which needs no configuration."""
    strategy = sharing.get("strategy")
    interval = (sharing.get("timeSlicingConfig") or {}).get("interval", DEFAULT_INTERVAL)
    if strategy == "MPS":
        yield f"{kind} asks for MPS, which Draco does not run"
    elif strategy != "TimeSlicing":
        yield f"sharing.strategy is {_said(strategy)}: there are TimeSlicing and MPS"
    elif sharing.get("mpsConfig") is not None:
        yield "sharing.strategy is TimeSlicing, so sharing.mpsConfig has no effect"
    elif interval not in INTERVALS:
        yield f"there is no interval {_said(interval)}: there are {', '.join(INTERVALS)}"
    elif interval != DEFAULT_INTERVAL:
        yield f"{kind} asks for time slices of {interval}, and Draco leaves them at {DEFAULT_INTERVAL}"


def _said(value: Any) -> str:
    return "missing" if value is None else shown(str(value))[:_QUOTED]
