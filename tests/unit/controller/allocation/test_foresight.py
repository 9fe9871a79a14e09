"""A claim like the previous one finds its answer ready, and never an outdated one."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from draco.controller.allocation.asking.foresight import Foresight
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.messages import PlaceClaims, PlacementAnswer, Question
from draco.controller.workers.places import Answered
from draco.placing.groups.group import ClaimGroup, GroupMember, GroupPlacement, withheld
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Pod, PodSpec
from draco.resources.names import DeviceKey, PoolKey
from tests.builders import a_claim, a_pod
from tests.doubles.clock import ManualClock
from tests.doubles.workers import UnaskedWorkers

CHEAP_S = 0.001
FREE = withheld("kept", [DeviceKey("gpu.nvidia.com", "node-0", "gpu-0")])
PLACED = GroupPlacement([[AllocationResult()]])


class Placing(UnaskedWorkers):
    """Workers that find the same place for everything, or none."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.finds: GroupPlacement | None = PLACED

    def may_ask(self, namespace: str) -> bool:
        return namespace != "poor"

    async def ask_within(
        self, question: Question, namespace: str, urgency: QueuePriority, within_s: float
    ) -> Answered | None:
        self.asked.append(question)
        return Answered(PlacementAnswer([self.finds]), 1, CHEAP_S) if self.finds else None


class Lab:
    """Foresight with a manual clock, and a cluster of version 1."""

    def __init__(self) -> None:
        self.clock, self.workers = ManualClock(), Placing()
        self.foresight = Foresight(self.workers, clock=self.clock)

    async def look(self, basis: int = 1, held: Sequence[ResourceClaim] = ()) -> float:
        return await self.foresight.look(list(held), [], basis)

    async def after(self, question: PlaceClaims) -> None:
        """A claim like this was placed, and no claim has come for a while."""
        self.foresight.expect(question, CHEAP_S)
        self.clock.pass_without_a_turn(await self.look())
        await self.look()


@pytest.fixture
def lab() -> Lab:
    return Lab()


def about(*claims: ResourceClaim, held: Sequence[ResourceClaim] = (), spread: Sequence[PoolKey] = ()) -> PlaceClaims:
    groups = [ClaimGroup([GroupMember([claim])]) for claim in claims]
    return PlaceClaims(groups, list(held), list(spread))


async def test_the_next_claim_like_it_finds_its_answer_ready_and_the_one_after_does_not(lab: Lab) -> None:
    await lab.after(about(a_claim("one")))
    assert lab.foresight.answer(about(a_claim("two")), 1) == [PLACED]
    assert lab.foresight.answer(about(a_claim("three")), 1) is None
    assert len(lab.workers.asked) == 1


async def test_an_answer_of_another_version_of_the_cluster_is_void_and_asked_for_again(lab: Lab) -> None:
    await lab.after(about(a_claim("one")))
    assert lab.foresight.answer(about(a_claim("two")), 2) is None
    lab.clock.pass_without_a_turn(await lab.look(basis=2))
    await lab.look(basis=2)
    assert lab.foresight.answer(about(a_claim("two")), 2) == [PLACED]


@pytest.mark.parametrize(
    "other",
    [
        about(a_claim("two", namespace="elsewhere")),
        about(a_claim("two", device_class="other")),
        about(a_claim("two"), a_claim("three")),
        about(a_claim("two"), held=[FREE]),
        about(a_claim("two"), spread=[PoolKey("gpu.nvidia.com", "node-0")]),
        PlaceClaims([ClaimGroup([GroupMember([a_claim("two")], [a_pod("pod")])])], []),
        PlaceClaims([ClaimGroup([GroupMember([a_claim("two")], without=["node-0"])])], []),
        PlaceClaims([ClaimGroup([GroupMember([a_claim("two")])], topology="sameNode")], []),
        PlaceClaims([ClaimGroup([GroupMember([a_claim("two")])], is_overdue=True)], []),
    ],
)
async def test_another_question_does_not_get_the_answer(lab: Lab, other: PlaceClaims) -> None:
    await lab.after(about(a_claim("one")))
    assert lab.foresight.answer(other, 1) is None
    assert lab.foresight.answer(about(a_claim("two")), 1) == [PLACED]


async def test_nothing_is_asked_as_long_as_claims_come_quickly(lab: Lab) -> None:
    for name in ("one", "two", "three"):
        lab.foresight.expect(about(a_claim(name)), CHEAP_S)
        assert await lab.look() == pytest.approx(0.01)
        lab.clock.pass_without_a_turn(0.009)
    assert lab.workers.asked == []


