"""Claims that Draco allocates together, and what is answered about them. Owns these structs, which are sent to workers."""

from collections.abc import Sequence

import msgspec

from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Pod


class ClaimGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Claims that get devices of one node, or none: those of a pod that are not allocated yet, or one without a pod.

    `beside` are the pod's allocated claims, which must reach the node; `without` are the names of nodes that are out.
    """

    claims: list[ResourceClaim]
    pod: Pod | None = None
    beside: Sequence[ResourceClaim] = ()
    without: Sequence[str] = ()


class GroupPlacement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A result for each claim of a group, in its order; or none, and why."""

    results: list[AllocationResult]
    why_not: str = ""


def allocated(claim: ResourceClaim, result: AllocationResult) -> ResourceClaim:
    """The claim with this allocation."""
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=result))
