"""The law of order: of two groups that ask for just the same, the younger gets no devices while the older goes on waiting.

Owns which groups can be compared: those that wait for Draco's devices alone, complete and undisturbed, and differ only in age. By
the documentation the more urgent group comes first, then the older. Left out is whom it promises otherwise: who lost what it had
(Draco tries other nodes then), whom a limit is about, for whom others may be evicted, and who waits when the operator changes or
GPUs are handed back; also who has just come, as a group that found no place is asked about again only after a rest. Does no I/O.
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
"""For so long the older has to wait on."""
KNOWN_AFTER_S = 5.0
"""Both have been there, complete, for so long."""
MARGIN_S = 2.0
"""Between what would be long enough and what is judged to be."""
REMEMBERED_S = 60.0
"""So long a limit, a GPU that was handed back, a less urgent pod that may have been evicted, or a lack of answers counts."""
STEADY_S = 10.0
"""The same operator has led for so long: one that begins asks about all that waits, in order."""
TOPOLOGY = "draco.dev/topology"
RESERVATION = "draco.dev/reservation"
_NO_ANSWER = re.compile("No answer was found|takes more than|the check failed|simplify it")
"""What is said of a group about which nothing was found out: it is left alone for a while."""


class Waits(NamedTuple):
    """Since when a group has been seen to wait, what it asks for, and when the first and the last object of it were made."""

    since: float
    asks: str
    first: str
    last: str


class Pair(NamedTuple):
    """Two groups that asked for the same when one of them began, and how both, the older first, had waited until then."""

    at: float
    older: str
    younger: str
    waited: tuple[Waits, Waits]


class Order:
    """Told of each change of pods, claims and Events; the rest it looks at now and then."""

    def __init__(self, world: World) -> None:
        self.compared = 0
        """Pairs of which one began."""
        self._world = world
        self._waiting: dict[str, Waits] = {}
        self._disturbed: set[str] = set()
        self._pairs: list[Pair] = []
        self._limited_at: dict[str, float] = {}
        """By namespace, when a limit was about it last."""
        self._unanswered_at: dict[str, float] = {}
        self._seen_at: dict[int, float] = {}
        """When there was a pod of a priority last."""
        self._gpus: frozenset[str] = frozenset()
        self._lost_at = float("-inf")

    def pod_changed(self, before: Object | None, after: Object | None) -> None:
        """A pod was written or is gone."""
        one = after or before
        assert one is not None
        if (key := key_of(one)) and (after is None or not is_live(after)):
            self._disturbed.add(key)

    def event_changed(self, after: Object | None, now: float) -> None:
        """An Event was written or is gone."""
        if after is not None and _NO_ANSWER.search(str(after.get("note") or "")):
            self._unanswered_at[str((after.get("regarding") or {}).get("namespace"))] = now

    def claim_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A claim was written or is gone."""
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
        """The groups that were passed by one that nothing tells apart from them but that it is younger."""
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
        """The groups that would be compared if one began now, also where the machine is twice as slow by then."""
        if not undisturbed(now - STEADY_S) or now - self._lost_at < REMEMBERED_S:
            return set()
        return {
            key for key, each in self._waiting.items() if now - each.since >= KNOWN_AFTER_S + 2 * grace_s + MARGIN_S
        }

    def _look(self, now: float) -> None:
        """See who waits, and what may come in between."""
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
        """Whether nothing comes in between that tells it apart from others."""
        namespace = group.pods[0]["metadata"]["namespace"] if group.pods else ""
        doubts = (self._limited_at.get(namespace), self._unanswered_at.get(namespace), *self._lower(group))
        lately = any(at is not None and now - at < REMEMBERED_S for at in doubts)
        return group.complete and group.key not in self._disturbed and not lately

    def _lower(self, group: Group) -> Iterator[float]:
        """When there were pods that may be evicted for it."""
        least = min(map(_priority, group.pods), default=0)
        yield from (at for priority, at in self._seen_at.items() if priority < least)

    def _waits(
        self, group: Group, claims: dict[str, Object], uses: Counter[tuple[str, str]], now: float
    ) -> Waits | None:
        """What the group asks for; None for one that has something already, or of which more than its age is special."""
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
    """The group's topology, as its PodGroup or its pods say it, and what else its PodGroup says."""
    spec = (pod_group or {}).get("spec") or {}
    topology = ((pod_group or {}).get("metadata") or {}).get("annotations", {}).get(TOPOLOGY)
    said = {(pod["metadata"].get("annotations") or {}).get(TOPOLOGY, "") for pod in pods} - {""}
    return {
        "topology": [topology] if topology else sorted(said),
        "constraints": spec.get("schedulingConstraints") or {},
        "priority": spec.get("priority"),
    }


def _told(pod: Object, asked: list[tuple[int, Object]]) -> str:
    """What may tell a pod apart: its claims, and how many pods use each of them, how urgent it is, and what it tolerates."""
    spec = pod["spec"]
    claims = sorted(json.dumps(each, sort_keys=True) for each in asked)
    return json.dumps(
        [claims, _priority(pod), spec.get("preemptionPolicy"), spec.get("tolerations") or []], sort_keys=True
    )


def _is_special(pod: Object) -> bool:
    """Whether something but devices may keep it waiting, or it is bound to a place."""
    spec = pod["spec"]
    gates = [each["name"] for each in spec.get("schedulingGates") or [] if each["name"] != GATE]
    return bool(gates or spec.get("nodeSelector") or spec.get("affinity") or spec.get("nodeName"))


def _is_someones(claim: Object) -> bool:
    """Whether it is for others than the group, too: one that nobody made for it, or that takes over from a reservation."""
    owners = {each["kind"] for each in claim["metadata"].get("ownerReferences") or []}
    reserved = (claim["metadata"].get("labels") or {}).get(RESERVATION)
    return not owners & {"Pod", "PodGroup"} or bool(reserved) or not is_for_draco(claim)


def _priority(pod: Object) -> int:
    return int(pod["spec"].get("priority") or 0)
