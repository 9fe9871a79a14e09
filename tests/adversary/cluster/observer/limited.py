"""The law of limits: Draco's allocations never make namespaces hold more than a DeviceLimit permits.

Owns counting devices, memory slices and shares of GPUs. A share is at least the fraction of slices; a GPU outside MIG mode has no
slices. Limits and claims come on different watches, so each count is judged a moment later, by the limit at the claim's revision.
Draco may not know what the scheduler allocated a moment before. Does no I/O.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tests.adversary.cluster.observer.allocators import DRACO, allocator
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, name, results, revision, stamp

KNOWN_AFTER_S = 5.0
"""Draco knows anything written this long ago, even a new leader."""
WEIGHED_AFTER_S = 1.5
SLICES = 8
"""Memory slices of each board in these tests."""
_NAMESPACE = "kubernetes.io/metadata.name"

Held = dict[tuple[str, str], Counter[str]]
"""Amounts by namespace and DeviceClass."""


class Version(NamedTuple):
    """A version of a limit: since when, its revision, and its spec; None once it is deleted."""

    at: float
    revision: int
    spec: Object | None


class Counted(NamedTuple):
    """What was held right after Draco allocated a claim."""

    at: float
    claim: Object
    own: Held
    held: Held


class Limits:
    """Told of each change of limits and claims."""

    def __init__(self, world: World) -> None:
        self.bound = 0
        """Number of Draco's allocations that a limit covered."""
        self._world = world
        self._limits: dict[str, list[Version]] = {}
        self._by_others: dict[tuple[str, str], float] = {}
        self._counted: list[Counted] = []

    def limit_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A limit was written or deleted."""
        one = after or before
        assert one is not None
        versions = self._limits.setdefault(name(one), [])
        spec = after["spec"] if after else None
        if not versions or versions[-1].spec != spec:
            versions.append(Version(now, revision(one), spec))

    def claim_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A claim was written or deleted."""
        if after is None or not stamp(after) or (before is not None and stamp(before) == stamp(after)):
            return
        if allocator(after) != DRACO:
            self._by_others[after["metadata"]["uid"], stamp(after)] = now
        elif self._limits:
            self._counted.append(Counted(now, after, self._held(now, after), self._held(now)))

    def weighed(self, now: float) -> Iterator[Suspicion]:
        """Allocations that exceeded a limit."""
        for one in [each for each in self._counted if now - each.at >= WEIGHED_AFTER_S]:
            self._counted.remove(one)
            for title, versions in self._limits.items():
                known = next((each for each in reversed(versions) if each.revision < revision(one.claim)), None)
                if known is not None and known.spec is not None and one.at - known.at >= KNOWN_AFTER_S:
                    yield from self._exceeded(title, known.spec, one)

    def _exceeded(self, title: str, spec: Object, one: Counted) -> Iterator[Suspicion]:
        namespace = one.claim["metadata"]["namespace"]
        if not selects(spec, namespace):
            return
        self.bound += 1
        own, used = (_amounts(each, spec, namespace) for each in (one.own, one.held))
        permitted = {key: float(value) for key, value in spec["limits"].items() if key != "memory"}
        for key, most in permitted.items():
            if own[key] and used[key] > most:
                text = f"Draco allocated claim {name(one.claim)}, and {used[key]:g} {key} are held where {title} permits {most:g}"
                yield Suspicion("limit exceeded", f"{title} {one.claim['metadata']['uid']} {stamp(one.claim)}", text)

    def _held(self, now: float, only: Object | None = None) -> Held:
        held: Held = {}
        divisible = {device for device, published in self._world.published() if published.get("consumesCounters")}
        for holding in self._world.holdings():
            claim = self._world.claims[holding.uid]
            since = self._by_others.get((holding.uid, stamp(claim)))
            if (only is not None and claim is not only) or (since is not None and now - since < KNOWN_AFTER_S):
                continue
            request = next(each["request"] for each in results(claim) if each["device"] == holding.device.device)
            is_whole = holding.part is not None and not holding.part.slices
            slices = len(holding.part.slices) if holding.part is not None else 0
            if is_whole and holding.device in divisible:
                slices = SLICES
            amounts = held.setdefault((claim["metadata"]["namespace"], class_of(claim, request)), Counter())
            amounts.update({"devices": 1, "memorySlices": slices, "gpuShare": 1 if is_whole else slices / SLICES})
        return held


def selects(spec: Object, namespace: str) -> bool:
    """Whether a limit selects a namespace. The adversary selects by the name label that every namespace has."""
    selector = spec.get("namespaceSelector") or {}
    wanted = (selector.get("matchLabels") or {}).get(_NAMESPACE, namespace)
    several = [each["values"] for each in selector.get("matchExpressions") or [] if each["key"] == _NAMESPACE]
    return wanted == namespace and all(namespace in each for each in several)


def is_about(spec: Object, device_class: str) -> bool:
    """Whether a limit counts devices of this class. One without classes counts all."""
    return device_class in (spec.get("deviceClassNames") or [device_class])


def class_of(claim: Object, request: str) -> str:
    """The DeviceClass of a claim's request, or of its chosen alternative."""
    title, _, alternative = request.partition("/")
    for each in (claim.get("spec") or {}).get("devices", {}).get("requests") or []:
        asked = [each["exactly"]] if each.get("exactly") else []
        asked += [one for one in each.get("firstAvailable") or [] if one["name"] == alternative]
        if each["name"] == title and asked:
            return str(asked[0]["deviceClassName"])
    return ""


def _amounts(held: Held, spec: Object, namespace: str) -> Counter[str]:
    together = spec.get("per", "Namespace") == "Selection"
    classes = spec.get("deviceClassNames") or []
    found: Counter[str] = Counter()
    for (where, kind), amounts in held.items():
        if (where == namespace or (together and selects(spec, where))) and (not classes or kind in classes):
            found.update(amounts)
    return found


def devices_held(world: World, spec: Object) -> int:
    """How many devices that a limit counts are held in all its namespaces."""
    return sum(
        not given.get("adminAccess") and is_about(spec, class_of(claim, given["request"]))
        for claim in world.claims.values()
        if selects(spec, claim["metadata"]["namespace"])
        for given in results(claim)
    )


def miscounted(world: World) -> Iterator[Suspicion]:
    """At rest, each limit's status has the right number of held devices."""
    for uid, limit in world.limits.items():
        spec, used = limit["spec"], (limit.get("status") or {}).get("used") or {}
        counted = devices_held(world, spec)
        if "devices" in spec["limits"] and used.get("devices") != counted:
            text = f"{counted} devices are held of what {name(limit)} is about, and it says {used.get('devices')}"
            yield Suspicion("miscounted", uid, text)
