"""The laws of PodGroups: Draco only reads them, and a claim that one keeps for its pods keeps its devices while they run.

Owns finding who wrote a PodGroup, by its field managers, and since when a claim and its PodGroup have had a running pod. `groups`
judges that a group gets all or nothing. Does no I/O.
"""

from collections.abc import Iterator

from tests.adversary.cluster.observer.members import claims_of, consumers, is_pod_group, key_of
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, is_live, name, results, stamp

DRACO = "draco"
"""Prefix of Draco's field managers."""
WEIGHED_AFTER_S = 1.5
SEEN_AFTER_S = 5.0
"""Whoever took the claim back may not know newer bindings of pods."""


def written_by_draco(world: World) -> Iterator[Suspicion]:
    """No PodGroup has a field that Draco wrote, not even in its status."""
    for uid, group in world.pod_groups.items():
        for entry in group["metadata"].get("managedFields") or []:
            if str(entry.get("manager")).startswith(DRACO):
                text = f"{entry['manager']} has written the {entry.get('subresource') or 'object'} of PodGroup {name(group)}"
                yield Suspicion("PodGroup written", uid, text)


class PodGroups:
    """Told of each change of pods and claims."""

    def __init__(self, world: World) -> None:
        self.kept = self.taken_back = 0
        """Number of claims reserved for a PodGroup, and of claims that lost their devices while their PodGroup existed."""
        self._world = world
        self._bound_at: dict[str, float] = {}
        self._doubted: list[tuple[float, str, Suspicion]] = []
        """Time, pod and suspicion. Judged a moment later, because pods and claims come on different watches."""

    def pod_changed(self, after: Object | None, now: float) -> None:
        """A pod was written or deleted."""
        if after is not None and after["spec"].get("nodeName"):
            self._bound_at.setdefault(after["metadata"]["uid"], now)
        self._bound_at = {uid: at for uid, at in self._bound_at.items() if uid in self._world.pods}

    def claim_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A claim was written or deleted."""
        kept, keeps = (set(filter(is_pod_group, consumers(each))) if each else set() for each in (before, after))
        self.kept += bool(keeps) and not kept
        self.taken_back += self._is_taken_back(before, after)
        if before is None or after is None or not kept or not results(before):
            return
        if stamp(before) == stamp(after) and kept <= keeps:
            return
        for pod in self._world.pods.values():
            known_s = now - self._bound_at.get(pod["metadata"]["uid"], now)
            if key_of(pod) in kept and name(before) in claims_of(pod) and is_live(pod) and known_s >= SEEN_AFTER_S:
                text = f"claim {name(before)}, which {key_of(pod)} kept for its pods, was taken from it, and {name(pod)} runs"
                wrong = Suspicion("taken from a group", f"{before['metadata']['uid']} {name(pod)}", text)
                self._doubted.append((now, pod["metadata"]["uid"], wrong))

    def _is_taken_back(self, before: Object | None, after: Object | None) -> bool:
        if before is None or after is None or not results(before) or results(after):
            return False
        owners = [each["uid"] for each in after["metadata"].get("ownerReferences") or [] if each["kind"] == "PodGroup"]
        groups = [self._world.pod_groups[uid] for uid in owners if uid in self._world.pod_groups]
        return any(not group["metadata"].get("deletionTimestamp") for group in groups)

    def weighed(self, now: float) -> Iterator[Suspicion]:
        """Suspicions that proved right: the pod still runs."""
        for one in [each for each in self._doubted if now - each[0] >= WEIGHED_AFTER_S]:
            self._doubted.remove(one)
            _, uid, wrong = one
            pod = self._world.pods.get(uid)
            if pod is not None and is_live(pod):
                yield wrong
