"""Groups of claims that Draco allocates together, and the answers about them: structs exchanged with workers."""

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
    """Claims that get devices on one node: the unallocated claims of a pod, or a claim without a pod.

    Several pods if they share a claim. `beside` are the pods' allocated claims, which must reach the node; `without` are the
    names of excluded nodes. `others` are unallocated claims of the pods that kube-scheduler allocates.
    """

    claims: list[ResourceClaim]
    pods: Sequence[Pod] = ()
    beside: Sequence[ResourceClaim] = ()
    without: Sequence[str] = ()
    others: Sequence[ResourceClaim] = ()


class ClaimGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Members of which at least `needed` get devices together, or none. Devices are kept for one that `is_overdue`.

    `placed` are allocated claims of other members; the topology includes them. `name` is shown to people; "" for a single member.
    """

    members: list[GroupMember]
    needed: int = 1
    topology: str = ""
    placed: Sequence[ResourceClaim] = ()
    name: str = ""
    is_overdue: bool = False

    @property
    def claims(self) -> list[ResourceClaim]:
        """The claims of all members."""
        return [claim for member in self.members for claim in member.claims]


class GroupPlacement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The results of each member's claims, in order (empty for none); or no results, and why.

    `kept` are free devices to keep for the group, so that it finds a place when others become free. If `is_hopeless`, it would
    find no place even if all of Draco's claims ended.
    """

    results: list[list[AllocationResult]]
    why_not: str = ""
    kept: Sequence[DeviceKey] = ()
    is_hopeless: bool = False


def allocated(claim: ResourceClaim, result: AllocationResult | None) -> ResourceClaim:
    """The claim with this allocation, or without one."""
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=result))


def placeholder(name: str, results: list[DeviceRequestAllocationResult]) -> ResourceClaim:
    """A claim, without a namespace, that holds these devices so that nobody gets them."""
    taken = AllocationResult(devices=DeviceAllocationResult(results=results))
    return ResourceClaim(metadata=ObjectMeta(name=name), status=ResourceClaimStatus(allocation=taken))


def withheld(name: str, devices: Iterable[DeviceKey]) -> ResourceClaim:
    """A placeholder for whole devices."""
    return placeholder(
        name,
        [
            DeviceRequestAllocationResult(request="", driver=each.driver, pool=each.pool, device=each.device)
            for each in devices
        ],
    )
