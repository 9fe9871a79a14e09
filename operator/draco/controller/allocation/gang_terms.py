"""What is known of groups of pods: their pods, their PodGroup, and how many pods the Jobs of a JobSet have.

Owns the reading of Jobs, which nothing watches: once for each Job, when a group asks for it. Whether and how pods belong together
is `allocation.ownership.gangs`'s.
"""

import structlog
from cachetools import LRUCache

from draco.allocation.ownership.gangs import JOB_NAME, GangKey, GangSource, GangTerms, UnknownTerms, gang_of, terms_of
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import JOBS, POD_GROUPS
from draco.resources.names import ANNOTATION_GROUP_SIZE
from draco.resources.texts import listed

log = structlog.get_logger(__name__)

_JOBS_REMEMBERED = 4096
_NO_VERSION = (
    "The pod belongs to a PodGroup, and Draco can read none here: the cluster serves none of the versions "
    f"{listed([kind.version for kind in POD_GROUPS], len(POD_GROUPS))}, or does not let the operator watch them."
)


class Gangs:
    """Groups by what the cluster says of them."""

    def __init__(self, client: Client, view: ClusterView) -> None:
        self._client = client
        self._view = view
        self._pods_of_job: LRUCache[str, int] = LRUCache(_JOBS_REMEMBERED)  # by UID
        self._wanted: dict[str, ObjectKey] = {}

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
        """Read the Jobs that were asked for and are not known. Returns whether there were any."""
        wanted, self._wanted = self._wanted, {}
        for uid, key in wanted.items():
            try:
                job = await self._client.get(JOBS, key)
            except NotFound:
                continue
            except ApiError as error:
                log.warning("allocation.job_unread", job=str(key), error=str(error))
                continue
            self._pods_of_job[uid] = 1 if job.spec.parallelism is None else job.spec.parallelism
        return bool(wanted)

    def _parallelism(self, pods: list[Pod]) -> dict[str, int]:
        found = {}
        for pod in pods:
            name = pod.metadata.labels.get(JOB_NAME)
            owner = next((each for each in pod.metadata.owner_references if each.kind == JOBS.kind), None)
            if name is None or owner is None or ANNOTATION_GROUP_SIZE in pod.metadata.annotations:
                continue
            if (known := self._pods_of_job.get(owner.uid)) is not None:
                found[name] = known
            else:
                self._wanted[owner.uid] = ObjectKey(pod.metadata.namespace, name)
        return found
