"""The register of GPUs that only Draco may allocate, and of who gives them out: the one AllocationRegister in the cluster.

Owns its form, and its making, reading and writing. The chart's admission policies read it. It is no ConfigMap, because an API
server (1.36.3) whose last policy with ConfigMaps as parameters was deleted never reads one for a policy again; what it knows of a
custom kind comes and goes with the policies. The chart does not make it, because an upgrade could empty it. What stands there and
cannot be read counts as not there. Which GPUs are to stand there is `allocation.ownership.handover`'s.

Owns also who this operator is in it, and whether it leads still: both are asked of the API server. The policy compares the pod
that the register names with the one that a token is bound to, so the server is asked which one it reads off this operator's own
token, not the pod's environment. An operator outside a pod has no such thing in its token: it is entered without a pod, and
refused while the register names one.
"""

from collections.abc import Iterable, Mapping

import msgspec
import structlog

from draco.allocation.ownership.handover import GpuPlace
from draco.kube.connect.client import Client
from draco.kube.errors import AlreadyExists, Forbidden, NotFound
from draco.resources.api.allocation import AllocationRegister, RegisteredLeader
from draco.resources.api.meta import ObjectKey
from draco.resources.errors import DracoError
from draco.resources.kinds import ALLOCATION_REGISTERS, LEASES, SELF_SUBJECT_REVIEWS
from draco.resources.names import ALLOCATION_REGISTER

log = structlog.get_logger(__name__)

_KEY = ObjectKey("", ALLOCATION_REGISTER)
_POD_UID = "authentication.kubernetes.io/pod-uid"
NOT_TOLD = (
    "The API server does not tell the operator which pod it is, so an operator that led before is not kept from allocating: let "
    "it create selfsubjectreviews, as Kubernetes' ClusterRole system:basic-user does."
)


class RegisterMissing(DracoError):
    """It is not there, so nothing keeps other writers out: Draco may give out nothing."""


class Register(msgspec.Struct, frozen=True, kw_only=True):
    """The register as it was read, or written."""

    places: frozenset[GpuPlace]
    pools: frozenset[str]
    leader: RegisteredLeader | None
    uid: str
    resource_version: str


class RegisterStore:
    """Makes, reads and writes the one object."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self) -> Register:
        """Read it. Raises RegisterMissing, or another ApiError."""
        try:
            return _register(await self._client.get(ALLOCATION_REGISTERS, _KEY))
        except NotFound as error:
            raise RegisterMissing(f"AllocationRegister {ALLOCATION_REGISTER} is not there.") from error

    async def make(self) -> Register:
        """Make it, with nothing in it. Raises RegisterMissing where the kind is not served, or another ApiError."""
        try:
            empty = {"metadata": {"name": ALLOCATION_REGISTER}, **_counted({})}
            return _register(await self._client.create(ALLOCATION_REGISTERS, empty))
        except AlreadyExists:
            return await self.read()
        except NotFound as error:
            raise RegisterMissing(
                "The cluster does not serve the kind AllocationRegister, so no GPU can be handed over to Draco: apply Draco's "
                "CustomResourceDefinitions (crds/), or set the chart's value crds.enabled to true."
            ) from error

    async def write(
        self, seen: Register, places: Iterable[GpuPlace], leader: RegisteredLeader | None = None
    ) -> Register:
        """Have it say just this, if it is still as seen. Raises Conflict otherwise, or another ApiError.

        What is returned names nobody where the CustomResourceDefinition is of a version without the leader.
        """
        pools = _pools(places)
        gone = dict.fromkeys(seen.pools - pools.keys())
        written = _counted(gone | pools)
        written["spec"] |= {"leader": _named(leader)}
        patch = {"metadata": {"resourceVersion": seen.resource_version}, **written}
        return _register(await self._client.patch(ALLOCATION_REGISTERS, _KEY, patch))


def _pools(places: Iterable[GpuPlace]) -> dict[str, list[str]]:
    pools: dict[str, list[str]] = {}
    for place in sorted(places):
        pools.setdefault(f"{place.driver}/{place.pool}", []).append(place.gpu)
    return pools


def _named(leader: RegisteredLeader | None) -> dict[str, str | None] | None:
    """All fields, since those that the one before had may have to go."""
    return None if leader is None else {"identity": leader.identity, "podUID": leader.pod_uid or None}


def _counted(pools: Mapping[str, list[str] | None]) -> dict[str, dict[str, object]]:
    """With the counts, those that are 0 as well."""
    counted = [gpus for gpus in pools.values() if gpus]
    return {"spec": {"pools": pools}, "status": {"gpus": sum(map(len, counted)), "pools": len(counted)}}


def _register(stored: AllocationRegister) -> Register:
    return Register(
        places=frozenset(_places(stored.spec.pools)),
        pools=frozenset(stored.spec.pools),
        leader=stored.spec.leader,
        uid=stored.metadata.uid,
        resource_version=stored.metadata.resource_version,
    )


def _places(pools: dict[str, list[str]]) -> Iterable[GpuPlace]:
    for key, gpus in pools.items():
        driver, slash, pool = key.partition("/")
        if slash:
            for gpu in gpus:
                yield GpuPlace(driver, pool, gpu)


class OwnLeadership:
    """One operator's. `identity` is what it is called in its Lease, and no other process ever."""

    def __init__(self, client: Client, lease: ObjectKey, identity: str) -> None:
        self._client = client
        self._lease = lease
        self._identity = identity
        self._entry: RegisteredLeader | None = None

    async def entry(self) -> RegisteredLeader | None:
        """What the register is to say; None where that cannot be known, as a wrong pod would bar this one. Raises ApiError."""
        if self._entry is None:
            try:
                review = await self._client.create(SELF_SUBJECT_REVIEWS, {})
            except (Forbidden, NotFound) as error:
                log.warning("handover.pod_unknown", error=str(error))
                return None
            pods = review.status.user_info.extra.get(_POD_UID, [])
            self._entry = RegisteredLeader(identity=self._identity, pod_uid=pods[0] if pods else "")
        return self._entry

    async def holds(self) -> bool:
        """Whether the Lease is this operator's now. Raises ApiError."""
        try:
            lease = await self._client.get(LEASES, self._lease)
        except NotFound:
            return False
        return lease.spec.holder_identity == self._identity
