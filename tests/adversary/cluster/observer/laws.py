"""The laws about objects: pure functions from a world to what is wrong in it now.

A law reports what is wrong at this moment. `observer` decides how long that may last, and confirms it with a fresh look.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from tests.adversary.cluster.observer.gates import held_behind_gates, kept_gate
from tests.adversary.cluster.observer.groups import holds_and_waits
from tests.adversary.cluster.observer.holds import held_for_nobody, not_held
from tests.adversary.cluster.observer.pod_groups import written_by_draco
from tests.adversary.cluster.observer.reservations import kept_after_the_end, kept_unused
from tests.adversary.cluster.observer.service import (
    cordoned,
    emptied_by_mistake,
    lifted_at_work,
    repaired_by_nobody,
    verifying_for_ever,
    wants_its_rules,
)
from tests.adversary.cluster.observer.shares import beyond_what_is_published, otherwise_shared, over_committed
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.tolerations import tolerates
from tests.adversary.cluster.observer.world import Holding, Object, Part, World, condition, name, revision, stamp

BLOCKING = frozenset({"NoSchedule", "NoExecute"})
READY = "ReadyForWork"
MANAGER_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "draco.dev"


class Law(NamedTuple):
    """A law, and how many seconds a suspicion may last, counted while everything it `needs` is up."""

    look: Callable[[World], Iterator[Suspicion]]
    lasts_s: float
    needs: frozenset[str]


def held_twice(world: World) -> Iterator[Suspicion]:
    """No two claims hold the same device or overlapping parts of a board."""
    by_gpu: dict[str, list[Holding]] = {}
    by_name: dict[object, list[Holding]] = {}
    for holding in world.holdings():
        by_name.setdefault(holding.device, []).append(holding)
        if holding.part is not None:
            by_gpu.setdefault(holding.part.gpu, []).append(holding)
    told = set()
    for holdings in (*by_name.values(), *by_gpu.values()):
        for one, other in combinations(sorted(holdings), 2):
            if one.uid == other.uid or (one.uid, other.uid) in told:
                continue
            same = one.device == other.device
            if same and one.share and other.share:
                continue
            if same or (one.part and other.part and one.part.overlaps(other.part)):
                told.add((one.uid, other.uid))
                key = f"{one.uid} {one.device} {other.uid} {other.device}"
                text = f"claims {one.claim} ({one.device}) and {other.claim} ({other.device}) hold {one.part or one.device}"
                yield Suspicion("held twice", key, text)


def name_moved(world: World) -> Iterator[Suspicion]:
    """A device name that a claim holds stands for the same board as when the claim got it."""
    published = {device: part for device, seen in world.names.history.items() for _, part in seen[-1:]}
    there = {device for device, _ in world.published()}
    for holding in world.holdings():
        now = published.get(holding.device) if holding.device in there else None
        if now is not None and holding.part is not None and now.gpu != holding.part.gpu:
            text = f"{holding.device} stood for {holding.part.gpu} when claim {holding.claim} got it, and for {now.gpu} now"
            yield Suspicion("name moved", f"{holding.uid} {holding.device}", text)


def ready_but_held(world: World) -> Iterator[Suspicion]:
    """No claim holds a device that is ready for work, or part of it."""
    for request, reach in _ready(world):
        for holding in world.holdings():
            if holding.part is not None and any(holding.part.overlaps(part) for part in reach):
                key = f"{request['metadata']['uid']} {holding.uid} {holding.device}"
                text = f"{name(request)} is ready for work, and claim {holding.claim} holds {holding.device} of it"
                yield Suspicion("ready but held", key, text)


def ready_but_obtainable(world: World) -> Iterator[Suspicion]:
    """Every published device that is ready for work has a taint that keeps claims away."""
    for request, reach in _ready(world):
        for device, published in world.published():
            part = _part_now(world, device)
            if part is None or not any(part.overlaps(each) for each in reach):
                continue
            if not any(taint.get("effect") in BLOCKING for taint in world.taints(device, published)):
                key = f"{request['metadata']['uid']} {device}"
                text = f"{name(request)} is ready for work, and {device} of it has no taint that keeps claims away"
                yield Suspicion("ready but obtainable", key, text)


def bare_at_work(world: World) -> Iterator[Suspicion]:
    """Devices that are ready for work are published with their request's taint, whatever happens to operators and GpuNodes.

    A rule is not enough: a new partition has none yet.
    """
    for request, reach in _ready(world):
        key = (request["spec"].get("taint") or {}).get("key") or "draco.dev/maintenance"
        for device, published in world.published():
            part = _part_now(world, device)
            if part is None or not any(part.overlaps(each) for each in reach):
                continue
            if not any(each["key"] == key and each.get("effect") in BLOCKING for each in published.get("taints") or []):
                text = f"{name(request)} is ready for work, and {device} of it is published without its taint {key}"
                yield Suspicion("bare at work", f"{request['metadata']['uid']} {device}", text)


def two_at_work(world: World) -> Iterator[Suspicion]:
    """No two requests are ready for work on the same hardware."""
    for (one, reach), (other, others) in combinations(sorted(_ready(world), key=lambda each: name(each[0])), 2):
        if shared := [part for part in reach if any(part.overlaps(each) for each in others)]:
            key = f"{one['metadata']['uid']} {other['metadata']['uid']}"
            text = f"{name(one)} and {name(other)} are both ready for work on {shared[0]}"
            yield Suspicion("two at work", key, text)


def orphan_rule(world: World) -> Iterator[Suspicion]:
    """Each of Draco's rules has an owner that exists and still needs it."""
    for uid, rule in world.rules.items():
        metadata = rule["metadata"]
        ours = (metadata.get("labels") or {}).get(MANAGER_LABEL) == MANAGER or metadata["name"].startswith("draco-")
        if not ours or metadata.get("deletionTimestamp"):
            continue
        owners = metadata.get("ownerReferences") or []
        if not any(wants_its_rules(world, owner["uid"]) for owner in owners):
            whose = ", ".join(f"{owner['kind']} {owner['name']}" for owner in owners) or "nobody"
            yield Suspicion("orphan rule", uid, f"rule {name(rule)} is there, but {whose} is not, or is over")


