"""When Draco's scheduling gate is removed from a pod, which pods a change concerns, and what follows from the API's answers.

Pods of a PodGroup start together: their gates are removed together, once as many of them are ready as kube-scheduler binds
together.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec
import pytest

from draco.allocation.ownership.gangs import GangKey, GangSource, GangTerms, UnknownTerms
from draco.controller.allocation.writing.gates import REQUESTS_AT_ONCE, SchedulingGates
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.connect.connection import MAX_PARALLEL_REQUESTS
from draco.kube.errors import ApiError, Forbidden, Invalid, NotFound, Unreachable
from draco.resources.api.core import PodStatus
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.scheduling import PodGroup
from draco.resources.kinds import POD_GROUPS, PODS, Kind
from draco.resources.names import SCHEDULING_GATE
from tests.builders import a_claim, a_device_class, a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import forget, tell

KEY = ObjectKey("default", "pod")
OTHERS = "example.com/admission"
GROUP = GangKey(GangSource.POD_GROUP, "default", "train")


class World:
    """Claims of a class that Draco allocates and of one that it does not; writes are recorded, or answered with `answer`."""

    def __init__(self, *, autoscaled: bool = False) -> None:
        self.clock = ManualClock()
        self.view = ClusterView(cast("Client", self), None, clock=self.clock, pod_groups=POD_GROUPS[0])
        self.terms: GangTerms | UnknownTerms | None = GangTerms(size=3)
        self.gates = SchedulingGates(cast("Client", self), self.view, lambda _: self.terms, autoscaled=autoscaled)
        self.woken: list[ObjectKey | GangKey] = []
        self.gates.subscribe(self.woken.append)
        self.patches: list[dict[str, Any]] = []
        self.freed: list[str] = []
        self.under_way = self.most_under_way = 0
        self.answer: ApiError | None = None
        self.answers: dict[str, ApiError] = {}
        self.refused = 0
        self.when_asked: Callable[[], None] = lambda: None
        ours = a_device_class("ours")
        labels = {"draco.dev/allocator": "operator"}
        meta = msgspec.structs.replace(ours.metadata, labels=labels)
        tell(self.view, msgspec.structs.replace(ours, metadata=meta), a_device_class("theirs"))

    def claim(self, name: str, *on: str, device_class: str = "ours") -> None:
        tell(self.view, a_claim(name, device_class=device_class, on=on))

    def pod(self, *gates: str, **made: Any) -> None:
        tell(self.view, a_pod("pod", gates=gates, **made))

    def member(
        self, name: str, *claims: str, gates: Iterable[str] = (SCHEDULING_GATE,), status: PodStatus | None = None
    ) -> None:
        tell(self.view, a_pod(name, gates=gates, claims=claims, pod_group=GROUP.name, status=status))

    async def patch(self, kind: Kind[Any], key: ObjectKey, patch: dict[str, Any]) -> None:
        assert kind is PODS
        self.when_asked()
        if answer := self.answer or self.answers.get(key.name):
            self.refused += 1
            raise answer
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        for _ in range(5):  # turns of the event loop: longer than a refusal takes
            await asyncio.sleep(0)
        self.under_way -= 1
        self.patches.append(patch)
        self.freed.append(key.name)


async def test_beside_an_autoscaler_no_pod_waits_with_the_gate() -> None:
    world = World(autoscaled=True)
    world.claim("one")
    world.pod(SCHEDULING_GATE, claims=["one"])
    await world.gates.reconcile(KEY)
    assert len(world.patches) == 1


async def test_the_gate_goes_with_the_last_claim_that_draco_allocates() -> None:
    world = World()
    world.claim("one", "node-0/gpu-0")
    world.claim("two")
    world.claim("nic", device_class="theirs")
    world.pod(SCHEDULING_GATE, claims=["one", "two", "nic"])
    assert await world.gates.reconcile(KEY) is None
    assert not world.patches
    world.woken.clear()
    world.claim("two", "node-0/gpu-1")
    assert world.woken == [KEY]
    assert await world.gates.reconcile(KEY) is None
    (patch,) = world.patches
    assert msgspec.to_builtins(patch) == {
        "metadata": {"uid": a_pod("pod").metadata.uid},
        "spec": {"schedulingGates": None},
    }


async def test_the_gate_stays_as_long_as_others_hold_the_pod_since_its_claim_is_to_give_back_what_it_has() -> None:
    world = World()
    world.claim("one", "node-0/gpu-0")
    world.pod(OTHERS, SCHEDULING_GATE, claims=["one"])
    assert await world.gates.reconcile(KEY) is None
    assert not world.patches
    world.woken.clear()
    world.pod(SCHEDULING_GATE, claims=["one"])
    assert world.woken == [KEY]
    await world.gates.reconcile(KEY)
    assert world.patches


async def test_the_gate_goes_though_the_pods_status_does_not_name_its_claim_yet() -> None:
    world = World()
    world.pod(SCHEDULING_GATE, templates=["gpu"])
    tell(world.view, a_claim("pod-gpu-x7", device_class="ours", made_for=("pod", "gpu")))
    await world.gates.reconcile(KEY)
    assert not world.patches
    world.woken.clear()
    tell(world.view, a_claim("pod-gpu-x7", device_class="ours", on=["node-0/gpu-0"], made_for=("pod", "gpu")))
    assert world.woken == [KEY]
    await world.gates.reconcile(KEY)
    assert world.freed == ["pod"]


@pytest.mark.parametrize(
    "made",
    [{"claims": ["missing"]}, {"templates": ["not-made-yet"]}],
    ids=["a claim that does not exist", "a claim that is not made yet"],
)
async def test_a_pod_waits_for_claims_that_are_not_there(made: dict[str, Any]) -> None:
    world = World()
    world.pod(SCHEDULING_GATE, **made)
    assert await world.gates.reconcile(KEY) is None
    assert not world.patches


async def test_pods_without_the_gate_and_those_that_run_concern_nobody() -> None:
    world = World()
    world.pod(OTHERS, claims=["one"])
    world.claim("one", "node-0/gpu-0")
    assert not world.woken
    assert not world.gates.all_keys()
    await world.gates.reconcile(KEY)
    await world.gates.reconcile(ObjectKey("default", "gone"))
    assert not world.patches


@pytest.mark.parametrize(
    ("answer", "again"),
    [(NotFound(404, "", "gone"), False), (Invalid(422, "", "test failed"), True), (Forbidden(403, "", "no"), True)],
)
async def test_what_is_refused_is_tried_again_later_unless_the_pod_is_gone(answer: ApiError, again: bool) -> None:
    world = World()
    world.pod(SCHEDULING_GATE)
    world.answer = answer
    assert (await world.gates.reconcile(KEY) is not None) is again


async def test_a_missing_right_is_said_until_a_gate_could_be_taken_off() -> None:
    world = World()
    world.pod(SCHEDULING_GATE)
    assert world.gates.all_keys() == {KEY}
    world.answer = Forbidden(403, "", "pods is forbidden")
    await world.gates.reconcile(KEY)
    assert "let the operator's ClusterRole patch pods" in world.gates.trouble
    world.answer = None
    assert await world.gates.reconcile(KEY) == 5
    await world.clock.advance(5)
    assert await world.gates.reconcile(KEY) is None
    assert not world.gates.trouble


async def test_nothing_is_said_of_a_refused_pod_that_is_gone() -> None:
    world = World()
    world.pod(SCHEDULING_GATE)
    world.answer = Forbidden(403, "", "pods is forbidden")
    await world.gates.reconcile(KEY)
    for change in world.view.pods.store.remove(KEY):
        world.view.pods._publish([change])
    assert not world.gates.trouble


async def test_a_pod_whose_gate_the_api_server_keeps_is_left_alone_ever_longer_whatever_wakes_it() -> None:
    world = World()
    world.pod(SCHEDULING_GATE)
    world.answer = Forbidden(403, "", "pods is forbidden")
    for _ in range(1000):
        await world.gates.reconcile(KEY)
        await world.clock.advance(1)
    assert world.refused == 9


async def test_a_pod_keeps_its_gate_while_its_claim_is_being_deleted() -> None:
    world = World()
    world.pod(SCHEDULING_GATE, claims=["one"])
    world.claim("one", "node-0/gpu-0")
    world.woken.clear()
    tell(world.view, a_claim("one", device_class="ours", on=["node-0/gpu-0"], deleting=True))
    assert world.woken == [KEY]
    await world.gates.reconcile(KEY)
    assert not world.freed


async def test_no_answer_is_left_to_the_queue_that_asks_again() -> None:
    world = World()
    world.pod(SCHEDULING_GATE)
    world.answer = Unreachable("cut")
    with pytest.raises(Unreachable):
        await world.gates.reconcile(KEY)


async def test_a_gate_that_is_off_is_not_taken_off_again_before_the_watch_tells_of_it() -> None:
    world = World()
    world.pod(SCHEDULING_GATE, claims=["one"])
    world.claim("one", "node-0/gpu-0")
    await world.gates.reconcile(KEY)
    await world.gates.reconcile(KEY)
    assert len(world.patches) == 1
    world.pod(claims=["one"])
    world.pod(SCHEDULING_GATE, claims=["one"])  # another pod of the same name
    await world.gates.reconcile(KEY)
    assert len(world.patches) == 2


class Gang(World):
    """Three pods of a PodGroup, with one claim each."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("a", "b", "c"):
            self.claim(name)
            self.member(name, name)
        self.woken.clear()

    def allocate(self, *names: str) -> None:
        for name in names:
            self.claim(name, f"node-0/gpu-{name}")


