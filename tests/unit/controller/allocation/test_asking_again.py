"""How soon Draco searches again for a claim that found no place, without an API server."""

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

from draco.controller.allocation.allocations import KEY
from draco.controller.allocation.asking.schedule import SECOND_LOOK_S
from draco.controller.allocation.preempting.preemption import Nomination
from draco.controller.allocation.writing.writes import FINALIZER
from draco.controller.view import ClusterView
from draco.controller.workers.messages import PlaceClaims, PlacementAnswer, claims_of
from draco.kube.connect.client import Client
from draco.kube.errors import Conflict, Unreachable
from draco.placing.groups.group import GroupPlacement
from draco.resources.api.claims import AllocationResult, ResourceClaimConsumerReference
from draco.resources.api.core import PodStatus, Toleration
from draco.resources.api.meta import Condition, ObjectKey, ObjectMeta, OwnerReference
from draco.resources.api.reservations import DeviceReservation, DeviceReservationSpec
from draco.resources.kinds import DEVICE_RESERVATIONS, POD_GROUPS
from draco.resources.names import LABEL_ALLOCATOR, DeviceKey
from tests.builders import a_claim, a_device_class, a_pod
from tests.doubles.allocating import permissive_allocations
from tests.doubles.clock import ManualClock
from tests.doubles.workers import PromptWorkers

POD_GROUP = ResourceClaimConsumerReference(
    api_group="scheduling.k8s.io", resource="podgroups", name="train", uid="train"
)

JOB = OwnerReference(api_version="batch/v1", kind="Job", name="train", uid="train")


def no_place(question: object) -> PlacementAnswer:
    assert isinstance(question, PlaceClaims)
    return PlacementAnswer([GroupPlacement([], "No device is free.") for _ in question.groups])


def hopeless(question: object) -> PlacementAnswer:
    answer = no_place(question)
    return PlacementAnswer([msgspec.structs.replace(each, is_hopeless=True) for each in answer.placements])


class NeverPoor(PromptWorkers):
    """Workers whose tenants always have budget left, except for the namespaces in `poor`."""

    poor: Collection[str] = ()

    def may_ask(self, namespace: str) -> bool:
        return namespace not in self.poor


