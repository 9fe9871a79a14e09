"""The law of JobSets: their Jobs say how many pods start together, and Draco allocates nothing before as many exist."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.adversary.cluster.manifests import JOB_SET, job
from tests.adversary.cluster.observer.allocators import TAINT
from tests.adversary.cluster.observer.groups import BEGUN_WITHIN_S, KNOWN_AFTER_S, Groups
from tests.adversary.cluster.observer.job_sets import WEIGHED_AFTER_S, JobSets, misjudged
from tests.adversary.cluster.observer.members import key_of, size_of
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.observer.world import World
from tests.adversary.cluster.test_allocators_law import given
from tests.adversary.cluster.test_observer import a_slice, whole

Document = dict[str, Any]
LATER_S = 10.0


class JobSet:
    """A JobSet of Jobs of these sizes, without pods."""

    def __init__(self, *parallelism: int) -> None:
        self.world = World()
        self.law, self.groups = JobSets(self.world), Groups(self.world)
        self.parallelism = parallelism
        self.now = 0.0
        for number in range(len(parallelism)):
            self.tell(number)

    def tell(
        self, number: int, *, ended: str = "", deleted: bool = False, label: str | None = "j", **spec: Any
    ) -> "JobSet":
        one = job("tenant-a", "j", number, self.parallelism)
        one["metadata"] |= {"uid": f"job-{number}", "labels": {f"{JOB_SET}jobset-name": label} if label else {}}
        one["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
        one["spec"] |= spec
        one["status"] = {"conditions": [{"type": ended, "status": "True"}]} if ended else {}
        return self._change("job", one)

    def pod(self, title: str, *, phase: str = "Pending", **metadata: Any) -> "JobSet":
        """A pod of the Job with the number before the dash."""
        number = int(title.partition("-")[0])
        template = job("tenant-a", "j", number, self.parallelism)["spec"]["template"]
        metadata |= {"name": title, "namespace": "tenant-a", "uid": title, "labels": template["metadata"]["labels"]}
        metadata = {"ownerReferences": [{"kind": "Job", "uid": f"job-{number}"}], **metadata}
        spec = {"resourceClaims": [{"name": "c", "resourceClaimName": title}]}
        return self._change("pod", {"metadata": metadata, "spec": spec, "status": {"phase": phase}})

    def pods(self, *titles: str) -> "JobSet":
        for each in titles:
            self.pod(each)
        return self

    def allocated(self, title: str) -> "JobSet":
        one = given("draco-operator")
        one["metadata"] |= {"name": title, "namespace": "tenant-a", "uid": f"claim-{title}"}
        return self._change("claim", one)

    def _change(self, kind: str, one: Document) -> "JobSet":
        before = learn(self.world, kind, one)
        for law in (self.law, self.groups):
            getattr(law, f"{kind}_changed")(before, one, self.now)
        return self

    def after(self, seconds: float) -> "JobSet":
        self.now += seconds
        return self

    @property
    def size(self) -> int | None:
        pods = list(self.world.pods.values())
        return size_of(self.world, key_of(pods[0]), pods)

    def found(self, *, undisturbed: Callable[[float], bool] = lambda _: True) -> list[str]:
        weighed = self.law.weighed(self.now + WEIGHED_AFTER_S, grace_s=0.0, undisturbed=undisturbed)
        return [each.law for each in weighed]

    def begun_in_part(self) -> list[str]:
        later = self.now + BEGUN_WITHIN_S + 1.0
        return [each.law for each in self.groups.weighed(later, grace_s=0.0, undisturbed=lambda _: True)]


SIZES = {
    "all pods of all Jobs": (3, JobSet(1, 2).pods("0-a", "1-a")),
    "a Job without pods": (2, JobSet(2, 0).pods("0-a")),
    "never more than must succeed": (2, JobSet(3).pods("0-a").tell(0, completions=2)),
    "of a Job that has ended, those that have succeeded": (
        2,
        JobSet(3, 1).pod("0-a", phase="Succeeded").pod("0-b", phase="Failed").tell(0, ended="Complete").pods("1-a"),
    ),
    "a Job that is missing": (None, JobSet(1, 1).pods("0-a").tell(1, label="another")),
    "a Job without the label": (None, JobSet(1, 1).pods("0-a").tell(1, label=None)),
    "a Job that is being deleted": (None, JobSet(1, 1).pods("0-a").tell(1, deleted=True)),
    "more pods than their Job is to have": (None, JobSet(1).pods("0-a", "0-b")),
    "pods that have ended, and their replacements": (1, JobSet(1).pod("0-a", phase="Failed").pods("0-b")),
    "a Job that has grown": (4, JobSet(1).pods("0-a", "0-b").tell(0, parallelism=4, completions=4)),
    "a live pod of a Job that is gone": (None, JobSet(1).pods("0-a").pod("0-b", ownerReferences=[]).tell(0)),
}


@pytest.mark.parametrize("case", SIZES)
def test_the_jobs_of_a_job_set_say_how_many_pods_start_together(case: str) -> None:
    size, job_set = SIZES[case]
    assert job_set.size == size


def test_what_gets_devices_when_as_many_pods_exist_as_the_jobs_say_is_right() -> None:
    job_set = JobSet(1, 1).pods("0-a", "1-a").after(LATER_S).allocated("0-a").allocated("1-a")
    assert not job_set.found()
    assert job_set.law.judged == 2


TOO_SMALL = {
    "a pod of the other Job is missing": JobSet(1, 1).pods("0-a"),
    "a pod is missing": JobSet(2).pods("0-a"),
    "the Job has grown": JobSet(1).pods("0-a").after(LATER_S).tell(0, parallelism=2, completions=2),
    "the number is not known": JobSet(1, 1).tell(1, label=None).pods("0-a", "1-a"),
}


@pytest.mark.parametrize("case", TOO_SMALL)
def test_a_job_set_that_gets_devices_with_too_few_pods_is_told(case: str) -> None:
    job_set = TOO_SMALL[case]
    assert job_set.after(LATER_S).allocated("0-a").found() == ["taken for smaller"]
    assert not job_set.found(), "it is told once"


def test_draco_may_not_know_a_moment_ago_or_an_operator_may_have_died() -> None:
    grown = JobSet(1).pods("0-a").after(LATER_S).tell(0, parallelism=2, completions=2)
    assert not grown.after(KNOWN_AFTER_S - 1.0).allocated("0-a").found()
    assert not JobSet(2).pods("0-a").allocated("0-a").found(undisturbed=lambda _: False)


def test_whatever_the_observer_hears_late_of_is_there() -> None:
    late = JobSet(2).pods("0-a").after(LATER_S).allocated("0-a")
    assert not late.after(WEIGHED_AFTER_S / 2).pods("0-b").found()


def test_a_job_set_that_gets_a_part_of_what_its_jobs_say_is_told() -> None:
    waits = given("draco-operator") | {"status": {}}
    waits["metadata"] |= {"name": "0-b", "namespace": "tenant-a", "uid": "claim-0-b"}

    def begun() -> JobSet:
        job_set = JobSet(2).pods("0-a", "0-b").after(LATER_S)
        learn(job_set.world, "claim", waits)
        return job_set.allocated("0-a")

    assert begun().begun_in_part() == ["begun in part"]
    grown = JobSet(1).pods("0-a").after(LATER_S).tell(0, parallelism=2, completions=2).pods("0-b")
    learn(grown.world, "claim", waits)
    assert not grown.allocated("0-a").begun_in_part(), "Draco may not know yet that it has grown"


NEEDS = "JobSet tenant-a/j needs devices for {} at once; now 0 of 2 get some, on 3 nodes that they may use."
UNKNOWN = "It is not known how many pods Job j-r0-0 of JobSet tenant-a/j has: it lacks the label"
SAID = {
    "as many as there are": (False, (NEEDS.format("2 pods"),)),
    "fewer": (True, (NEEDS.format("1 pod"),)),
    "more": (True, ("JobSet tenant-a/j waits for 1 more pod: 3 start together.",)),
    "nobody knows": (True, (UNKNOWN,)),
    "nobody knows in what Job they are": (True, ("JobSet tenant-a/j has 2 Jobs, and pods of 1 exist.",)),
    "nobody knew": (False, (UNKNOWN, NEEDS.format("2 pods"))),
    "nobody knows any more": (True, (NEEDS.format("2 pods"), UNKNOWN)),
    "nothing yet": (False, ()),
    "what no one can compare": (False, ("The search was given up after too many combinations of devices.",)),
}


def says(job_set: JobSet, *notes: str, gpu: Document | None = None) -> bool:
    """Whether the Events, the newest last, are wrong."""
    learn(job_set.world, "slice", a_slice(gpu or whole(taints=[{"key": TAINT, "effect": "NoSchedule"}])))
    for number, note in enumerate(notes):
        event = {"reason": "GroupWaiting", "note": note, "eventTime": f"2026-01-01T00:00:0{number}.000000Z"}
        learn(job_set.world, "event", event | {"metadata": {"name": "e", "uid": f"e{number}", "resourceVersion": "1"}})
    return bool(list(misjudged(job_set.world)))


def waiting(*titles: str, of: JobSet) -> JobSet:
    for title in titles:
        claim = given("draco-operator") | {"status": {}}
        claim["metadata"] |= {"name": title, "namespace": "tenant-a", "uid": f"claim-{title}"}
        learn(of.pods(title).world, "claim", claim)
    return of


@pytest.mark.parametrize("case", SAID)
def test_at_rest_draco_says_of_a_job_set_how_many_pods_start_together(case: str) -> None:
    wrong, notes = SAID[case]
    assert says(waiting("0-a", "1-a", of=JobSet(1, 1)), *notes) is wrong


def test_at_rest_the_rest_of_a_job_set_waits_for_its_own_and_one_that_lacks_pods_says_so() -> None:
    runs = waiting("0-a", "0-b", "0-c", of=JobSet(3)).allocated("0-a")
    assert not says(runs, NEEDS.format("2 pods"))
    assert says(runs, NEEDS.format("2 pods"), NEEDS.format("3 pods"))
    assert not says(waiting("0-a", of=JobSet(2)), "JobSet tenant-a/j waits for 1 more pod: 2 start together.")
    has_all = JobSet(1).pods("0-a").allocated("0-a")
    assert not says(has_all, UNKNOWN)
    assert not says(waiting("0-a", of=JobSet(1)), UNKNOWN, gpu=whole()), "Draco has no GPUs"
