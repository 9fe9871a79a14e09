"""The law of taints: no claim is newly given a device that was tainted or not published any more for a while already.

Told of each change of rules, slices and claims as it is seen. They come on different watches, so what seems wrong is weighed a
moment later, by what was tainted at the claim's own revision: one etcd keeps all of them. A device that is withdrawn is one from
its notice on, and at rest none is. Does no I/O.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.adversary.cluster.observer.allocators import DRACO, TAINT, allocator
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.tolerations import tolerates
from tests.adversary.cluster.observer.world import DeviceName, Object, World, name, results, revision, stamp

BLOCKING = frozenset({"NoSchedule", "NoExecute"})
IN_FLIGHT_S = 5.0
"""How long the scheduler may take to write an allocation that it decided before it knew of the taint."""
WEIGHED_AFTER_S = 1.5
GONE = "not published"
"""In place of a taint where there is none, as there is no device. No claim tolerates that."""
UNSETTLED, WITHDRAWN = "draco.dev/unsettled", "Withdrawn"
"""The taint of a device, and its value, that gives notice of its withdrawal."""


def withdrawn_for_ever(world: World) -> Iterator[Suspicion]:
    """At rest no device is about to go: it is gone, or stays."""
    for device, published in world.published():
        if any(map(_is_notice, world.taints(device, published))):
            yield Suspicion("withdrawn for ever", str(device), f"{device} is about to be published no more, and stays")


class Source(NamedTuple):
    """Where a taint comes from: a rule's UID, or a device's name and the taint's key and effect."""

    of: str
    taint: str


class Since(NamedTuple):
    """When and at which revision a taint was first seen."""

    at: float
    revision: int
    taint: Mapping[str, Any]


class Given(NamedTuple):
    """A claim that seems to have got what was tainted."""

    at: float
    revision: int
    source: Source
    suspicion: Suspicion


class GivenWhileTainted:
    """Keeps since when each taint has been there, and until which revision."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rules: dict[Source, tuple[Since, Mapping[str, Any]]] = {}
        self._slices: dict[DeviceName, dict[Source, Since]] = {}
        self._ended: dict[Source, int] = {}
        self._doubted: list[Given] = []

    def rule_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A rule was written or is gone; of the spec only its taint may change."""
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
        """A slice was written or is gone. One of an older generation than there is says nothing."""
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
                    continue  # it is published for Draco to give out; to which claims is for `allocators`
                what = "had not been published" if source.taint == GONE else f"had the taint {source.taint}"
                text = f"claim {name(claim)} was given {device}, which {what} for {now - since.at:.1f} s"
                key = f"{claim['metadata']['uid']} {stamp(claim)} {source}"
                self._doubted.append(Given(now, revision(claim), source, Suspicion("given while tainted", key, text)))

    def weighed(self, now: float) -> Iterator[Suspicion]:
        """Those that were right: the taint was still there at the claim's revision."""
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
    """Whether it says that its device is about to be withdrawn."""
    return (taint.get("key"), taint.get("value")) == (UNSETTLED, WITHDRAWN)
