"""The safety net below the wake-ups: decisions older than a minute are made again, and a different result counts as a fault."""

from collections.abc import Iterable
from typing import cast

import msgspec
import pytest
import structlog

from draco.controller.allocation import allocations
from draco.controller.allocation.allocations import KEY
from draco.controller.allocation.asking.schedule import SECOND_LOOK_S
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.controller.allocation.wakes import WAKES
from draco.controller.workers.messages import PlaceClaims
from draco.resources.api.meta import ObjectKey
from tests.builders import a_claim, a_device, a_slice
from tests.unit.controller.allocation.test_asking_again import Lab, a_place, no_place
from tests.unit.controller.allocation.test_what_decisions_rest_on import while_it_looks
from tests.unit.controller.watching import tell


def a_lab(*, held: int = 1) -> Lab:
    """A published GPU that Draco allocates, held by this many claims."""
    lab = Lab()
    tell(lab.view, a_slice("node-0", ["gpu-0"]))
    for number in range(held):
        tell(lab.view, a_claim(f"holder-{number}", device_class="gpu.draco.dev", on=["node-0/gpu-0"]))
    return lab


async def a_minute(lab: Lab) -> None:
    lab.clock.pass_without_a_turn(SECOND_LOOK_S)
    await lab.look()


async def test_who_found_no_place_is_asked_about_again_each_minute_while_anything_is_free_and_nothing_is_counted() -> (
    None
):
    lab = a_lab(held=0)
    await lab.look()
    for asked in (1, 2, 3):
        assert len(lab.workers.asked) == asked
        await a_minute(lab)
    assert lab.decided_late == 0


async def test_where_nothing_is_free_nobody_is_asked_about_again() -> None:
    lab = a_lab(held=1)
    await lab.look()
    for _ in range(3):
        await a_minute(lab)
    assert len(lab.workers.asked) == 1


async def test_a_gpu_with_shares_may_have_room_for_more() -> None:
    lab = a_lab()
    gpu = msgspec.structs.replace(a_device("gpu-0"), allow_multiple_allocations=True)
    tell(lab.view, a_slice("node-0", [gpu]))
    await lab.look()
    await a_minute(lab)
    assert (len(lab.workers.asked), lab.decided_late) == (2, 0)


async def test_who_finds_a_place_though_nothing_was_known_to_change_is_told_of_and_counted() -> None:
    lab = a_lab(held=0)
    lab.refusal = None
    await lab.look()
    lab.workers.instead = a_place
    with structlog.testing.capture_logs() as said:
        await a_minute(lab)
    assert (lab.writes, lab.decided_late) == (1, 1)
    [told] = [each for each in said if each["event"] == "allocation.late"]
    assert (told["group"], told["said"], told["before_s"]) == ("default/waits", "No device is free.", 60.0)
    assert told["known"] == told["known_then"] != ""


async def test_who_finds_a_place_after_a_change_is_not_counted() -> None:
    lab = a_lab(held=1)
    lab.refusal = None
    await lab.look()
    lab.workers.instead = a_place
    lab.view.claims._publish(lab.view.claims.store.remove(ObjectKey("default", "holder-0")))
    await a_minute(lab)
    assert (lab.writes, lab.decided_late) == (1, 0)


async def test_what_nobody_was_woken_for_is_found_after_a_minute_told_of_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allocations, "WAKES", {name: each for name, each in WAKES.items() if name != "claims"})
    lab = a_lab()
    await lab.look()
    lab.wait("young")
    await lab.look()
    assert len(lab.workers.asked) == 1
    with structlog.testing.capture_logs() as said:
        await a_minute(lab)
    assert [each["groups"] for each in said if each["event"] == "allocation.not_woken"] == [["young"]]
    assert lab.decided_late == 1
    assert cast("PlaceClaims", lab.workers.asked[-1]).groups[0].claims[0].metadata.name == "young"


async def test_after_an_answer_that_took_long_nobody_is_asked_about_without_a_reason_for_much_longer() -> None:
    lab = a_lab(held=0)
    for number in range(64):
        lab.wait(f"more-{number}")
    lab.workers.cpu_s = 1.0
    await lab.look()
    await lab.look()
    lab.clock.pass_without_a_turn(SECOND_LOOK_S)
    lab.workers.asked.clear()
    lab.is_woken = True
    for _ in range(10):
        await lab.look()
        lab.clock.pass_without_a_turn(2)
        lab.is_woken = True
    assert len(lab.workers.asked) == 1
    assert lab.workers.instead is no_place


async def test_what_a_look_without_a_reason_meets_on_its_way_is_one() -> None:
    """The look was requested by an earlier one; before its turn comes, a group's pause ends or something changes."""
    lab = a_lab()
    await lab.look()
    lab.change(1)
    assert await lab.look() == pytest.approx(0.05)
    while_it_looks(lab, 0.04)
    lab.clock.pass_without_a_turn(0.02)
    await lab.allocations.reconcile(KEY)
    assert (len(lab.workers.asked), lab.decided_late) == (2, 0)
    await lab.rest()
    look = lab.allocations._overdue.look

    def changing(waiting: Iterable[WaitingGroup]) -> None:
        lab.change(2)
        look(waiting)

    lab.allocations._overdue.look = changing  # type: ignore[method-assign]
    lab.clock.pass_without_a_turn(1)
    await lab.allocations.reconcile(KEY)
    assert (len(lab.workers.asked), lab.decided_late) == (3, 0)
