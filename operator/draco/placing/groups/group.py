"""Claims that Draco allocates together, and what is answered about them. Owns these structs, which are sent to workers."""

from collections.abc import Iterable, Sequence

import msgspec

from draco.resources.api.claims import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectMeta
from draco.resources.names import DeviceKey


class GroupMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Claims that get devices of one node: those of a pod that are not allocated yet, or one without a pod.

    There are several pods where pods share a claim. `beside` are the pods' allocated claims, which must reach the node;
    `without` are the names of nodes that are out. `others` are claims of the pods that kube-scheduler allocates, and has not yet.
    """

    claims: list[ResourceClaim]
    pods: Sequence[Pod] = ()
    beside: Sequence[ResourceClaim] = ()
    without: Sequence[str] = ()
    others: Sequence[ResourceClaim] = ()


class ClaimGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Members that get devices at once: at least `needed` of them, or none.

    `placed` are the claims that other members have already: the topology must hold with these, too. `name` is what people call
    the group; "" for a member on its own. For a group that `is_overdue` devices are kept, should it find no place.
    """

    members: list[GroupMember]
    needed: int = 1
    topology: str = ""
    placed: Sequence[ResourceClaim] = ()
    name: str = ""
    is_overdue: bool = False

    @property
    def claims(self) -> list[ResourceClaim]:
        """Those of all members."""
        return [claim for member in self.members for claim in member.claims]


class GroupPlacement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """For each member, in their order, the results of its claims, or none; or none at all, and why.

    `kept` are devices that are free and are to be kept for the group, so that it finds a place once others become free. A group
    that `is_hopeless` would find none if all of Draco's claims ended.
    """

    results: list[list[AllocationResult]]
    why_not: str = ""
    kept: Sequence[DeviceKey] = ()
    is_hopeless: bool = False


def allocated(claim: ResourceClaim, result: AllocationResult | None) -> ResourceClaim:
    """The claim with this allocation, or with none."""
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=result))


def placeholder(name: str, results: list[DeviceRequestAllocationResult]) -> ResourceClaim:
    """A claim that has these devices, and stands for nobody's: what is not to be given out. It has no namespace."""
    taken = AllocationResult(devices=DeviceAllocationResult(results=results))
    return ResourceClaim(metadata=ObjectMeta(name=name), status=ResourceClaimStatus(allocation=taken))


def withheld(name: str, devices: Iterable[DeviceKey]) -> ResourceClaim:
    """A placeholder that has all of these devices."""
    return placeholder(
        name,
        [
            DeviceRequestAllocationResult(request="", driver=each.driver, pool=each.pool, device=each.device)
            for each in devices
        ],
    )
