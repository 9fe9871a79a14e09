"""When the pods of a claim that nobody uses are evicted: the terms of DeviceLimits, and a plan for one claim.

A claim is free only when its pods have ended, and a pod may hold several claims, alone or with the rest of its group. So all that
they hold counts: it is unused since the last of these devices was used and the last of the pods started. What is unknown is
never unused: a device that its agent does not report as unused, a report that is not fresh, a device of another driver. First the
pods are warned, then they are evicted, not sooner than the notice says. Pure: the caller keeps the notice, and a caller that
lost it warns again, so a restart only makes it later.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from draco.limits.amounts import DeviceOrigin
from draco.limits.rules import rule_of
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.limits import DeviceLimit
from draco.resources.api.usage import GpuUsageStatus
from draco.resources.names import ANNOTATION_EVICT_UNUSED, ANNOTATION_MIRROR, DeviceKey, PoolKey
from draco.resources.windows import lasting

FRESH: Final = timedelta(minutes=6)
"""How old a report may be. An agent that works writes one every five minutes, and soon after somebody begins to use a device."""
LOOK_AGAIN: Final = timedelta(minutes=5)


class UnusedTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a DeviceLimit says of a claim."""

    limit: str
    after: timedelta
    notice: timedelta


class UnusedNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice that was given: of which claim, since when it is unused, on which terms, and when its pods will be evicted."""

    uid: str
    since: datetime
    terms: UnusedTerms
    evict_at: datetime


class UnusedInput(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a claim. `pods` use it, and neither end nor have ended; `others`: what they and their groups claim.

    `usages` has the reports of pools that could be read; `maintained` are devices in maintenance.
    """

    now: datetime
    claim: ResourceClaim
    terms: UnusedTerms
    pods: Sequence[Pod] = ()
    others: Sequence[ResourceClaim] = ()
    usages: Mapping[PoolKey, GpuUsageStatus] = {}
    maintained: Collection[DeviceKey] = ()
    noticed: UnusedNotice | None = None

    @property
    def pools(self) -> set[PoolKey]:
        """The pools whose usage decides."""
        return {result.key.pool_key for claim in (self.claim, *self.others) for result in held(claim)}


class UnusedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do: warn, if `notice` is new; evict. `notice` is to be remembered, None to be forgotten."""

    why: str
    look_again: timedelta
    since: datetime | None = None
    notice: UnusedNotice | None = None
    evict: tuple[Pod, ...] = ()

    def __str__(self) -> str:
        return f"evict {', '.join(str(pod.metadata.key) for pod in self.evict)}: {self.why}" if self.evict else self.why


def terms_of(claim: ResourceClaim, labels: Mapping[str, str], limits: Iterable[DeviceLimit]) -> UnusedTerms | None:
    """The terms of the limit that ends first. `labels` are those of the claim's namespace."""
    origins = {DeviceOrigin(claim.class_of(each.request), each.driver) for each in held(claim)}
    found = []
    for limit in limits:
        rule, unused = rule_of(limit), limit.spec.unused
        if unused is not None and rule.selector.selects(labels) and any(map(rule.counts, origins)):
            after, notice = lasting(unused.evict_after), lasting(unused.notice)
            found.append(UnusedTerms(limit=limit.metadata.name, after=after, notice=notice))
    return min(found, key=lambda one: (one.after, -one.notice, one.limit), default=None)


def held(claim: ResourceClaim) -> list[DeviceRequestAllocationResult]:
    """The devices that a claim holds. Administrative access holds none."""
    return [each for each in claim.results if not each.admin_access]


def plan_without_usage(snapshot: UnusedInput) -> UnusedPlan | None:
    """What to do, if that is certain whoever uses what; None if the reports decide."""
    terms = snapshot.terms
    if why := _kept(snapshot):
        return UnusedPlan(why=why, notice=None if snapshot.pods else snapshot.noticed, look_again=LOOK_AGAIN)
    rest = _started(snapshot) + terms.after - terms.notice - snapshot.now
    if rest > timedelta(0):
        return UnusedPlan(why="a pod started not long ago", look_again=rest)
    return None


