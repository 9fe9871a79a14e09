"""The laws of groups: a group gets all devices that it needs or none, and no group holds devices while waiting for more.

`members` knows the pods of a group, by PodGroup or label, and how many start together. Only Draco's claims count: the scheduler's
get devices when their pods get a node. A group whose start was disturbed may be there in part, if pods use its devices: its
allocator died, one of its pods was deleted, or the scheduler took back devices from Draco. A group that was once complete may
lose devices later. Does no I/O.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.adversary.cluster.observer.allocators import DRACO, allocator, is_for_draco
from tests.adversary.cluster.observer.members import changed_sets, claims_of, consumers, is_pod_group, key_of, size_of
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, is_live, name, phase, results

BEGUN_WITHIN_S = 10.0
"""Draco writes all claims of a group together and retries an unanswered write after a second or two."""
KNOWN_AFTER_S = 5.0
"""After this time Draco knows a change of a Job or pod."""


class Group(NamedTuple):
    """The live pods of a group, and which of Draco's devices they have.

    `settled` counts pods that have their devices or have succeeded.
    """

    key: str
    size: int
    pods: tuple[Object, ...]
    settled: int
    waiting: tuple[str, ...]
    """Names of pods with a missing claim, or one of Draco's without devices."""
    loose: tuple[str, ...]
    """Names of allocated claims that no pod uses."""
    complete: bool
    """Whether enough pods to start exist, each with all its claims."""
    of_both: bool
    """Whether some of its pods also have claims of the scheduler's."""


class Groups:
    """Remembers which groups were partly allocated, which were complete once, and which were disturbed."""

    def __init__(self, world: World) -> None:
        self.whole = self.whole_pod_groups = self.whole_of_both = 0
        """Number of groups that were complete, of those by PodGroup, and of those with claims of both allocators."""
        self._world = world
        self._begun: dict[str, float] = {}
        self._had_all: set[str] = set()
        self._disturbed: dict[str, float] = {}

    def pod_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A pod was written or deleted."""
        one = after or before
        assert one is not None
        if (key := key_of(one)) and (after is None or _ends(one) or phase(one) == "Failed"):
            self._disturbed[key] = now

    def job_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A Job was written or deleted. Draco may act on its last state for a while."""
        for key in changed_sets(before, after):
            self._disturbed[key] = now + KNOWN_AFTER_S
            if after is None:
                self._had_all.discard(key)  # its JobSet may start again

    def claim_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A claim was written or deleted."""
        one = after or before
        assert one is not None
        own = [pod for pod in self._world.pods.values() if name(one) in claims_of(pod)]
        for key in filter(None, {key_of(pod) for pod in own}):
            if after is None or _ends(after) or self._is_taken_back(before, after, own):
                self._disturbed[key] = now
            elif results(after) and allocator(after) == DRACO and key not in self._had_all:
                self._begun.setdefault(key, now)

    def _is_taken_back(self, before: Object | None, after: Object, pods: list[Object]) -> bool:
        """Whether it lost its devices while the scheduler had none for other claims of its pods."""
        if before is None or not results(before) or results(after) or not is_for_draco(after):
            return False
        claims = {name(claim): claim for claim in self._world.claims.values()}
        known = [claims[each] for pod in pods for each in claims_of(pod) if each in claims]
        return any(not is_for_draco(each) and not results(each) for each in known)

    def weighed(self, now: float, *, grace_s: float, undisturbed: Callable[[float], bool]) -> Iterator[Suspicion]:
        """Groups that got only part of their devices, although nothing disturbed them."""
        groups = {group.key: group for group in groups_of(self._world)} if self._begun else {}
        for key, since in list(self._begun.items()):
            group = groups.get(key)
            if group is not None and group.settled >= group.size:
                self._had_all.add(key)
                self.whole += 1
                self.whole_pod_groups += is_pod_group(key)
                self.whole_of_both += group.of_both
            elif group is not None and now - since < BEGUN_WITHIN_S + grace_s:
                continue
            elif (
                group is not None
                and group.settled
                and undisturbed(since)
                and self._disturbed.get(key, -math.inf) < since
            ):
                has = f"{group.settled} of {group.size} pods of group {key} have devices for {now - since:.1f} s"
                yield Suspicion("begun in part", key, f"{has}, and {', '.join(group.waiting) or 'no pod'} waits")
            del self._begun[key]


def holds_and_waits(world: World) -> Iterator[Suspicion]:
    """No group that cannot start holds unused devices while others of its pods wait."""
    for group in groups_of(world):
        if group.complete and group.waiting and group.loose and group.settled < group.size:
            text = (
                f"group {group.key} holds {', '.join(group.loose)}, while {', '.join(group.waiting)} waits for devices"
            )
            yield Suspicion("holds and waits", group.key, f"{text}; {group.size} start together")


def groups_of(world: World) -> Iterator[Group]:
    """Every group with a known number of pods that start together."""
    claims = {name(claim): claim for claim in world.claims.values()}
    by_key: dict[str, list[Object]] = {}
    for pod in world.pods.values():
        if key := key_of(pod):
            by_key.setdefault(key, []).append(pod)
    for key, pods in by_key.items():
        if (size := size_of(world, key, pods)) is None:
            continue
        live = [pod for pod in pods if is_live(pod)]
        known = [[claims.get(each) for each in claims_of(pod)] for pod in live]
        waiting = [pod for pod, own in zip(live, known, strict=True) if not has_of_draco(own)]
        loose = {
            name(claim)
            for pod, own in zip(live, known, strict=True)
            if not pod["spec"].get("nodeName")
            for claim in own
            if claim and results(claim) and is_for_draco(claim) and not consumers(claim) and not _ends(claim)
        }
        succeeded = sum(phase(pod) == "Succeeded" for pod in pods)
        made = all(
            len(own) == len(pod["spec"].get("resourceClaims") or []) for pod, own in zip(live, known, strict=True)
        )
        there = made and all(one and not _ends(one) for own in known for one in own)
        yield Group(
            key,
            size,
            tuple(live),
            succeeded + len(live) - len(waiting),
            tuple(name(pod) for pod in waiting),
            tuple(sorted(loose)),
            there and succeeded + len(live) >= size,
            any(one is not None and not is_for_draco(one) for own in known for one in own),
        )


def has_of_draco(claims: Iterable[Object | None]) -> bool:
    """Whether all claims of a pod exist and Draco's have devices."""
    return all(claim and (results(claim) or not is_for_draco(claim)) for claim in claims)


def lacks_nothing(pod: Object, claims: Mapping[str, Object]) -> bool:
    """Whether all of the pod's claims exist and Draco's have devices. `claims` are by name."""
    known = claims_of(pod)
    return len(known) == len(pod["spec"].get("resourceClaims") or []) and has_of_draco(map(claims.get, known))


def _ends(one: Object) -> bool:
    return bool(one["metadata"].get("deletionTimestamp"))
