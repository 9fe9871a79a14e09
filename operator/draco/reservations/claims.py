"""The claims of a DeviceReservation: their names, their manifests, and which of those that exist are its own.

Owns the rule: a claim is a reservation's if that is its controller. The label is for people, for pods and for those who look for
claims that belong together; anybody can write it, so it proves nothing.
"""

from typing import Any

import msgspec

from draco.resources.api.claims import ResourceClaim, ResourceClaimSpec
from draco.resources.api.meta import ObjectKey, OwnerReference
from draco.resources.api.reservations import DeviceReservation
from draco.resources.kinds import DEVICE_RESERVATIONS
from draco.resources.names import ANNOTATION_TOPOLOGY, DRACO_DOMAIN, LABEL_RESERVATION


def claim_name(reservation: DeviceReservation, index: int) -> str:
    """What the claim of this number is called, counted from 0."""
    return f"{reservation.metadata.name}-{index}"


def index_of(claim: ResourceClaim, reservation: DeviceReservation) -> int | None:
    """The number of a claim; None where its name is none that the reservation gives."""
    prefix, dash, number = claim.metadata.name.rpartition("-")
    if not dash or prefix != reservation.metadata.name or not number.isdecimal() or str(int(number)) != number:
        return None
    return int(number)


def reserved_by(claim: ResourceClaim) -> str:
    """The UID of the reservation that controls the claim; "" if none does."""
    owner = _reservation(claim)
    return owner.uid if owner is not None else ""


def reservation_key(claim: ResourceClaim) -> ObjectKey | None:
    """The reservation that controls the claim."""
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
    """Whether anybody may use it now."""
    return bool(claim.status.reserved_for)


def lost_claims(reservation: DeviceReservation) -> list[str]:
    """The UIDs of what it has lost, by its status: nothing any more once its spec is another."""
    lost = reservation.status.lost
    return lost.claims if lost is not None and lost.generation == reservation.metadata.generation else []


def manifest_of(reservation: DeviceReservation, index: int, spec: ResourceClaimSpec) -> dict[str, Any]:
    """The claim of this number."""
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
