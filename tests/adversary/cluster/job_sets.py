"""Actions around the Jobs of JobSets: their creation, changes, restart and deletion.

Draws them from a seed as plain data: the adversary acts as the JobSet controller, and kube-controller-manager creates the pods.
`actions` has the others.
"""

from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.manifests import JOB_SET, Document
from tests.adversary.cluster.pod_groups import PodGroups
from tests.adversary.cluster.reservers import TOPOLOGIES
from tests.adversary.cluster.tenants import Action

MOST = 5
"""How many JobSets there may be: the cluster comes to rest when all their pods wait, run or have ended."""
PARALLELISM = ((2,), (3,), (1, 1), (1, 2), (2, 2), (1, 1, 1), (2, 0))


class JobSets(PodGroups):
    """Draws these actions. It remembers only what it has created and not deleted."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._job_sets: list[list[Document]] = []
        """The Jobs of each JobSet."""
        self._last_jobs: list[Document] = []
        self._strays: list[Document] = []
        """Jobs whose JobSet label was changed."""

    def job_set(self) -> Action:
        """The Jobs of a JobSet, or all but the last."""
        if len(self._job_sets) >= MOST:
            return self.change_job()
        namespace, title = self._tenant(), self._name("j")
        parallelism = self._random.choice(PARALLELISM)
        topology = self._random.choice(TOPOLOGIES)
        jobs = [
            write.job(
                namespace,
                title,
                number,
                parallelism,
                more=self._random.choice([0, 0, 0, 1]),
                retries=self._random.choice([0, 6]),
                seconds=self._random.choice(self.lasts),
                topology=topology,
                gated=self._is_gated,
            )
            for number in range(len(parallelism))
        ]
        self._job_sets.append(jobs)
        made = [write.template(namespace, title, [self._dracos_request()]), *jobs]
        if self._random.random() < 0.25:
            self._last_jobs.append(made.pop())
        return Action("tenant: Jobs of a JobSet", {"create": made})

    def last_job(self) -> Action:
        """The missing Job of a JobSet."""
        if not self._last_jobs:
            return self.job_set()
        return Action("tenant: the last Job of a JobSet", {"create": [self._last_jobs.pop(0)]})

    def change_job(self) -> Action:
        """Make a Job larger or smaller, suspend it, or resume it. `completions` may change only with `parallelism`."""
        if not self._job_sets:
            return self.job_set()
        job = self._a_job()
        count = self._random.choice([1, 2, 3, 4])
        is_elastic = job["spec"]["parallelism"] == job["spec"]["completions"]
        size = {"parallelism": count, "completions": count} if is_elastic else {"parallelism": count - 1}
        spec = self._random.choice([size, size, size, {"suspend": True}, {"suspend": False}])
        return Action("job: changed", {"job": _title(job), "change": {"spec": spec}})

    def relabel_job(self) -> Action:
        """Change the JobSet label of a Job, or change it back."""
        if self._strays and self._random.random() < 0.7:
            job = self._strays.pop(0)
            name = job["metadata"]["labels"][f"{JOB_SET}jobset-name"]
        elif self._job_sets:
            job, name = self._a_job(), self._random.choice([None, "another"])
            self._strays.append(job)
        else:
            return self.job_set()
        labels = {"labels": {f"{JOB_SET}jobset-name": name}}
        return Action("job: other label", {"job": _title(job), "change": {"metadata": labels}})

    def lose_job_pod(self) -> Action:
        """Delete a pod of a Job, which makes another one or fails."""
        if not self._job_sets:
            return self.job_set()
        return Action("job: loses a pod", {"job": _title(self._a_job())})

    def restart_job_set(self) -> Action:
        """Delete all Jobs of a JobSet and create them again under the same names, as after a failure."""
        if not self._job_sets:
            return self.job_set()
        return Action("job set: starts again", {"jobs": self._random.choice(self._job_sets)})

    def end_job_set(self) -> Action:
        """Delete one Job of a JobSet, or all."""
        if not self._job_sets:
            return self.job_set()
        jobs = self._job_sets.pop(self._random.randrange(len(self._job_sets)))
        if self._random.random() < 0.2:
            self._job_sets.append(jobs[1:] or jobs)
            jobs = jobs[:1]
        how = self._random.choice(["Background", "Foreground"])
        return Action("job set: deleted", {"jobs": [_title(each) for each in jobs], "how": how})

    def _a_job(self) -> Document:
        return self._random.choice(self._random.choice(self._job_sets))


def _title(job: Document) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"
