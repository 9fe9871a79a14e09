"""When a condition's lastTransitionTime changes."""

from datetime import timedelta

from draco.resources.api.meta import Condition, all_timed, timed
from tests.builders import MOMENT


def test_a_conditions_time_moves_only_with_its_status() -> None:
    later = MOMENT + timedelta(hours=1, microseconds=5)
    before = all_timed([Condition(type="A", status="True"), Condition(type="B", status="True")], [], MOMENT)
    after = all_timed(
        [Condition(type="A", status="True", message="new words"), Condition(type="B", status="False")], before, later
    )
    assert [one.last_transition_time for one in before] == [MOMENT, MOMENT]
    assert [one.last_transition_time for one in after] == [MOMENT, later.replace(microsecond=0)]


def test_a_condition_whose_time_is_not_known_gets_one() -> None:
    known = [Condition(type="A", status="True")]
    assert timed(Condition(type="A", status="True"), known, MOMENT, generation=3) == Condition(
        type="A", status="True", observed_generation=3, last_transition_time=MOMENT
    )


def test_a_condition_keeps_the_generation_it_speaks_of() -> None:
    assert timed(Condition(type="A", status="True", observed_generation=2), [], MOMENT).observed_generation == 2


def test_a_time_that_is_yet_to_come_is_another_clocks_and_is_put_right() -> None:
    ahead = [Condition(type="A", status="True", last_transition_time=MOMENT + timedelta(minutes=10))]
    assert timed(Condition(type="A", status="True"), ahead, MOMENT).last_transition_time == MOMENT
