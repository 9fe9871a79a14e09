"""The law of bystanders: a pod leaves only if somebody deletes it, its devices are drained or tainted, or Draco may evict it.

Owns the memory of drains and NoExecute taints. A pod that leaves is judged a moment later, when other watches have shown the
cause. Does no I/O.
"""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from tests.adversary.cluster.observer.members import consumers, key_of, uses
from tests.adversary.cluster.observer.service import part_now, phase_of, taken
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import DeviceName, Object, Part, World, condition, name, results

WEIGHED_AFTER_S = 3.0
UNHEARD_OF_S = 30.0
"""How long to wait before judging a pod that a taint evicted and whose claims are unknown: the watch of claims may lag, by 16 s
on a busy machine."""
TARGET, BY_A_TAINT = "DisruptionTarget", "DeletionByDeviceTaintManager"
REMEMBERED_S = 120.0
"""How long after a drain or taint a pod may still leave because of it: grace periods and killed controllers delay it."""
WATCHES_DIFFER_BY_S = 10.0
"""How long a claim still counts as held by its pod: its end may be heard of before the pod's, which came first."""
DRAINS = frozenset({"Evict", "NoExecute"})


class Gone(NamedTuple):
    """A leaving pod, with what it is known to have held, and what it had only administrative access to."""

    at: float
    pod: Object
    held: tuple[Part, ...]
    looked_at: tuple[Part, ...]


