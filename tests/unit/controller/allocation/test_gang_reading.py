"""What Draco reads about groups that is not watched: the number of pods in the Jobs of a JobSet, and how often it reads that."""

from typing import cast

import msgspec
import pytest

from draco.allocation.ownership.gangs import GangKey, GangSource, GangTerms, UnknownTerms
from draco.controller.allocation import gang_reading
from draco.controller.allocation.gang_reading import Gangs
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Forbidden
from draco.resources.api.core import PodStatus
from draco.resources.api.jobs import Job, JobSpec, JobStatus
from draco.resources.api.meta import Condition, ObjectKey, ObjectMeta, OwnerReference
from draco.resources.kinds import JOBS, Kind
from tests.builders import a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import collection_of, tell

SET = GangKey(GangSource.JOB_SET, "default", "set")
LONGEST_S = 60.0


class World:
    """A JobSet whose Jobs have the numbers of pods in `jobs`; the API server answers with `error`, if that is set."""

    def __init__(self, number: int | None = None, **jobs: int | None) -> None:
        """The pods' labels say that there are `number` Jobs: by default, as many as there are."""
        self.clock = ManualClock()
        self.jobs: dict[str, int | None] = dict(jobs)
        self.number = len(jobs) if number is None else number
        self.uids = {name: name for name in jobs}
        self.ended: set[str] = set()
        self.error: ApiError | None = None
        self.asked = 0
        self.view = ClusterView(cast("Client", self), None, clock=self.clock)
        self.gangs = Gangs(cast("Client", self), self.view)

    async def list(self, kind: Kind[Job], *, namespace: str, label_selector: str) -> list[Job]:
        assert (kind, namespace, label_selector) == (JOBS, "default", "jobset.sigs.k8s.io/jobset-name=set")
        self.asked += 1
        if self.error:
            raise self.error
        return [
            Job(
                metadata=ObjectMeta(name=name, namespace=namespace, uid=self.uids[name]),
                spec=JobSpec(parallelism=parallelism),
                status=JobStatus(conditions=[Condition(type="Complete", status="True")] if name in self.ended else []),
            )
            for name, parallelism in self.jobs.items()
        ]

    def put(self, name: str, *, phase: str = "Pending", uid: str = "", deleted: bool = False) -> None:
        """Add a pod of the Job named before the dash."""
        job = name.partition("-")[0]
        labels = {
            "jobset.sigs.k8s.io/jobset-name": "set",
            "jobset.sigs.k8s.io/global-replicas": str(self.number),
            "batch.kubernetes.io/job-name": job,
        }
        owner = OwnerReference(api_version="batch/v1", kind="Job", name=job, uid=uid or job, controller=True)
        pod = a_pod(name, labels=labels, owner_references=[owner], status=PodStatus(phase=phase))
        if deleted:
            meta = msgspec.structs.replace(pod.metadata, deletion_timestamp=self.clock.now())
            pod = msgspec.structs.replace(pod, metadata=meta)
        collection_of(self.view, "Pod").store.put(pod)

    def remove(self, name: str) -> None:
        collection_of(self.view, "Pod").store.remove(ObjectKey("default", name))

    @property
    def size(self) -> int | None:
        """How many pods start together, if known. Asking for it makes the next `read` list the Jobs."""
        terms = self.gangs.terms(SET)
        assert terms is not None
        return terms.size if isinstance(terms, GangTerms) else None

    async def look(self) -> tuple[int | None, bool]:
        """What each round of the allocator does: ask what is known, then read, which returns whether something changed."""
        return self.size, await self.gangs.read()


async def test_the_jobs_are_read_once_however_many_pods_and_passes_there_are() -> None:
    world = World(leader=None, workers=3)
    for name in ("leader-0", "workers-0", "workers-1", "workers-2"):
        world.put(name)
    assert await world.look() == (None, True)
    for _ in range(20):
        assert await world.look() == (4, False)
        await world.clock.advance(LONGEST_S)
    assert world.asked == 1
    assert world.gangs.next_s() == float("inf")


async def test_while_pods_of_some_jobs_are_made_yet_nothing_is_read() -> None:
    world = World(leader=1, workers=1, readers=1)
    for name in ("leader-0", "workers-0"):
        world.put(name)
        assert await world.look() == (None, False)
    assert world.asked == 0
    assert 0 < world.gangs.next_s() <= 10
    world.put("readers-0")
    assert await world.look() == (None, True)
    assert await world.look() == (3, False)
    assert world.asked == 1


