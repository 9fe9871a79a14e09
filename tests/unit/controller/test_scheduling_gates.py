"""When Draco's scheduling gate is taken off a pod, which pods a change concerns, and what the API server's answers lead to."""

from typing import Any, cast

import msgspec
import pytest

from draco.controller.allocation.gates import SchedulingGates
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Forbidden, Invalid, NotFound, Unreachable
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import PODS, Kind
from draco.resources.names import SCHEDULING_GATE
from tests.builders import a_claim, a_device_class, a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import tell

KEY = ObjectKey("default", "pod")
OTHERS = "example.com/admission"


class World:
    """Claims of a class that is Draco's and of one that is not; what is written is remembered, or answered so."""

    def __init__(self) -> None:
        self.view = ClusterView(cast("Client", self), None, clock=ManualClock())
        self.gates = SchedulingGates(cast("Client", self), self.view)
        self.woken: list[ObjectKey] = []
        self.gates.subscribe(self.woken.append)
        self.patches: list[list[dict[str, Any]]] = []
        self.answer: ApiError | None = None
        ours = a_device_class("ours")
        labels = {"draco.dev/allocator": "operator"}
        meta = msgspec.structs.replace(ours.metadata, labels=labels)
        tell(self.view, msgspec.structs.replace(ours, metadata=meta), a_device_class("theirs"))

    def claim(self, name: str, *on: str, device_class: str = "ours") -> None:
        tell(self.view, a_claim(name, device_class=device_class, on=on))

    def pod(self, *gates: str, **made: Any) -> None:
        tell(self.view, a_pod("pod", gates=gates, **made))

    async def patch(self, kind: Kind[Any], key: ObjectKey, patch: list[dict[str, Any]]) -> None:
        assert (kind, key) == (PODS, KEY)
        if self.answer is not None:
            raise self.answer
        self.patches.append(patch)


async def test_the_gate_goes_with_the_last_claim_that_draco_allocates() -> None:
    world = World()
    world.claim("one", "node-0/gpu-0")
    world.claim("two")
    world.claim("nic", device_class="theirs")
    world.pod(OTHERS, SCHEDULING_GATE, claims=["one", "two", "nic"])
    assert await world.gates.reconcile(KEY) is None
    assert not world.patches
    world.woken.clear()
    world.claim("two", "node-0/gpu-1")
    assert world.woken == [KEY]
    assert await world.gates.reconcile(KEY) is None
    (patch,) = world.patches
    assert [(each["op"], each["path"]) for each in patch] == [
        ("test", "/metadata/uid"),
        ("test", "/spec/schedulingGates/1/name"),
        ("remove", "/spec/schedulingGates/1"),
    ]


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
    await world.gates.reconcile(KEY)
    assert not world.gates.trouble


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
    world.pod(SCHEDULING_GATE, claims=["one"])  # another one of its name
    await world.gates.reconcile(KEY)
    assert len(world.patches) == 2
