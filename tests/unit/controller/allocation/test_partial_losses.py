"""When the rest of a group that lost a pod is evicted, when it is kept, and what is said about it."""

from typing import Any, cast

import msgspec
import pytest

from draco.allocation.ownership.gangs import GangKey, GangSource
from draco.controller.allocation.gang_reading import Gangs
from draco.controller.allocation.preempting.losses import AFTER_S, KEPT_REASON, RELEASED_REASON, PartialLosses
from draco.controller.allocation.preempting.preemption import Preemptions
from draco.controller.evictions import NOT_PERMITTED, PodEvictions
from draco.controller.metrics import OperatorMetrics
from draco.controller.mig.decisions import MigDecisions
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, DisruptionRefused, Forbidden
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.resources.api.claims import ResourceClaim, ResourceClaimConsumerReference
from draco.resources.api.core import ObjectReference, Pod, PodStatus
from draco.resources.api.draco import Allocator, MigGangs, MigMode, PartialLoss
from draco.resources.api.jobs import Job, JobSpec
from draco.resources.api.meta import ObjectKey, ObjectMeta, OwnerReference
from draco.resources.kinds import PODS, Kind
from tests.builders import a_claim, a_device, a_device_class, a_mig_node, a_mig_policy, a_node, a_pod, a_slice
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import collection_of, tell

GANG = GangKey(GangSource.KUEUE, "default", "train")
LABELS = {"kueue.x-k8s.io/pod-group-name": "train"}
SIZE = {"kueue.x-k8s.io/pod-group-total-count": "3"}


class World:
    """A node with four GPUs handed over to Draco. Of a group of three, a and b run, and c waits for devices."""

    def __init__(self, loss: PartialLoss = PartialLoss.RELEASE) -> None:
        self.clock = ManualClock()
        self.answers: dict[str, list[ApiError]] = {}
        """The answers to the next evictions of a pod, except dry runs."""
        self.foreseen: dict[str, ApiError] = {}
        self.asked: list[str] = []
        self.said: list[tuple[str, EventReason, str]] = []
        self.unseen: list[Pod] = []
        self.nominated: object = None
        self.metrics = OperatorMetrics()
        client = cast("Client", self)
        self.view = ClusterView(client, None, clock=self.clock, allocates=True)
        self.gangs = Gangs(self.view)
        self.losses = PartialLosses(
            client,
            self.view,
            MigDecisions(self.view),
            self.gangs,
            cast("Preemptions", self),
            evictions=PodEvictions(client, clock=self.clock),
            events=cast("EventRecorder", self),
            count=self.metrics.losses,
        )
        ours = a_device_class("ours")
        labels = {"draco.dev/allocator": "operator"}
        self.put(
            a_node(),
            a_mig_node(),
            a_slice("node-0", [a_device(f"gpu-{index}") for index in range(4)]),
            msgspec.structs.replace(ours, metadata=msgspec.structs.replace(ours.metadata, labels=labels)),
        )
        self.say(loss)
        for name, index in (("a", 0), ("b", 1)):
            self.run_pod(name, index)
        self.wait_pod("c")

    def say(self, loss: PartialLoss) -> None:
        gangs = MigGangs(on_partial_loss=loss)
        self.put(a_mig_policy(mode=MigMode.DISABLED, allocator=Allocator.OPERATOR, gangs=gangs))

    def run_pod(self, name: str, index: int, **more: Any) -> None:
        pod = a_member(name, node="node-0", status=PodStatus(phase="Running"), **more)
        self.put(pod, a_claim_of(pod, f"node-0/gpu-{index}"))

    def wait_pod(self, name: str) -> None:
        pod = a_member(name, status=PodStatus(phase="Pending"))
        self.put(pod, a_claim_of(pod))

    def put(self, *objects: Any) -> None:
        for item in objects:
            collection_of(self.view, type(item).__name__).store.put(item)

    def remove(self, name: str) -> None:
        for kind in ("Pod", "ResourceClaim"):
            collection_of(self.view, kind).store.remove(ObjectKey("default", name))

    def of(self, uid: str) -> object:
        """What preemption keeps for the group."""
        assert uid == str(GANG)
        return self.nominated

    def record(self, regarding: ObjectReference, reason: EventReason, note: str) -> None:
        self.said.append((regarding.name, reason, note))

    async def list(self, kind: Kind[Any], *, namespace: str) -> list[Any]:
        assert namespace == "default"
        found = collection_of(self.view, kind.kind).store.values()
        newer = {each.metadata.key: each for each in self.unseen} if kind is PODS else {}
        return [newer.get(each.metadata.key, each) for each in found]

    async def create_subresource(
        self, kind: Kind[Any], key: ObjectKey, subresource: str, body: dict[str, Any], *, dry_run: bool
    ) -> None:
        if dry_run:
            if key.name in self.foreseen:
                raise self.foreseen[key.name]
            return
        self.asked.append(key.name)
        if self.answers.get(key.name):
            raise self.answers[key.name].pop(0)
        self.remove(key.name)

    async def look(self, after_s: float = 0.0) -> float | None:
        await self.clock.advance(after_s)
        return await self.losses.reconcile(GANG)

    def number(self, outcome: str) -> float | None:
        return self.metrics.registry.get_sample_value("draco_partial_loss_evictions_total", {"outcome": outcome})


