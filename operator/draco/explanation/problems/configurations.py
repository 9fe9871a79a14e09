"""Opaque configurations with which a claim would be allocated but never prepared.

Simulates an allocation: for each request a selected device, one whose time slice can be set if there is any, with the
configurations of its class and the claim. `allocation.configurations` decides what is supported.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from draco.allocation.configurations import CLAIMS_OWN, FROM_CLASS, refused
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.rowwise import nonzero, packed, unpacked
from draco.cel.paths import AttributePath
from draco.explanation.model import Problem, ProblemKind
from draco.explanation.selection import alternatives, first_rows
from draco.resources.api.claims import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from draco.resources.names import ATTRIBUTE_TIME_SLICING, NVIDIA_DRIVER, DeviceKey, read_partition_name

_PATH: Final = AttributePath("attributes", *ATTRIBUTE_TIME_SLICING.split("/"))


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
    keys = [(name, fleet.inventory.key(row)) for name, _ in asked for row in _best(fleet, selected.get(name, b""))]
    results = [
        DeviceRequestAllocationResult(request=name, driver=key.driver, pool=key.pool, device=key.device)
        for name, key in keys
    ]
    allocation = AllocationResult(devices=DeviceAllocationResult(results=results, config=configs))
    imagined = replace(claim, status=replace(claim.status, allocation=allocation))
    if (found := refused(imagined, NVIDIA_DRIVER, lambda result: can_slice(fleet, result.key))) is not None:
        yield Problem(
            kind=ProblemKind.CONFIGURATION_REFUSED,
            text=str(found),
            claim=str(claim.metadata.key),
            request=found.request,
            remedy=found.remedy if found.source == CLAIMS_OWN else f"{found.remedy} there, or override it in the claim",
        )


def can_slice(fleet: Fleet, device: DeviceKey) -> bool | None:
    """Whether the time slice of a published device's GPU can be set; None if its driver does not say."""
    rows = fleet.inventory.rows(device)
    published = fleet.inventory.columns.devices[rows[-1]] if rows else None
    said = published.attributes.get(ATTRIBUTE_TIME_SLICING) if published is not None else None
    return None if said is None else said.bool_


def _best(fleet: Fleet, marks: bytes) -> list[int]:
    """A marked row, if there is any: one whose time slice can be set, else one that does not say, else the first."""
    first = first_rows(marks, 1)
    column = fleet.inventory.columns.get(_PATH)
    if not first or column is None or can_slice(fleet, fleet.inventory.key(first[0])) is not False:
        return first
    able = [row for row in column.examples(marks, 2) if can_slice(fleet, fleet.inventory.key(row))]
    unsaid = unpacked(packed(marks) & ~packed(nonzero(column.codes)), len(marks))
    whole = [row for row in first_rows(unsaid, 1) if read_partition_name(fleet.inventory.key(row).device) is None]
    return [*able, *whole, *first][:1]
