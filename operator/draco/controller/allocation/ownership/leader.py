"""Who this operator is in the register, and whether it leads still: both asked of the API server.

The chart's admission policy compares the pod that the register names with the one that a token is bound to. So the API server is
asked which one it reads off this operator's own token, not the pod's environment. An operator outside a pod has no such thing in
its token: it is entered without a pod, and refused while the register names one. Owns the two questions; the register is written
by `handover`.
"""

import structlog

from draco.kube.connect.client import Client
from draco.kube.errors import Forbidden, NotFound
from draco.resources.api.allocation import RegisteredLeader
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import LEASES, SELF_SUBJECT_REVIEWS

log = structlog.get_logger(__name__)

_POD_UID = "authentication.kubernetes.io/pod-uid"
NOT_TOLD = (
    "The API server does not tell the operator which pod it is, so an operator that led before is not kept from allocating: let "
    "it create selfsubjectreviews, as Kubernetes' ClusterRole system:basic-user does."
)


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
