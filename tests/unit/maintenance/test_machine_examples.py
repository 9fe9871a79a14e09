"""Sequences that `test_machine` once found, step by step; each must be judged rightly."""

from typing import Any

from hypothesis import strategies as st

from tests.unit.maintenance.test_machine import Maintenance


class FirstOfAll(st.DataObject):
    """Draws the first element."""

    def __init__(self) -> None:
        pass

    def draw(self, strategy: Any, label: Any = None) -> Any:
        return strategy.elements[0]


def test_what_a_deleted_request_kept_out_is_taken_over_by_who_has_not_heard_of_that() -> None:
    state = Maintenance()
    state.begin(divided=False, asked="")
    state.make_progress(name="first", seconds=0.0)
    state.set_the_budget(limit=0, paused=False, percent=None)
    state.wait(1.1)
    state.ask(device="", effect="NoSchedule", kind="plain", name="second")
    state.die()
    state.end(FirstOfAll(), finish=False)
    state.reconcile("second")
    state.teardown()


def test_a_gpu_that_is_held_and_not_published_is_no_part_of_a_share() -> None:
    state = Maintenance()
    state.begin(divided=False, asked="")
    state.allocate(admin=False, name="gpu-0")
    state.set_the_budget(limit=None, paused=False, percent=100)
    state.vanish("gpu-0")
    state.teardown()