@pytest.mark.parametrize("ended", [False, True])
async def test_a_job_without_pods_is_found_after_a_while_if_none_are_to_come(ended: bool) -> None:
    world = World(workers=1, spare=1 if ended else 0)
    world.ended = {"spare"} if ended else set()
    world.put("workers-0")
    await world.look()
    await world.clock.advance(world.gangs.next_s())
    assert await world.look() == (None, True)
    for _ in range(5):
        assert await world.look() == (1, False)
        await world.clock.advance(LONGEST_S)
    assert world.asked == 1


async def test_a_job_whose_pods_are_all_gone_is_read_again_after_a_while() -> None:
    world = World(workers=1, spare=1)
    world.put("workers-0")
    world.put("spare-0")
    await world.look()
    assert world.size == 2
    world.remove("spare-0")
    world.jobs["spare"] = 0
    await world.look()
    await world.clock.advance(world.gangs.next_s())
    assert await world.look() == (None, True)
    assert world.size == 1


async def test_of_a_job_that_has_ended_those_count_that_have_succeeded() -> None:
    world = World(workers=2, leader=3)
    for name in ("workers-0", "workers-1"):
        world.put(name)
    world.put("leader-0", phase="Succeeded")
    world.ended = {"leader"}
    await world.look()
    assert await world.look() == (3, False)
    assert world.gangs.next_s() == float("inf")


async def test_a_job_that_was_made_smaller_while_it_lacks_pods_is_read_again_after_a_while() -> None:
    world = World(workers=3)
    world.put("workers-0")
    world.put("workers-1")
    await world.look()
    assert await world.look() == (3, False)
    world.jobs["workers"] = 2
    wait_s = world.gangs.next_s()
    assert 0 < wait_s <= 10
    await world.clock.advance(wait_s)
    assert await world.look() == (3, True)
    assert world.size == 2
    await world.look()
    await world.look()
    assert world.asked == 2
    assert world.gangs.next_s() == float("inf")


async def test_a_job_that_lacks_pods_for_long_is_asked_about_less_and_less_and_never_for_each_pass() -> None:
    world = World(workers=3)
    world.put("workers-0")
    waits = []
    for number in range(1, 9):
        for _ in range(10):
            await world.look()
        assert world.asked == number
        waits.append(world.gangs.next_s())
        await world.clock.advance(waits[-1])
    assert waits[0] <= 10
    assert LONGEST_S / 2 <= waits[-1] <= LONGEST_S


async def test_pods_that_are_gone_and_not_made_again_make_one_look_but_those_that_succeeded_do_not() -> None:
    world = World(workers=2)
    for name in ("workers-0", "workers-1"):
        world.put(name)
    await world.look()
    await world.clock.advance(LONGEST_S)
    world.put("workers-1", phase="Succeeded")
    await world.look()
    assert world.asked == 1
    world.remove("workers-1")
    world.jobs["workers"] = 1
    assert await world.look() == (2, True)
    assert world.size == 1


async def test_a_job_that_grew_is_read_before_anything_is_decided_and_once_for_each_number_of_pods() -> None:
    world = World(workers=1)
    world.put("workers-0")
    await world.look()
    world.jobs["workers"] = 4
    world.put("workers-1")
    assert await world.look() == (1, True)
    assert world.size == 4
    world.jobs["workers"] = 1
    await world.clock.advance(LONGEST_S)
    await world.look()
    asked = world.asked
    for _ in range(10):  # one of its two pods still exists
        await world.look()
    assert world.asked == asked


@pytest.mark.parametrize("error", [None, Forbidden(403, "Forbidden", "no")])
async def test_a_job_that_cannot_be_read_is_asked_about_again_after_a_while_and_keeps_nobody_busy(
    error: ApiError | None,
) -> None:
    world = World(workers=1)
    world.put("workers-0")
    world.error = error
    del world.jobs["workers"]
    await world.look()
    for _ in range(10):
        assert await world.look() == (None, False)
    assert world.asked == 1
    assert 0 < world.gangs.next_s() <= LONGEST_S
    await world.clock.advance(LONGEST_S)
    world.jobs["workers"], world.error = 1, None
    assert await world.look() == (None, True)
    assert world.size == 1