WATCHES_LAG_S = 1.5
"""How far one watch may be behind another."""

LAWS: Mapping[str, Law] = {
    "held twice": Law(held_twice, 0.0, frozenset({"api"})),
    "over-committed": Law(over_committed, 0.0, frozenset({"api"})),
    "beyond what is published": Law(beyond_what_is_published, WATCHES_LAG_S, frozenset({"api"})),
    "otherwise shared": Law(otherwise_shared, 5.0, frozenset({"api", "operator"})),
    "name moved": Law(name_moved, 5.0, frozenset({"api"})),
    "ready but held": Law(ready_but_held, 5.0, frozenset({"api", "operator"})),
    "ready but obtainable": Law(ready_but_obtainable, WATCHES_LAG_S, frozenset({"api", "operator", "rules"})),
    "bare at work": Law(bare_at_work, WATCHES_LAG_S, frozenset({"api", "rules"})),
    "two at work": Law(two_at_work, 5.0, frozenset({"api", "operator"})),
    "orphan rule": Law(orphan_rule, 10.0, frozenset({"api", "operator", "rules"})),
    "lifted at work": Law(lifted_at_work, 5.0, frozenset({"api", "operator", "rules"})),
    "verifying for ever": Law(verifying_for_ever, 90.0, frozenset({"api", "operator", "scheduler", "collector"})),
    "emptied by mistake": Law(emptied_by_mistake, 5.0, frozenset({"api", "operator", "rules"})),
    "repaired by nobody": Law(repaired_by_nobody, 10.0, frozenset({"api", "operator"})),
    "cordoned": Law(cordoned, 0.0, frozenset({"api"})),
    "holds and waits": Law(holds_and_waits, 20.0, frozenset({"api", "operator", "scheduler", "collector"})),
    "gate kept": Law(kept_gate, 20.0, frozenset({"api", "operator"})),
    "kept after the end": Law(kept_after_the_end, 10.0, frozenset({"api", "operator"})),
    "kept unused": Law(kept_unused, 20.0, frozenset({"api", "operator"})),
    "held behind gates": Law(held_behind_gates, 20.0, frozenset({"api", "operator"})),
    "not held": Law(not_held, 10.0, frozenset({"api", "operator"})),
    "PodGroup written": Law(written_by_draco, 0.0, frozenset({"api"})),
    "held for nobody": Law(held_for_nobody, 45.0, frozenset({"api", "operator"})),
}
"""Laws that depend on the operator's reaction get five seconds, because its watches and writes lag. "ready but obtainable" does
not: new devices are published with the taint, so only the observer's own watches may lag."""
IN_FLIGHT_S = 5.0
"""How long the scheduler may take to write an allocation decided before it knew the taint."""


