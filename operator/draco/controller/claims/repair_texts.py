"""What repair says of idle claims, in Events and in the status of policies.

Owns the sentences. When and of what they are said is `repair`.
"""

from collections.abc import Sequence

from draco.mig_policy.releases import Release
from draco.resources.api.meta import ObjectKey
from draco.resources.english import agreeing, them


def for_waiting(release: Release, prospect: str) -> str:
    """Of a claim that waits: without which idle ones it would be allocated, and what becomes of them."""
    held = "; ".join(f"claim {key} holds {', '.join(release.devices[key])} for no pod" for key in release.claims)
    one = len(release.claims) == 1
    return (
        f"Would be allocated on node {release.node} without {'an idle claim' if one else 'two idle claims'}: {held}. "
        f"If {'it is' if one else 'they are'} deleted and made again, {'it finds' if one else 'they find'} another place. "
        f"{prospect}"
    )


def for_idle(release: Release, claim: ObjectKey, prospect: str) -> str:
    """Of an idle claim: whom it keeps waiting, and what becomes of it."""
    others = [each for each in release.claims if each != claim]
    also = f" and claim {others[0]}" if others else ""
    return (
        f"Holds {', '.join(release.devices[claim])}, and no pod uses it. Without it{also}, {_claims(release.waiting)} of pod "
        f"{release.pod} would be allocated. Delete it and make it again: there is another place for it. {prospect}"
    )


def for_policy(release: Release) -> str:
    """Of the policy that has the GPUs."""
    waiting = _claims(release.waiting)
    return f"{waiting[0].upper()}{waiting[1:]} would fit without idle {_claims(release.claims)}."


def kept(release: Release, policies: Sequence[str]) -> str:
    """These policies permit nothing."""
    named = sorted(set(policies))
    who, say = agreeing(len(named), "MigPolicy", "MigPolicies"), agreeing(len(named), "says", "say")
    return (
        f"Draco may release {them(len(release.claims))} itself if {who} {' and '.join(named)} {say} so: spec.repair.idleClaims: "
        "Release."
    )


def held_back(release: Release, claim: ObjectKey, reason: str) -> str:
    """The policies permit it, but something else does not yet."""
    if len(release.claims) == 1:
        return f"Draco releases it as soon as it may; now {reason}."
    return f"Draco releases them as soon as it may; now of claim {claim}: {reason}."


def due(release: Release) -> str:
    """Nothing is in the way."""
    return f"Draco releases {them(len(release.claims))} by itself within moments."


def _claims(keys: tuple[ObjectKey, ...]) -> str:
    return f"{agreeing(len(keys), 'claim', 'claims')} {' and '.join(map(str, keys))}"
