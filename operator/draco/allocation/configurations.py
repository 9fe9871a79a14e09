"""Opaque configurations of NVIDIA's kinds: which one applies to a device, what it asks for, and why Draco refuses it.

Owns the precedence (a DeviceClass's before the claim's own, later ones override earlier ones) and the strict decoding of NVIDIA's
driver (an unknown field is an error). Judges only the configuration that applies to a device, not those it overrides. Pure: the
caller says how a device's GPU can be shared. `mps` has the fields of mpsConfig.
Source of the kinds: api/nvidia.com/resource/v1beta1 of kubernetes-sigs/dra-driver-nvidia-gpu, 25.8 and later.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from draco.allocation import mps
from draco.allocation.mps import MpsSettings
from draco.resources.api.claims import DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim
from draco.resources.names import ATTRIBUTE_MPS, ATTRIBUTE_TIME_SLICING, DRACO_DOMAIN, read_partition_name
from draco.resources.texts import ALIKE, most_like, nearest, shown, slip_of

VERSION: Final = "resource.nvidia.com/v1beta1"
GPU_CONFIG: Final = "GpuConfig"
MIG_CONFIG: Final = "MigDeviceConfig"
FROM_CLASS: Final = "FromClass"
CLAIMS_OWN: Final = "the claim"
REMOVE: Final = "remove it"
SLICING: Final = "TimeSlicing"
MPS: Final = "MPS"
_STRATEGIES: Final = (SLICING, MPS)
_QUOTED: Final = 60
NEEDS_OF_MPS: Final = (
    "that takes a board since Volta, a driver with nvidia-cuda-mps-control, and mps.enabled of the chart"
)

_ONE_CLIENT: Final = (
    "it asks for MPS on {count} MIG devices of one request, each has an MPS daemon of its own, and a container can be the client "
    "of only one: write a request for each device, and name one of them in each container"
)


class TimeSlice(IntEnum):
    """How long a program runs on a GPU before the next one's turn. The numbers are those of `nvidia-smi compute-policy`."""

    DEFAULT = 0
    SHORT = 1
    MEDIUM = 2
    LONG = 3

    def __str__(self) -> str:
        return self.name.capitalize()


INTERVALS: Final = tuple(map(str, TimeSlice))

_Fields: TypeAlias = "Mapping[str, _Fields | None]"
_MPS: Final[_Fields] = dict.fromkeys(mps.FIELDS)
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
    remedy: str = REMOVE
    """What to do with it, "correct it", or "remove it" if Draco cannot do what it asks for."""
    lacks: str = ""
    """The attribute that is false on the device, and true on those that can have it; "" if it is refused on all."""

    def __str__(self) -> str:
        return f"{self.source}'s configuration for request {self.request} cannot be carried out, because {self.why}"

    @property
    def remedy_before_allocation(self) -> str:
        """What to do about a claim that waits."""
        return f"{self._enabled}{self._corrected('the claim')}"

    @property
    def remedy_once_allocated(self) -> str:
        """What to do about an allocated claim, which cannot be changed any more."""
        chosen = f", or with the selector {able(self.lacks)}" if self.lacks else ""
        return f"{self._enabled}{self._corrected('a new claim')}{chosen}"

    @property
    def _enabled(self) -> str:
        return "set mps.enabled in the chart's values if it is off, or " if self.lacks == ATTRIBUTE_MPS else ""

    def _corrected(self, where: str) -> str:
        if self.source != CLAIMS_OWN:
            return f"{self.remedy} there, or override it in {where}"
        if where == "the claim":
            return self.remedy
        return f"make {where} without it" if self.remedy == REMOVE else f"{self.remedy} in {where}"


def able(attribute: str) -> str:
    """The selector of devices that can be shared in the way of which an attribute tells, as far as known."""
    return f'device.attributes["{DRACO_DOMAIN}"].?{attribute.partition("/")[2]}.orValue(true)'


Can: TypeAlias = "Callable[[DeviceRequestAllocationResult, str], bool | None]"
"""Whether a device's GPU can be shared in the way of which this attribute tells; None if unknown."""


