"""Opaque configurations with which a claim is never prepared: devices that cannot have them, and what keeps a claim to others.

Simulates an allocation: for each request a selected device, one that can be shared as asked if there is any, with the
configurations of its class and the claim. `allocation.configurations` decides what is supported. kube-scheduler does not know
what a device can do, so its claims need a selector; Draco's allocator gives no claim a device that would be refused.
"""

from collections.abc import Iterator, Mapping, Sequence

from draco.allocation.configurations import CLAIMS_OWN, RefusedConfiguration, able, refusal, refused, without_effect
from draco.allocation.configured_claims import OF_KIND, PARTITION, WHOLE, as_if_allocated, is_configured
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.rowwise import nonzero, packed, unpacked
from draco.allocation.ownership.claims import is_for_operator
from draco.cel.paths import AttributePath
from draco.explanation.model import Problem, ProblemKind
from draco.explanation.selection import count, first_rows, met
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.slices import Device
from draco.resources.names import NVIDIA_DRIVER, DeviceKey, PartitionName, read_partition_name


def configuration_problems(fleet: Fleet, claim: ResourceClaim, selected: Mapping[str, bytes]) -> Iterator[Problem]:
    """The first configuration that Draco's agent would refuse. `selected` are the rows that each request selects, by name."""
    if not is_configured(claim, fleet.classes):
        return
    yield from _without_effect(fleet, claim, selected)
    if is_for_operator(claim, fleet.classes):
        for request in claim.spec.devices.requests:
            found = [_refused(fleet, claim, [name], selected) for name, _ in request.alternatives]
            if found and None not in found:
                yield from (_refusal(claim, each, fatal=True) for each in found[:1] if each is not None)
                return
    elif (refusal := _refused(fleet, claim, list(selected), selected)) is not None:
        yield _refusal(claim, refusal)
    else:
        for name, marks in selected.items():
            yield from _chances(fleet, claim, name, marks)


def _refused(
    fleet: Fleet, claim: ResourceClaim, names: Sequence[str], selected: Mapping[str, bytes]
) -> RefusedConfiguration | None:
    """The configuration that is refused on the best devices that these requests select."""
    rows = ((name, row) for name in names for row in first_rows(selected.get(name, b""), 1))
    imagined = as_if_allocated(claim, fleet.classes, ((name, fleet.inventory.key(row)) for name, row in rows))
    return refused(
        imagined,
        NVIDIA_DRIVER,
        lambda result, attribute: _can_any(
            fleet, selected[result.request], attribute, read_partition_name(result.device)
        ),
    )


def _refusal(claim: ResourceClaim, found: RefusedConfiguration, *, fatal: bool = False) -> Problem:
    is_own = found.source == CLAIMS_OWN
    return Problem(
        kind=ProblemKind.CONFIGURATION_REFUSED,
        text=str(found),
        claim=str(claim.metadata.key),
        request=found.request,
        remedy=found.remedy_before_allocation,
        fatal=fatal,
        is_of_class=not is_own,
    )


def _without_effect(fleet: Fleet, claim: ResourceClaim, selected: Mapping[str, bytes]) -> Iterator[Problem]:
    """The claim's own configurations that are for no device that its requests select."""
    for opaque in (each.opaque for each in claim.spec.devices.config if not each.requests):
        if opaque is None or opaque.driver != NVIDIA_DRIVER or refusal(opaque.parameters):
            continue
        suits = {
            kind: any(count(met(fleet, each, marks)) for marks in selected.values()) for kind, each in OF_KIND.items()
        }
        if not suits[opaque.parameters["kind"]] and any(suits.values()):
            text, remedy = without_effect(opaque.parameters)
            yield Problem(
                kind=ProblemKind.CONFIGURATION_WITHOUT_EFFECT, text=text, claim=str(claim.metadata.key), remedy=remedy
            )


def _chances(fleet: Fleet, claim: ResourceClaim, name: str, marks: bytes) -> Iterator[Problem]:
    """The devices among those of a request that cannot have its configuration, where others can."""
    of_kinds = (as_if_allocated(claim, fleet.classes, [(name, each)]) for each in (WHOLE, PARTITION))
    judged = (refused(each, NVIDIA_DRIVER, lambda *_: False) for each in of_kinds)
    if (needed := next((each for each in judged if each is not None and each.lacks), None)) is None:
        return
    unable = met(fleet, f"!{able(needed.lacks)}", marks)
    devices = [(name, fleet.inventory.key(row)) for row in first_rows(unable, 1)]
    imagined = as_if_allocated(claim, fleet.classes, devices)
    if (found := refused(imagined, NVIDIA_DRIVER, lambda result, name: can(fleet, result.key, name))) is not None:
        yield Problem(
            kind=ProblemKind.DEVICES_UNABLE,
            text=f"of the {count(marks)} devices that request {name} selects, {count(unable)} cannot have {found.source}'s "
            f"configuration, because {found.why}",
            claim=str(claim.metadata.key),
            request=name,
            remedy=f"add to request {name} the selector {able(needed.lacks)}",
        )


def published(fleet: Fleet, device: DeviceKey) -> Device | None:
    """A device as it is published."""
    rows = fleet.inventory.rows(device)
    return fleet.inventory.columns.devices[rows[-1]] if rows else None


def can(fleet: Fleet, device: DeviceKey, attribute: str) -> bool | None:
    """Whether the GPU of a published device can be shared in a way; None if its driver does not say."""
    there = published(fleet, device)
    said = there.attributes.get(attribute) if there is not None else None
    return None if said is None else said.bool_


def _can_any(fleet: Fleet, marks: bytes, attribute: str, part: PartitionName | None) -> bool | None:
    """Whether one of the marked devices can; None if none says that it can, and one of the kind does not say."""
    column = fleet.inventory.columns.get(AttributePath("attributes", *attribute.split("/")))
    if column is None:
        return None
    if any(can(fleet, fleet.inventory.key(row), attribute) for row in column.examples(marks, 2)):
        return True
    unsaid = unpacked(packed(marks) & ~packed(nonzero(column.codes)), len(marks))
    names = (fleet.inventory.key(row).device for row in first_rows(unsaid, 1))
    silent = any((read_partition_name(each) is None) is (part is None) for each in names)
    return None if silent else False
