"""Whether a running group has lost pods, so that the devices of the others are of no use until it is complete again.

Only groups whose claims were all made for their pods can be released, because a claim made by name would be allocated again
immediately. A missing pod is a loss only once its replacement waits: it may have succeeded, and an incomplete group would not
start again. Pods beyond the group's size are no loss. Pure: the caller reads, writes and tells the time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from draco.allocation.ownership.claims import is_for_operator
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.draco import Allocator, MigPolicy, PartialLoss
from draco.resources.api.meta import ObjectKey


class GroupStanding(NamedTuple):
    """Pods without devices, pods waiting for some, whether all have a node, and Draco's claims of running pods."""

    missing: int
    waiting: int
    is_whole: bool
    held: Sequence[ResourceClaim]

    @property
    def is_short(self) -> bool:
        """Whether only devices are missing for the whole group to start again."""
        return 0 < self.missing <= self.waiting


def standing(
    size: int,
    pods: Iterable[Pod],
    claim_of: Callable[[ObjectKey], ResourceClaim | None],
    classes: Mapping[str, DeviceClass],
) -> GroupStanding:
    """The standing of a group of `size`. Pods being deleted have left; pods held by another scheduling gate do not wait."""
    settled, bound, waiting = 0, 0, 0
    held: dict[ObjectKey, ResourceClaim] = {}
    for pod in pods:
        if pod.status.phase == "Succeeded":
            settled, bound = settled + 1, bound + 1
            continue
        if pod.is_over or pod.is_gated_by_others:
            continue
        claims = [claim_of(key) for key in pod.claims]
        has_all = len(claims) >= len(pod.spec.resource_claims) and all(
            each is not None and each.status.allocation for each in claims
        )
        settled += has_all
        if pod.spec.node_name:
            bound += 1
            held |= {each.metadata.key: each for each in claims if each and is_for_operator(each, classes)}
        else:
            waiting += not has_all
    return GroupStanding(max(0, size - settled), waiting, bound >= size, [held[key] for key in sorted(held)])


def is_made_for_a_pod(claim: ResourceClaim) -> bool:
    """Whether it is deleted with its pod."""
    owner = claim.metadata.controller
    return owner is not None and owner.kind == "Pod"


def releases(policies: Iterable[MigPolicy | None]) -> bool:
    """Whether there are policies and all of them release the rest of such a group."""
    found = list(policies)
    return bool(found) and all(
        each is not None
        and each.spec.allocator is Allocator.OPERATOR
        and each.spec.gangs.on_partial_loss is PartialLoss.RELEASE
        for each in found
    )
