"""The law of order: of two groups with the same requests, the younger gets no devices while the older keeps waiting.

Owns which groups can be compared: complete, undisturbed groups that wait for Draco's devices alone and differ only in age. The
documentation promises that the more urgent group comes first, then the older. Exceptions are not judged: groups that lost devices
(Draco tries other nodes then), that a limit covers, or for which others may be evicted; groups that wait while the operator
changes or GPUs are handed back; and new groups, because Draco retries a group without a place only after a pause. Does no I/O.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tests.adversary.cluster.observer.allocators import DRACO, allocator, is_dracos, is_for_draco
from tests.adversary.cluster.observer.gates import GATE
from tests.adversary.cluster.observer.groups import Group, groups_of
from tests.adversary.cluster.observer.limited import selects
from tests.adversary.cluster.observer.members import claims_of, key_of, pod_group_of
from tests.adversary.cluster.observer.reservations import priority_of
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, is_live, name, part_of, results

JUDGED_AFTER_S = 10.0
"""How long the older group must keep waiting."""
KNOWN_AFTER_S = 5.0
"""How long both groups must have been complete."""
MARGIN_S = 2.0
"""Safety margin on top of the time that is long enough."""
REMEMBERED_S = 60.0
"""How long a limit, a GPU handed back, an evictable pod of lower priority or a missing answer excludes a group."""
STEADY_S = 10.0
"""How long the same operator must have led: a new leader first asks about everything that waits, in order."""
TOPOLOGY = "draco.dev/topology"
RESERVATION = "draco.dev/reservation"
_NO_ANSWER = re.compile("No answer was found|takes more than|the check failed|simplify it")
"""Events of a group whose search gave no answer: Draco retries it only after a while."""


class Waits(NamedTuple):
    """Since when a group waits, what it requests, and when its first and last object were created."""

    since: float
    asks: str
    first: str
    last: str


class Pair(NamedTuple):
    """Two groups with the same requests when one of them got devices, and how both had waited, the older first."""

    at: float
    older: str
    younger: str
    waited: tuple[Waits, Waits]


class Order:
    """Told of each change of pods, claims and Events; it polls the rest."""

    def __init__(self, world: World) -> None:
        self.compared = 0
        """Number of compared pairs."""
        self._world = world
        self._waiting: dict[str, Waits] = {}
        self._disturbed: set[str] = set()
        self._pairs: list[Pair] = []
        self._limited_at: dict[str, float] = {}
        """When a limit last covered each namespace."""
        self._unanswered_at: dict[str, float] = {}
        self._seen_at: dict[int, float] = {}
        """When a pod or reservation of each priority was last seen."""
        self._gpus: frozenset[str] = frozenset()
        self._lost_at = float("-inf")

    def pod_changed(self, before: Object | None, after: Object | None) -> None:
        """A pod was written or deleted."""
        one = after or before
        assert one is not None
        if (key := key_of(one)) and (after is None or not is_live(after)):
            self._disturbed.add(key)

    def event_changed(self, after: Object | None, now: float) -> None:
        """An Event was written or deleted."""
        if after is not None and _NO_ANSWER.search(str(after.get("note") or "")):
            self._unanswered_at[str((after.get("regarding") or {}).get("namespace"))] = now

    def claim_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A claim was written or deleted."""
        one = after or before
        assert one is not None
        keys = {key_of(pod) for pod in self._world.pods.values() if name(one) in claims_of(pod)} - {""}
        had, has = (each is not None and bool(results(each)) for each in (before, after))
        if after is None or after["metadata"].get("deletionTimestamp") or (had and not has):
            self._disturbed |= keys
        elif has and not had:
            for key in keys:
                if (mine := self._waiting.pop(key, None)) is not None and allocator(after) == DRACO:
                    self._pairs += self._paired(key, mine, now)

    def _paired(self, key: str, mine: Waits, now: float) -> Iterator[Pair]:
        for other, its in self._waiting.items():
            if its.asks == mine.asks and its.last < mine.first:
                yield Pair(now, other, key, (its, mine))
            elif its.asks == mine.asks and mine.last < its.first:
                yield Pair(now, key, other, (mine, its))

    def weighed(self, now: float, *, grace_s: float, undisturbed: Callable[[float], bool]) -> Iterator[Suspicion]:
        """Groups that were overtaken by a younger but otherwise identical group."""
        self._look(now)
        for one in [each for each in self._pairs if now - each.at >= JUDGED_AFTER_S + grace_s]:
            self._pairs.remove(one)
            if min(one.at - each.since for each in one.waited) < KNOWN_AFTER_S + grace_s:
                continue
            if not undisturbed(one.at - STEADY_S) or one.at - self._lost_at < REMEMBERED_S:
                continue
            self.compared += 1
            older, younger = one.waited
            if self._waiting.get(one.older) == older:
                text = f"{one.younger} got devices and {one.older}, which asks for the same and is older, has waited on"
                ages = f"they were complete {one.at - younger.since:.1f} s and {one.at - older.since:.1f} s before"
                yield Suspicion(
                    "passed by a younger", f"{one.older} {one.younger}", f"{text} for {now - one.at:.1f} s; {ages}"
                )

    def long_enough(self, now: float, *, grace_s: float, undisturbed: Callable[[float], bool]) -> set[str]:
        """The groups that could be compared if one got devices now, even if the machine became twice as slow."""
        if not undisturbed(now - STEADY_S) or now - self._lost_at < REMEMBERED_S:
            return set()
        return {
            key for key, each in self._waiting.items() if now - each.since >= KNOWN_AFTER_S + 2 * grace_s + MARGIN_S
        }

    def _look(self, now: float) -> None:
        """Update which groups wait, and what may exclude them."""
        self._seen_at |= {_priority(pod): now for pod in self._world.pods.values() if is_live(pod)}
        kept = map(priority_of, self._world.reservations.values())
        self._seen_at |= {its: now for its in kept if its is not None}
        for namespace in {pod["metadata"]["namespace"] for pod in self._world.pods.values()}:
            if any(selects(each["spec"], namespace) for each in self._world.limits.values()):
                self._limited_at[namespace] = now
        gpus = frozenset(
            part.gpu
            for _, device in self._world.published()
            if is_dracos(device) and (part := part_of(device)) is not None
        )
        self._lost_at = now if self._gpus - gpus else self._lost_at
        self._gpus = gpus
        self._disturbed &= {key_of(pod) for pod in self._world.pods.values()}
        uses = Counter((each, key_of(pod)) for pod in self._world.pods.values() for each in claims_of(pod))
        claims = {name(claim): claim for claim in self._world.claims.values()}
        found: dict[str, Waits] = {}
        for group in groups_of(self._world):
            if self._may_be_compared(group, now) and (waits := self._waits(group, claims, uses, now)) is not None:
                before = self._waiting.get(group.key)
                same = before is not None and before[1:] == waits[1:]
                found[group.key] = before if before is not None and same else waits
        self._waiting = found

    def _may_be_compared(self, group: Group, now: float) -> bool:
        """Whether nothing excludes the group from a comparison."""
        namespace = group.pods[0]["metadata"]["namespace"] if group.pods else ""
        doubts = (self._limited_at.get(namespace), self._unanswered_at.get(namespace), *self._lower(group))
        lately = any(at is not None and now - at < REMEMBERED_S for at in doubts)
        return group.complete and group.key not in self._disturbed and not lately

    def _lower(self, group: Group) -> Iterator[float]:
        """When pods that may be evicted for it were last seen."""
        least = min(map(_priority, group.pods), default=0)
        yield from (at for priority, at in self._seen_at.items() if priority < least)

    def _waits(
        self, group: Group, claims: dict[str, Object], uses: Counter[tuple[str, str]], now: float
    ) -> Waits | None:
        """What the group requests; None if it has devices already or has anything that makes it incomparable."""
        pods = group.pods
        known = {each: claims[each] for pod in pods for each in claims_of(pod)}
        if any(map(_is_special, pods)):
            return None
        users = Counter(each for each, _ in uses if each in known)
        if any(users[each] > 1 or _is_someones(claim) or results(claim) for each, claim in known.items()):
            return None
        pod_group = pod_group_of(self._world, group.key)
        made = [one["metadata"]["creationTimestamp"] for one in (*pods, *known.values(), *filter(None, [pod_group]))]
        asked = {each: (uses[each, group.key], claim["spec"]) for each, claim in known.items()}
        told = {
            "namespace": pods[0]["metadata"]["namespace"],
            "size": group.size,
            "pods": sorted(_told(pod, [asked[each] for each in claims_of(pod)]) for pod in pods),
            **_said(pod_group, pods),
        }
        return Waits(now, json.dumps(told, sort_keys=True), min(made), max(made))


