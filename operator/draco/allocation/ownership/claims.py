"""Which claims Draco allocates, and how the search sees them.

Owns the rule: Draco allocates a claim if every DeviceClass it asks for has the label draco.dev/allocator=operator; it never
allocates any other. Also owns what the search adds to such a claim and removes from the result: a toleration of the taint that
keeps kube-scheduler away, and selectors for devices with that taint that can have the claim's configuration.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import msgspec

from draco.allocation.configured_claims import implied_selectors
from draco.resources.api.claims import (
    AllocationResult,
    CelSelector,
    DeviceClass,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
)
from draco.resources.api.taints import DeviceToleration
from draco.resources.names import (
    ALLOCATED_BY_OPERATOR,
    ATTRIBUTE_ALLOCATOR,
    DRACO_DOMAIN,
    LABEL_ALLOCATOR,
    TAINT_OPERATOR_ALLOCATED,
)

Asked = TypeVar("Asked", ExactDeviceRequest, DeviceSubRequest)

_TOLERATION = DeviceToleration(key=TAINT_OPERATOR_ALLOCATED, operator="Exists", effect="NoSchedule")
_EVERYTHING = DeviceToleration(operator="Exists")
_NAME = ATTRIBUTE_ALLOCATOR.partition("/")[2]
ONLY_OPERATOR_ALLOCATED = f'device.attributes["{DRACO_DOMAIN}"].?{_NAME}.orValue("") == "{ALLOCATED_BY_OPERATOR}"'
"""The selector of devices that Draco allocates. Their DeviceClasses need it, so that no other claim waits for them in vain."""
_SELECTOR = DeviceSelector(cel=CelSelector(expression=ONLY_OPERATOR_ALLOCATED))


def is_operators(device_class: DeviceClass) -> bool:
    """Whether Draco allocates the claims of this class."""
    return device_class.metadata.labels.get(LABEL_ALLOCATOR) == ALLOCATED_BY_OPERATOR


def is_for_operator(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> bool:
    """Whether Draco allocates the claim. Not if it has administrative access, which takes no device."""
    asked = claim.spec.asked
    return bool(asked) and all(
        not getattr(each, "admin_access", None)
        and (found := classes.get(each.device_class_name)) is not None
        and is_operators(found)
        for each in asked
    )


def as_judged(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> ResourceClaim:
    """The claim as its allocator sees it.

    Draco's own claims tolerate the taint that keeps kube-scheduler away, and get no device that cannot have their configuration.
    """
    return _opened(claim, _TOLERATION, implied_selectors(claim, classes)) if is_for_operator(claim, classes) else claim


def tolerating_everything(claim: ResourceClaim) -> ResourceClaim:
    """The claim with a toleration of every taint."""
    return _opened(claim, _EVERYTHING)


def as_searched(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> ResourceClaim:
    """The claim as the search sees it: only devices that Draco allocates and that can have its configuration match."""
    return _opened(claim, _TOLERATION, implied_selectors(claim, classes), _SELECTOR)


def _opened(
    claim: ResourceClaim,
    toleration: DeviceToleration,
    implied: Mapping[str, Sequence[DeviceSelector]] = MappingProxyType({}),
    *selectors: DeviceSelector,
) -> ResourceClaim:
    def opened(name: str, asked: Asked) -> Asked:
        return msgspec.structs.replace(
            asked,
            selectors=[*asked.selectors, *selectors, *implied.get(name, ())],
            tolerations=[*asked.tolerations, toleration],
        )

    requests = [
        msgspec.structs.replace(
            request,
            exactly=opened(request.name, request.exactly) if request.exactly is not None else None,
            first_available=[opened(f"{request.name}/{each.name}", each) for each in request.first_available],
        )
        for request in claim.spec.devices.requests
    ]
    devices = msgspec.structs.replace(claim.spec.devices, requests=requests)
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))


def as_allocated(result: AllocationResult) -> AllocationResult:
    """The result as written, with the claim's own tolerations only."""
    results = [
        msgspec.structs.replace(each, tolerations=[one for one in each.tolerations if one != _TOLERATION])
        for each in result.devices.results
    ]
    return msgspec.structs.replace(result, devices=msgspec.structs.replace(result.devices, results=results))


def nodes_of(claim: ResourceClaim) -> list[str]:
    """The nodes that an allocation names; empty if its devices can be reached from others too."""
    selector = claim.status.allocation.node_selector if claim.status.allocation else None
    if selector is None or len(selector.node_selector_terms) != 1:
        return []
    fields = selector.node_selector_terms[0].match_fields
    return sorted(
        name for each in fields if each.key == "metadata.name" and each.operator == "In" for name in each.values
    )


def classes_of(claim: ResourceClaim) -> list[str]:
    """The DeviceClasses it asks for, in the order of its requests."""
    return list(dict.fromkeys(each.device_class_name for each in claim.spec.asked))
