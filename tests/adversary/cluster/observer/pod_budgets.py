"""The law of PodDisruptionBudgets: no eviction leaves fewer pods ready than a budget wants.

Owns counting the pods that a budget covers, in the order of the API server's watch. Kubernetes learns late of a pod that leaves
without an eviction, so for a while after that nothing is judged. Does no I/O.
"""

from collections.abc import Iterator

from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, condition, name

KNOWN_AFTER_S = 10.0
LATE_S = 30.0
EVICTED = "EvictionByEvictionAPI"


class PodBudgets:
    """Told of each change of pods and budgets."""

    def __init__(self, world: World) -> None:
        self.judged = 0
        """Number of evictions of pods that a budget covers."""
        self._world = world
        self._since: dict[str, float] = {}
        self._lost: dict[str, float] = {}
        self._wrong: list[Suspicion] = []

    def budget_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A budget was written or deleted."""
        if after is not None and (before is None or before["spec"] != after["spec"]):
            self._since[after["metadata"]["uid"]] = now

    def pod_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A pod was written or deleted."""
        if before is None or not _is_ready(before) or (after is not None and _is_ready(after)):
            return
        namespace = before["metadata"]["namespace"]
        if condition(before, "DisruptionTarget").get("reason") != EVICTED and (
            after is None or condition(after, "DisruptionTarget").get("reason") != EVICTED
        ):
            self._lost[namespace] = now
            return
        for uid, budget in self._world.pod_budgets.items():
            least = budget["spec"].get("minAvailable")
            if not isinstance(least, int) or not _covers(budget, before):
                continue
            self.judged += 1
            left = [
                each
                for each in self._world.pods.values()
                if _covers(budget, each) and _is_ready(each) and each["metadata"]["uid"] != before["metadata"]["uid"]
            ]
            is_known = now - self._since.get(uid, now) >= KNOWN_AFTER_S
            if len(left) < least and is_known and now - self._lost.get(namespace, -LATE_S) >= LATE_S:
                text = f"pod {name(before)} was evicted, and leaves {len(left)} of {least} that budget {name(budget)} wants"
                self._wrong.append(Suspicion("pod budget overrun", before["metadata"]["uid"], text))

    def weighed(self) -> Iterator[Suspicion]:
        """Evictions that broke a budget."""
        wrong, self._wrong = self._wrong, []
        yield from wrong


def _covers(budget: Object, pod: Object) -> bool:
    wanted = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
    labels = pod["metadata"].get("labels") or {}
    return budget["metadata"]["namespace"] == pod["metadata"]["namespace"] and wanted.items() <= labels.items()


def _is_ready(pod: Object) -> bool:
    return condition(pod, "Ready").get("status") == "True" and not pod["metadata"].get("deletionTimestamp")
