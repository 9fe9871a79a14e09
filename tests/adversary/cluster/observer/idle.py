"""The law of idle GPUs: at rest, nothing waits for whole GPUs while suitable ones are free.

Owns finding who waits, what is free, and whether it surely fits. Judges only certain cases: Draco's whole GPUs without other
taints on schedulable nodes; claims that request only such GPUs, in groups that wait as a whole; and no limit, reservation or
earlier group that could interfere. Does no I/O.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from tests.adversary.cluster.observer.allocators import BLOCKING, TAINT, is_dracos, is_for_draco
from tests.adversary.cluster.observer.gates import GATE
from tests.adversary.cluster.observer.groups import groups_of
from tests.adversary.cluster.observer.limited import devices_held, is_about, selects
from tests.adversary.cluster.observer.members import claims_of, is_pod_group, key_of, pod_group_of
from tests.adversary.cluster.observer.reservations import ends_at, priority_of, reservation_of
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, condition, is_live, name, part_of, results

WHOLE = "gpu.draco.dev"
"""Draco's class of whole GPUs."""
OVERDUE_S = 500.0
"""After waiting this long, a claim may have free devices kept for it."""
_TOPOLOGY = "draco.dev/topology"
_RESERVATION = "draco.dev/reservation"
_TAKEN_BACK = "AllocationTakenBack"
"""Event reason of a claim that was allocated where its pod could not run: for a while it avoids that node."""
_NO_ANSWER = re.compile("No answer was found|takes more than|the check failed|simplify it")


class Waiting(NamedTuple):
    """A waiting group, pod, claim or reservation: its claims, and the GPUs that each pod needs on one node; None if uncertain."""

    key: str
    namespace: str
    claims: tuple[Object, ...]
    needs: tuple[int, ...] | None
    priority: int


def beside_free(world: World, at: datetime | None = None) -> Iterator[Suspicion]:
    """Everything that waits although what it needs is free."""
    now, free, all_waiting = at or datetime.now(UTC), _free(world), list(_waiting(world, at or datetime.now(UTC)))
    for one in all_waiting:
        others = [each for each in all_waiting if each.key != one.key]
        if one.needs is None or not _fits(one.needs, free) or _is_doubtful(world, one, others, now):
            continue
        wanted, there = sum(one.needs), ", ".join(f"{count} on {node}" for node, count in sorted(free.items()))
        text = f"{one.key} waits for {wanted} GPUs in {len(one.needs)} places, and free are {there}"
        yield Suspicion("waits beside free GPUs", one.key, text)


def _free(world: World) -> Counter[str]:
    """Draco's free whole GPUs by node."""
    nodes = {name(each) for each in world.nodes.values() if _takes_pods(each)}
    held = [each.part for each in world.holdings() if each.part is not None]
    promised = {
        (given["driver"], given["pool"], given["device"])
        for reservation in world.reservations.values()
        for takeover in (reservation.get("status") or {}).get("takeovers") or []
        for given in results({"status": {"allocation": takeover.get("allocation")}})
    }
    found: Counter[str] = Counter()
    for device, published in world.published():
        part = part_of(published)
        if part is None or part.slices or not is_dracos(published) or tuple(device) in promised:
            continue
        taints = world.taints(device, published)
        is_open = not any(each["key"] != TAINT and each.get("effect") in BLOCKING for each in taints)
        if device.pool in nodes and is_open and not any(map(part.overlaps, held)):
            found[device.pool] += 1
    return found


def _takes_pods(node: Object) -> bool:
    spec = node.get("spec") or {}
    is_ready = condition(node, "Ready").get("status") == "True"
    return is_ready and not spec.get("unschedulable") and not spec.get("taints")


def _waiting(world: World, now: datetime) -> Iterator[Waiting]:
    """Everything that waits for Draco's devices."""
    claims = {name(claim): claim for claim in world.claims.values()}
    uses = Counter(each for pod in world.pods.values() for each in claims_of(pod))
    grouped = {group.key: group for group in groups_of(world)}
    for group in grouped.values():
        lacking = [pod for pod in group.pods if _lacks(pod, claims)]
        if lacking:
            # kube-scheduler does not count pods of a PodGroup that have succeeded.
            is_plain = group.complete and not (group.settled and is_pod_group(group.key))
            needs = [_needs_of(pod, claims, uses) for pod in lacking] if is_plain else []
            certain, more = sorted(each for each in needs if each), max(1, group.size - group.settled)
            is_certain = len(certain) == len(needs) >= more and not _is_bound(world, group.key, group.pods)
            own = tuple(claims[each] for pod in lacking for each in claims_of(pod) if each in claims)
            places = tuple(certain[:more]) if is_certain else None
            yield Waiting(group.key, _namespace(lacking[0]), own, places, min(map(_priority, group.pods)))
    for pod in world.pods.values():
        if is_live(pod) and key_of(pod) not in grouped and _lacks(pod, claims):
            need = None if key_of(pod) else _needs_of(pod, claims, uses)
            own = tuple(claims[each] for each in claims_of(pod) if each in claims)
            yield Waiting(f"pod {name(pod)}", _namespace(pod), own, (need,) if need else None, _priority(pod))
    yield from _reserved(world, uses, now)
    for title, claim in claims.items():
        if (
            not reservation_of(claim)
            and not uses[title]
            and not results(claim)
            and is_for_draco(claim)
            and not _ends(claim)
        ):
            owned = claim["metadata"].get("ownerReferences")
            need = None if owned else _plain(claim)
            yield Waiting(f"claim {title}", _namespace(claim), (claim,), (need,) if need else None, 0)