async def test_pods_of_a_pod_group_are_shown_to_the_scheduler_at_once_when_the_last_of_them_has_its_devices() -> None:
    gang = Gang()
    gang.allocate("a", "b")
    assert await gang.gates.reconcile(GROUP) is None
    assert not gang.freed
    gang.woken.clear()
    gang.allocate("c")
    assert gang.woken == [GROUP]
    assert gang.gates.all_keys() == {GROUP}
    await gang.gates.reconcile(GROUP)
    await gang.gates.reconcile(GROUP)
    assert gang.freed == ["a", "b", "c"]


async def test_a_pod_of_the_group_that_wants_nothing_waits_with_the_others() -> None:
    gang = Gang()
    gang.member("c")
    gang.allocate("a")
    await gang.gates.reconcile(GROUP)
    assert not gang.freed
    gang.allocate("b")
    await gang.gates.reconcile(GROUP)
    assert gang.freed == ["a", "b", "c"]


async def test_as_many_as_start_together_do_not_wait_for_the_rest() -> None:
    gang = Gang()
    gang.terms = GangTerms(size=2)
    gang.allocate("a")
    await gang.gates.reconcile(GROUP)
    assert not gang.freed
    gang.allocate("c")
    await gang.gates.reconcile(GROUP)
    assert gang.freed == ["a", "c"]
    for name in gang.freed:
        gang.member(name, name, gates=())
    gang.allocate("b")
    await gang.gates.reconcile(GROUP)
    assert gang.freed == ["a", "c", "b"]


