"""The laws of Draco's scheduling gate: it is removed once Draco allocated the pod's claims, and from a gang once all can start.

Owns noticing each removal, and what the pod and its PodGroup had then. Pods of other groups lose the gate one by one; `groups`
judges that they get devices together. Pods and claims come on different watches, but share the store's revision as a clock. So a
suspicion is judged a moment later, once claims with a later revision were seen. Does no I/O.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.adversary.cluster.observer.allocators import is_for_draco
from tests.adversary.cluster.observer.groups import lacks_nothing
from tests.adversary.cluster.observer.members import claims_of, is_pod_group, key_of, pod_group_of, size_of
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, is_live, name, results, revision

GATE = "draco.dev/allocation"
WEIGHED_AFTER_S = 1.5
UNHEARD_S = 90.0
"""If claims are silent for longer than this, none was written: a watch sends a bookmark every minute."""
KNOWN_AFTER_S = 5.0
"""After this time Draco knows a change: a claim lost its devices, a pod ended, a PodGroup was created."""
REMEMBERED_S = 30.0
"""The same after a change of leader or an outage of the API server: a leader may sleep for 20 s and then finish its work."""
KEPT_S = 120.0


class Span(NamedTuple):
    """The revision since which a claim had devices, and until when."""

    revision: int
    until: float


class Over(NamedTuple):
    """A pod's last state before it ended, and when it ended."""

    at: float
    pod: Object


class Off(NamedTuple):
    """A removed gate: its pod, how many pods start together, and the group's current and recent pods."""

    at: float
    pod: Object
    least: int
    live: tuple[Object, ...]
    over: tuple[Over, ...]


class Gates:
    """Told of each change of pods, claims and PodGroups."""

    def __init__(self, world: World) -> None:
        self.off = self.off_gangs = 0
        """Number of removed gates, and of those from gangs of PodGroups."""
        self._world = world
        self._had: dict[str, list[Span]] = {}
        self._is_dracos: dict[str, bool] = {}
        self._gone: dict[str, float] = {}
        self._over: dict[str, Over] = {}
        self._groups_since: dict[str, float] = {}
        self._offs: list[Off] = []
        self._heard = 0  # newest revision seen of any claim

    def claim_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A claim was written or deleted."""
        one = after or before
        assert one is not None
        self._heard = max(self._heard, revision(one))
        self._is_dracos[name(one)] = is_for_draco(one)
        if after is None:
            self._gone[name(one)] = now
        had, has = (each is not None and bool(results(each)) for each in (before, after))
        spans = self._had.setdefault(name(one), [])
        if has and not had:
            spans.append(Span(revision(one), float("inf")))
        if had and not has and spans:
            spans[-1] = spans[-1]._replace(until=now)

    def pod_group_changed(self, after: Object | None, now: float) -> None:
        """A PodGroup was written or deleted."""
        if after is not None:
            self._groups_since.setdefault(after["metadata"]["uid"], now)

    def pod_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A pod was written or deleted."""
        if before is None:
            return
        if is_live(before) and (after is None or not is_live(after)):
            self._over[before["metadata"]["uid"]] = Over(now, before)
        if after is None or not is_live(after) or not _has_gate(before) or _has_gate(after):
            return
        key = key_of(after)
        least = self._start_together(key, now)
        self.off += 1
        self.off_gangs += bool(least)
        live = tuple(_live_pods(self._world, key))
        over = tuple(each for each in self._over.values() if key_of(each.pod) == key)
        self._offs.append(Off(now, after, least, live, over))

    def _start_together(self, key: str, now: float) -> int:
        """How many pods of a PodGroup start together; 0 for other groups and for a new PodGroup, which Draco may not know yet."""
        group = pod_group_of(self._world, key)
        if group is None or now - self._groups_since.get(group["metadata"]["uid"], now) < KNOWN_AFTER_S:
            return 0
        return size_of(self._world, key, ()) or 0

    def weighed(self, now: float, *, grace_s: float, undisturbed: Callable[[float], bool]) -> Iterator[Suspicion]:
        """Gates that were removed too early."""
        for one in [each for each in self._offs if now - each.at >= self._weighed_after_s(each)]:
            self._offs.remove(one)
            is_steady = undisturbed(one.at - REMEMBERED_S)
            since = one.at - (KNOWN_AFTER_S + grace_s if is_steady else REMEMBERED_S)
            until = revision(one.pod) if is_steady else None
            uid = one.pod["metadata"]["uid"]
            if not self._has_all(one.pod, since, until):
                yield Suspicion(
                    "gate off early", uid, f"pod {name(one.pod)} lost its gate, and lacks devices of Draco's"
                )
                continue
            members = [*one.live, *(each.pod for each in one.over if each.at >= since)]
            ready = sum(self._has_all(each, since, until) for each in members)
            if ready < one.least:
                text = f"pod {name(one.pod)} lost its gate when {ready} pods of {key_of(one.pod)} had their devices"
                yield Suspicion("gate off alone", uid, f"{text}, and {one.least} start together")
        self._forget(now)

    def _weighed_after_s(self, off: Off) -> float:
        return WEIGHED_AFTER_S if self._heard >= revision(off.pod) else UNHEARD_S

    def _has_all(self, pod: Object, since: float, until: int | None) -> bool:
        """Whether all of the pod's claims of Draco's had devices, since that time and before that revision.

        The pod's status names the claims made for it a moment after they exist; Draco reads the claims themselves.
        """
        known = claims_of(self._world.pods.get(pod["metadata"]["uid"], pod))
        return len(known) == len(pod["spec"].get("resourceClaims") or []) and all(
            self._is_dracos.get(each) is False or self._had_devices(each, since, until) for each in known
        )

    def _had_devices(self, claim: str, since: float, until: int | None) -> bool:
        spans = self._had.get(claim, [])
        return any(each.until >= since and (until is None or each.revision < until) for each in spans)

    def _forget(self, now: float) -> None:
        there = {name(claim) for claim in self._world.claims.values()}
        self._over = {uid: each for uid, each in self._over.items() if now - each.at < KEPT_S}
        self._had = {key: [each for each in spans if now - each.until < KEPT_S] for key, spans in self._had.items()}
        self._had = {key: spans for key, spans in self._had.items() if spans or key in there}
        self._gone = {key: at for key, at in self._gone.items() if now - at < KEPT_S}
        self._is_dracos = {key: own for key, own in self._is_dracos.items() if key in self._had or key in self._gone}
        self._groups_since = {uid: at for uid, at in self._groups_since.items() if uid in self._world.pod_groups}


