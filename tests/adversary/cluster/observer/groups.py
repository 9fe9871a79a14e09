"""The laws of groups: all that a group needs, or nothing, and nobody holds devices while waiting for more.

Owns what of a group is read off its pods: the label of Kueue and the annotation of Draco, as the adversary writes groups.
A group whose start was disturbed (its allocator died, a pod of it was deleted) may be there in part, as far as its pods use what
it has; one that once had all that it needs may lose some of it later. Does no I/O.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.adversary.cluster.observer.allocators import DRACO, allocator, is_for_draco
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, name, phase, results

NAME = "kueue.x-k8s.io/pod-group-name"
SIZE = "draco.dev/group-size"
BEGUN_WITHIN_S = 10.0
"""All claims of a group are written at once; a write that gets no answer is made again after a second or two."""


class Group(NamedTuple):
    """The pods of a group that are not over, and what they have. `settled` counts pods that have devices, or have succeeded."""

    key: str
    size: int
    pods: tuple[Object, ...]
    settled: int
    waiting: tuple[str, ...]
    """Names of pods some of whose claims have no devices."""
    loose: tuple[str, ...]
    """Names of claims that have devices which no pod uses."""
    complete: bool
    """Whether there are as many pods as start together, each with all its claims."""


class Groups:
    """Remembers which groups have begun, which had all that they need, and which were disturbed meanwhile."""

    def __init__(self, world: World) -> None:
        self.whole = 0
        """Groups that had all that they need."""
        self._world = world
        self._begun: dict[str, float] = {}
        self._had_all: set[str] = set()
        self._disturbed: dict[str, float] = {}

    def pod_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A pod was written or is gone."""
        one = after or before
        assert one is not None
        if (key := key_of(one)) and (after is None or _ends(one) or phase(one) == "Failed"):
            self._disturbed[key] = now

    def claim_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A claim was written or is gone."""
        one = after or before
        assert one is not None
        own = [pod for pod in self._world.pods.values() if name(one) in claims_of(pod)]
        for key in filter(None, {key_of(pod) for pod in own}):
            if after is None or after["metadata"].get("deletionTimestamp"):
                self._disturbed[key] = now
            elif results(after) and allocator(after) == DRACO and key not in self._had_all:
                self._begun.setdefault(key, now)

    def weighed(self, now: float, *, grace_s: float, undisturbed: Callable[[float], bool]) -> Iterator[Suspicion]:
        """Groups that got something, and not all that they need, though nobody disturbed that."""
        groups = {group.key: group for group in groups_of(self._world)} if self._begun else {}
        for key, since in list(self._begun.items()):
            group = groups.get(key)
            if group is not None and group.settled >= group.size:
                self._had_all.add(key)
                self.whole += 1
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
    """No group holds devices that no pod uses while others of it wait, and it cannot start."""
    for group in groups_of(world):
        if group.complete and group.waiting and group.loose and group.settled < group.size:
            text = (
                f"group {group.key} holds {', '.join(group.loose)}, while {', '.join(group.waiting)} waits for devices"
            )
            yield Suspicion("holds and waits", group.key, f"{text}; {group.size} start together")


def groups_of(world: World) -> Iterator[Group]:
    """Every group whose pods agree on its size."""
    claims = {name(claim): claim for claim in world.claims.values()}
    by_key: dict[str, list[Object]] = {}
    for pod in world.pods.values():
        if key := key_of(pod):
            by_key.setdefault(key, []).append(pod)
    for key, pods in by_key.items():
        sizes = {str((pod["metadata"].get("annotations") or {}).get(SIZE)) for pod in pods}
        if len(sizes) != 1 or not (size := sizes.pop()).isdecimal():
            continue
        live = [pod for pod in pods if phase(pod) not in {"Succeeded", "Failed"} and not _ends(pod)]
        known = [[claims.get(each) for each in claims_of(pod)] for pod in live]
        waiting = [pod for pod, own in zip(live, known, strict=True) if not all(one and results(one) for one in own)]
        loose = {
            name(claim)
            for pod, own in zip(live, known, strict=True)
            if not pod["spec"].get("nodeName")
            for claim in own
            if claim and results(claim) and is_for_draco(claim) and not _is_used(claim) and not _ends(claim)
        }
        succeeded = sum(phase(pod) == "Succeeded" for pod in pods)
        made = all(
            len(own) == len(pod["spec"].get("resourceClaims") or []) for pod, own in zip(live, known, strict=True)
        )
        there = made and all(one and not _ends(one) for own in known for one in own)
        yield Group(
            key,
            int(size),
            tuple(live),
            succeeded + len(live) - len(waiting),
            tuple(name(pod) for pod in waiting),
            tuple(sorted(loose)),
            there and succeeded + len(live) >= int(size),
        )


def key_of(pod: Object) -> str:
    """The group that a pod is in; "" for none."""
    title = (pod["metadata"].get("labels") or {}).get(NAME)
    return f"{pod['metadata']['namespace']}/{title}" if title else ""


def claims_of(pod: Object) -> list[str]:
    """The claims of a pod that are known by name."""
    namespace = pod["metadata"]["namespace"]
    made = {
        each["name"]: each.get("resourceClaimName")
        for each in (pod.get("status") or {}).get("resourceClaimStatuses") or []
    }
    uses = pod["spec"].get("resourceClaims") or []
    names = [each.get("resourceClaimName") or made.get(each["name"]) for each in uses]
    return [f"{namespace}/{each}" for each in names if each]


def _is_used(claim: Object) -> bool:
    return bool((claim.get("status") or {}).get("reservedFor"))


def _ends(one: Object) -> bool:
    return bool(one["metadata"].get("deletionTimestamp"))