async def test_a_pod_that_never_had_the_gate_counts_once_it_has_its_devices() -> None:
    gang = Gang()
    gang.member("c", "c", gates=())
    gang.allocate("a", "b")
    await gang.gates.reconcile(GROUP)
    assert not gang.freed
    gang.woken.clear()
    gang.allocate("c")
    assert gang.woken == [GROUP]
    await gang.gates.reconcile(GROUP)
    assert gang.freed == ["a", "b"]


async def test_a_pod_that_others_hold_does_not_count_until_they_let_it_go() -> None:
    gang = Gang()
    gang.member("c", "c", gates=(OTHERS,))
    gang.allocate("a", "b", "c")
    await gang.gates.reconcile(GROUP)
    assert not gang.freed
    gang.woken.clear()
    gang.member("c", "c", gates=())
    assert gang.woken == [GROUP]
    await gang.gates.reconcile(GROUP)
    assert gang.freed == ["a", "b"]


async def test_pods_that_are_over_do_not_count_and_the_missing_ones_are_waited_for() -> None:
    gang = Gang()
    gang.allocate("a", "b", "c")
    gang.member("c", "c", status=PodStatus(phase="Failed"))
    await gang.gates.reconcile(GROUP)
    assert not gang.freed
    gang.member("c", "c")
    await gang.gates.reconcile(GROUP)
    assert gang.freed == ["a", "b", "c"]


