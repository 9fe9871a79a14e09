"""The laws of JobSets: Draco allocates to their pods only when as many exist as their Jobs say, and says that number at rest.

Owns when each JobSet last had enough pods. Jobs, pods and claims come on different watches, and Draco has its own, so a JobSet
that had enough a moment before or after counts. `idle` finds those that wait although what they need is free. Does no I/O.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.adversary.cluster.observer.allocators import DRACO, allocator, is_dracos
from tests.adversary.cluster.observer.gates import is_held_back
from tests.adversary.cluster.observer.groups import KNOWN_AFTER_S, groups_of
from tests.adversary.cluster.observer.members import changed_sets, claims_of, is_job_set, is_pod_group, key_of, size_of
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, is_live, name, phase, results

WEIGHED_AFTER_S = 1.5
_REASON = "GroupWaiting"
_NEEDS = re.compile(r"needs devices for (\d+) pods? at once")
_SHORT_OF_PODS = re.compile(r"waits for \d+ more pod|not known how many pods|and pods of \d+ exist")


class Begun(NamedTuple):
    """A claim of a JobSet's pods that was allocated, and when."""

    at: float
    key: str
    claim: str


class JobSets:
    """Told of each change of Jobs, pods and claims."""

    def __init__(self, world: World) -> None:
        self.judged = 0
        """Number of judged allocations."""
        self._world = world
        self._enough_until: dict[str, float] = {}
        self._begun: list[Begun] = []

    def job_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A Job was written or deleted."""
        for key in changed_sets(before, after):
            self._look(key, now)

    def pod_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A pod was written or deleted."""
        one = after or before
        assert one is not None
        if is_job_set(key := key_of(one)):
            self._look(key, now)

    def _look(self, key: str, now: float) -> None:
        """Update until when the JobSet had enough pods. A new look at one that lacks pods changes nothing."""
        if not self._lacks(key):
            self._enough_until[key] = math.inf
        elif self._enough_until.get(key) == math.inf:
            self._enough_until[key] = now

    def _lacks(self, key: str) -> str:
        """What it lacks; "" if it has enough pods."""
        pods = [each for each in self._world.pods.values() if key_of(each) == key]
        size, there = size_of(self._world, key, pods), sum(is_live(each) or phase(each) == "Succeeded" for each in pods)
        if size is None:
            return f"had {there} pods, and how many start together was not known"
        return f"had {there} pods, and {size} start together" if there < size else ""

    def claim_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A claim was written or deleted."""
        if after is None or not results(after) or (before is not None and results(before)) or allocator(after) != DRACO:
            return
        keys = {key_of(pod) for pod in self._world.pods.values() if name(after) in claims_of(pod)}
        self._begun += [Begun(now, key, name(after)) for key in keys if is_job_set(key)]

    def weighed(self, now: float, *, grace_s: float, undisturbed: Callable[[float], bool]) -> Iterator[Suspicion]:
        """Allocations to JobSets that lacked pods all the time."""
        for one in [each for each in self._begun if now - each.at >= WEIGHED_AFTER_S]:
            self._begun.remove(one)
            since = one.at - KNOWN_AFTER_S - grace_s
            if not undisturbed(since):
                continue
            self.judged += 1
            if self._enough_until.get(one.key, -math.inf) < since and (lacks := self._lacks(one.key)):
                text = f"claim {one.claim} got devices when its {one.key} {lacks}"
                yield Suspicion("taken for smaller", f"{one.key} {one.claim}", text)


def misjudged(world: World) -> Iterator[Suspicion]:
    """At rest: groups by label that Draco says to be short of pods, though all are there, or of another size.

    Without any GPU, Draco says only which groups are short of pods.
    """
    if not any(is_dracos(published) for _, published in world.published()):
        return
    told = sorted((each for each in world.events.values() if each.get("reason") == _REASON), key=_told_at)
    for group in groups_of(world):
        notes = [note for each in told if f"{group.key} " in (note := str(each.get("note")))]
        if not notes or not group.waiting or not group.complete or is_pod_group(group.key):
            continue
        needed = max(1, min(len(group.waiting), group.size - group.settled))
        says = _NEEDS.search(notes[-1])
        is_wrong = int(says[1]) != needed if says else bool(_SHORT_OF_PODS.search(notes[-1]))
        if is_wrong and not any(map(is_held_back, group.pods)):
            text = f"{group.key} waits for {needed} of {group.size} pods, which all exist, but Draco says: {notes[-1]}"
            yield Suspicion("taken for another size", group.key, text)


def _told_at(event: Object) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("eventTime") or "")
