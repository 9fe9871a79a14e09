"""When another replica's lease may be taken, judged by the own clock."""

from draco.kube.election import Observation
from draco.resources.api.core import LeaseSpec

HELD = LeaseSpec(
    holder_identity="other", lease_duration_seconds=15, renew_time="2020-01-01T00:00:00.000000Z", lease_transitions=3
)
RENEWED = LeaseSpec(
    holder_identity="other", lease_duration_seconds=15, renew_time="2020-01-01T00:00:02.000000Z", lease_transitions=3
)


def test_a_lease_seen_for_the_first_time_is_held_however_old_its_times_look() -> None:
    assert not Observation().free(HELD, now=1000)


def test_a_lease_that_has_not_changed_for_its_duration_is_free() -> None:
    observation = Observation()
    observation.free(HELD, now=1000)
    assert not observation.free(HELD, now=1014.9)
    assert observation.free(HELD, now=1015)


def test_every_renewal_starts_the_duration_anew() -> None:
    observation = Observation()
    observation.free(HELD, now=1000)
    assert not observation.free(RENEWED, now=1014)
    assert not observation.free(RENEWED, now=1028)
    assert observation.free(RENEWED, now=1029)


def test_the_duration_is_that_of_the_holder() -> None:
    observation = Observation()
    observation.free(LeaseSpec(holder_identity="other", lease_duration_seconds=60), now=0)
    assert not observation.free(LeaseSpec(holder_identity="other", lease_duration_seconds=60), now=59)


def test_a_lease_without_a_holder_is_free_at_once() -> None:
    assert Observation().free(LeaseSpec(lease_duration_seconds=15), now=0)
    assert Observation().free(LeaseSpec(holder_identity="", lease_duration_seconds=15), now=0)