def a_member(name: str, **more: Any) -> Pod:
    return a_pod(name, claims=[name], labels=LABELS, annotations={**SIZE, **more.pop("annotations", {})}, **more)


def a_claim_of(pod: Pod, *on: str, kind: str = "Pod") -> ResourceClaim:
    name, uid = pod.metadata.name, pod.metadata.uid
    claim = a_claim(name, device_class="ours", on=on)
    owner = OwnerReference(api_version="v1", kind=kind, name=name, uid=uid, controller=True)
    users = [ResourceClaimConsumerReference(resource="pods", name=name, uid=uid)] if on else []
    return msgspec.structs.replace(
        claim,
        metadata=msgspec.structs.replace(claim.metadata, owner_references=[owner]),
        status=msgspec.structs.replace(claim.status, reserved_for=users),
    )


async def test_all_that_run_leave_after_five_minutes_and_are_told_why() -> None:
    world = World()
    assert await world.look() == AFTER_S
    assert await world.look(AFTER_S - 1) == 1
    assert world.asked == []
    await world.look(1)
    assert world.asked == ["a", "b"]
    assert [(name, reason) for name, reason, _ in world.said] == [("a", RELEASED_REASON), ("b", RELEASED_REASON)]
    assert "has been short of 1 pod for 5 min (MigPolicy spec.gangs.onPartialLoss)" in world.said[0][2]
    assert world.number("evicted") == 2
    assert await world.look() is None


async def test_the_five_minutes_begin_anew_where_nobody_waited_in_between_or_the_policy_did_not_say_so() -> None:
    world = World()
    await world.look()
    world.remove("c")
    assert await world.look(AFTER_S) is None
    world.wait_pod("c")
    assert await world.look() == AFTER_S
    world.say(PartialLoss.KEEP)
    assert await world.look(AFTER_S) is None
    world.say(PartialLoss.RELEASE)
    assert await world.look() == AFTER_S
    assert world.asked == []


async def test_devices_that_come_and_go_again_do_not_make_it_wait_longer() -> None:
    world = World()
    await world.look()
    waiting = a_member("c", status=PodStatus(phase="Pending"))
    world.put(a_claim_of(waiting, "node-0/gpu-2"))
    assert await world.look(AFTER_S) is None
    world.put(a_claim_of(waiting))
    await world.look()
    assert world.asked == ["a", "b"]


@pytest.mark.parametrize("kind", ["PodGroup", "DeviceReservation", ""])
async def test_a_group_with_a_claim_that_does_not_go_with_its_pod_is_kept(kind: str) -> None:
    world = World()
    world.put(a_claim_of(a_member("b"), "node-0/gpu-1", kind=kind))
    await world.look()
    assert await world.look(AFTER_S) is None
    assert world.asked == []


async def test_what_the_api_server_knows_and_the_watch_does_not_counts() -> None:
    world = World()
    world.unseen = [a_member("c", status=PodStatus(phase="Succeeded"))]
    await world.look()
    await world.look(AFTER_S)
    assert (world.asked, world.said) == ([], [])


async def test_nobody_is_evicted_while_others_leave_for_the_group() -> None:
    world = World()
    await world.look()
    world.nominated = object()
    assert await world.look(AFTER_S) == 10
    assert world.asked == []
    world.nominated = None
    await world.look()
    assert world.asked == ["a", "b"]


