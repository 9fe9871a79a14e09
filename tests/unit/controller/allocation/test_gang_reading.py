"""How many pods of a group start together, as far as the watches have reported it: the Jobs of a JobSet, and their pods."""

from typing import cast

import msgspec
import pytest

from draco.allocation.ownership.gangs import GangKey, GangSource, GangTerms, UnknownTerms
from draco.controller.allocation.gang_reading import Gangs
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.resources.api.core import PodStatus
from draco.resources.api.jobs import Job, JobSpec, JobStatus
from draco.resources.api.meta import Condition, ObjectMeta, OwnerReference
from tests.builders import a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import forget, tell

SET = GangKey(GangSource.JOB_SET, "default", "set")


class World:
    """A JobSet of the Jobs `told`, by name with their parallelism; the watch has reported all of them."""

    def __init__(self, number: int | None = None, **told: int | None) -> None:
        """The pods' labels say that there are `number` Jobs: by default, as many as there are."""
        self.clock = ManualClock()
        self.number = len(told) if number is None else number
        self.view = ClusterView(cast("Client", None), None, clock=self.clock, allocates=True)
        self.gangs = Gangs(self.view)
        for name, parallelism in told.items():
            self.tell(name, parallelism)

    def job(
        self,
        name: str,
        parallelism: int | None = 1,
        *,
        uid: str = "",
        ended: str = "",
        deleted: bool = False,
        completions: int | None = None,
    ) -> Job:
        return Job(
            metadata=ObjectMeta(
                name=name,
                namespace="default",
                uid=uid or name,
                labels={"jobset.sigs.k8s.io/jobset-name": "set"},
                deletion_timestamp=self.clock.now() if deleted else None,
            ),
            spec=JobSpec(parallelism=parallelism, completions=completions),
            status=JobStatus(conditions=[Condition(type=ended, status="True")] if ended else []),
        )

    def tell(
        self, name: str, parallelism: int | None = 1, *, uid: str = "", ended: str = "", deleted: bool = False
    ) -> None:
        """As if the watch had reported the Job."""
        tell(self.view, self.job(name, parallelism, uid=uid, ended=ended, deleted=deleted))

    def put(self, *names: str, phase: str = "Pending", uid: str = "", deleted: bool = False) -> None:
        """Add pods, each of the Job named before the dash."""
        for name in names:
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
            tell(self.view, pod)

    def remove(self, name: str) -> None:
        forget(self.view, a_pod(name))

    @property
    def size(self) -> int | None:
        """How many pods start together, if known."""
        terms = self.gangs.terms(SET)
        assert terms is not None
        return terms.size if isinstance(terms, GangTerms) else None


def test_as_many_start_together_as_all_jobs_have_pods() -> None:
    world = World(leader=None, workers=3)
    world.put("leader-0", "workers-0", "workers-1", "workers-2")
    assert world.size == 4


def test_while_no_pods_of_some_jobs_are_made_yet_it_is_unknown() -> None:
    world = World(leader=1, workers=1, readers=1)
    world.put("leader-0", "workers-0")
    assert world.size is None
    world.put("readers-0")
    assert world.size == 3


@pytest.mark.parametrize("ended", ["", "Complete", "Failed"])
def test_a_job_counts_with_no_pods_if_it_has_none_and_none_are_to_come(ended: str) -> None:
    world = World(workers=1, spare=1)
    world.put("workers-0")
    assert world.size is None
    world.tell("spare", 1 if ended else 0, ended=ended)
    assert world.size == 1
    # A JobSet that starts again makes it again.
    world.tell("spare", 1 if ended else 0, ended=ended, deleted=True)
    assert world.size is None


def test_of_a_job_that_has_ended_those_count_that_have_succeeded() -> None:
    world = World(workers=2, leader=3)
    world.put("workers-0", "workers-1")
    world.put("leader-0", phase="Succeeded")
    world.put("leader-1")
    assert world.size == 5
    world.tell("leader", 3, ended="Complete")
    assert world.size is None, "the end of its last pod is not reported yet"
    world.put("leader-1", phase="Failed")
    assert world.size == 3


def test_a_job_never_has_more_pods_than_must_succeed() -> None:
    world = World(leader=1)
    tell(world.view, world.job("workers", 4, completions=2))
    world.number = 2
    world.put("leader-0", "workers-0", "workers-1")
    assert world.size == 3


def test_a_job_that_is_made_smaller_while_it_lacks_pods_counts_with_that_at_once() -> None:
    world = World(workers=3)
    world.put("workers-0", "workers-1")
    assert world.size == 3
    world.tell("workers", 2)
    assert world.size == 2


def test_pods_beside_those_that_succeeded_or_are_being_deleted_make_a_job_no_larger() -> None:
    world = World(workers=2)
    world.put("workers-0")
    world.put("workers-1", phase="Succeeded")
    world.put("workers-2", deleted=True)
    world.put("workers-3")
    assert world.size == 2


def test_while_a_job_has_more_pods_than_it_is_to_have_it_is_unknown_as_it_may_have_grown_unseen() -> None:
    world = World(workers=1)
    world.put("workers-0")
    assert world.size == 1
    world.put("workers-1")
    assert world.size is None
    world.tell("workers", 4)
    assert world.size == 4


def test_a_job_that_is_not_reported_yet_or_gone_is_unknown_and_said_to_be() -> None:
    world = World(1)
    world.put("workers-0")
    terms = world.gangs.terms(SET)
    assert isinstance(terms, UnknownTerms)
    assert "not known how many pods Job workers of JobSet default/set has" in terms.why
    world.tell("workers")
    assert world.size == 1
    forget(world.view, world.job("workers"))
    assert world.size is None


def test_pods_of_a_job_that_was_made_again_count_and_not_those_of_the_one_before() -> None:
    world = World(workers=1)
    world.put("workers-0", deleted=True)
    world.tell("workers", 2, uid="second")
    world.put("workers-1", uid="second")
    assert world.size == 2
    # The watch has reported the second Job of this name; the pods belong to the first.
    fresh = World(workers=1)
    fresh.tell("workers", uid="second")
    fresh.put("workers-0")
    assert fresh.size is None


def test_a_set_that_starts_again_is_unknown_until_all_its_jobs_are_made_again() -> None:
    world = World(leader=1, workers=1)
    world.put("leader-0", "workers-0")
    assert world.size == 2
    # One has failed, and its pod with it; both are being deleted, and the other is made again first.
    world.tell("leader", ended="Failed", deleted=True)
    world.put("leader-0", phase="Failed")
    world.remove("workers-0")
    world.tell("workers", uid="workers-2")
    world.put("workers-1", uid="workers-2")
    assert world.size is None
    world.remove("leader-0")
    world.tell("leader", uid="leader-2")
    assert world.size is None
    world.put("leader-1", uid="leader-2")
    assert world.size == 2


def test_where_no_version_of_pod_groups_is_read_it_is_said_which_would_be() -> None:
    terms = World().gangs.terms(GangKey(GangSource.POD_GROUP, "default", "train"))
    assert isinstance(terms, UnknownTerms)
    assert (
        "serves none of the versions v1beta1, v1alpha3, v1alpha2, or does not let the operator watch them" in terms.why
    )