def kept_gate(world: World) -> Iterator[Suspicion]:
    """No pod keeps the gate when its claims of Draco's have devices and, in a gang, those of enough other pods, too."""
    claims = {name(claim): claim for claim in world.claims.values()}
    for uid, pod in world.pods.items():
        if not _has_gate(pod) or is_held_back(pod) or not is_live(pod) or not lacks_nothing(pod, claims):
            continue
        key = key_of(pod)
        if is_pod_group(key):
            ready = sum(lacks_nothing(each, claims) for each in _live_pods(world, key))
            if pod_group_of(world, key) is None or ready < (size_of(world, key, ()) or 0):
                continue
        yield Suspicion("gate kept", uid, f"pod {name(pod)} keeps Draco's gate, and lacks nothing of Draco's")


def held_behind_gates(world: World) -> Iterator[Suspicion]:
    """No claim of Draco's keeps devices if other scheduling gates hold all of its pods."""
    users: dict[str, list[Object]] = {}
    for pod in world.pods.values():
        if is_live(pod):
            for each in claims_of(pod):
                users.setdefault(each, []).append(pod)
    for uid, claim in world.claims.items():
        pods = users.get(name(claim), [])
        metadata, is_used = claim["metadata"], bool((claim.get("status") or {}).get("reservedFor"))
        is_reserved = any(each["kind"] == "DeviceReservation" for each in metadata.get("ownerReferences") or [])
        if is_used or is_reserved or metadata.get("deletionTimestamp") or not is_for_draco(claim):
            continue
        if results(claim) and pods and all(map(is_held_back, pods)):
            text = f"claim {name(claim)} has devices, and {', '.join(map(name, pods))} may not start yet"
            yield Suspicion("held behind gates", uid, text)


def is_held_back(pod: Object) -> bool:
    """Whether a gate other than Draco's holds it."""
    gates = pod["spec"].get("schedulingGates") or []
    return not pod["spec"].get("nodeName") and any(each["name"] != GATE for each in gates)


def _live_pods(world: World, key: str) -> Iterator[Object]:
    return (each for each in world.pods.values() if key_of(each) == key and is_live(each))


def _has_gate(pod: Object) -> bool:
    return any(each["name"] == GATE for each in pod["spec"].get("schedulingGates") or [])
