"""The law of taints: no claim gets a device that has been tainted or unpublished for a while.

Told of each change of rules, slices and claims as it is seen. They come on different watches, so a suspicion is judged a moment
later, by the taints at the claim's revision: one etcd stores all of them. A notice of withdrawal counts as a taint, and at rest
there is none. Does no I/O.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.adversary.cluster.observer.allocators import DRACO, TAINT, allocator
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.tolerations import tolerates
from tests.adversary.cluster.observer.world import DeviceName, Object, World, name, results, revision, stamp

BLOCKING = frozenset({"NoSchedule", "NoExecute"})
IN_FLIGHT_S = 5.0
"""How long the scheduler may take to write an allocation decided before it knew the taint."""
WEIGHED_AFTER_S = 1.5
GONE = "not published"
"""Stands for a taint on an unpublished device. No claim tolerates it."""
UNSETTLED, WITHDRAWN = "draco.dev/unsettled", "Withdrawn"
"""Key and value of the taint that announces a device's withdrawal."""


def withdrawn_for_ever(world: World) -> Iterator[Suspicion]:
    """At rest, no device has a notice of withdrawal."""
    for device, published in world.published():
        if any(map(_is_notice, world.taints(device, published))):
            yield Suspicion("withdrawn for ever", str(device), f"{device} is about to be published no more, and stays")


class Source(NamedTuple):
    """Source of a taint: a rule's UID, or a device's name and the taint's key and effect."""

    of: str
    taint: str


class Since(NamedTuple):
    """When and at which revision a taint was first seen."""

    at: float
    revision: int
    taint: Mapping[str, Any]


class Given(NamedTuple):
    """A claim that seems to have got a tainted device."""

    at: float
    revision: int
    source: Source
    suspicion: Suspicion


class GivenWhileTainted:
    """Remembers since when, and until which revision, each taint existed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rules: dict[Source, tuple[Since, Mapping[str, Any]]] = {}
        self._slices: dict[DeviceName, dict[Source, Since]] = {}
        self._ended: dict[Source, int] = {}
        self._doubted: list[Given] = []

    def rule_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A rule was written or deleted. Only the taint in its spec may change."""
        one = after or before
        assert one is not None
        taint = one["spec"]["taint"]
        source = Source(one["metadata"]["uid"], f"{taint['key']}:{taint['effect']}")
        for other in [each for each in self._rules if each.of == source.of and (after is None or each != source)]:
            del self._rules[other]
            self._ended[other] = revision(one)
        if after is not None and taint["effect"] in BLOCKING and source not in self._rules:
            selector = after["spec"].get("deviceSelector") or {}
            self._rules[source] = (Since(now, revision(after), taint), selector)
            self._ended.pop(source, None)

    def slice_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A slice was written or deleted. One of an older generation than there is says nothing."""
        one = after or before
        assert one is not None
        spec = one["spec"]
        pool = (spec["driver"], spec["pool"]["name"])
        if spec["pool"].get("generation", 0) < self._world.generation(pool):
            return
        here = {DeviceName(*pool, each["name"]): each for each in (after or {"spec": {}})["spec"].get("devices") or []}
        there = {DeviceName(*pool, each["name"]) for each in (before or {"spec": {}})["spec"].get("devices") or []}
        published = {each for each, _ in self._world.published()}
        for device in there | here.keys():
            taints = [each for each in here.get(device, {}).get("taints") or [] if each["effect"] in BLOCKING]
            wanted = {Source(str(device), f"{each['key']}:{each['effect']}"): each for each in taints}
            known = self._slices.setdefault(device, {})
            notice = min((each.at for each in known.values() if _is_notice(each.taint)), default=now)
            if device not in published:
                wanted[Source(str(device), GONE)] = {}
            for source in known.keys() - wanted.keys():
                del known[source]
                self._ended[source] = revision(one)
            for source in wanted.keys() - known.keys():
                at = notice if source.taint == GONE else now
                known[source] = Since(at, revision(one), wanted[source])
                self._ended.pop(source, None)

    def allocated(self, claim: Object, now: float, *, grace_s: float) -> None:
        """A claim has got devices."""
        for result in results(claim):
            if result.get("adminAccess"):
                continue
            device = DeviceName(result["driver"], result["pool"], result["device"])
            tolerations = tuple(
                (each.get("key", ""), each.get("operator", "Equal"), each.get("value", ""), each.get("effect", ""))
                for each in result.get("tolerations") or []
            )
            for source, since in self._taints(device):
                if now - since.at < IN_FLIGHT_S + grace_s:
                    continue
                if source.taint != GONE and tolerates(tolerations, since.taint):
                    continue
                if since.taint.get("key") == TAINT and allocator(claim) == DRACO:
                    continue  # Draco may allocate it; `allocators` judges to which claims
                what = "had not been published" if source.taint == GONE else f"had the taint {source.taint}"
                text = f"claim {name(claim)} was given {device}, which {what} for {now - since.at:.1f} s"
                key = f"{claim['metadata']['uid']} {stamp(claim)} {source}"
                self._doubted.append(Given(now, revision(claim), source, Suspicion("given while tainted", key, text)))

    def weighed(self, now: float) -> Iterator[Suspicion]:
        """Suspicions that proved right: the taint existed at the claim's revision."""
        for one in [each for each in self._doubted if now - each.at >= WEIGHED_AFTER_S]:
            self._doubted.remove(one)
            if self._ended.get(one.source, one.revision + 1) > one.revision:
                yield one.suspicion

    def _taints(self, device: DeviceName) -> Iterator[tuple[Source, Since]]:
        yield from self._slices.get(device, {}).items()
        for source, (since, selector) in self._rules.items():
            wanted = (selector.get("driver"), selector.get("pool"), selector.get("device"))
            if all(want in {None, "", have} for want, have in zip(wanted, device, strict=True)):
                yield source, since


def _is_notice(taint: Mapping[str, Any]) -> bool:
    """Whether the taint announces its device's withdrawal."""
    return (taint.get("key"), taint.get("value")) == (UNSETTLED, WITHDRAWN)
