"""How often explanations are made: soon after a change, never too often, and once for all who ask the same."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from structlog.testing import capture_logs

from draco.allocation.errors import AllocationError
from draco.allocation.fleet import Fleet
from draco.controller.explaining import Asks, Explanations, scheduler_says
from draco.controller.following import FollowedFleet
from draco.explanation.model import Explanation, Reason
from draco.resources.claims import ResourceClaim
from draco.resources.core import Pod, PodCondition
from draco.resources.meta import ObjectKey
from tests.builders import a_claim, a_pod
from tests.doubles.clock import ManualClock

MINOR = 36


class Lab:
    """Explanations of pods, of which each takes `takes_s` and says how often the cluster has changed."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.clock = ManualClock()
        self.followed = FollowedFleet()
        self.explanations = Explanations(self.followed, clock=self.clock, minor=MINOR, explain=self.explain)
        self.takes_s = takes_s
        self.pods: dict[ObjectKey, Asks] = {}
        self.made: Counter[str] = Counter()
        self.changed: list[str] = []
        self.backlog = 0
        self.text: Callable[[Pod], str] = lambda _: f"changed {self.followed.version} times"

    def explain(
        self, fleet: Fleet, claims: Sequence[ResourceClaim], *, pod: Pod, scheduler: str, minor: int | None
    ) -> Explanation:
        assert fleet is self.followed.fleet
        assert minor == MINOR
        self.clock._elapsed += self.takes_s
        self.made[pod.metadata.name] += 1
        return Explanation(reason=Reason.IN_USE, summary=self.text(pod))

    async def add(self, *names: str, alike: bool = False) -> None:
        for name in names:
            pod = a_pod(name, claims=[f"claim-of-{name}"])
            device_class = "any" if alike else f"class-of-{name}"
            asks = (pod, [a_claim(f"claim-of-{name}", device_class=device_class)])
            self.pods[pod.metadata.key] = asks
            await self._advance_until(self.explanations.of(*asks))
        self.made.clear()

    async def _advance_until(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        while not task.done():
            await self.clock.advance(0.05)

    def change(self) -> None:
        self.followed.version += 1
        self.explanations._changed.set()

    @asynccontextmanager
    async def kept_young(self) -> AsyncIterator[None]:
        task = asyncio.create_task(
            self.explanations.keep_young(
                self.pods.get, lambda pod: self.changed.append(pod.metadata.name), lambda: self.backlog
            )
        )
        await self.clock.advance(2.0)  # what was said long ago may be said anew at once
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_burst_of_changes_is_one_change_and_is_told_within_a_second() -> None:
    lab = Lab()
    await lab.add("pod")
    async with lab.kept_young():
        for _ in range(100):
            lab.change()
            await lab.clock.advance(0.0005)
        await lab.clock.advance(0.9)
        assert lab.made == {"pod": 1}
        assert lab.changed == ["pod"]
        told = await lab.explanations.of(*next(iter(lab.pods.values())))
        assert (told.text, told.reason) == ("changed 100 times", "InUse")


async def test_nobody_is_woken_when_the_same_is_to_be_said() -> None:
    lab = Lab()
    lab.text = lambda _: "as ever"
    await lab.add("pod")
    async with lab.kept_young():
        lab.change()
        await lab.clock.advance(1)
        assert (lab.made, lab.changed) == ({"pod": 1}, [])


async def test_changes_without_end_cost_one_pod_two_explanations_a_second() -> None:
    lab = Lab()
    await lab.add("pod")
    async with lab.kept_young():
        for _ in range(100):
            lab.change()
            await lab.clock.advance(0.1)
        assert 18 <= lab.made["pod"] <= 21


async def test_a_thousand_pods_take_half_of_the_processor_at_most_and_each_has_its_turn() -> None:
    lab = Lab()
    names = [f"pod-{number:03}" for number in range(200)]
    await lab.add(*names)
    lab.takes_s = 0.05
    async with lab.kept_young():
        started = lab.clock.monotonic()
        while lab.clock.monotonic() - started < 40.0:
            lab.change()
            await lab.clock.advance(0.2)
        busy_s = sum(lab.made.values()) * lab.takes_s
        assert busy_s <= (lab.clock.monotonic() - started) / 2 + lab.takes_s
        assert busy_s >= 10.0, "and they do go on"
        assert set(lab.made) == set(names)
        assert max(lab.made.values()) - min(lab.made.values()) <= 1


async def test_pods_that_ask_the_same_share_one_explanation() -> None:
    lab = Lab()
    await lab.add(*(f"pod-{number}" for number in range(100)), alike=True)
    async with lab.kept_young():
        lab.change()
        await lab.clock.advance(1)
        assert sum(lab.made.values()) == 1
        assert len(lab.changed) == 100


async def test_an_explanation_that_names_its_pod_is_not_given_to_another() -> None:
    lab = Lab()
    lab.text = lambda pod: f"{pod.metadata.name} cannot be placed, {lab.followed.version}"
    await lab.add("one", "two", alike=True)
    async with lab.kept_young():
        lab.change()
        await lab.clock.advance(1)
        assert lab.made == {"one": 1, "two": 1}
        texts = [(await lab.explanations.of(*asks)).text for asks in lab.pods.values()]
        assert texts == ["one cannot be placed, 1", "two cannot be placed, 1"]


async def test_what_waits_to_be_written_is_written_before_more_is_explained() -> None:
    lab = Lab()
    await lab.add("pod")
    async with lab.kept_young():
        lab.backlog = 100
        lab.change()
        await lab.clock.advance(5)
        assert not lab.made
        lab.backlog = 0
        await lab.clock.advance(1)
        assert lab.made == {"pod": 1}


async def test_a_pod_that_waits_no_more_is_forgotten() -> None:
    lab = Lab()
    await lab.add("pod")
    async with lab.kept_young():
        lab.pods.clear()
        lab.change()
        await lab.clock.advance(1)
        lab.change()
        await lab.clock.advance(1)
        assert not lab.made
        assert not lab.explanations._explained


async def test_a_fault_in_one_explanation_stops_neither_the_others_nor_the_operator() -> None:
    lab = Lab()
    await lab.add("bad", "good")

    def text(pod: Pod) -> str:
        if pod.metadata.name == "bad":
            raise ZeroDivisionError
        return "changed"

    lab.text = text
    with capture_logs() as logs:
        async with lab.kept_young():
            lab.change()
            await lab.clock.advance(1)
            assert lab.made["good"] == 1
            assert sorted(lab.changed) == ["bad", "good"], "the reconciler meets the fault, and tries again with pauses"
    (said,) = logs
    assert (said["event"], said["pod"]) == ("explaining.failed", "default/bad")


async def test_what_cannot_be_read_is_said_to_who_waits() -> None:
    lab = Lab()

    def text(_: Pod) -> str:
        raise AllocationError("the selector of node x is not valid")

    lab.text = text
    told = await lab.explanations.of(a_pod("pod"), [a_claim()])
    assert (told.reason, told.text) == ("Unknown", "Cannot be explained: the selector of node x is not valid")


async def test_a_pod_of_which_something_else_is_known_is_explained_at_once() -> None:
    lab = Lab()
    pod, claim = a_pod("pod", claims=["claim"]), a_claim()
    await lab.explanations.of(pod, [claim])
    await lab.explanations.of(pod, [claim])
    assert lab.made["pod"] == 1
    await lab.explanations.of(pod, [a_claim(device_class="other")])
    assert lab.made["pod"] == 2


def test_the_scheduler_speaks_in_one_condition_of_a_pod_and_in_no_other() -> None:
    said = [
        PodCondition(type="Ready", status="False", message="containers are not ready"),
        PodCondition(type="PodScheduled", status="False", message="0/1 nodes are available"),
    ]
    pod = a_pod("train")
    assert scheduler_says(pod) == ""
    waiting = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=said))
    assert scheduler_says(waiting) == "0/1 nodes are available"
