"""When a change of the cluster's features is believed."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from draco.kube.discovery import Features, differences, until_changed
from draco.kube.errors import Unreachable
from draco.resources.kinds import EVICTION_REQUESTS, TAINT_RULES
from tests.doubles.clock import ManualClock

BEFORE = Features(
    dra=True,
    taint_rules=TAINT_RULES[1],
    partitionable_devices=False,
    binding_conditions=None,
    device_taints=True,
    device_status=True,
)
AFTER = msgspec.structs.replace(BEFORE, partitionable_devices=True)


class Looking:
    """Gives these answers in turn, the last one forever; counts the questions."""

    def __init__(self, *answers: Features | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self) -> Features:
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


async def after(
    looking: Looking, seconds: float, *, known: Features = BEFORE, hint: Callable[[], bool] = lambda: False
) -> Features | None:
    """The features believed after this time; None for no change."""
    clock = ManualClock()
    task = asyncio.create_task(until_changed(looking, known, clock=clock, every_s=300, confirm_s=10, hint=hint))
    await clock.advance(seconds)
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None


async def test_a_change_counts_once_it_has_been_seen_three_times_in_a_row() -> None:
    assert await after(Looking(AFTER), 299) is None
    assert await after(Looking(AFTER), 319) is None
    assert await after(Looking(AFTER), 320) == AFTER


async def test_api_servers_that_answer_differently_in_turn_are_no_change() -> None:
    assert await after(Looking(AFTER, AFTER, BEFORE), 3000) is None


async def test_taint_rules_that_are_served_are_believed_at_once_and_their_end_is_not() -> None:
    """Until they are believed, devices with rules against them look free."""
    without = msgspec.structs.replace(BEFORE, taint_rules=None)
    assert await after(Looking(without), 319) is None
    assert await after(Looking(BEFORE), 10, known=without, hint=lambda: True) == BEFORE


async def test_a_cluster_that_does_not_answer_has_not_changed() -> None:
    looking = Looking(AFTER, AFTER, Unreachable("no route"), AFTER)
    assert await after(looking, 330) is None or looking.asked == 4
    assert await after(Looking(Unreachable("no route")), 3000) is None


async def test_without_dynamic_resource_allocation_nothing_is_decided() -> None:
    gone = msgspec.structs.replace(BEFORE, dra=False, taint_rules=None)
    assert await after(Looking(gone), 3000) is None


async def test_a_kind_that_is_not_served_makes_one_look_at_once() -> None:
    looking = Looking(BEFORE, AFTER)
    assert await after(looking, 40, hint=lambda: True) == AFTER


async def test_nothing_is_asked_more_often_than_need_be() -> None:
    looking = Looking(BEFORE)
    await after(looking, 3001)
    assert looking.asked == 10


@pytest.mark.parametrize("field", ["partitionable_devices", "binding_conditions", "device_taints", "device_status"])
def test_what_may_not_be_asked_is_no_change(field: str) -> None:
    assert differences(BEFORE, msgspec.structs.replace(BEFORE, **{field: None})) == []


def test_changes_are_told_in_words() -> None:
    now = msgspec.structs.replace(AFTER, taint_rules=None, device_taints=False)
    assert differences(BEFORE, now) == [
        "DeviceTaintRule is now served in no version instead of resource.k8s.io/v1beta2",
        "partitionable devices are kept",
        "taints of devices are no longer kept",
    ]


def test_eviction_requests_that_may_be_made_now_or_no_longer_are_a_change() -> None:
    served = msgspec.structs.replace(BEFORE, eviction_requests=EVICTION_REQUESTS)
    assert differences(BEFORE, served) == ["EvictionRequests may now be made"]
    assert differences(served, BEFORE) == ["EvictionRequests may no longer be made"]
