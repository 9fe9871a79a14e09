"""The register of GPUs that only Draco may allocate, and of the leader that does: the cluster's one AllocationRegister.

Owns its format, creation, reads and writes. The chart's admission policies read it. It is not a ConfigMap, because an API server
(1.36.3) never reads one for policies again after its last policy with a ConfigMap parameter was deleted; custom kinds do not have
this problem. The chart does not create it, because an upgrade could empty it. Unreadable entries count as absent.
`allocation.ownership.handover` decides which GPUs belong in it.

Also owns this operator's identity in it, and whether it still leads; both come from the API server. The policy compares the
register's pod with the pod that the token is bound to, so the server is asked which pod it reads from this operator's token; the
pod's environment is not used. Outside a pod the token names none: such an operator has no pod in it, and is refused while it
names one.
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
    "The API server does not tell the operator which pod it is, so a former leader could still allocate: let it "
    "create selfsubjectreviews, as Kubernetes' ClusterRole system:basic-user does."
)


class RegisterMissing(DracoError):
    """The register is missing, so nothing locks other writers out: Draco must not allocate."""


class Register(msgspec.Struct, frozen=True, kw_only=True):
    """The register as it was read or written."""

    places: frozenset[GpuPlace]
    pools: frozenset[str]
    leader: RegisteredLeader | None
    uid: str
    resource_version: str


class RegisterStore:
    """Creates, reads and writes the one object."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self) -> Register:
        """Read it. Raises RegisterMissing, or another ApiError."""
        try:
            return _register(await self._client.get(ALLOCATION_REGISTERS, _KEY))
        except NotFound as error:
            raise RegisterMissing(f"AllocationRegister {ALLOCATION_REGISTER} does not exist.") from error

    async def make(self) -> Register:
        """Create it empty. Raises RegisterMissing if the kind is not served, or another ApiError."""
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
        """Replace the contents at the version of `seen`. Raises Conflict, or another ApiError. An old CRD drops the leader."""
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
    """Includes empty fields, to remove the previous leader's values."""
    return None if leader is None else {"identity": leader.identity, "podUID": leader.pod_uid or None}


def _counted(pools: Mapping[str, list[str] | None]) -> dict[str, dict[str, object]]:
    """Includes counts of 0."""
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
    """The operator's own leadership. `identity` is its unique holder name in the Lease."""

    def __init__(self, client: Client, lease: ObjectKey, identity: str) -> None:
        self._client = client
        self._lease = lease
        self._identity = identity
        self._entry: RegisteredLeader | None = None

    async def entry(self) -> RegisteredLeader | None:
        """The leader entry for the register; None if unknown, since a wrong pod would lock this operator out. Raises ApiError."""
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
        """Whether this operator holds the Lease now. Raises ApiError."""
        try:
            lease = await self._client.get(LEASES, self._lease)
        except NotFound:
            return False
        return lease.spec.holder_identity == self._identity
