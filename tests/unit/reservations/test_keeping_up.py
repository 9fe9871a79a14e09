"""How long a pod's claim is held back for the devices that it takes over."""

from datetime import UTC, datetime, timedelta

import pytest

from draco.reservations.plan import ReservedClaims
from draco.reservations.takeover import LONGEST, kept_up
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.reservations import DeviceReservation, DeviceReservationStatus, Takeover
from tests.builders import a_claim

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ago", "goes_on"),
    [(timedelta(0), True), (timedelta(seconds=-5), True), (LONGEST, False), (-timedelta(days=1), False)],
)
def test_a_take_over_goes_on_for_a_minute_and_not_for_as_long_as_a_clock_was_ahead(
    ago: timedelta, goes_on: bool
) -> None:
    taker = a_claim("pod-gpu-x7")
    uid = taker.metadata.uid
    begun = Takeover(claim="pod-gpu-x7", uid=uid, reserved="evening-0", since=NOW - ago, allocation={"devices": {}})
    status = DeviceReservationStatus(takeovers=[begun])
    reservation = DeviceReservation(metadata=ObjectMeta(name="evening"), status=status)
    assert kept_up(reservation, ReservedClaims(own=[]), {uid: taker}, NOW) == ([begun] if goes_on else [])
