"""Opaque configurations with which a claim would be allocated but never prepared.

Simulates an allocation: for each request a selected device, with the configurations of its class and the claim.
`allocation.configurations` decides what is supported.
"""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from draco.allocation.configurations import CLAIMS_OWN, FROM_CLASS, refused
from draco.allocation.fleet.fleet import Fleet
from draco.explanation.model import Problem, ProblemKind
from draco.explanation.selection import alternatives, first_rows
from draco.resources.api.claims import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from draco.resources.names import NVIDIA_DRIVER


def configuration_problems(fleet: Fleet, claim: ResourceClaim, selected: Mapping[str, bytes]) -> Iterator[Problem]:
    """The first configuration that Draco's agent would refuse. `selected` are the rows that each request selects, by name."""
    asked = [each for request in claim.spec.devices.requests for each in alternatives(request)]
    classes = {each.device_class_name for _, each in asked}
    configs = [
        DeviceAllocationConfiguration(
            source=FROM_CLASS, requests=[name] if len(classes) > 1 else [], opaque=each.opaque
        )
        for name, request in asked
        if (device_class := fleet.classes.get(request.device_class_name)) is not None
        for each in device_class.spec.config
    ]
    configs += [
        DeviceAllocationConfiguration(source="FromClaim", requests=each.requests, opaque=each.opaque)
        for each in claim.spec.devices.config
    ]
    if not configs:
        return
    keys = [(name, fleet.inventory.key(row)) for name, _ in asked for row in first_rows(selected.get(name, b""), 1)]
    results = [
        DeviceRequestAllocationResult(request=name, driver=key.driver, pool=key.pool, device=key.device)
        for name, key in keys
    ]
    allocation = AllocationResult(devices=DeviceAllocationResult(results=results, config=configs))
    imagined = replace(claim, status=replace(claim.status, allocation=allocation))
    if (found := refused(imagined, NVIDIA_DRIVER)) is not None:
        yield Problem(
            kind=ProblemKind.CONFIGURATION_REFUSED,
            text=str(found),
            claim=str(claim.metadata.key),
            request=found.request,
            remedy=found.remedy if found.source == CLAIMS_OWN else f"{found.remedy} there, or override it in the claim",
        )
