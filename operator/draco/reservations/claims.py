"""The claims of a DeviceReservation: names, manifests, and ownership.

A claim belongs to a reservation if that is its controller. Anybody can write the label, so it proves nothing.
"""

from typing import Any

import msgspec

from draco.resources.api.claims import ResourceClaim, ResourceClaimSpec
from draco.resources.api.meta import ObjectKey, OwnerReference
from draco.resources.api.reservations import DeviceReservation
from draco.resources.kinds import DEVICE_RESERVATIONS
from draco.resources.names import ANNOTATION_TOPOLOGY, DRACO_DOMAIN, LABEL_RESERVATION


def claim_name(reservation: DeviceReservation, index: int) -> str:
    """The name of a claim by its number, from 0."""
    return f"{reservation.metadata.name}-{index}"


def index_of(claim: ResourceClaim, reservation: DeviceReservation) -> int | None:
    """The number of a claim; None if its name is not one of the reservation's."""
    prefix, dash, number = claim.metadata.name.rpartition("-")
    if not dash or prefix != reservation.metadata.name or not number.isdecimal() or str(int(number)) != number:
        return None
    return int(number)


def reserved_by(claim: ResourceClaim) -> str:
    """The UID of the reservation that controls the claim; "" if none does."""
    owner = _reservation(claim)
    return owner.uid if owner is not None else ""


def reservation_key(claim: ResourceClaim) -> ObjectKey | None:
    """The reservation that controls the claim; None if none does."""
    owner = _reservation(claim)
    return ObjectKey(claim.metadata.namespace, owner.name) if owner is not None else None


def _reservation(claim: ResourceClaim) -> OwnerReference | None:
    owner = claim.metadata.controller
    is_one = (
        owner is not None
        and owner.kind == DEVICE_RESERVATIONS.kind
        and owner.api_version.startswith(f"{DRACO_DOMAIN}/")
    )
    return owner if is_one else None


def is_there_to_stay(claim: ResourceClaim) -> bool:
    """Whether it is not being deleted."""
    return claim.metadata.deletion_timestamp is None


def is_in_use(claim: ResourceClaim) -> bool:
    """Whether it is reserved for a user."""
    return bool(claim.status.reserved_for)


def lost_claims(reservation: DeviceReservation) -> list[str]:
    """The UIDs of claims it has lost, from its status; none after its spec has changed."""
    lost = reservation.status.lost
    return lost.claims if lost is not None and lost.generation == reservation.metadata.generation else []


def manifest_of(reservation: DeviceReservation, index: int, spec: ResourceClaimSpec) -> dict[str, Any]:
    """The manifest of a claim by its number."""
    meta = reservation.metadata
    metadata: dict[str, Any] = {
        "name": claim_name(reservation, index),
        "namespace": meta.namespace,
        "labels": {LABEL_RESERVATION: meta.name},
        "ownerReferences": [msgspec.to_builtins(DEVICE_RESERVATIONS.owner(meta))],
    }
    if reservation.spec.topology:
        metadata["annotations"] = {ANNOTATION_TOPOLOGY: reservation.spec.topology}
    return {"metadata": metadata, "spec": msgspec.to_builtins(spec)}