def _said(pod_group: Object | None, pods: Iterable[Object]) -> Object:
    """The group's topology, from its PodGroup or its pods, and its PodGroup's constraints and priority."""
    spec = (pod_group or {}).get("spec") or {}
    topology = ((pod_group or {}).get("metadata") or {}).get("annotations", {}).get(TOPOLOGY)
    said = {(pod["metadata"].get("annotations") or {}).get(TOPOLOGY, "") for pod in pods} - {""}
    return {
        "topology": [topology] if topology else sorted(said),
        "constraints": spec.get("schedulingConstraints") or {},
        "priority": spec.get("priority"),
    }


def _told(pod: Object, asked: list[tuple[int, Object]]) -> str:
    """What may distinguish a pod: its claims and their number of users, its priority, and its tolerations."""
    spec = pod["spec"]
    claims = sorted(json.dumps(each, sort_keys=True) for each in asked)
    return json.dumps(
        [claims, _priority(pod), spec.get("preemptionPolicy"), spec.get("tolerations") or []], sort_keys=True
    )


def _is_special(pod: Object) -> bool:
    """Whether something other than devices may keep it waiting, or it is bound to a place."""
    spec = pod["spec"]
    gates = [each["name"] for each in spec.get("schedulingGates") or [] if each["name"] != GATE]
    return bool(gates or spec.get("nodeSelector") or spec.get("affinity") or spec.get("nodeName"))


def _is_someones(claim: Object) -> bool:
    """Whether the claim is not the group's alone: not created for it, taking over from a reservation, or the scheduler's."""
    owners = {each["kind"] for each in claim["metadata"].get("ownerReferences") or []}
    reserved = (claim["metadata"].get("labels") or {}).get(RESERVATION)
    return not owners & {"Pod", "PodGroup"} or bool(reserved) or not is_for_draco(claim)


def _priority(pod: Object) -> int:
    return int(pod["spec"].get("priority") or 0)