async def test_what_was_read_last_counts_while_the_api_server_does_not_answer_and_not_once_the_job_is_gone() -> None:
    world = World(workers=2)
    world.put("workers-0")
    await world.look()
    world.error = Forbidden(403, "Forbidden", "no")
    await world.clock.advance(LONGEST_S)
    assert await world.look() == (2, False)
    assert world.size == 2
    world.error = None
    del world.jobs["workers"]
    await world.clock.advance(LONGEST_S)
    assert await world.look() == (2, True)
    assert world.size is None


async def test_pods_of_a_job_that_was_made_again_count_and_not_those_of_the_one_before() -> None:
    world = World(workers=1)
    world.put("workers-0", deleted=True)
    await world.look()
    world.uids["workers"], world.jobs["workers"] = "second", 2
    world.put("workers-1", uid="second")
    assert (await world.look())[1]
    assert world.size == 2
    # The listed Job of this name is the second one; the pods belong to the first.
    fresh = World(workers=1)
    fresh.uids["workers"] = "second"
    fresh.put("workers-0")
    await fresh.look()
    assert fresh.size is None


async def test_a_set_that_was_made_again_is_read_once_there_are_pods_of_all_its_jobs() -> None:
    world = World(leader=1, workers=1)
    for name in ("leader-0", "workers-0"):
        world.put(name)
    await world.look()
    for name in ("leader-0", "workers-0"):
        world.remove(name)
    world.uids = {"leader": "leader-2", "workers": "workers-2"}
    await world.clock.advance(1)
    world.put("leader-1", uid="leader-2")
    await world.look()
    assert world.asked == 1
    world.put("workers-1", uid="workers-2")
    await world.look()
    assert (world.asked, world.size) == (2, 2)


class Many:
    """For each namespace, this many JobSets of one Job with one pod; the API server knows none of the Jobs."""

    def __init__(self, **namespaces: int) -> None:
        self.clock = ManualClock()
        self.read: list[tuple[str, str]] = []
        self.view = ClusterView(cast("Client", self), None, clock=self.clock)
        self.gangs = Gangs(cast("Client", self), self.view)
        self.sets = [
            GangKey(GangSource.JOB_SET, namespace, f"set-{index}")
            for namespace, number in namespaces.items()
            for index in range(number)
        ]
        owner = OwnerReference(api_version="batch/v1", kind="Job", name="job", uid="job", controller=True)
        for each in self.sets:
            labels = {
                "jobset.sigs.k8s.io/jobset-name": each.name,
                "jobset.sigs.k8s.io/global-replicas": "1",
                "batch.kubernetes.io/job-name": "job",
            }
            tell(self.view, a_pod(each.name, namespace=each.namespace, labels=labels, owner_references=[owner]))

    async def list(self, _: Kind[Job], *, namespace: str, label_selector: str) -> list[Job]:
        self.read.append((namespace, label_selector.rpartition("=")[2]))
        return []

    async def look(self) -> bool:
        for each in self.sets:
            self.gangs.terms(each)
        return await self.gangs.read()


async def test_however_many_job_sets_there_are_some_are_read_at_once_and_of_each_namespace_the_first() -> None:
    many = Many(hog=100, tenant=1)
    await many.look()
    assert len(many.read) == 32
    assert ("tenant", "set-0") in many.read
    assert many.gangs.unread == {str(each) for each in many.sets if (each.namespace, each.name) not in many.read}
    assert many.gangs.next_s() == 0.0
    while await many.look():
        pass
    assert sorted(many.read) == sorted((each.namespace, each.name) for each in many.sets)
    assert many.gangs.unread == set()
    assert many.gangs.next_s() > 0.0


async def test_however_many_job_sets_there_are_each_is_read_once_and_forgotten_with_its_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gang_reading, "_READ_AT_ONCE", 5000)
    many = Many(hog=4200)
    assert [await many.look() for _ in range(3)] == [True, False, False]
    assert len(many.read) == 4200
    for each in many.sets:
        pods = many.view.pods
        pods._publish(pods.store.remove(ObjectKey(each.namespace, each.name)))
    assert not many.gangs._readings


def test_where_no_version_of_pod_groups_is_read_it_is_said_which_would_be() -> None:
    terms = World().gangs.terms(GangKey(GangSource.POD_GROUP, "default", "train"))
    assert isinstance(terms, UnknownTerms)
    assert (
        "serves none of the versions v1beta1, v1alpha3, v1alpha2, or does not let the operator watch them" in terms.why
    )
