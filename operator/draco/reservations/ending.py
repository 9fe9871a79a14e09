"""Until when a DeviceReservation lasts.

Owns the rule: `expiresAt` is a time, `duration` counts from the creation, and without either there is no end. The time that it is
now is an argument: it is the operator's, and may be some seconds off that of the API server or of the person.
"""

from datetime import UTC, datetime

from draco.resources.api.reservations import DeviceReservation
from draco.resources.windows import lasting


def expires_at(reservation: DeviceReservation) -> datetime | None:
    """When the reservation ends; None if it lasts until it is deleted."""
    spec, created = reservation.spec, reservation.metadata.creation_timestamp
    if spec.expires_at is not None:
        # A time without a zone is of no use to anybody else; as everywhere in Kubernetes it is UTC.
        return spec.expires_at.astimezone(UTC) if spec.expires_at.tzinfo else spec.expires_at.replace(tzinfo=UTC)
    return created + lasting(spec.duration) if spec.duration and created is not None else None


def is_expired(reservation: DeviceReservation, now: datetime) -> bool:
    """Whether it has ended."""
    end = expires_at(reservation)
    return end is not None and end <= now


def is_past_from_the_start(reservation: DeviceReservation) -> bool:
    """Whether it had ended when it was created."""
    end, created = expires_at(reservation), reservation.metadata.creation_timestamp
    return end is not None and created is not None and end <= created