def _reserved(world: World, uses: Mapping[str, int], now: datetime) -> Iterator[Waiting]:
    """Reservations with waiting claims. Their claims get devices together once all are created."""
    for uid, reservation in world.reservations.items():
        own = [each for each in world.claims.values() if reservation_of(each) == uid and not _ends(each)]
        if all(map(results, own)):
            continue
        spec, end = reservation["spec"], ends_at(reservation)
        needs = [_plain(each) for each in own if not uses[name(each)]]
        is_certain = len(own) == int(spec.get("count", 1)) == len(needs) and all(needs) and not spec.get("topology")
        is_over = end is not None and end <= now
        places = tuple(map(int, filter(None, needs))) if is_certain and not is_over else None
        urgency = priority_of(reservation) or 0
        yield Waiting(f"reservation {name(reservation)}", _namespace(reservation), tuple(own), places, urgency)


def _lacks(pod: Object, claims: Mapping[str, Object]) -> bool:
    """Whether the pod waits for Draco's devices."""
    known = [claims[each] for each in claims_of(pod) if each in claims]
    return not pod["spec"].get("nodeName") and any(is_for_draco(each) and not results(each) for each in known)


def _needs_of(pod: Object, claims: Mapping[str, Object], uses: Mapping[str, int]) -> int | None:
    """How many GPUs a pod waits for; None if anything else decides where it can run."""
    spec, known = pod["spec"], claims_of(pod)
    gates = [each["name"] for each in spec.get("schedulingGates") or [] if each["name"] != GATE]
    labels = pod["metadata"].get("labels") or {}
    if gates or spec.get("nodeSelector") or spec.get("affinity") or _RESERVATION in labels or not is_live(pod):
        return None
    if len(known) < len(spec.get("resourceClaims") or []) or any(
        each not in claims or uses[each] > 1 for each in known
    ):
        return None
    counts = [_plain(claims[each]) for each in known]
    return sum(map(int, filter(None, counts))) if all(counts) else None


def _plain(claim: Object) -> int | None:
    """How many GPUs a claim waits for; None if it requests anything else or has further conditions."""
    devices, labels = claim["spec"]["devices"], claim["metadata"].get("labels") or {}
    is_to_take_over = _RESERVATION in labels and not reservation_of(claim)
    if results(claim) or _ends(claim) or is_to_take_over or devices.get("constraints") or devices.get("config"):
        return None
    asked = [each.get("exactly") or {} for each in devices.get("requests") or []]
    plain = {"deviceClassName", "allocationMode", "count", "tolerations"}
    if any(
        each.get("deviceClassName") != WHOLE
        or each.get("allocationMode", "ExactCount") != "ExactCount"
        or each.keys() - plain
        for each in asked
    ):
        return None
    return sum(int(each.get("count", 1)) for each in asked) or None


def _is_bound(world: World, key: str, pods: Sequence[Object]) -> bool:
    """Whether the group has a topology, or its PodGroup sets more than how many pods start together."""
    pod_group = pod_group_of(world, key) or {"metadata": {}, "spec": {}}
    said = [(one["metadata"].get("annotations") or {}).get(_TOPOLOGY) for one in (pod_group, *pods)]
    spec = pod_group["spec"]
    return any(said) or bool(spec.get("schedulingConstraints") or spec.get("resourceClaims"))


def _fits(needs: Sequence[int], free: Mapping[str, int]) -> bool:
    """Whether everything fits if placed largest first, each on the node with the most free GPUs."""
    left = dict(free)
    for need in sorted(needs, reverse=True):
        node = max(left, key=lambda each: left[each], default="")
        if not node or left[node] < need:
            return False
        left[node] -= need
    return True


def _is_doubtful(world: World, one: Waiting, others: Sequence[Waiting], now: datetime) -> bool:
    """Whether something that this law does not model may be in its way."""
    if any(_may_forbid(world, each["spec"], one) for each in world.limits.values()):
        return True
    may_leave = [_priority(pod) for pod in world.pods.values() if is_live(pod)]
    may_leave += [its for each in world.reservations.values() if (its := priority_of(each)) is not None]
    least = min(may_leave, default=0)
    if any(one.priority <= each.priority > least or _waited_s(each, now) > OVERDUE_S for each in others):
        return True  # devices may be kept for these
    uids = {each["metadata"]["uid"] for each in one.claims}
    uids |= {pod["metadata"]["uid"] for pod in world.pods.values() if {*claims_of(pod)} & {*map(name, one.claims)}}
    said = [each for each in world.events.values() if (each.get("regarding") or {}).get("uid") in uids]
    return any(each.get("reason") == _TAKEN_BACK or _NO_ANSWER.search(str(each.get("note"))) for each in said)


def _may_forbid(world: World, spec: Object, one: Waiting) -> bool:
    """Whether a limit may forbid its devices. This counts all of the limit's namespaces together, even if it counts each."""
    if not selects(spec, one.namespace) or not is_about(spec, WHOLE):
        return False
    most = spec["limits"]
    return most.keys() != {"devices"} or devices_held(world, spec) + sum(one.needs or ()) > int(most["devices"])


def _waited_s(one: Waiting, now: datetime) -> float:
    made = (datetime.fromisoformat(each["metadata"]["creationTimestamp"]) for each in one.claims)
    return max(((now - each).total_seconds() for each in made), default=0.0)


def _priority(pod: Object) -> int:
    return int(pod["spec"].get("priority") or 0)


def _namespace(one: Object) -> str:
    return str(one["metadata"]["namespace"])


def _ends(one: Object) -> bool:
    return bool(one["metadata"].get("deletionTimestamp"))
