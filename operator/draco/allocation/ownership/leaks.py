"""Leaked claims: claims of Draco's that a PodGroup without pods keeps allocated.

Owns the rule, how long the policies of the devices tolerate a leak, and the texts. Kubernetes keeps a claim that a PodGroup
reserves until the PodGroup is deleted; a claim that Draco allocated for such a group before its pods were gone stays too. Ignores
claims of other allocators. Pure: the caller reads, writes and tells the time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from draco.allocation.ownership.claims import is_for_operator
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.draco import Allocator, MigPolicy
from draco.resources.api.meta import ObjectKey
from draco.resources.api.scheduling import PodGroup
from draco.resources.texts import agreeing, listed
from draco.resources.windows import lasting

_GROUP: Final = "scheduling.k8s.io"
_RESOURCE: Final = "podgroups"


class Keeper(NamedTuple):
    """A PodGroup that keeps a claim allocated."""

    key: ObjectKey
    uid: str


def keepers(claim: ResourceClaim) -> tuple[Keeper, ...]:
    """The PodGroups that alone keep its devices: those that reserve it or, without any reservation, the one it was made for."""
    if claim.status.allocation is None or claim.metadata.deletion_timestamp is not None:
        return ()
    reserved = claim.status.reserved_for
    if any((each.api_group, each.resource) != (_GROUP, _RESOURCE) for each in reserved):
        return ()
    found = tuple(Keeper(ObjectKey(claim.metadata.namespace, each.name), each.uid) for each in reserved)
    return found or group_made_for(claim)


def group_made_for(claim: ResourceClaim) -> tuple[Keeper, ...]:
    """The PodGroup from whose template it was made; empty for a claim made by name."""
    return tuple(
        Keeper(ObjectKey(claim.metadata.namespace, owner.name), owner.uid)
        for owner in claim.metadata.owner_references
        if owner.controller and owner.kind == "PodGroup" and owner.api_version.startswith(f"{_GROUP}/")
    )


def is_there(pod: Pod) -> bool:
    """Whether it may use or need devices; a pod that is being deleted runs until it has ended."""
    return not pod.has_ended


def ended_users(claim: ResourceClaim, pods: Iterable[Pod]) -> list[Pod]:
    """Ended pods of the claim that are not deleted: kube-controller-manager reserves it for them again."""
    return [
        pod
        for pod in pods
        if not is_there(pod)
        and pod.spec.node_name
        and pod.metadata.deletion_timestamp is None
        and claim.metadata.key in pod.claims
    ]


def is_leaked(
    claim: ResourceClaim,
    classes: Mapping[str, DeviceClass],
    pod_group: Callable[[ObjectKey], PodGroup | None],
    pods: Iterable[Pod],
) -> bool:
    """Whether nobody uses its devices, and no controller releases them. `pods` are those of the claim and its PodGroups."""
    found = keepers(claim)
    return (
        bool(found)
        and is_for_operator(claim, classes)
        and all(
            (group := pod_group(each.key)) is not None
            and group.metadata.uid == each.uid
            and group.metadata.deletion_timestamp is None
            for each in found
        )
        and not any(map(is_there, pods))
    )


def release_after(policies: Iterable[MigPolicy | None]) -> timedelta | None:
    """How long a leak is tolerated on GPUs of these policies: the longest time, if all allow a release; else None."""
    longest = timedelta(0)
    for each in policies:
        if each is None or each.spec.allocator is not Allocator.OPERATOR:
            return None
        after = lasting(each.spec.gangs.release_leaked_after)
        if not after:
            return None
        longest = max(longest, after)
    return longest or None


def cause_and_fix(group: ObjectKey, claims: Sequence[ResourceClaim], minutes: int) -> str:
    """What a PodGroup without pods keeps, and how to release it."""
    devices = listed(f"{each.device} of {each.pool}" for claim in claims for each in claim.results)
    names = f"{agreeing(len(claims), 'claim', 'claims')} {listed(claim.metadata.name for claim in claims)}"
    text = (
        f"The PodGroup has had no pod for {minutes} min and keeps {devices}, by {names}. "
        f"If no pods follow, delete it: kubectl delete podgroup -n {group.namespace} {group.name}"
    )
    by_name = [claim.metadata.name for claim in claims if not group_made_for(claim)]
    if by_name:
        # Draco allocates an unreserved claim again as soon as it can.
        text += f", and what was not made from its templates, with kubectl delete resourceclaim -n {group.namespace} "
        text += " ".join(sorted(by_name)[:3])
    return f"{text}."
