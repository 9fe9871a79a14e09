"""What is known of groups of pods: their pods, their PodGroup, and how many pods the Jobs of a JobSet have.

Owns the reading of Jobs, which nothing watches: each when a group first asks for it, and again where its pods are not as many as
was read. That is done at once for pods beyond that number, which must not be left behind; for pods that are missing, as those of
a Job that was made smaller are, it is done after a while, later each time. Whether and how pods belong together is
`allocation.ownership.gangs`'s.
"""

from collections.abc import Iterable

import msgspec
import structlog
from cachetools import LRUCache

from draco.allocation.ownership.gangs import JOB_NAME, GangKey, GangSource, GangTerms, UnknownTerms, gang_of, terms_of
from draco.controller.view import ClusterView
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.connect.retry import Backoff
from draco.kube.errors import ApiError, NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import JOBS, POD_GROUPS
from draco.resources.names import ANNOTATION_GROUP_SIZE
from draco.resources.texts import listed

log = structlog.get_logger(__name__)

_JOBS_REMEMBERED = 4096
_AGAIN_S, _LONGEST_S = 10.0, 60.0
"""How soon a Job is read again that lacks pods: later each time, until something else is read."""
_NO_VERSION = (
    "The pod belongs to a PodGroup, and Draco can read none here: the cluster serves none of the versions "
    f"{listed([kind.version for kind in POD_GROUPS], len(POD_GROUPS))}, or does not let the operator watch them."
)


class _JobPods(msgspec.Struct):
    """A Job by the pods of it that are known: those that are alive, and those that have succeeded."""

    uid: str
    key: ObjectKey
    alive: int = 0
    succeeded: int = 0


class _Reading(msgspec.Struct):
    """What was read of a Job last (None: nothing yet), how many of its pods were alive then, and when it may be read again."""

    backoff: Backoff
    parallelism: int | None = None
    alive: int = 0
    due_s: float = float("-inf")

    def next_s(self, job: _JobPods) -> float | None:
        """When it is to be read again; None as long as the Job has just the pods that it is known to have."""
        if self.parallelism is not None:
            if job.alive > self.parallelism:
                # Those that are too many stay for a while where it was made smaller: one look at them will do.
                return float("-inf") if job.alive > self.alive else self.due_s
            if job.alive + job.succeeded >= self.parallelism:
                return None
        return self.due_s


class Gangs:
    """Groups by what the cluster says of them."""

    def __init__(self, client: Client, view: ClusterView, *, clock: Clock) -> None:
        self._client = client
        self._view = view
        self._clock = clock
        self._readings: LRUCache[str, _Reading] = LRUCache(_JOBS_REMEMBERED)  # by UID
        self._wanted: dict[str, tuple[_JobPods, float]] = {}
        """The Jobs that were asked for since the last reading, and when each may be read."""
        self._next_s = float("inf")

    def pods(self, gang: GangKey) -> list[Pod]:
        """The pods of the group that are known, in whatever state."""
        return self._view.pods_of_gang(gang)

    def users(self, claim: ResourceClaim) -> set[GangKey | None]:
        """The groups whose pods name the claim; None stands for pods of no group."""
        return {gang_of(pod) for pod in self._view.pods_of(claim.metadata.key)}

    def terms(self, gang: GangKey) -> GangTerms | UnknownTerms | None:
        """What is wanted of the group; None if its pods need not start together."""
        pods, pod_group = self.pods(gang), None
        if gang.source is GangSource.POD_GROUP:
            if self._view.pod_groups is None:
                return UnknownTerms(_NO_VERSION)
            pod_group = self._view.pod_groups.store.get(ObjectKey(gang.namespace, gang.name))
        return terms_of(gang, pods, pod_group, self._parallelism(pods) if gang.source is GangSource.JOB_SET else {})

    async def read(self) -> bool:
        """Read the Jobs that were asked for, as far as it is time. Returns whether something else is known now."""
        wanted, self._wanted = self._wanted, {}
        now_s, is_news = self._clock.monotonic(), False
        for job, due_s in wanted.values():
            if due_s <= now_s:
                is_news |= await self._read(job)
        dues = [reading.due_s for uid in wanted if (reading := self._readings.get(uid)) is not None]
        self._next_s = min(dues, default=float("inf"))
        return is_news

    def next_s(self) -> float:
        """In how many seconds one of those that were asked for last may be read again; infinite where none was."""
        return max(0.0, self._next_s - self._clock.monotonic())

    async def _read(self, job: _JobPods) -> bool:
        backoff = Backoff(self._clock, base_s=_AGAIN_S, cap_s=_LONGEST_S)
        reading = self._readings.setdefault(job.uid, _Reading(backoff))
        before, reading.alive = reading.parallelism, job.alive
        try:
            found = await self._client.get(JOBS, job.key)
        except NotFound:
            reading.parallelism = None
        except ApiError as error:
            log.warning("allocation.job_unread", job=str(job.key), error=str(error))
        else:
            said = 1 if found.spec.parallelism is None else found.spec.parallelism
            reading.parallelism = said if found.metadata.uid == job.uid else None
        is_news = reading.parallelism != before
        if is_news:
            reading.backoff.reset()
        reading.due_s = self._clock.monotonic() + reading.backoff.next()
        return is_news

    def _parallelism(self, pods: Iterable[Pod]) -> dict[str, int]:
        """By the name of the Job, as far as it is known. What may have changed is asked for."""
        jobs: dict[str, _JobPods] = {}
        for pod in pods:
            name = pod.metadata.labels.get(JOB_NAME)
            owner = next((each for each in pod.metadata.owner_references if each.kind == JOBS.kind), None)
            if name is None or owner is None or ANNOTATION_GROUP_SIZE in pod.metadata.annotations:
                continue
            job = jobs.setdefault(owner.uid, _JobPods(owner.uid, ObjectKey(pod.metadata.namespace, name)))
            job.alive += not pod.is_over
            job.succeeded += pod.status.phase == "Succeeded"
        found: dict[str, int] = {}
        # Of a Job that was made again, pods of the one before may be on their way out yet: the one with pods that stay counts.
        for job in sorted(jobs.values(), key=lambda each: each.alive):
            reading = self._readings.get(job.uid)
            due_s = float("-inf") if reading is None else reading.next_s(job)
            if due_s is not None:
                self._wanted[job.uid] = job, due_s
            found.pop(job.key.name, None)
            if reading is not None and reading.parallelism is not None:
                found[job.key.name] = reading.parallelism
        return found
