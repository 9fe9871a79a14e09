"""What opaque configurations mean for a claim that is not allocated yet: which devices would be refused to it at Prepare.

Owns the selectors that keep Draco's allocator from such devices, and the configurations that an allocation would have.
`configurations` decides what is refused. A device that does not say what it can do is not excluded.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from draco.allocation.configurations import FROM_CLASS, GPU_CONFIG, MIG_CONFIG, able, refused
from draco.resources.api.claims import (
    AllocationResult,
    CelSelector,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceClass,
    DeviceRequestAllocationResult,
    DeviceSelector,
    ResourceClaim,
)
from draco.resources.names import NVIDIA_DRIVER, DeviceKey

_TYPE: Final = f'device.attributes["{NVIDIA_DRIVER}"].?type.orValue("gpu")'
_IS_PARTITION: Final = f'{_TYPE} == "mig"'
_IS_WHOLE: Final = f'{_TYPE} != "mig"'
OF_KIND: Final[Mapping[str, str]] = {
    kind: f'device.driver == "{NVIDIA_DRIVER}" && {suits}'
    for kind, suits in ((GPU_CONFIG, _IS_WHOLE), (MIG_CONFIG, _IS_PARTITION))
}
"""The selectors of the devices that a kind of configuration is for."""
_NOT_OURS: Final = f'device.driver != "{NVIDIA_DRIVER}"'
WHOLE, PARTITION = DeviceKey(NVIDIA_DRIVER, "", "gpu-0"), DeviceKey(NVIDIA_DRIVER, "", "gpu-0-mig-1g10gb-19-0")
"""They stand for any whole GPU and for any MIG device: a configuration is judged by the kind of device."""


class ImpliedSelector(DeviceSelector, frozen=True, kw_only=True):
    """A selector that nobody wrote: a configuration is refused on the other devices. `unable` follows "2 devices are"."""

    unable: str


def implied_selectors(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> dict[str, list[ImpliedSelector]]:
    """The selectors that configurations imply, by the names that requests and alternatives have in results."""
    if not is_configured(claim, classes):
        return {}
    asked = [name for request in claim.spec.devices.requests for name, _ in request.alternatives]
    return {name: selectors for name in asked if (selectors := list(_implied(claim, classes, name)))}


def as_if_allocated(
    claim: ResourceClaim, classes: Mapping[str, DeviceClass], devices: Iterable[tuple[str, DeviceKey]]
) -> ResourceClaim:
    """The claim as if its requests, by their names in results, had these devices."""
    asked = [each for request in claim.spec.devices.requests for each in request.alternatives]
    are_several = len({each.device_class_name for _, each in asked}) > 1
    configs = [
        DeviceAllocationConfiguration(source=FROM_CLASS, requests=[name] * are_several, opaque=each.opaque)
        for name, request in asked
        if (device_class := classes.get(request.device_class_name)) is not None
        for each in device_class.spec.config
    ]
    configs += [
        DeviceAllocationConfiguration(source="FromClaim", requests=each.requests, opaque=each.opaque)
        for each in claim.spec.devices.config
    ]
    results = [
        DeviceRequestAllocationResult(request=name, driver=key.driver, pool=key.pool, device=key.device)
        for name, key in devices
    ]
    allocation = AllocationResult(devices=DeviceAllocationResult(results=results, config=configs))
    return replace(claim, status=replace(claim.status, allocation=allocation))


def is_configured(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> bool:
    """Whether the claim or one of its classes has a configuration."""
    return bool(claim.spec.devices.config) or any(
        (found := classes.get(each.device_class_name)) is not None and found.spec.config for each in claim.spec.asked
    )


def _implied(claim: ResourceClaim, classes: Mapping[str, DeviceClass], name: str) -> Iterator[ImpliedSelector]:
    for device, others in ((WHOLE, _IS_PARTITION), (PARTITION, _IS_WHOLE)):
        allocated = as_if_allocated(claim, classes, [(name, device)])
        if (found := refused(allocated, NVIDIA_DRIVER, lambda *_: False)) is not None:
            suits = able(found.lacks) if found.lacks else others
            unable = f"unable to have {found.source}'s configuration, because {found.why}"
            yield ImpliedSelector(cel=CelSelector(expression=f"{_NOT_OURS} || {suits}"), unable=unable)
