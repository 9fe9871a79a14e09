"""Whether the allocation of an idle claim may be released now, and the messages about idle claims in the way.

Owns the reasons, as values and sentences, and the texts in Events and the status of policies. The caller knows the claim;
`releases` finds that it blocks a pod and that another place exists for it.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from draco.mig_policy.releases import ClaimRelease
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.draco import GpuNode, IdleClaims, InstanceUse
from draco.resources.api.meta import ObjectKey, is_true
from draco.resources.texts import agreeing, them


class IdleClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a claim that is allocated on GPUs of one MigPolicy and reserved for nobody.

    `idle_s` is how long it has been observed idle, `released_s` how long ago it was last released, None if never. `users` are the
    pods that name it and have not ended, `prepared_on` the node that has it prepared.
    """

    claim: ResourceClaim
    policy: str
    permit: IdleClaims
    idle_s: float
    released_s: float | None = None
    users: Sequence[ObjectKey] = ()
    prepared_on: str = ""


class ReleaseDelays(msgspec.Struct, frozen=True, kw_only=True):
    """Delays, in seconds."""

    grace_s: float = 60.0
    """How long a claim must have been idle: whoever allocates ahead of a pod reserves the claim a moment later."""
    rest_s: float = 600.0
    """How long a released claim is left alone: two pods, or two tools, must not move it back and forth."""


class ReleaseObstacle(msgspec.Struct, frozen=True, kw_only=True):
    """Why a claim is not released. `again_s`: after how many seconds to check again, None if only a change helps."""

    text: str
    again_s: float | None = None


def obstacle(idle: IdleClaim, patience: ReleaseDelays) -> ReleaseObstacle | None:
    """The first reason not to release the claim; None if it may be released now."""
    return next(_obstacles(idle, patience), None)


def _obstacles(idle: IdleClaim, patience: ReleaseDelays) -> Iterator[ReleaseObstacle]:
    claim, grace_s, rest_s = idle.claim, patience.grace_s, patience.rest_s
    if idle.permit is not IdleClaims.RELEASE:
        yield ReleaseObstacle(text=f"MigPolicy {idle.policy} keeps idle claims")
    if claim.status.allocation is None or claim.status.reserved_for:
        yield ReleaseObstacle(text="it is not idle any more")
    if claim.metadata.deletion_timestamp is not None:
        yield ReleaseObstacle(text="it is being deleted")
    if idle.prepared_on:
        yield ReleaseObstacle(text=f"it is still prepared on node {idle.prepared_on}")
    if idle.users:
        yield ReleaseObstacle(text=f"pod {min(idle.users)} is about to use it")
    if idle.released_s is not None and idle.released_s < rest_s:
        yield ReleaseObstacle(
            text=f"it was released less than {_duration(rest_s)} ago", again_s=rest_s - idle.released_s
        )
    if idle.idle_s < grace_s:
        yield ReleaseObstacle(
            text=f"it has been idle for less than {_duration(grace_s)}", again_s=grace_s - idle.idle_s
        )


def users(pods: Iterable[Pod]) -> tuple[ObjectKey, ...]:
    """The claim's pods that have not ended; also one that waits for something else may use the claim next."""
    return tuple(sorted(pod.metadata.key for pod in pods if not pod.has_ended))


def prepared_on(claim: ResourceClaim, nodes: Iterable[GpuNode]) -> str:
    """The node whose agent has the claim prepared, or says so in the claim; "" if none does.

    Until then the node would refuse another claim for its place, whatever is allocated.
    """
    name = str(claim.metadata.key)
    for node in nodes:
        places = {held.device for held in claim.devices_held if held.pool == node.metadata.name}
        for gpu in node.status.gpus:
            for each in gpu.mig.instances if gpu.mig else ():
                if each.use is InstanceUse.CLAIM and (each.claim == name or each.device in places):
                    return node.metadata.name
    for device in claim.status.devices:
        if is_true(device.conditions, "Ready"):
            return device.pool
    return ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f} min" if minutes >= 2 and not rest else f"{seconds:g} s"


def for_waiting(release: ClaimRelease, prospect: str) -> str:
    """For a waiting claim: without which idle claims it would be allocated, and what becomes of them."""
    held = "; ".join(
        f"claim {key} holds {', '.join(release.devices[key])}, and no pod uses it" for key in release.claims
    )
    one = len(release.claims) == 1
    return (
        f"Would be allocated on node {release.node} without {'an idle claim' if one else 'two idle claims'}: {held}. "
        f"If {'it is' if one else 'they are'} deleted and created again, {'it finds' if one else 'they find'} another place. "
        f"{prospect}"
    )


def for_idle(release: ClaimRelease, claim: ObjectKey, prospect: str) -> str:
    """For an idle claim: whom it blocks, and what becomes of it."""
    others = [each for each in release.claims if each != claim]
    also = f" and claim {others[0]}" if others else ""
    return (
        f"Holds {', '.join(release.devices[claim])}, and no pod uses it. Without it{also}, {_claims(release.waiting)} of pod "
        f"{release.pod} would be allocated. Delete it and create it again: there is another place for it. {prospect}"
    )


def for_policy(release: ClaimRelease) -> str:
    """For the policy that has the GPUs."""
    waiting = _claims(release.waiting)
    return f"{waiting[0].upper()}{waiting[1:]} would fit without idle {_claims(release.claims)}."


def kept(release: ClaimRelease, policies: Sequence[str]) -> str:
    """The policies do not permit the release."""
    named = sorted(set(policies))
    policy, it = agreeing(len(named), "MigPolicy", "MigPolicies"), them(len(release.claims))
    return f"To let Draco release {it}, set spec.repair.idleClaims: Release in {policy} {' and '.join(named)}."


def held_back(release: ClaimRelease, claim: ObjectKey, reason: str) -> str:
    """The policies permit the release, but something else delays it."""
    if len(release.claims) == 1:
        return f"Draco releases it as soon as possible; not yet, because {reason}."
    return f"Draco releases them as soon as possible; not yet, because of claim {claim}: {reason}."


def due(release: ClaimRelease) -> str:
    """The release is due."""
    return f"Draco releases {them(len(release.claims))} automatically in a moment."


def _claims(keys: tuple[ObjectKey, ...]) -> str:
    return f"{agreeing(len(keys), 'claim', 'claims')} {' and '.join(map(str, keys))}"
