"""Groups of pods: their pods, their PodGroup, and the pod counts of a JobSet's Jobs.

Owns the reading of the view for groups. `allocation.ownership.gangs` decides which pods belong together and how.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from draco.allocation.ownership.gangs import (
    JOB_NAME,
    GangKey,
    GangSource,
    GangTerms,
    UnknownTerms,
    gang_of,
    group_priority,
    job_set_of,
    terms_of,
)
from draco.controller.view import BY_JOB_SET, ClusterView
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.jobs import Job
from draco.resources.api.meta import ObjectKey
from draco.resources.api.scheduling import PodGroup
from draco.resources.kinds import JOBS, POD_GROUPS
from draco.resources.names import ANNOTATION_GROUP_SIZE
from draco.resources.texts import listed

_ENDED = frozenset({"Complete", "Failed"})
_NO_VERSION = (
    "The pod belongs to a PodGroup, and Draco can read none here: the cluster serves none of the versions "
    f"{listed([kind.version for kind in POD_GROUPS], len(POD_GROUPS))}, or does not let the operator watch them."
)


class _JobPods(msgspec.Struct):
    """A Job by its known pods: those alive, and those that have succeeded."""

    uid: str
    name: str
    alive: int = 0
    succeeded: int = 0


class Gangs:
    """Groups as the cluster describes them. Keeps no state."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def pods(self, gang: GangKey) -> list[Pod]:
        """The known pods of the group, in any state."""
        return self._view.pods_of_gang(gang)

    def users(self, claim: ResourceClaim) -> set[GangKey | None]:
        """The groups whose pods name the claim; None stands for pods without a group."""
        return {gang_of(pod) for pod in self._view.pods_of(claim.metadata.key)}

    def made_at(self, gang: GangKey) -> datetime | None:
        """When the PodGroup was created; None for other groups."""
        pod_group = self._pod_group(gang)
        return pod_group.metadata.creation_timestamp if pod_group is not None else None

    def priority(self, gang: GangKey) -> int:
        """The priority of the whole group."""
        return group_priority(self.pods(gang), self._pod_group(gang))

    def terms(self, gang: GangKey) -> GangTerms | UnknownTerms | None:
        """The terms of the group; None if its pods need not start together."""
        pods, pod_group = self.pods(gang), self._pod_group(gang)
        if gang.source is GangSource.POD_GROUP and not self._view.reads_pod_groups:
            return UnknownTerms(_NO_VERSION)
        parallelism = self._parallelism(gang, pods) if gang.source is GangSource.JOB_SET else {}
        return terms_of(gang, pods, pod_group, parallelism)

    def _pod_group(self, gang: GangKey) -> PodGroup | None:
        if gang.source is not GangSource.POD_GROUP:
            return None
        return self._view.pod_groups.store.get(ObjectKey(gang.namespace, gang.name))

    def _parallelism(self, gang: GangKey, pods: Sequence[Pod]) -> dict[str, int]:
        """Pods by Job name. A Job with more pods than it is to have is unknown.

        The watches may not have told yet that the Job has grown, or that its pods have ended.
        """
        jobs: dict[str, _JobPods] = {}
        for pod in pods:
            name = pod.metadata.labels.get(JOB_NAME)
            owner = next((each for each in pod.metadata.owner_references if each.kind == JOBS.kind), None)
            if name is None or owner is None or ANNOTATION_GROUP_SIZE in pod.metadata.annotations:
                continue
            job = jobs.setdefault(owner.uid, _JobPods(owner.uid, name))
            job.alive += not pod.is_over
            job.succeeded += pod.status.phase == "Succeeded"
        if not jobs:
            return {}
        # A Job that is being deleted is unknown: a JobSet that starts again creates it again.
        of_set = self._view.jobs.store.by_index(BY_JOB_SET, gang)
        known = {each.metadata.uid: each for each in of_set if each.metadata.deletion_timestamp is None}
        found = {each.metadata.name: 0 for uid, each in known.items() if uid not in jobs and not _pods_of(each)}
        # A recreated Job may still have terminating pods of its predecessor: the Job with pods that stay wins.
        for job in sorted(jobs.values(), key=lambda each: each.alive):
            found.pop(job.name, None)
            reported = known.get(job.uid)
            if reported is not None and job.alive <= _pods_of(reported):
                found[job.name] = _pods_of(reported, job.succeeded)
        return found


def of_job(job: Job) -> object:
    """The fields of a Job on which the terms of its JobSet depend."""
    return job_set_of(job), _pods_of(job), _has_ended(job), job.metadata.deletion_timestamp is None


def _has_ended(job: Job) -> bool:
    """Whether it creates no more pods."""
    return any(each.type in _ENDED and each.status == "True" for each in job.status.conditions)


def _pods_of(job: Job, succeeded: int = 0) -> int:
    """How many of its pods start together after `succeeded` have succeeded."""
    if _has_ended(job):
        return succeeded
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    return parallelism if job.spec.completions is None else min(parallelism, job.spec.completions)