class Lab:
    """One waiting claim, in a cluster that the test changes. The API server answers each write with a conflict."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.writes = 0
        self.refusal: Exception | None = Conflict(409, "Conflict", "the object has been modified")
        self.view = ClusterView(cast("Client", None), None, clock=self.clock, pod_groups=POD_GROUPS[0], allocates=True)
        self.workers = NeverPoor(self.view)
        self.workers.instead = no_place
        self.allocations = permissive_allocations(self.view, self.workers, self)
        self.is_woken, self.due_s, self.has_reason = True, 0.0, True
        self.allocations.subscribe(self._wake)
        plain = a_device_class("gpu.draco.dev")
        labels = {LABEL_ALLOCATOR: "operator"}
        mine = msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, labels=labels))
        self.view.classes._publish(self.view.classes.store.put(mine))
        self.wait("waits")

    def _wake(self, _: str) -> None:
        self.is_woken = True

    @property
    def decided_late(self) -> float:
        """How many decisions were found late, by a look without a reason."""
        return cast("float", self.allocations._second_looks._count._value.get())

    async def patch(self, *_: Any, **__: Any) -> None:
        self.writes += 1
        if self.refusal is not None:
            raise self.refusal

    async def list(self, *_: Any, **__: Any) -> list[Any]:
        raise Unreachable("nothing is listed here")

    def wait(self, name: str, *, namespace: str = "default", version: str = "1", **meta: Any) -> None:
        """Add another waiting claim."""
        claim = a_claim(name, namespace=namespace, device_class="gpu.draco.dev")
        protected = msgspec.structs.replace(
            claim.metadata, uid=name, finalizers=[FINALIZER], resource_version=version, **meta
        )
        self.view.claims._publish(self.view.claims.store.put(msgspec.structs.replace(claim, metadata=protected)))

    def begin(self, pod: str, **fields: Any) -> None:
        """Add a waiting pod with a claim of the same name, or change the existing one."""
        self.wait(pod)
        made = a_pod(pod, claims=[pod], status=PodStatus(phase="Pending"), **fields)
        self.view.pods._publish(self.view.pods.store.put(made))

    def reserve(self, claims: int) -> None:
        """Reserve this many claims, or fewer than before."""
        meta = ObjectMeta(name="evening", namespace="default", uid="evening")
        reservation = DeviceReservation(metadata=meta, spec=DeviceReservationSpec(count=claims))
        self.view.reservations._publish(self.view.reservations.store.put(reservation))
        for number in range(claims):
            self.wait(f"evening-{number}", owner_references=[DEVICE_RESERVATIONS.owner(meta)])
        self.view.claims._publish(self.view.claims.store.remove(ObjectKey("default", f"evening-{claims}")))

    def change(self, gpu: int, *, gang: str = "", owners: Sequence[OwnerReference] = (JOB,)) -> None:
        """Give a device to another pod: one of a Job, and of a PodGroup if `gang` names one."""
        name = f"other-{gpu}"
        held = a_claim(name, device_class="gpu.draco.dev", on=[f"node-0/gpu-{gpu}"], reserved_for=[name])
        pod = a_pod(name, node="node-0", claims=[name], pod_group=gang, owner_references=[*owners])
        self.view.pods._publish(self.view.pods.store.put(pod))
        self.view.claims._publish(self.view.claims.store.put(held))

    def end(self, gpu: int) -> None:
        """End the pod that has the device; its claim still holds it."""
        self.view.pods._publish(self.view.pods.store.remove(a_pod(f"other-{gpu}").metadata.key))

    def free(self, gpu: int) -> None:
        """Delete the claim that holds the device."""
        self.view.claims._publish(self.view.claims.store.remove(a_claim(f"other-{gpu}").metadata.key))

    async def look(self) -> float | None:
        """Reconcile whenever it is woken or due, as the queue does. In how many seconds there is a reason to look again."""
        while self.is_woken or self.clock.monotonic() >= self.due_s:
            self.is_woken = False
            again_s = await self.allocations.reconcile(KEY)
            self.due_s = float("inf") if again_s is None else self.clock.monotonic() + again_s
            self.has_reason = again_s is not None and again_s < SECOND_LOOK_S
        return self.due_s - self.clock.monotonic() if self.has_reason else None

    async def rest(self) -> None:
        """Reconcile until there is nothing to do, and any search may be repeated immediately."""
        await self.look()
        self.clock.pass_without_a_turn(60)
        await self.look()


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    assert made.decided_late == 0


async def test_as_long_as_nothing_changes_nobody_asks_again(lab: Lab) -> None:
    assert await lab.look() is None
    lab.clock.pass_without_a_turn(3600)
    assert await lab.look() is None
    assert len(lab.workers.asked) == 1


@pytest.mark.parametrize(("cost_s", "rest_s"), [(0.0, 0.05), (0.1, 0.4), (0.5, 1.0)])
async def test_after_a_change_it_is_asked_again_the_sooner_the_less_that_costs(
    lab: Lab, cost_s: float, rest_s: float
) -> None:
    lab.workers.cpu_s = cost_s
    await lab.look()
    lab.change(1)
    assert await lab.look() == pytest.approx(rest_s)
    assert len(lab.workers.asked) == 1
    lab.clock.pass_without_a_turn(rest_s)
    await lab.look()
    assert len(lab.workers.asked) == 2


async def test_however_often_the_cluster_changes_a_fifth_of_the_time_is_spent_asking(lab: Lab) -> None:
    lab.workers.cpu_s = 0.02
    for number in range(1000):
        lab.change(number)
        await lab.look()
        lab.clock.pass_without_a_turn(0.01)
    assert 105 <= len(lab.workers.asked) <= 125


def tolerate(lab: Lab, more: bool) -> None:
    """Add a waiting pod; with `more`, give it a toleration."""
    lab.begin("pod")
    pod = lab.view.pods.store.get(ObjectKey("default", "pod"))
    assert pod is not None
    if more:
        spec = msgspec.structs.replace(pod.spec, tolerations=[Toleration(key="maintenance", operator="Exists")])
        lab.view.pods._publish(lab.view.pods.store.put(msgspec.structs.replace(pod, spec=spec)))


def form(lab: Lab, smaller: bool) -> None:
    """Add a group of pods; with `smaller`, fewer of them start together than before."""
    said = {"draco.dev/group-size": "1" if smaller else "2"}
    for name in ("one", "other"):
        lab.begin(name, labels={"kueue.x-k8s.io/pod-group-name": "train"}, annotations=said)


def replace(lab: Lab, again: bool) -> None:
    """Add a group of pods; with `again`, recreate one of them with another claim."""
    form(lab, smaller=False)
    if again:
        lab.view.claims._publish(lab.view.claims.store.remove(ObjectKey("default", "one")))
        lab.wait("one-again")
        labels, said = {"kueue.x-k8s.io/pod-group-name": "train"}, {"draco.dev/group-size": "2"}
        pod = a_pod("one", claims=["one-again"], labels=labels, annotations=said, status=PodStatus(phase="Pending"))
        lab.view.pods._publish(lab.view.pods.store.put(pod))


@pytest.mark.parametrize("asks", [lambda lab, less: lab.reserve(2 if less else 3), tolerate, form, replace])
async def test_who_asks_for_something_else_is_asked_about_again_though_nothing_else_has_changed(
    lab: Lab, asks: Callable[[Lab, bool], None]
) -> None:
    asks(lab, False)
    await lab.rest()
    asked = len(lab.workers.asked)
    asks(lab, True)
    await lab.rest()
    assert len(lab.workers.asked) == asked + 1
    await lab.rest()
    assert len(lab.workers.asked) == asked + 1


async def test_a_group_is_not_asked_about_again_for_what_is_said_of_its_pods(lab: Lab) -> None:
    form(lab, smaller=False)
    await lab.rest()
    asked = len(lab.workers.asked)
    for name in ("one", "other"):
        pod = lab.view.pods.store.get(ObjectKey("default", name))
        assert pod is not None
        unschedulable = Condition(type="PodScheduled", status="False", message="0/1 nodes are available")
        said = msgspec.structs.replace(pod.status, conditions=[unschedulable])
        lab.view.pods._publish(lab.view.pods.store.put(msgspec.structs.replace(pod, status=said)))
        await lab.rest()
    assert len(lab.workers.asked) == asked


def a_place(question: object) -> PlacementAnswer:
    assert isinstance(question, PlaceClaims)
    return PlacementAnswer([GroupPlacement([[AllocationResult()] for _ in group.members]) for group in question.groups])


async def test_a_claim_that_is_another_by_now_is_tried_again_after_a_pause_until_the_watch_tells_of_it(
    lab: Lab,
) -> None:
    lab.workers.instead = a_place
    for _ in range(100):
        await lab.allocations.reconcile(KEY)
    assert (lab.writes, len(lab.workers.asked)) == (1, 1)
    assert 0 < lab.allocations.writes.next_s(lab.clock.monotonic()) <= 0.05
    for _ in range(100):
        lab.clock.pass_without_a_turn(0.1)
        await lab.allocations.reconcile(KEY)
    assert 5 <= lab.writes <= 10
    before = lab.writes
    lab.wait("waits", version="2")
    await lab.allocations.reconcile(KEY)
    assert lab.writes == before + 1


async def test_what_others_left_to_a_group_stays_its_own_while_its_claim_is_another_than_the_watch_told(
    lab: Lab,
) -> None:
    preemptions = lab.allocations.preemptions
    [waiting] = lab.allocations._waiting.groups()
    preemptions._nominations[waiting.uid] = Nomination(waiting, 10, [])
    lab.workers.instead = a_place
    await lab.look()
    assert (lab.writes, lab.allocations.writes.is_outdated(ObjectKey("default", "waits"))) == (1, True)
    assert preemptions.of(waiting.uid) is not None
    lab.view.claims._publish(lab.view.claims.store.remove(ObjectKey("default", "waits")))
    await lab.look()
    assert preemptions.of(waiting.uid) is None


async def held_from(lab: Lab, comes: str) -> set[DeviceKey]:
    """The devices that a claim which comes now may not get."""
    lab.wait(comes)
    lab.workers.asked.clear()
    await lab.look()
    [question] = lab.workers.asked
    assert isinstance(question, PlaceClaims)
    assert [each.metadata.name for each in claims_of(question)] == [comes]
    return {device for each in question.held for device in each.devices_held}


@pytest.mark.parametrize("overdue", [False, True])
async def test_what_is_given_to_a_group_that_is_overdue_stays_its_own_while_its_claim_is_another_than_the_watch_told(
    lab: Lab, overdue: bool
) -> None:
    lab.wait("waits", creation_timestamp=lab.clock.now() - timedelta(days=overdue))
    given = a_claim("given", on=["node-0/gpu-1"])
    assert given.status.allocation is not None
    found = GroupPlacement([[given.status.allocation]])
    lab.workers.instead = lambda _: PlacementAnswer([found])
    await lab.look()
    lab.workers.instead = no_place
    assert await held_from(lab, "young") == (set(given.devices_held) if overdue else set())
    lab.view.claims._publish(lab.view.claims.store.remove(ObjectKey("default", "waits")))
    assert await held_from(lab, "younger") == set()


async def test_a_group_is_asked_about_again_when_it_becomes_overdue_though_nothing_changes(lab: Lab) -> None:
    """Otherwise the next claim would get the devices that are free now, although they should be kept for the group."""
    lab.wait("waits", creation_timestamp=lab.clock.now() - timedelta(seconds=590))
    assert await lab.look() == pytest.approx(10.0)
    lab.workers.asked.clear()
    lab.clock.pass_without_a_turn(10.001)
    await lab.rest()
    asked = [each for question in lab.workers.asked if isinstance(question, PlaceClaims) for each in question.groups]
    assert [each.is_overdue for each in asked] == [True]


async def free_one_by_one(lab: Lab, number: int, *, every_s: float = 0.05, end_first: bool = False) -> list[int]:
    """Free devices one after the other; returns how many searches had been made after each."""
    asked = []
    for gpu in range(number):
        lab.change(gpu)
    await lab.rest()
    lab.workers.asked.clear()
    for gpu in range(number) if end_first else ():
        lab.end(gpu)
    for gpu in range(number):
        lab.end(gpu)
        lab.free(gpu)
        await lab.look()
        asked.append(len(lab.workers.asked))
        lab.clock.pass_without_a_turn(every_s)
        await lab.look()
    return asked


async def test_several_groups_are_asked_about_once_the_last_device_of_a_job_that_ends_is_free(lab: Lab) -> None:
    lab.wait("younger")
    assert await free_one_by_one(lab, 8) == [0] * 8
    assert await lab.look() == pytest.approx(0.05)
    lab.clock.pass_without_a_turn(0.06)
    await lab.look()
    assert [len(claims_of(question)) for question in lab.workers.asked] == [2]


@pytest.mark.parametrize(("left", "again_s"), [(0, None), (1, 0.1)], ids=["all of it", "all but one"])
async def test_when_the_last_device_of_a_gang_that_ends_is_free_no_more_are_waited_for(
    lab: Lab, left: int, again_s: float | None
) -> None:
    lab.wait("younger")
    for gpu in range(8):
        lab.change(gpu, gang="train")
    await lab.rest()
    lab.workers.asked.clear()
    for gpu in range(left, 8):
        lab.end(gpu)
    for gpu in range(left, 8):
        lab.free(gpu)
        assert await lab.look() == pytest.approx(2.0 if gpu < 7 else again_s)
    lab.clock.pass_without_a_turn(again_s or 0.0)
    await lab.look()
    assert [len(claims_of(question)) for question in lab.workers.asked] == [2]


@pytest.mark.parametrize(("owners", "again_s"), [([], None), ([JOB], 0.1)], ids=["by itself", "as one of a Job"])
async def test_no_more_devices_are_waited_for_when_a_pod_ends_that_nobody_made(
    lab: Lab, owners: list[OwnerReference], again_s: float | None
) -> None:
    lab.wait("younger")
    lab.change(0, owners=owners)
    await lab.rest()
    lab.end(0)
    lab.free(0)
    assert await lab.look() == (again_s and pytest.approx(again_s))


async def test_other_devices_that_become_free_are_waited_for_though_a_gang_has_ended(lab: Lab) -> None:
    lab.wait("younger")
    lab.change(0, gang="train")
    lab.change(1)
    await lab.rest()
    lab.end(1)
    lab.free(1)
    lab.end(0)
    lab.free(0)
    assert await lab.look() == pytest.approx(0.1)


async def test_devices_whose_pods_are_over_are_waited_for_though_they_become_free_slowly(lab: Lab) -> None:
    lab.wait("younger")
    assert await free_one_by_one(lab, 4, every_s=0.4, end_first=True) == [0] * 4
    assert len(lab.workers.asked) == 1


async def test_where_devices_become_free_all_the_time_several_groups_are_asked_about_every_two_seconds(
    lab: Lab,
) -> None:
    lab.wait("younger")
    assert (await free_one_by_one(lab, 200))[-1] == pytest.approx(5, abs=1)


async def test_a_device_that_does_not_become_free_is_not_waited_for_longer_than_that(lab: Lab) -> None:
    lab.wait("younger")
    lab.change(100)
    lab.end(100)
    assert (await free_one_by_one(lab, 200))[-1] == pytest.approx(5, abs=1)


@pytest.mark.parametrize("keepers", [[], [POD_GROUP]], ids=["by nobody", "by a PodGroup"])
async def test_devices_that_are_kept_without_a_pod_are_not_waited_for(
    lab: Lab, keepers: list[ResourceClaimConsumerReference]
) -> None:
    lab.wait("younger")
    kept = a_claim("kept", device_class="gpu.draco.dev", on=["node-0/gpu-100"])
    kept = msgspec.structs.replace(kept, status=msgspec.structs.replace(kept.status, reserved_for=keepers))
    lab.view.claims._publish(lab.view.claims.store.put(kept))
    await free_one_by_one(lab, 4)
    lab.clock.pass_without_a_turn(0.06)
    await lab.look()
    assert len(lab.workers.asked) == 1


async def test_a_group_that_waits_alone_is_asked_about_as_devices_become_free(lab: Lab) -> None:
    assert await free_one_by_one(lab, 8) == [1, 2, 3, 4, 5, 6, 7, 8]


def asked(lab: Lab) -> list[list[str]]:
    """The claims of each question, in order."""
    return [[each.metadata.name for each in claims_of(question)] for question in lab.workers.asked]


async def rests(lab: Lab, *, freed: bool) -> None:
    """The group has just been searched for, and then something else changed."""
    lab.change(1, gang="other")
    await lab.rest()
    lab.change(2)
    await lab.look()
    lab.change(3)
    if freed:
        lab.end(1)
        lab.free(1)
    lab.workers.asked.clear()


async def test_who_comes_when_a_device_has_become_free_is_asked_about_with_those_that_waited_for_it(lab: Lab) -> None:
    await rests(lab, freed=True)
    lab.wait("young")
    assert await lab.look() == pytest.approx(0.05)
    assert asked(lab) == []
    lab.clock.pass_without_a_turn(0.05)
    await lab.look()
    assert asked(lab) == [["waits", "young"]]


async def test_who_comes_when_none_has_become_free_is_asked_about_at_once(lab: Lab) -> None:
    await rests(lab, freed=False)
    lab.wait("young")
    await lab.look()
    assert asked(lab) == [["young"]]


async def test_nobody_waits_for_a_group_that_nothing_helps(lab: Lab) -> None:
    lab.workers.instead = hopeless
    await rests(lab, freed=True)
    lab.wait("young")
    await lab.look()
    assert asked(lab) == [["young"]]


async def test_nobody_waits_for_a_tenant_that_asks_too_much(lab: Lab) -> None:
    await rests(lab, freed=True)
    lab.workers.poor = {"default"}
    lab.wait("young", namespace="others")
    await lab.look()
    assert asked(lab) == [["young"]]
