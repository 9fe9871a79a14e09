"""Rules about opaque configurations of Draco's devices. `allocation.configurations` decides whether one is supported."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from draco.allocation.configurations import VERSION, is_for, refusal, without_effect
from draco.linting.model import Finding, Json, Manifest, SetField, TreePath, finding
from draco.linting.objects import WrittenClaim, claims, listed, mapping, of_kind, requests, text, wanted
from draco.resources.names import NVIDIA_DRIVER
from draco.resources.texts import slip_of

_RULE: Final = "opaque-configuration"
_IS_PARTITION: Final[Mapping[str, bool]] = MappingProxyType({"gpu.nvidia.com": False, "mig.nvidia.com": True})
"""Whether a class's devices are MIG devices, for classes whose name says so."""


def check_configurations(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Configurations that a node would refuse after the pod was scheduled, or that apply to no device of their claim."""
    for claim in claims(manifests):
        yield from _misnamed(claim.manifest, claim.path, claim.devices)
        yield from _overridden(claim.manifest, list(_configs(claim.path, claim.devices)))
        for place, config in _configs(claim.path, claim.devices):
            named = {name.partition("/")[0] for name in listed(config.get("requests")) if isinstance(name, str)}
            yield from _of_claim(claim, place, config, named)
    for index, manifest in of_kind(manifests, "DeviceClass"):
        yield from _misnamed(index, ("spec",), mapping(manifest.tree.get("spec")))
        yield from _overridden(index, list(_configs(("spec",), mapping(manifest.tree.get("spec")))))
        for place, config in _configs(("spec",), mapping(manifest.tree.get("spec"))):
            yield from _refused(index, place, [refusal(config["opaque"].get("parameters"))])


def _misnamed(manifest: int, path: TreePath, holder: Json) -> Iterator[Finding]:
    """Configurations of NVIDIA's for a driver that is nearly named so: nobody reads them."""
    for number, config in enumerate(map(mapping, listed(holder.get("config")))):
        opaque = mapping(config.get("opaque"))
        driver, version = text(opaque.get("driver")), mapping(opaque.get("parameters")).get("apiVersion")
        meant = driver in _IS_PARTITION or slip_of(driver, [NVIDIA_DRIVER])
        if driver != NVIDIA_DRIVER and version == VERSION and meant:
            place = (*path, "config", number, "opaque", "driver")
            message = f"no driver is called {driver}, so this configuration has no effect: write {NVIDIA_DRIVER}"
            yield finding(_RULE, message, manifest, place, SetField(place, NVIDIA_DRIVER), severity="warning")


def _configs(path: TreePath, holder: Json) -> Iterator[tuple[TreePath, Json]]:
    """The configurations for Draco's driver, each with the path of its parameters."""
    for number, config in enumerate(map(mapping, listed(holder.get("config")))):
        if mapping(config.get("opaque")).get("driver") == NVIDIA_DRIVER:
            yield (*path, "config", number, "opaque", "parameters"), config


def _overridden(manifest: int, configs: Sequence[tuple[TreePath, Json]]) -> Iterator[Finding]:
    """Configurations that a later one overrides on all their devices."""
    for (place, config), later in zip(configs, range(1, len(configs) + 1), strict=True):
        by = next((each for each, other in configs[later:] if _overrides(other, config)), None)
        if by is not None:
            number = next(part for part in reversed(by) if isinstance(part, int))
            message = f"config[{number}] overrides this one for the same devices, so it has no effect: leave one of the two out"
            yield finding(_RULE, message, manifest, place, severity="warning")


def _overrides(later: Json, config: Json) -> bool:
    named, ours = (set(map(text, listed(each.get("requests")))) for each in (later, config))
    if named:
        return bool(ours) and all(each in named or each.partition("/")[0] in named for each in ours)
    kinds = {text(mapping(each["opaque"].get("parameters")).get("kind")) for each in (later, config)}
    return len(kinds) == 1


def _of_claim(claim: WrittenClaim, place: TreePath, config: Json, named: Collection[str]) -> Iterator[Finding]:
    parameters = config["opaque"].get("parameters")
    asked = list(_asked(claim, named))
    types = {each for each, _ in asked}
    if named:
        reasons = (refusal(parameters, is_partition=each, count=count) for each, count in asked)
        yield from _refused(claim.manifest, place, reasons)
    elif why := refusal(parameters, count=max((count for each, count in asked if each), default=1)):
        yield from _refused(claim.manifest, place, [why])
    elif types and not any(each is None or is_for(parameters, is_partition=each) for each in types):
        message = "; ".join(without_effect(parameters))
        yield finding(_RULE, message, claim.manifest, place, severity="warning")


def _asked(claim: WrittenClaim, named: Collection[str]) -> Iterator[tuple[bool | None, int]]:
    """For each of these requests (or all): whether it asks for MIG devices, None if unknown, and for how many."""
    for request in requests(claim):
        if not named or text(request.fields.get("name")) in named:
            for each in wanted(request):
                count = each.fields.get("count")
                of_type = _IS_PARTITION.get(text(each.fields.get("deviceClassName")))
                yield of_type, count if isinstance(count, int) else 1


def _refused(manifest: int, place: TreePath, reasons: Iterable[str]) -> Iterator[Finding]:
    for why in filter(None, reasons):
        yield finding(_RULE, f"this configuration cannot be carried out: {why}", manifest, place)
        return
