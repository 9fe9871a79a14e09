"""Groups of pods: their pods, their PodGroup, and the pod counts of a JobSet's Jobs.

Owns reading Jobs, which nobody watches: all Jobs of a JobSet once each has pods, and again when pod counts differ from what was
read. Extra pods trigger a read immediately, since none may be left behind. Missing pods (of an empty or scaled-down Job) trigger
it with backoff. Reads are limited per round and alternate between namespaces, because all other groups wait for them.
`allocation.ownership.gangs` decides which pods belong together and how.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
import structlog

from draco.allocation.ownership.gangs import (
    JOB_NAME,
    JOBSET_NAME,
    GangKey,
    GangSource,
    GangTerms,
    UnknownTerms,
    gang_of,
    group_priority,
    jobs_of_set,
    terms_of,
)
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.connect.retry import Backoff
from draco.kube.errors import ApiError
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.jobs import Job
from draco.resources.api.meta import ObjectKey
from draco.resources.api.scheduling import PodGroup
from draco.resources.kinds import JOBS, POD_GROUPS
from draco.resources.names import ANNOTATION_GROUP_SIZE
from draco.resources.texts import listed

log = structlog.get_logger(__name__)

_READ_AT_ONCE = 32
_AGAIN_S, _LONGEST_S = 10.0, 60.0
"""Backoff for reading the Jobs of a JobSet that lacks pods, until the result changes."""
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


class _JobRead(NamedTuple):
    name: str
    parallelism: int
    has_ended: bool

    def pods(self, succeeded: int = 0) -> int:
        """How many of its pods start together after `succeeded` have succeeded: an ended Job creates no more."""
        return succeeded if self.has_ended else self.parallelism


class _Reading(msgspec.Struct):
    """The Jobs of a JobSet as last read, by UID (None before the first read), and the pods of each alive at that time."""

    backoff: Backoff
    due_s: float
    jobs: dict[str, _JobRead] | None = None
    alive: dict[str, int] = {}

    def next_s(self, jobs: Collection[_JobPods], number: int) -> float | None:
        """When to read again; None while `number` Jobs have exactly the expected pods."""
        read = self.jobs or {}
        dues = [self._next_s_of(job, read, is_complete=len(jobs) >= number) for job in jobs]
        have_none = {uid for uid, each in read.items() if not each.pods()}
        if len(have_none.union(job.uid for job in jobs)) < number:
            dues.append(self.due_s)
        return min((due for due in dues if due is not None), default=None)

    def _next_s_of(self, job: _JobPods, read: Mapping[str, _JobRead], *, is_complete: bool) -> float | None:
        if job.uid not in read:  # one read suffices once all Jobs have pods
            return float("-inf") if is_complete and job.uid not in self.alive else self.due_s
        parallelism = read[job.uid].pods(job.succeeded)
        if job.alive > parallelism:
            # Extra pods of a scaled-down Job stay for a while: read once for them.
            return float("-inf") if job.alive > self.alive.get(job.uid, 0) else self.due_s
        return None if job.alive + job.succeeded >= parallelism else self.due_s


class Gangs:
    """Groups as the cluster describes them."""

    def __init__(self, client: Client, view: ClusterView) -> None:
        self._client = client
        self._view = view
        self._readings: dict[GangKey, _Reading] = {}
        self._wanted: dict[GangKey, tuple[dict[str, int], float]] = {}
        """JobSets to read, or requested since: the live pods of each Job, and when to read."""
        self._next_s = float("inf")
        view.pods.subscribe(self._forget, reads=gang_of)

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

    async def read(self) -> bool:
        """Read some of the requested Jobs that are due. Return whether anything changed."""
        now_s, wanted = self._view.clock.monotonic(), self._wanted
        served = Counter[str]()
        turns: list[tuple[int, GangKey]] = []
        for job_set, (_, due_s) in wanted.items():
            if due_s <= now_s:
                served[job_set.namespace] += 1
                turns.append((served[job_set.namespace], job_set))
        due = [job_set for _, job_set in sorted(turns, key=lambda turn: turn[0])]
        self._wanted = {job_set: wanted[job_set] for job_set in due[_READ_AT_ONCE:]}
        news = await asyncio.gather(*(self._read(job_set, wanted[job_set][0]) for job_set in due[:_READ_AT_ONCE]))
        dues = [reading.due_s for job_set in wanted if (reading := self._readings.get(job_set)) is not None]
        self._next_s = min(dues, default=float("inf"))
        return any(news)

    @property
    def unread(self) -> set[str]:
        """Names of the JobSets to read before deciding about them."""
        now_s = self._view.clock.monotonic()
        return {str(job_set) for job_set, (_, due_s) in self._wanted.items() if due_s <= now_s}

    def next_s(self) -> float:
        """Seconds until the next requested read is due; infinite without requests."""
        dues = [self._next_s, *(due_s for _, due_s in self._wanted.values())]
        return max(0.0, min(dues) - self._view.clock.monotonic())

    async def _read(self, job_set: GangKey, alive: dict[str, int]) -> bool:
        reading = self._readings.get(job_set) or self._unread()
        before, reading.alive = reading.jobs, alive
        selector = f"{JOBSET_NAME}={job_set.name}"
        try:
            found = await self._client.list(JOBS, namespace=job_set.namespace, label_selector=selector)
        except ApiError as error:
            log.warning("allocation.jobs_unread", job_set=str(job_set), error=str(error))
        else:
            reading.jobs = {each.metadata.uid: _job_read(each) for each in found}
        is_news = reading.jobs != before
        if is_news:
            reading.backoff.reset()
        reading.due_s = self._view.clock.monotonic() + reading.backoff.next()
        return is_news

    def _forget(self, change: Change[Pod]) -> None:
        for gang in filter(None, map(gang_of, change.versions)):
            if gang in self._readings and not self.pods(gang):
                del self._readings[gang]

    def _unread(self) -> _Reading:
        backoff = Backoff(self._view.clock, base_s=_AGAIN_S, cap_s=_LONGEST_S)
        return _Reading(backoff, self._view.clock.monotonic() + backoff.next())

    def _parallelism(self, gang: GangKey, pods: Sequence[Pod]) -> dict[str, int]:
        """Parallelism by Job name, as far as known. Requests reads of what may have changed."""
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
        reading = self._readings.get(gang)
        if reading is None:
            reading = self._readings[gang] = self._unread()
        if (due_s := reading.next_s(jobs.values(), jobs_of_set(pods))) is not None:
            self._wanted[gang] = {job.uid: job.alive for job in jobs.values()}, due_s
        read = reading.jobs or {}
        found = {each.name: 0 for uid, each in read.items() if uid not in jobs and not each.pods()}
        # A recreated Job may still have terminating pods of its predecessor: the Job with pods that stay wins.
        for job in sorted(jobs.values(), key=lambda each: each.alive):
            found.pop(job.name, None)
            if job.uid in read:
                found[job.name] = read[job.uid].pods(job.succeeded)
        return found


def _job_read(job: Job) -> _JobRead:
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    has_ended = any(each.type in _ENDED and each.status == "True" for each in job.status.conditions)
    return _JobRead(job.metadata.name, parallelism, has_ended)