def plan(snapshot: UnusedInput) -> UnusedPlan:
    """What to do about the pods of a claim."""
    early = plan_without_usage(snapshot)
    if early is not None:
        return early
    terms, now, noticed = snapshot.terms, snapshot.now, snapshot.noticed
    since = _unused_since(snapshot)
    if since is None:
        # If it was only unknown for a moment, the notice still holds; if it was used, `since` changes.
        rest = max(LOOK_AGAIN, terms.after - terms.notice - FRESH) if _is_known(snapshot) else LOOK_AGAIN
        return UnusedPlan(why="it is used, or that is unknown", notice=noticed, look_again=rest)
    if noticed is None or (noticed.uid, noticed.since, noticed.terms) != (snapshot.claim.metadata.uid, since, terms):
        due = since + terms.after
        if now < due - terms.notice:
            return UnusedPlan(why="it may be used again", since=since, look_again=due - terms.notice - now)
        evict_at = max(due, now + terms.notice)
        noticed = UnusedNotice(uid=snapshot.claim.metadata.uid, since=since, terms=terms, evict_at=evict_at)
    if now < noticed.evict_at:
        return UnusedPlan(why="its pods are warned", since=since, notice=noticed, look_again=noticed.evict_at - now)
    return UnusedPlan(
        why=f"unused for {now - since}", since=since, notice=noticed, evict=tuple(snapshot.pods), look_again=LOOK_AGAIN
    )


def _kept(snapshot: UnusedInput) -> str:
    """Why its pods stay; "" if they may be evicted."""
    if not snapshot.pods:
        return "no pod stays with it"
    for each in (snapshot.claim, *snapshot.pods):
        if each.metadata.annotations.get(ANNOTATION_EVICT_UNUSED) == "false":
            return f"{each.metadata.key} has the annotation {ANNOTATION_EVICT_UNUSED}: false"
    for pod in snapshot.pods:
        if ANNOTATION_MIRROR in pod.metadata.annotations:
            return f"pod {pod.metadata.key} is a static pod"
        if pod.status.start_time is None or pod.pending:
            return f"pod {pod.metadata.key} has not started"
    for device in sorted(result.key for claim in (snapshot.claim, *snapshot.others) for result in held(claim)):
        if device in snapshot.maintained:
            return f"{device} is in maintenance, which decides over its pods"
    return ""


def _started(snapshot: UnusedInput) -> datetime:
    """When the last of its pods started."""
    return max(pod.status.start_time or snapshot.now for pod in snapshot.pods)


def _unused_since(snapshot: UnusedInput) -> datetime | None:
    """Since when nobody has used anything that these pods and their groups hold; None if it is used, or that is unknown."""
    found: list[datetime] = []
    for claim in (snapshot.claim, *snapshot.others):
        for result in held(claim):
            usage = snapshot.usages.get(result.key.pool_key)
            since = _reported(usage, claim, result.device) if usage and _is_fresh(usage, snapshot.now) else None
            if since is None:
                return None
            found.append(since)
    return max(_started(snapshot), *found)


def _is_known(snapshot: UnusedInput) -> bool:
    """Whether what they hold could be read lately, all of it."""
    usages = [snapshot.usages.get(pool) for pool in snapshot.pools]
    return all(usage is not None and _is_fresh(usage, snapshot.now) and not usage.unread for usage in usages)


def _is_fresh(usage: GpuUsageStatus, now: datetime) -> bool:
    """Whether a report is of now. One of the future comes from another clock, whose times cannot be compared."""
    return usage.time is not None and abs(now - usage.time) <= FRESH


def _reported(usage: GpuUsageStatus, claim: ResourceClaim, device: str) -> datetime | None:
    """Since when a report says that the claim's device is unused."""
    uuids = {each.uuid for each in usage.devices if each.device == device}
    return next(
        (each.since for each in usage.unused if each.claim_uid == claim.metadata.uid and each.uuid in uuids), None
    )