@pytest.mark.parametrize("terms", [None, UnknownTerms("PodGroup default/train does not exist.")])
async def test_pods_that_need_not_start_together_go_one_by_one(terms: UnknownTerms | None) -> None:
    gang = Gang()
    gang.terms = terms
    gang.allocate("b")
    await gang.gates.reconcile(GROUP)
    assert gang.freed == ["b"]


async def test_a_group_that_needs_fewer_pods_than_before_is_looked_at() -> None:
    world = World()
    world.member("one")
    await world.gates.reconcile(GROUP)
    assert world.freed == []
    world.woken.clear()
    tell(world.view, PodGroup(metadata=ObjectMeta(name=GROUP.name, namespace=GROUP.namespace, uid="again")))
    assert world.woken == [GROUP]
    world.terms = GangTerms(size=1)
    await world.gates.reconcile(GROUP)
    assert world.freed == ["one"]


async def test_pods_whose_claims_are_dracos_no_more_lose_the_gate() -> None:
    world = World()
    world.claim("claim")
    world.pod(SCHEDULING_GATE, claims=["claim"])
    await world.gates.reconcile(KEY)
    assert world.freed == []
    world.woken.clear()
    tell(world.view, a_device_class("ours"))
    assert world.woken == [KEY]
    await world.gates.reconcile(KEY)
    assert world.freed == ["pod"]


async def test_a_large_group_leaves_connections_to_others() -> None:
    world = World()
    number = REQUESTS_AT_ONCE + 10
    world.terms = GangTerms(size=number)
    for each in range(number):
        world.member(f"pod-{each}")
    await world.gates.reconcile(GROUP)
    assert len(world.freed) == number
    assert world.most_under_way == REQUESTS_AT_ONCE < MAX_PARALLEL_REQUESTS


async def test_one_pod_that_is_refused_does_not_keep_the_others() -> None:
    gang = Gang()
    gang.allocate("a", "b", "c")
    gang.answers = {"a": Unreachable("cut"), "b": Invalid(422, "", "test failed")}
    with pytest.raises(Unreachable):
        await gang.gates.reconcile(GROUP)
    assert gang.freed == ["c"]
    del gang.answers["a"]
    assert await gang.gates.reconcile(GROUP) is not None
    gang.answers.clear()
    assert await gang.gates.reconcile(GROUP) is None
    assert gang.freed == ["c", "a", "b"]


async def test_of_a_pod_that_is_deleted_while_its_gate_is_refused_nothing_is_kept() -> None:
    """Otherwise the operator would report forever that it may not remove gates."""
    world = World()
    world.pod(SCHEDULING_GATE)
    world.answer = Forbidden(403, "Forbidden", "no right")
    world.when_asked = lambda: forget(world.view, a_pod("pod"))
    assert await world.gates.reconcile(KEY) is None
    assert (world.refused, world.gates.trouble) == (1, "")