async def test_a_cluster_that_changes_all_the_time_is_asked_about_ever_more_rarely_and_not_for_ever(lab: Lab) -> None:
    lab.foresight.expect(about(a_claim("one")), CHEAP_S)
    for version in range(7_000):
        lab.clock.pass_without_a_turn(0.01)
        last = await lab.look(basis=version)
    assert last == float("inf")
    assert 10 <= len(lab.workers.asked) <= 40
    assert lab.foresight.answer(about(a_claim("two")), version) is None


async def test_once_an_answer_was_needed_the_next_is_asked_for_as_soon_as_it_is_quiet(lab: Lab) -> None:
    lab.foresight.expect(about(a_claim("one")), CHEAP_S)
    for version in range(8):
        lab.clock.pass_without_a_turn(await lab.look(basis=version))
        await lab.look(basis=version)
    assert await lab.look(basis=101) > 0.1
    assert lab.foresight.answer(about(a_claim("two")), version) == [PLACED]
    assert await lab.look(basis=102) == pytest.approx(0.01)


async def test_an_answer_that_holds_is_not_asked_for_again(lab: Lab) -> None:
    await lab.after(about(a_claim("one")))
    lab.clock.pass_without_a_turn(1.0)
    assert await lab.look() == float("inf")
    assert len(lab.workers.asked) == 1


async def test_what_costs_much_is_not_asked_ahead(lab: Lab) -> None:
    lab.foresight.expect(about(a_claim("one")), 0.1)
    assert await lab.look() == float("inf")


async def test_a_tenant_whose_budget_is_used_up_waits_with_it(lab: Lab) -> None:
    lab.foresight.expect(about(a_claim("one", namespace="poor")), CHEAP_S)
    lab.clock.pass_without_a_turn(0.01)
    assert 0 < await lab.look() < 1
    assert lab.workers.asked == []


@pytest.mark.parametrize("finds", [GroupPlacement([], "There is none."), None])
async def test_no_place_and_no_answer_are_not_foreseen(lab: Lab, finds: GroupPlacement | None) -> None:
    lab.workers.finds = finds
    await lab.after(about(a_claim("one")))
    assert lab.foresight.answer(about(a_claim("two")), 1) is None


def with_pod(pod: Pod, **more: Any) -> PlaceClaims:
    return PlaceClaims([ClaimGroup([GroupMember([a_claim(pod.metadata.name)], [pod], **more)])], [])


ON_A_RACK = msgspec.structs.replace(a_pod("two"), spec=PodSpec(node_selector={"rack": "a"}))


async def test_the_claim_of_a_pod_like_the_last_one_finds_its_answer_ready(lab: Lab) -> None:
    await lab.after(with_pod(a_pod("one", templates=["gpu"]), beside=[], without=[], others=[]))
    assert lab.foresight.answer(with_pod(a_pod("two", templates=["gpu"], gates=["draco.dev/allocation"])), 1) == [
        PLACED
    ]


@pytest.mark.parametrize(
    "other",
    [
        about(a_claim("two")),
        with_pod(ON_A_RACK),
        with_pod(a_pod("two"), beside=[a_claim("nic")]),
        with_pod(a_pod("two"), others=[a_claim("nic")]),
        with_pod(a_pod("two"), without=["node-0"]),
        PlaceClaims([ClaimGroup([GroupMember([a_claim("two")], [a_pod("two"), a_pod("three")])])], []),
    ],
    ids=["no pod", "another node", "beside what it has", "beside what it waits for", "a node refused it", "two pods"],
)
async def test_a_pod_that_differs_does_not_get_the_answer(lab: Lab, other: PlaceClaims) -> None:
    await lab.after(with_pod(a_pod("one")))
    assert lab.foresight.answer(other, 1) is None
    assert lab.foresight.answer(with_pod(a_pod("two")), 1) == [PLACED]


@pytest.mark.parametrize("more", [{"beside": [a_claim("nic")]}, {"others": [a_claim("nic")]}, {"without": ["node-0"]}])
async def test_a_pod_that_not_only_its_own_terms_decide_about_is_not_expected_again(lab: Lab, more: Any) -> None:
    lab.foresight.expect(with_pod(a_pod("one"), **more), CHEAP_S)
    assert await lab.look() == float("inf")


@pytest.mark.parametrize("question", [about(a_claim("one")), with_pod(a_pod("one", claims=["one"]))])
async def test_what_is_asked_has_no_name_of_a_claim_or_pod(lab: Lab, question: PlaceClaims) -> None:
    await lab.after(question)
    (asked,) = lab.workers.asked
    assert b"one" not in msgspec.msgpack.encode(asked)
