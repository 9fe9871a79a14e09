"""The law of needless evictions: if only one group can have caused an eviction, it gets some of the pod's GPUs.

Owns checking that nothing else became free meanwhile, which could have served the group without the eviction. Pods that leave
with others or share a claim are not judged: one of them may be needed, and the others leave with it. Does no I/O.
"""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, name, results

JUDGED_AFTER_S = 20.0
PLANNED_WITHIN_S = 5.0
"""How long before an eviction it may have been decided."""
KEPT_S = 120.0
FREES = frozenset({"slice", "rule", "policy", "limit", "reservation", "request"})
"""Kinds whose change may make another device usable or permitted."""


class Eviction(NamedTuple):
    """A pod evicted for others, its GPUs, and the groups or lone pods that can have caused it."""

    at: float
    pod: Object
    gpus: frozenset[str]
    meant: frozenset[str]
    claims: frozenset[str]
    """UIDs of the claims that the suspected group waited for."""


class Needless:
    """Told of each change, and of each eviction of a lone pod for others. `gpus_of` returns the GPUs that a claim uses."""

    def __init__(self, world: World, gpus_of: Callable[[Object], Collection[str]]) -> None:
        self.judged = 0
        self._world = world
        self._gpus_of = gpus_of
        self._evictions: list[Eviction] = []
        self._victims: set[str] = set()
        self._freed: list[tuple[float, str]] = []
        self._got: dict[str, tuple[float, frozenset[str]]] = {}

    def evicted(self, eviction: Eviction) -> None:
        """A lone pod was evicted for others."""
        self._evictions.append(eviction)

    def left(self, pod: str) -> None:
        """A pod was evicted for others, alone or not: devices that it frees do not count as freed otherwise."""
        self._victims.add(pod)

    def changed(self, kind: str, before: Object | None, after: Object | None, now: float) -> None:
        """An object was written or deleted."""
        if kind in FREES and (before or {}).get("spec") != (after or {}).get("spec"):
            self._freed.append((now, ""))
        if kind != "claim":
            return
        if after is not None and results(after) and not (before is not None and results(before)):
            self._got[after["metadata"]["uid"]] = (now, frozenset(self._gpus_of(after)))
        if before is not None and results(before) and not (after is not None and results(after)):
            users = (before.get("status") or {}).get("reservedFor") or [{"uid": ""}]
            owners = before["metadata"].get("ownerReferences") or []
            self._freed += [(now, each["uid"]) for each in [*users, *owners] if each["uid"]] or [(now, "")]

    def weighed(self, now: float, *, grace_s: float, undisturbed: Callable[[float], bool]) -> Iterator[Suspicion]:
        """Evictions that did not help the only group that can have caused them."""
        for one in [each for each in self._evictions if now - each.at >= JUDGED_AFTER_S + grace_s]:
            self._evictions.remove(one)
            got = [self._got[each] for each in one.claims if each in self._got]
            since = one.at - PLANNED_WITHIN_S
            if len(one.meant) != 1 or len(got) < len(one.claims) or not got or not undisturbed(since):
                continue
            if min(at for at, _ in got) < since or self._is_freed(since, max(at for at, _ in got)):
                continue
            self.judged += 1
            gets = frozenset(gpu for _, gpus in got for gpu in gpus)
            if not one.gpus & gets:
                whom, had = next(iter(one.meant)), ", ".join(sorted(one.gpus))
                text = f"pod {name(one.pod)}, which had some of {had}, was evicted, and {whom} got {', '.join(sorted(gets))}"
                yield Suspicion("evicted needlessly", one.pod["metadata"]["uid"], text)
        self._freed = [each for each in self._freed if now - each[0] < KEPT_S]
        self._got = {uid: each for uid, each in self._got.items() if now - each[0] < KEPT_S}

    def _is_freed(self, since: float, until: float) -> bool:
        """Whether devices became free other than by evictions."""
        return any(since <= at <= until and pod not in self._victims for at, pod in self._freed)
