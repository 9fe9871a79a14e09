"""A reservation's status while a pod's claim replaces one of its own."""

from datetime import UTC, datetime

import pytest

from draco.reservations.plan import ReservationPlan, ReservedClaims
from draco.reservations.status import ReservationFacts, status_of
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.reservations import DeviceReservation, DeviceReservationSpec, Takeover

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("bereft", "counts", "message"),
    [
        ([], (1, 1), "1 claim has devices; 1 is in use."),
        (["pod"], (0, 0), "0 of 1 claim have devices: pod-gpu-x7 waits."),
    ],
)
def test_a_claim_that_took_devices_over_counts_as_reserved_as_long_as_it_has_them(
    bereft: list[str], counts: tuple[int, int], message: str
) -> None:
    reservation = DeviceReservation(metadata=ObjectMeta(name="evening"), spec=DeviceReservationSpec(count=1))
    taken = Takeover(claim="pod-gpu-x7", uid="pod", reserved="evening-0", since=NOW)
    claims = ReservedClaims(own=[], takeovers=[taken], bereft=bereft)
    facts = ReservationFacts(waits_for="pod-gpu-x7 waits." if bereft else "")
    status = status_of(reservation, claims, ReservationPlan(), facts, NOW)
    assert (status.reserved, status.in_use) == counts
    assert status.message == message
    assert [each.status for each in status.conditions if each.type == "Ready"] == ["False" if bereft else "True"]
