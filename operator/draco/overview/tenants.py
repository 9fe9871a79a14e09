"""What `draco status` shows of tenants: the limits of their namespaces, and the devices that they have reserved.

Owns the views of DeviceLimits and DeviceReservations, as the operator says them. Counts nothing itself.
"""

from draco.limits.rules import read_amounts
from draco.limits.wording import use_text
from draco.overview.maintenances import message_of
from draco.overview.status_schema import LimitView, ReservationView
from draco.resources.api.limits import DeviceLimit, LimitScope
from draco.resources.api.reservations import DeviceReservation


def limit_view(limit: DeviceLimit) -> LimitView:
    """One limit, with the use of the namespace that is nearest to it, or of all together."""
    status, permitted = limit.status, read_amounts(limit.spec.limits)
    nearest = next(iter(status.namespaces), None) if limit.spec.per is LimitScope.NAMESPACE else None
    used = nearest.used if nearest else status.used
    return LimitView(
        name=limit.metadata.name,
        per=limit.spec.per.value,
        namespaces=status.selected or 0,
        nearest=nearest.namespace if nearest else "",
        used=use_text(read_amounts(used), permitted) if used else "",
        waiting=status.waiting or 0,
        message=message_of(limit),
    )


def reservation_view(reservation: DeviceReservation) -> ReservationView:
    """One reservation."""
    spec, status = reservation.spec, reservation.status
    expires_at = status.expires_at or spec.expires_at
    return ReservationView(
        namespace=reservation.metadata.namespace,
        name=reservation.metadata.name,
        count=spec.count,
        reserved=status.reserved or 0,
        in_use=status.in_use or 0,
        expires_at=expires_at.isoformat() if expires_at else "",
        message=message_of(reservation),
    )