def refused(claim: ResourceClaim, driver: str, can: Can = lambda *_: None) -> RefusedConfiguration | None:
    """The first configuration of an allocated claim that keeps the driver from preparing a device; None if there is none.

    A device without a pool stands for any of its kind, and is not named.
    """
    said = _said_to(claim, driver)
    results = [each for each in claim.results if each.driver == driver]
    for result in results:
        if (applies := _applying(said, result)) is None:
            continue
        is_partition = read_partition_name(result.device) is not None
        count = _count(claim, result)
        if why := refusal(applies.parameters, is_partition=is_partition, count=count):
            remedy = _remedy(applies.parameters, is_partition, count)
            return RefusedConfiguration(result.request, _source(claim, applies, result), why, remedy)
        why, lacks = _refused_there(applies, result, can)
        if why:
            return RefusedConfiguration(result.request, _source(claim, applies, result), why, REMOVE, lacks)
    for each in said if results else ():  # a configuration that applies to no device is still checked
        if not each.requests and not any(map(each.is_about, results)) and (why := refusal(each.parameters)):
            remedy = _remedy(each.parameters, None)
            return RefusedConfiguration(results[0].request, _source(claim, each, results[0]), why, remedy)
    return None


def time_slice(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> TimeSlice:
    """The time slice that an accepted configuration asks for on a device; DEFAULT without one, and for MIG devices."""
    applies = _applying(_said_to(claim, result.driver), result)
    return TimeSlice.DEFAULT if applies is None else _slice(applies.parameters)


def mps_settings(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> tuple[int, MpsSettings] | None:
    """What an accepted configuration asks of MPS for a device, and the number of that configuration; None without MPS.

    Whole GPUs of one configuration share a daemon; a MIG device has its own.
    """
    said = _said_to(claim, result.driver)
    applies = _applying(said, result)
    if applies is None or (found := _mps(applies.parameters)) is None:
        return None
    return said.index(applies), found


def _refused_there(applies: "_OpaqueConfiguration", result: DeviceRequestAllocationResult, can: Can) -> tuple[str, str]:
    """Why the device cannot have a configuration without faults, "" if it can, and the attribute that says so."""
    wanted, device = _slice(applies.parameters), f"{result.pool}/{result.device}" if result.pool else ""
    if _mps(applies.parameters) is not None:
        asked, needed = "it asks for MPS", ATTRIBUTE_MPS
        unable = f"{device or 'the device'} cannot have it: {NEEDS_OF_MPS}"
    elif wanted is not TimeSlice.DEFAULT:
        asked, needed = f"it asks for time slices of {wanted}", ATTRIBUTE_TIME_SLICING
        unable = f"the board or the driver{device and f' of {device}'} cannot set them"
    else:
        return "", ""
    if result.admin_access:
        return f"{asked}, and a request with adminAccess changes nothing on a GPU that others use", ""
    return (f"{asked}, and {unable}", needed) if can(result, needed) is False else ("", "")


def _count(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> int:
    """How many devices a result's request has, or asks for."""
    requests = claim.spec.devices.requests
    asked = (each.count for one in requests for name, each in one.alternatives if name == result.request)
    return max([*asked, sum((each.request, each.driver) == (result.request, result.driver) for each in claim.results)])


def _slice(parameters: Any) -> TimeSlice:
    """The time slice of a configuration without faults."""
    return TimeSlice(INTERVALS.index(_interval(parameters.get("sharing") or {})))


def _mps(parameters: Any) -> MpsSettings | None:
    """What a configuration without faults asks of MPS."""
    sharing = parameters.get("sharing") or {}
    return mps.settings(sharing.get("mpsConfig") or {}) if sharing.get("strategy") == MPS else None


def _said_to(claim: ResourceClaim, driver: str) -> "list[_OpaqueConfiguration]":
    """The configurations of an allocated claim for a driver, least important first."""
    configs = claim.status.allocation.devices.config if claim.status.allocation is not None else []
    said = [
        _OpaqueConfiguration.of(each) for each in configs if each.opaque is not None and each.opaque.driver == driver
    ]
    return sorted(said, key=lambda each: not each.is_of_class)


def _applying(
    said: "Sequence[_OpaqueConfiguration]", result: DeviceRequestAllocationResult
) -> "_OpaqueConfiguration | None":
    return next((each for each in reversed(said) if each.is_about(result)), None)


def _remedy(parameters: Any, is_partition: bool | None, count: int = 1) -> str:
    return "correct it" if any(_mistakes(parameters, is_partition, count)) else REMOVE


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


def without_effect(parameters: Mapping[str, Any]) -> tuple[str, str]:
    """What is said of a configuration that is for none of the devices that its claim asks for, and what to write instead."""
    kinds = {GPU_CONFIG: "whole GPUs", MIG_CONFIG: "MIG devices"}
    kind = parameters["kind"]
    [other] = kinds.keys() - {kind}
    said = f"{kind} is for {kinds[kind]}, and the claim asks only for {kinds[other]}: it has no effect"
    return said, f"write {other}, or remove it"


def refusal(parameters: Any, *, is_partition: bool | None = None, count: int = 1) -> str:
    """Why Draco refuses a configuration, to follow "because"; "" if it accepts it. `is_partition` is None if unknown.

    `count`: how many devices one request has, which only matters for MIG devices.
    """
    return next(_troubles(parameters, is_partition, count), "")


def _troubles(parameters: Any, is_partition: bool | None, count: int) -> Iterator[str]:
    yield from _mistakes(parameters, is_partition, count)
    yield from _unsupported(parameters)


def _mistakes(parameters: Any, is_partition: bool | None, count: int = 1) -> Iterator[str]:
    """What NVIDIA's driver would refuse, too."""
    if not isinstance(parameters, dict):
        yield f"its parameters are {'a list' if isinstance(parameters, list) else 'no object'}; they must have a kind"
        return
    kind, version = parameters.get("kind"), parameters.get("apiVersion")
    if not isinstance(kind, str):
        yield f"it names no kind: there are {GPU_CONFIG}, for whole GPUs, and {MIG_CONFIG}, for MIG devices"
    elif kind in _OF_OTHERS:
        return
    elif kind not in _FIELDS and isinstance(version, str) and version.partition("/")[0] != VERSION.partition("/")[0]:
        yield f"NVIDIA has no kind {_said(kind)} of {_said(version)}: there are {' and '.join(_FIELDS)} of {VERSION}"
    elif kind not in _FIELDS:
        yield f"there is no kind {_said(kind)}{nearest(kind, _FIELDS).rstrip('.')}"
    else:
        if version != VERSION:
            yield f"its apiVersion is {_said(version)}: write {VERSION}"
        if is_partition is (kind == GPU_CONFIG):
            device, other = ("a MIG device", MIG_CONFIG) if is_partition else ("a whole GPU", GPU_CONFIG)
            yield f"{kind} is not for {device}: write {other}"
        yield from _unknown(kind, parameters, _FIELDS[kind])
        if (sharing := parameters.get("sharing")) is not None:
            yield from _badly_shared(sharing, kind)
            if kind == MIG_CONFIG and sharing.get("strategy") == MPS and count > 1:
                yield _ONE_CLIENT.format(count=count)


def _unknown(kind: str, value: Mapping[str, Any], fields: _Fields, path: str = "") -> Iterator[str]:
    """Unknown fields, and fields that must be objects but are not."""
    for name, inner in value.items():
        below = fields.get(name)
        if name not in fields:
            near = slip_of(str(name), fields) or most_like(str(name), fields, at_least=ALIKE)
            meant = f"did you mean {near}?" if near else f"it has {', '.join(sorted(fields))}"
            yield f"{kind} has no field {path}{_said(name)}; {meant}"
        elif below is not None and isinstance(inner, dict):
            yield from _unknown(kind, inner, below, f"{path}{name}.")
        elif below is not None and inner is not None:
            yield f"{path}{name} must be an object"


def _badly_shared(sharing: Mapping[str, Any], kind: str) -> Iterator[str]:
    strategy, interval = sharing.get("strategy"), _interval(sharing)
    if strategy not in _STRATEGIES:
        yield f"sharing.strategy is {_said(strategy)}: there are {' and '.join(_STRATEGIES)}"
    elif strategy == SLICING and sharing.get("mpsConfig") is not None:
        yield f"sharing.strategy is {SLICING}, so sharing.mpsConfig has no effect"
    elif strategy == SLICING and interval not in INTERVALS:
        yield f"there is no interval {_said(interval)}: there are {', '.join(INTERVALS)}"
    elif strategy == MPS and sharing.get("timeSlicingConfig") is not None:
        yield f"sharing.strategy is {MPS}, so sharing.timeSlicingConfig has no effect"
    elif strategy == MPS:
        found = mps.mistakes(sharing.get("mpsConfig") or {}, by_number=kind == MIG_CONFIG)
        yield from (f"sharing.mpsConfig.{each}" for each in found)


def _unsupported(parameters: Mapping[str, Any]) -> Iterator[str]:
    """What Draco does not do."""
    if (kind := parameters["kind"]) in _OF_OTHERS:
        yield _OF_OTHERS[kind]


def _interval(sharing: Mapping[str, Any]) -> Any:
    return (sharing.get("timeSlicingConfig") or {}).get("interval", str(TimeSlice.DEFAULT))


def _said(value: Any) -> str:
    return "missing" if value is None else shown(str(value))[:_QUOTED]
