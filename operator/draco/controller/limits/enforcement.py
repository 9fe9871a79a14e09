"""Keeps Draco's allocations within the DeviceLimits.

Owns the refusals and how they are reported: one Event per claim and limit, and the text that replaces all other causes while the
claim waits for a limit. A round is one decision: it starts from what is held and in flight, runs without a pause until all its
placements are judged, and counts what it permits. It does not check whether a claim fits, and writes nothing but Events.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from draco.controller.limits.holdings_cache import HeldDevices
from draco.controller.view import ClusterView
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.kube.listeners import Listeners
from draco.kube.watch.store import Change
from draco.limits.amounts import Holdings, added, least_of
from draco.limits.rules import LimitCheck, LimitRefusal, NamespaceLabels, refusal_text, rule_of
from draco.placing.groups.group import ClaimGroup, GroupMember, GroupPlacement, allocated
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS

log = structlog.get_logger(__name__)

LIMIT_REASON = EventReason("DeviceLimitReached", "Allocating", "Warning")


class _Refused(msgspec.Struct, frozen=True):
    uid: str
    limits: frozenset[str]
    text: str


class LimitGuard:
    """The current refusals, by claim."""

    def __init__(self, view: ClusterView, held: HeldDevices, events: EventRecorder) -> None:
        self._view = view
        self._held = held
        self._events = events
        self._refused: dict[ObjectKey, _Refused] = {}
        self.listeners = Listeners[[ObjectKey]]()
        """Called with each claim whose refusal changes."""
        self.when_changed = Listeners[[]]()
        """Called when limits change, or whom they apply to."""
        self.version = 0
        """Grows with every such change."""
        view.limits.subscribe(
            lambda _: self._changed(), reads=lambda limit: (limit.spec, limit.metadata.deletion_timestamp is None)
        )
        view.namespaces.subscribe(lambda _: self._changed(), reads=lambda item: item.metadata.labels)
        view.claims.subscribe(self._follow)

    def why_not(self, claim: ObjectKey) -> str:
        """Which limit keeps the claim from being allocated; "" if none is known."""
        refused = self._refused.get(claim)
        return refused.text if refused else ""

    def waiting(self) -> Mapping[str, int]:
        """Number of waiting claims, by the limit that stops them."""
        return Counter(limit for each in self._refused.values() for limit in each.limits)

    def begin(self, on_the_way: Sequence[ResourceClaim]) -> "LimitRound":
        """Start a decision. `on_the_way` are claims as they will be once all decisions are written."""
        limits = sorted(self._view.limits.store.values(), key=lambda limit: limit.metadata.name)
        rules = [rule_of(limit) for limit in limits if limit.metadata.deletion_timestamp is None]
        namespaces = {each.metadata.name: each.metadata.labels for each in self._view.namespaces.store.values()}
        known_better = {each.metadata.key for each in on_the_way}
        check = LimitCheck(rules, namespaces, lambda name: self._held.of_namespace(name, known_better))
        for claim in on_the_way:
            if rules and claim.metadata.namespace in namespaces:
                check.take(claim.metadata.namespace, self._held.of_claim(claim).holdings)
        return LimitRound(self, self._held, check if rules else None, namespaces)

    def note(self, claims: Sequence[ResourceClaim], refusals: Sequence[LimitRefusal], text: str) -> None:
        """Report why claims wait; without refusals, that no limit stops them."""
        limits = frozenset(each.limit for each in refusals)
        for claim in claims:
            key, before = claim.metadata.key, self._refused.get(claim.metadata.key)
            if not self._view.claims.store.still_has(claim):
                continue  # deleted during the decision
            after = _Refused(claim.metadata.uid, limits, text) if refusals else None
            if after is not None and (before is None or (before.uid, before.limits) != (after.uid, after.limits)):
                log.info("allocation.limited", claim=str(key), limits=sorted(limits), why=text)
                self._events.record(CLAIMS.reference(claim.metadata), LIMIT_REASON, text)
            self._put(key, after)

    def _put(self, key: ObjectKey, refused: _Refused | None) -> None:
        if self._refused.get(key) == refused:
            return
        if refused is None:
            del self._refused[key]
        else:
            self._refused[key] = refused
        self.listeners.tell(key)

    def _follow(self, change: Change[ResourceClaim]) -> None:
        refused = self._refused.get(change.key)
        if refused and (change.after is None or change.after.metadata.uid != refused.uid or not change.after.waits):
            self._put(change.key, None)

    def _changed(self) -> None:
        self.version += 1
        self.when_changed.tell()


class LimitRound:
    """One decision. `check` is None without limits."""

    def __init__(
        self, guard: LimitGuard, held: HeldDevices, check: LimitCheck | None, namespaces: NamespaceLabels
    ) -> None:
        self._guard = guard
        self._held = held
        self._check = check
        self._namespaces = namespaces
        self._notes: list[tuple[Sequence[ResourceClaim], Sequence[LimitRefusal], str]] = []

    def tell(self) -> None:
        """Report the results of the judged claims; nothing is reported before."""
        for claims, refusals, text in self._notes:
            self._guard.note(claims, refusals, text)
        self._notes = []

    def foreseen(self, group: ClaimGroup) -> str:
        """Why a group cannot be allocated whatever devices it gets; "" if it can."""
        if self._check is None:
            return ""
        least = [added(map(least_of, member.claims)) for member in group.members]
        if group.needed < len(least) and any(each != least[0] for each in least):
            return ""  # it is unknown which of them it would be
        fewest = [claim for member in group.members[: group.needed] for claim in member.claims]
        return self._refusal(group.claims, added(least[: group.needed]), len(fewest))

    def within(self, group: ClaimGroup, placement: GroupPlacement) -> GroupPlacement:
        """What limits permit of the placement, counted from now on; or none, with the reason. Drops members not needed."""
        if self._check is None or not placement.results:
            self._notes.append((group.claims, [], ""))
            return placement
        namespace = group.claims[0].metadata.namespace
        if namespace not in self._namespaces:
            return self._none(_unknown(namespace))
        permitted: list[Holdings] = []
        results = []
        left_out: list[ResourceClaim] = []
        refusals: list[LimitRefusal] = []
        for member, found in zip(group.members, placement.results, strict=True):
            taking = self._holdings(member, found)
            forbidden = self._check.refusals(namespace, added([*permitted, taking])) if found else []
            if forbidden:
                left_out += member.claims
                refusals = refusals or forbidden
            elif found:
                permitted.append(taking)
            results.append([] if forbidden else found)
        if refusals and len(permitted) < group.needed:
            pairs = list(zip(group.members, placement.results, strict=True))
            together = added(self._holdings(member, found) for member, found in pairs)
            return self._none(self._refusal(group.claims, together, sum(len(found) for _, found in pairs)))
        self._notes.append((group.claims, [], ""))
        if refusals:
            self._notes.append((left_out, refusals, refusal_text(refusals, namespace, claims=len(left_out))))
        self._check.take(namespace, added(permitted))
        return msgspec.structs.replace(placement, results=results)

    def _none(self, why: str) -> GroupPlacement:
        return GroupPlacement([], why, is_hopeless=True)

    def _holdings(self, member: GroupMember, results: Sequence[AllocationResult]) -> Holdings:
        planned = (allocated(claim, result) for claim, result in zip(member.claims, results, strict=False))
        return added(self._held.of_claim(each).holdings for each in planned)

    def _refusal(self, claims: Sequence[ResourceClaim], taking: Holdings, number: int) -> str:
        """Why claims may not take this; `number` of them would. "" if they may."""
        namespace = claims[0].metadata.namespace
        if namespace not in self._namespaces:
            return _unknown(namespace)
        refusals = self._check.refusals(namespace, taking) if self._check is not None else []
        if not refusals:
            return ""
        text = refusal_text(refusals, namespace, claims=number)
        self._notes.append((claims, refusals, text))
        return text


def _unknown(namespace: str) -> str:
    # Its labels decide which limits apply, so nothing is allocated before they are known.
    return f"Namespace {namespace} has not been read yet, so its limits are unknown."
