"""When a PodGroup without pods is reported to keep devices, and in which steps and on which conditions they are released."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
import pytest

from draco.controller.allocation.reclaiming.leaks import SETTLE_S, LeakedClaims
from draco.controller.deallocation_writes import REMEDY
from draco.controller.metrics import OperatorMetrics
from draco.controller.mig.decisions import MigDecisions
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Conflict, Forbidden, Unreachable
from draco.kube.events.events import EventRecorder
from draco.kube.events.notes import Notes
from draco.kube.events.shares import EventReason
from draco.resources.api.claims import AllocatedDeviceStatus, ResourceClaim, ResourceClaimConsumerReference
from draco.resources.api.core import ObjectReference, Pod, PodSchedulingGroup, PodStatus
from draco.resources.api.draco import Allocator, MigGangs, MigMode
from draco.resources.api.meta import Condition, ObjectKey, ObjectMeta, OwnerReference
from draco.resources.api.scheduling import PodGroup
from draco.resources.kinds import CLAIMS, POD_GROUPS, PODS, Kind
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import MOMENT, a_claim, a_device, a_device_class, a_mig_node, a_mig_policy, a_node, a_pod, a_slice
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import collection_of, forget, tell

KIND = POD_GROUPS[-1]
KEY = ObjectKey("default", "train")
TELL_S, RELEASE_S = 600.0, 1800.0
GROUP = PodGroup(metadata=ObjectMeta(name="train", namespace="default", uid="train"))
OWNER = OwnerReference(api_version=KIND.api_version, kind="PodGroup", name="train", uid="train", controller=True)
RESERVATION = ResourceClaimConsumerReference(
    api_group="scheduling.k8s.io", resource="podgroups", name="train", uid="train"
)


class Said:
    """Notes that are only recorded."""

    def __init__(self) -> None:
        self.by_uid: dict[str, str] = {}
        self.adopted: list[ObjectReference] = []

    async def adopt(self) -> list[ObjectReference]:
        return self.adopted

    async def say(self, regarding: ObjectReference, note: str, *, type: str) -> float:  # noqa: A002 - the field's name
        self.by_uid[regarding.uid] = note
        return 1200.0

    async def withdraw(self, regarding: ObjectReference) -> None:
        self.by_uid.pop(regarding.uid, None)


class World:
    """A node with two GPUs handed over to Draco. Writes are seen on the watch immediately, unless the API server refuses them."""

    def __init__(self, after: str = "30m") -> None:
        self.clock, self.said = ManualClock(), Said()
        self.writes: list[Mapping[str, Any]] = []
        self.answers: list[ApiError] = []
        self.unseen: list[Pod] = []
        self.events: list[str] = []
        self.metrics = OperatorMetrics()
        self.view = ClusterView(cast("Client", self), None, clock=self.clock, pod_groups=KIND)
        self.reconciler = LeakedClaims(
            cast("Client", self),
            self.view,
            MigDecisions(self.view),
            cast("Notes", self.said),
            cast("EventRecorder", self),
            metrics=self.metrics,
            tell_after_s=TELL_S,
        )
        self.woken: list[ObjectKey] = []
        self.reconciler.subscribe(self.woken.append)
        devices = [a_device(f"gpu-{index}") for index in range(2)]
        ours = a_device_class("ours")
        labels = {"draco.dev/allocator": "operator"}
        self.put(
            a_node(),
            a_mig_node(),
            a_slice("node-0", devices),
            msgspec.structs.replace(ours, metadata=msgspec.structs.replace(ours.metadata, labels=labels)),
        )
        self.permit(after)
        self.put(GROUP)

    def permit(self, after: str) -> None:
        gangs = MigGangs(release_leaked_after=after)
        self.put(a_mig_policy(mode=MigMode.DISABLED, allocator=Allocator.OPERATOR, gangs=gangs))

    def put(self, *objects: Any) -> None:
        """As if the watch had reported them."""
        tell(self.view, *objects)

    def keep(
        self, name: str = "gpu", *, reserved: bool = True, made: bool = True, uid: str = "train", **status: Any
    ) -> ResourceClaim:
        claim = a_claim(name, device_class="ours", on=["node-0/gpu-0"])
        meta = msgspec.structs.replace(
            claim.metadata,
            owner_references=[msgspec.structs.replace(OWNER, uid=uid)] if made else [],
            resource_version=f"{len(self.writes)}",
        )
        state = msgspec.structs.replace(
            claim.status, reserved_for=[msgspec.structs.replace(RESERVATION, uid=uid)] if reserved else [], **status
        )
        claim = msgspec.structs.replace(claim, metadata=meta, status=state)
        self.put(claim)
        return claim

    def record(self, regarding: ObjectReference, reason: EventReason, note: str) -> None:
        self.events.append(reason.name)

    async def list(self, kind: Kind[Any], *, namespace: str) -> list[Pod]:
        assert kind is PODS
        return self.unseen

    async def patch(self, kind: Kind[Any], key: ObjectKey, body: Mapping[str, Any], *, subresource: str) -> None:
        claim = self.view.claims.store.get(key)
        assert claim is not None
        assert (kind, subresource) == (CLAIMS, "status")
        assert body["metadata"] == {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version}
        if self.answers:
            raise self.answers.pop(0)
        self.writes.append(body["status"])
        state = claim.status
        if "reservedFor" in body["status"]:
            state = msgspec.structs.replace(state, reserved_for=[])
        if "allocation" in body["status"]:
            state = msgspec.structs.replace(state, allocation=None)
        meta = msgspec.structs.replace(claim.metadata, resource_version=f"{len(self.writes)}")
        self.put(msgspec.structs.replace(claim, metadata=meta, status=state))

    async def look(self, after_s: float = 0.0) -> float | None:
        await self.clock.advance(after_s)
        return await self.reconciler.reconcile(KEY)

    @property
    def released(self) -> float | None:
        return self.metrics.registry.get_sample_value("draco_leaked_claims_released_total")

    @property
    def leaked(self) -> float | None:
        return self.metrics.registry.get_sample_value("draco_leaked_claims")


def a_member(name: str = "pod", **terms: Any) -> Pod:
    pod = a_pod(name, **terms)
    spec = msgspec.structs.replace(pod.spec, scheduling_group=PodSchedulingGroup(pod_group_name="train"))
    return msgspec.structs.replace(pod, spec=spec)


async def test_it_is_said_after_ten_minutes_and_no_more_once_the_group_has_a_pod() -> None:
    world = World(after="")
    world.keep()
    await world.look()
    await world.look(TELL_S - 1)
    assert (world.said.by_uid, world.leaked, world.reconciler.trouble) == ({}, 0, "")
    await world.look(1)
    assert "kubectl delete podgroup -n default train" in world.said.by_uid["train"]
    assert "spec.gangs.releaseLeakedAfter" in world.said.by_uid["train"]
    assert world.leaked == 1
    assert "default/train" in world.reconciler.trouble
    world.woken.clear()
    world.put(a_member())
    assert world.woken == [KEY]
    assert await world.look() is None
    assert (world.said.by_uid, world.leaked, world.reconciler.trouble) == ({}, 0, "")
    world.put(a_member(status=PodStatus(phase="Failed")))
    await world.look()
    await world.look(TELL_S - 1)
    assert world.said.by_uid == {}  # the time starts again


async def test_first_the_reservation_goes_and_a_while_later_the_allocation() -> None:
    world = World()
    world.keep()
    await world.look()
    await world.look(RELEASE_S - 1)
    assert world.writes == []
    await world.look(1)
    assert world.writes == [{"reservedFor": None}]
    await world.look(1)
    await world.look(SETTLE_S - 1)
    assert len(world.writes) == 1
    await world.look(1)
    assert world.writes[1:] == [{"allocation": None}]
    assert await world.look() is None
    assert (world.events, world.released, world.said.by_uid) == (["LeakReleased"], 1, {})


@pytest.mark.parametrize(
    "comes",
    [
        lambda world: world.put(a_member()),
        lambda world: world.put(a_member(status=PodStatus(phase="Running"), deletion_timestamp=MOMENT)),
        lambda world: world.put(a_pod(claims=["gpu"])),
        lambda world: world.unseen.append(a_member()),
        lambda world: world.unseen.append(a_pod(claims=["gpu"])),
        lambda world: world.keep(),
        lambda world: world.permit(""),
        lambda world: world.put(msgspec.structs.replace(GROUP, metadata=ObjectMeta(name="train", namespace="default"))),
    ],
    ids=[
        "a pod",
        "one that ends",
        "by the claim",
        "unseen",
        "unseen by the claim",
        "reserved",
        "forbidden",
        "another group",
    ],
)
async def test_what_comes_between_the_two_steps_wins(comes: Callable[[World], None]) -> None:
    world = World()
    world.keep()
    await world.look()
    await world.look(RELEASE_S)
    await world.look()
    comes(world)
    await world.look()
    await world.look(SETTLE_S)
    assert world.writes == [{"reservedFor": None}]


async def test_a_claim_that_a_node_has_prepared_is_left_until_it_has_not() -> None:
    world = World()
    ready = Condition(type="Ready", status="True")
    device = AllocatedDeviceStatus(driver=NVIDIA_DRIVER, pool="node-0", device="gpu-0", conditions=[ready])
    world.keep(devices=[device])
    await world.look()
    await world.look(RELEASE_S)
    assert world.writes == []
    world.keep()
    await world.look()
    assert world.writes == [{"reservedFor": None}]


@pytest.mark.parametrize("reserved", [True, False])
async def test_a_claim_by_name_is_never_taken_back(reserved: bool) -> None:
    world = World()
    world.keep(made=False, reserved=reserved)
    for _ in range(3):
        await world.look(RELEASE_S)
    assert world.writes == []
    assert ("kubectl delete resourceclaim" in world.said.by_uid.get("train", "")) is reserved


async def test_what_was_allocated_and_never_reserved_goes_at_once_when_it_is_time() -> None:
    world = World()
    world.keep(reserved=False)
    await world.look()
    await world.look(RELEASE_S)
    assert world.writes == [{"allocation": None}]


async def test_who_leads_next_goes_on_and_counts_from_the_beginning() -> None:
    world = World()
    world.keep(reserved=False)  # as the previous leader left it after the first step
    gone = ObjectMeta(name="gone", namespace="default", uid="gone")
    world.said.adopted = [KIND.reference(GROUP.metadata), KIND.reference(gone)]
    world.said.by_uid = {"gone": "from before"}
    await world.look()
    assert world.said.by_uid.keys() == {"train"}
    await world.look(RELEASE_S - 1)
    assert world.writes == []
    await world.look(1)
    assert world.writes == [{"allocation": None}]


async def test_what_was_said_of_a_group_does_not_stay_when_another_has_its_name_and_claims_at_once() -> None:
    world = World(after="")
    old = world.keep()
    await world.look()
    await world.look(TELL_S)
    assert world.said.by_uid.keys() == {"train"}
    world.view.claims._publish(world.view.claims.store.remove(old.metadata.key))
    world.put(msgspec.structs.replace(GROUP, metadata=msgspec.structs.replace(GROUP.metadata, uid="anew")))
    world.keep("another", uid="anew")
    await world.look()
    assert (world.said.by_uid, world.leaked, world.reconciler.trouble) == ({}, 0, "")
    await world.look(TELL_S - 1)
    assert world.said.by_uid == {}
    await world.look(1)
    assert world.said.by_uid.keys() == {"anew"}


async def test_what_is_refused_for_one_claim_does_not_keep_another_waiting() -> None:
    world = World()
    world.keep("a")
    world.keep("b")
    await world.look()
    world.answers = [Forbidden(403, "Forbidden", "its GPU is not Draco's any more")]
    await world.look(RELEASE_S)
    assert world.writes == [{"reservedFor": None}]


async def test_a_conflict_is_let_be_an_outage_is_tried_again_and_a_refusal_later() -> None:
    world = World()
    world.keep()
    await world.look()
    world.answers = [Conflict(409, "Conflict", "changed"), Unreachable("down"), Forbidden(403, "Forbidden", "no")]
    await world.look(RELEASE_S)
    with pytest.raises(Unreachable):
        await world.look()
    await world.look()
    await world.look(4)
    assert (world.writes, world.answers) == ([], [])
    await world.look(1)
    assert world.writes == [{"reservedFor": None}]


async def test_where_the_api_server_refuses_it_the_event_says_what_to_do_until_it_does_not() -> None:
    world = World()
    world.keep()
    await world.look()
    world.answers = [Forbidden(403, "Forbidden", "no")] * 2
    await world.look(RELEASE_S)
    refusal = f"The API server does not let Draco release claim default/gpu: {REMEDY} (no)."
    assert world.said.by_uid["train"].endswith(refusal)
    await world.look(5)
    await world.look(9)
    assert world.writes == []  # each wait is longer
    await world.look(1)
    assert (world.writes, refusal in world.said.by_uid["train"]) == ([{"reservedFor": None}], False)


async def test_a_node_that_is_away_when_it_is_time_delays_the_release_no_longer_than_it_is_away() -> None:
    """Only the passing of time makes the operator look again."""
    world = World()
    world.keep(reserved=False)
    await world.look()
    await world.look(RELEASE_S - 1)
    collection_of(world.view, "GpuNode").store.remove(ObjectKey("", "node-0"))
    again_s = await world.look(1)
    assert world.writes == []
    assert again_s is not None
    assert again_s <= 15
    world.put(a_mig_node())
    again_s = await world.look(again_s)
    assert again_s is not None
    await world.look(again_s)
    assert world.writes == [{"allocation": None}]


async def test_of_claims_that_a_group_keeps_no_more_nothing_is_kept_though_it_keeps_others() -> None:
    world = World()
    world.keep("stays", reserved=False)
    for number in range(5):
        passing = world.keep(f"passing-{number}", reserved=False)
        await world.look()
        forget(world.view, passing)
    await world.look()
    assert len(world.reconciler._unreserved_s) == 1