async def test_one_that_would_be_refused_keeps_all_and_it_is_tried_again_later_each_time() -> None:
    world = World()
    world.foreseen["b"] = DisruptionRefused(429, "TooManyRequests", "a budget is in the way.")
    await world.look()
    waits = [await world.look(AFTER_S)]
    while len(waits) < 8:
        waits.append(await world.look(waits[-1] or 0.0))
    assert world.asked == []
    assert all(wait is not None for wait in waits)
    assert 5 <= cast("float", waits[0]) <= 10
    assert 150 <= cast("float", waits[-1]) <= 300
    assert {each[:2] for each in world.said} == {("b", KEPT_REASON)}
    assert "Pod b: a budget is in the way." in world.said[0][2]
    assert world.number("refused") == 8
    world.foreseen.clear()
    assert await world.look(1.0)
    assert world.asked == []
    await world.look(waits[-1] or 0.0)
    assert world.asked == ["a", "b"]


async def test_one_that_is_refused_midway_leaves_later_though_nobody_made_the_other_again() -> None:
    world = World()
    world.answers["b"] = [Forbidden(403, "Forbidden", "admission webhook says: not now")]
    await world.look()
    wait_s = await world.look(AFTER_S)
    assert world.asked == ["a", "b"]
    assert [each[:2] for each in world.said] == [("a", RELEASED_REASON), ("b", KEPT_REASON)]
    assert wait_s is not None
    await world.look(wait_s)
    assert world.asked == ["a", "b", "b"]


async def test_a_static_pod_keeps_the_group_and_that_is_said() -> None:
    world = World()
    world.run_pod("b", 1, annotations={"kubernetes.io/config.mirror": "x"})
    await world.look()
    await world.look(AFTER_S)
    assert world.asked == []
    ((_, reason, note),) = world.said
    assert reason == KEPT_REASON
    assert "a static pod" in note


async def test_a_missing_right_is_a_trouble() -> None:
    world = World()
    message = 'pods "a" is forbidden: User "draco" cannot create resource "pods/eviction"'
    world.foreseen["a"] = Forbidden(403, "Forbidden", message)
    await world.look()
    assert world.losses.trouble == ""
    await world.look(AFTER_S)
    assert world.losses.trouble == NOT_PERMITTED
    assert NOT_PERMITTED in world.said[0][2]


JOB_SET = GangKey(GangSource.JOB_SET, "default", "train")
JOB_LABELS = {
    "jobset.sigs.k8s.io/jobset-name": "train",
    "jobset.sigs.k8s.io/global-replicas": "1",
    "batch.kubernetes.io/job-name": "job",
}
JOB = OwnerReference(api_version="batch/v1", kind="Job", name="job", uid="job", controller=True)


def a_job(parallelism: int) -> Job:
    return Job(
        metadata=ObjectMeta(name="job", namespace="default", uid="job", labels=JOB_LABELS),
        spec=JobSpec(parallelism=parallelism),
    )


async def test_a_job_set_that_lacks_more_pods_than_wait_is_looked_at_once_its_job_is_made_smaller() -> None:
    world = World()
    woken: list[GangKey] = []
    world.losses.subscribe(woken.append)
    world.remove("a")
    for name, node in (("one", "node-0"), ("two", "")):
        phase = "Running" if node else "Pending"
        of_job: dict[str, Any] = {"labels": JOB_LABELS, "owner_references": [JOB]}
        pod = a_pod(name, claims=[name], node=node, status=PodStatus(phase=phase), **of_job)
        world.put(pod, a_claim_of(pod, *(["node-0/gpu-0"] if node else [])))
    assert await world.losses.reconcile(JOB_SET) is None
    woken.clear()
    for parallelism, again_s in ((3, None), (2, AFTER_S)):
        tell(world.view, a_job(parallelism))
        assert woken == [JOB_SET]
        assert await world.losses.reconcile(JOB_SET) == again_s
        woken.clear()


async def test_nobody_is_evicted_while_budgets_are_unknown() -> None:
    world = World()
    await world.look()
    world.view.disruption_budgets.forbidden = True
    assert await world.look(AFTER_S) == 10
    assert world.asked == []
    world.view.disruption_budgets.heard()
    await world.look()
    assert world.asked == ["a", "b"]