class Late(NamedTuple):
    """A claim that seems to have got a device that was ready for work: when seen, its revision, and the request."""

    at: float
    revision: int
    request: str
    suspicion: Suspicion


class Latecomers:
    """No claim without a toleration gets a device that has been ready for work for a while.

    Told of each change as it is seen. Requests and claims come on different watches, so a suspicion is judged a moment later, by
    the request's content at the claim's revision.
    """

    def __init__(self) -> None:
        self._ready_since: dict[str, float] = {}
        self._said: dict[str, list[tuple[int, bool]]] = {}
        self._late: list[Late] = []

    def requested(self, request: Object, now: float, *, gone: bool = False) -> None:
        """A request was changed or deleted."""
        uid = request["metadata"]["uid"]
        ready = not gone and condition(request, READY).get("status") == "True"
        self._said.setdefault(uid, []).append((revision(request), ready))
        if ready:
            self._ready_since.setdefault(uid, now)
        else:
            self._ready_since.pop(uid, None)

    def allocated(self, world: World, claim: Object, now: float, *, grace_s: float) -> None:
        """A claim was allocated."""
        for request, reach in _ready(world):
            uid = request["metadata"]["uid"]
            since = self._ready_since.get(uid)
            if since is None or now - since < IN_FLIGHT_S + grace_s:
                continue
            taint = {"key": "draco.dev/maintenance", "effect": "NoSchedule", **(request["spec"].get("taint") or {})}
            for holding in world.holdings():
                if holding.uid != claim["metadata"]["uid"] or holding.part is None:
                    continue
                if any(holding.part.overlaps(part) for part in reach) and not tolerates(holding.tolerations, taint):
                    key = f"{uid} {holding.uid} {stamp(claim)}"
                    ready = f"{name(request)}, ready for work for {now - since:.1f} s"
                    text = f"claim {holding.claim} was given {holding.device} of {ready}"
                    suspicion = Suspicion("given while ready", key, text)
                    self._late.append(Late(now, revision(claim), uid, suspicion))

    def weighed(self, now: float) -> Iterator[Suspicion]:
        """Suspicions that proved right, judged when both watches have had time to catch up."""
        for late in [each for each in self._late if now - each.at >= WATCHES_LAG_S]:
            self._late.remove(late)
            said = [ready for at, ready in self._said.get(late.request, []) if at <= late.revision]
            if said and said[-1]:
                yield late.suspicion


def _ready(world: World) -> Iterator[tuple[Object, list[Part]]]:
    """The requests that are ready for work, each with its parts of boards."""
    for request in world.requests.values():
        if condition(request, READY).get("status") != "True":
            continue
        selector = request["spec"]["deviceSelector"]
        wanted = (selector.get("driver"), selector.get("pool"), selector.get("device"))
        by_more = any(selector.get(field) for field in ("nodeName", "deviceClassName", "selectors"))
        listed = (request.get("status") or {}).get("devices") or []
        # Those that merely overlap what is asked for are listed, too. The whole of a part is one, and the rest of it stays free.
        asked = {(each["driver"], each["pool"], each["device"]) for each in listed if not each.get("overlaps")}
        parts = []
        for device in world.names.history:
            exact = not by_more and all(want in {None, have} for want, have in zip(wanted, device, strict=True))
            if (exact or tuple(device) in asked) and (part := _part_now(world, device)):
                parts.append(part)
        yield request, parts


def _part_now(world: World, device: Any) -> Part | None:
    seen = world.names.history.get(device)
    return seen[-1][1] if seen else None
