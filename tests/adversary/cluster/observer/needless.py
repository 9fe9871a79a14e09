"""The law of needless evictions: where one group alone can have had a pod evicted, it gets some of the GPUs that the pod had.

Owns seeing that nothing else became free meanwhile, so that the group could not have been served without. A pod that leaves with
others, or shares what it has, is not judged: one of them may be needed, and the others go with it. Does no I/O.
"""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, name, results

JUDGED_AFTER_S = 20.0
PLANNED_WITHIN_S = 5.0
"""So long before an eviction it may have been decided."""
KEPT_S = 120.0
FREES = frozenset({"slice", "rule", "policy", "limit", "reservation", "request"})
"""What another device may become usable by, or a place be permitted."""


class Eviction(NamedTuple):
    """A pod that was evicted for others, the GPUs of which it had some, and who can have been meant: groups, or lone pods."""

    at: float
    pod: Object
    gpus: frozenset[str]
    meant: frozenset[str]
    claims: frozenset[str]
    """UIDs of what those who are meant waited for."""


class Needless:
    """Told of each change, and of each eviction of a lone pod for others. `gpus_of` says which GPUs a claim has some of."""

    def __init__(self, world: World, gpus_of: Callable[[Object], Collection[str]]) -> None:
        self.judged = 0
        self._world = world
        self._gpus_of = gpus_of
        self._evictions: list[Eviction] = []
        self._victims: set[str] = set()
        self._freed: list[tuple[float, str]] = []
        self._got: dict[str, tuple[float, frozenset[str]]] = {}

    def evicted(self, eviction: Eviction) -> None:
        """A lone pod left for others."""
        self._evictions.append(eviction)

    def left(self, pod: str) -> None:
        """A pod left for others, alone or not: what becomes free by that is no wonder."""
        self._victims.add(pod)

    def changed(self, kind: str, before: Object | None, after: Object | None, now: float) -> None:
        """An object was written or is gone."""
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
        """The evictions that were of no use to those for whom alone they can have been."""
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
        """Whether anything became free that was not of those evicted."""
        return any(since <= at <= until and pod not in self._victims for at, pod in self._freed)