class Bystanders:
    """Told of each change of requests, rules, slices and pods. `watched` are the namespaces whose pods are judged.

    `why_not` returns why Draco may not have evicted the pod with a UID; "" if it may.
    """

    def __init__(
        self, world: World, watched: Collection[str], why_not: Callable[[str], str] = lambda _: "it left for nobody"
    ) -> None:
        self._world = world
        self._why_not = why_not
        self._watched = frozenset(watched)
        self._asked: set[str] = set()
        self._may_go: dict[str, tuple[float, Callable[[], list[Part]]]] = {}
        self._gone: list[Gone] = []
        self._had: dict[str, list[tuple[float, Part, bool]]] = {}  # by pod or PodGroup; True for administrative access
        self._seen: set[str] = set()
        self.taken = 0

    def asked(self, pod: str) -> None:
        """The adversary is about to delete this pod, "namespace/name"."""
        self._asked.add(pod)

    def request_changed(self, request: Object, now: float) -> None:
        """A request was written or deleted."""
        drains = (request["spec"].get("drain") or {}).get("policy") in DRAINS
        evicts = (request["spec"].get("taint") or {}).get("effect") == "NoExecute"
        if (drains or evicts) and phase_of(request) not in {"", "Pending", "Rehearsed"}:
            parts = taken(self._world, request)
            self._may_go[f"request {request['metadata']['uid']}"] = (now, lambda: parts)

    def rule_changed(self, rule: Object, now: float) -> None:
        """A rule was written or deleted."""
        if rule["spec"]["taint"]["effect"] == "NoExecute":
            selector = rule["spec"].get("deviceSelector") or {}
            self._may_go[f"rule {rule['metadata']['uid']}"] = (now, lambda: self._selected(selector))

    def slice_changed(self, one: Object, now: float) -> None:
        """A slice was written or deleted."""
        spec = one["spec"]
        for device in spec.get("devices") or []:
            if any(taint["effect"] == "NoExecute" for taint in device.get("taints") or []):
                key = DeviceName(spec["driver"], spec["pool"]["name"], device["name"])
                part = part_now(self._world, key)
                self._may_go[f"slice {key}"] = (now, lambda part=part: [part] if part else [])

    def claim_changed(self, before: Object | None, now: float) -> None:
        """A claim was written or deleted. Its pods had its previous devices until now."""
        parts = list(self._parts(before or {}))
        for who in consumers(before) if before is not None and parts else ():
            self._had.setdefault(who, []).extend((now, part, looks) for part, looks in parts)

    def pod_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A pod was written or deleted."""
        one = after or before
        assert one is not None
        uid, metadata = one["metadata"]["uid"], one["metadata"]
        goes = after is None or metadata.get("deletionTimestamp")
        if metadata["namespace"] not in self._watched or not goes or uid in self._seen:
            return
        self._seen.add(uid)
        over = (one.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
        if over or name(one) in self._asked or not one["spec"].get("nodeName") or _by_its_job(one):
            return
        self.taken += 1
        self._gone.append(Gone(now, one, *self._had_by(one, now)))

    def weighed(self, now: float) -> Iterator[Suspicion]:
        """Pods that left without a cause."""
        self._may_go = {key: (at, parts) for key, (at, parts) in self._may_go.items() if self._lives(key, at, now)}
        oldest = min((each.at for each in self._gone), default=now) - WATCHES_DIFFER_BY_S
        self._had = {uid: had for uid, had in self._had.items() if had[-1][0] >= oldest}
        for one in [each for each in self._gone if now - each.at >= WEIGHED_AFTER_S]:
            # The claim's event may come only after the pod has gone.
            late_held, late_looked_at = self._had_by(one.pod, one.at)
            held, looked_at = {*one.held, *late_held}, {*one.looked_at, *late_looked_at}
            is_known = held or looked_at or condition(one.pod, TARGET).get("reason") != BY_A_TAINT
            if not is_known and now - one.at < UNHEARD_OF_S:
                continue
            self._gone.remove(one)
            causes = [part for _, parts in self._may_go.values() for part in parts()]
            taints = [
                part for key, (_, parts) in self._may_go.items() if not key.startswith("request") for part in parts()
            ]
            reasons = [(held, causes), (looked_at, taints)]  # no drain affects administrative access
            if any(mine.overlaps(part) for parts, why in reasons for mine in parts for part in why):
                continue
            uid = one.pod["metadata"]["uid"]
            if why_not := self._why_not(uid):
                shown = ", ".join(sorted(map(str, held))) or "nothing"
                text = (
                    f"pod {name(one.pod)}, which holds {shown}, was taken ({_why(one.pod)}), no drain or taint is about that, "
                    f"and {why_not}"
                )
                yield Suspicion("bystander taken", uid, text)

    def _had_by(self, pod: Object, gone_at: float) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
        """What the pod held when it left or a moment before, and what it had administrative access to."""
        used = [claim for claim in self._world.claims.values() if uses(pod, claim)]
        had = [each for claim in used for each in self._parts(claim)]
        earlier = [*self._had.get(pod["metadata"]["uid"], ()), *self._had.get(key_of(pod), ())]
        had += [(part, looks) for at, part, looks in earlier if at > gone_at - WATCHES_DIFFER_BY_S]
        held, looked_at = (tuple(part for part, looks in had if looks is wanted) for wanted in (False, True))
        return held, looked_at

    def _lives(self, key: str, at: float, now: float) -> bool:
        kind, _, uid = key.partition(" ")
        there = {"request": self._world.requests, "rule": self._world.rules}.get(kind, self._world.slices)
        return uid in there or now - at < REMEMBERED_S

    def _parts(self, claim: Object) -> Iterator[tuple[Part, bool]]:
        """A claim's parts, each with whether it is administrative access."""
        for one in results(claim):
            if part := part_now(self._world, DeviceName(one["driver"], one["pool"], one["device"])):
                yield part, bool(one.get("adminAccess"))

    def _selected(self, selector: Object) -> list[Part]:
        wanted = (selector.get("driver"), selector.get("pool"), selector.get("device"))
        return [
            seen[-1][1]
            for device, seen in self._world.names.history.items()
            if all(want in {None, "", have} for want, have in zip(wanted, device, strict=True))
        ]


def _by_its_job(pod: Object) -> bool:
    """Whether the Job controller or the garbage collector deleted it: everybody else who takes a pod says so in a condition."""
    return not condition(pod, TARGET) and any(
        each["kind"] == "Job" for each in pod["metadata"].get("ownerReferences") or []
    )


def _why(pod: Object) -> str:
    target = condition(pod, TARGET)
    return f"{target.get('reason')}: {target.get('message')}" if target else "nobody says why"
