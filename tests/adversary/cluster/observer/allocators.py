"""The laws of two allocators: each allocates only its own claims, and Draco only devices that are published as its own.

The field manager of an allocation shows who wrote it. Slices and claims come on different watches, so a suspicion is judged a
moment later, by what was published at the claim's revision. `tainted` judges devices with Draco's taint that the scheduler
allocated. Does no I/O.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import DeviceName, Object, World, name, part_of, results, revision, stamp

DRACO = "draco-operator"
DRACOS_CLASSES = frozenset({"gpu.draco.dev", "mig.draco.dev"})
TAINT = "draco.dev/operator-allocated"
WEIGHED_AFTER_S = 1.5
HOST = "kubernetes.io/hostname"
BLOCKING = frozenset({"NoSchedule", "NoExecute"})


class Doubted(NamedTuple):
    """A claim that Draco seems to have given a device that is not its own."""

    at: float
    revision: int
    device: DeviceName
    suspicion: Suspicion


class Traded(NamedTuple):
    """A whole, free GPU without other taints whose allocator changed. `is_dracos`: it is Draco's now."""

    device: DeviceName
    uuid: str
    is_dracos: bool


class Allocators:
    """Remembers from which revision each device was published with Draco's taint, and without."""

    def __init__(self, world: World) -> None:
        self.by_draco = 0
        """Number of allocations by Draco."""
        self._world = world
        self._said: dict[DeviceName, list[tuple[int, bool]]] = {}
        self._doubted: list[Doubted] = []
        self._wrong: list[Suspicion] = []

    def slice_changed(self, after: Object | None) -> None:
        """A slice was written. Slices of outdated generations are ignored."""
        if after is None:
            return
        spec = after["spec"]
        pool = (spec["driver"], spec["pool"]["name"])
        if spec["pool"].get("generation", 0) < self._world.generation(pool):
            return
        for device in spec.get("devices") or []:
            self._said.setdefault(DeviceName(*pool, device["name"]), []).append((revision(after), is_dracos(device)))

    def claim_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A claim was written or deleted."""
        if after is not None and stamp(after) and (before is None or stamp(before) != stamp(after)):
            self.allocated(after, now)

    def allocated(self, claim: Object, now: float) -> None:
        """A claim was allocated."""
        who, own = allocator(claim), is_for_draco(claim)
        key = f"{claim['metadata']['uid']} {stamp(claim)}"
        if who == DRACO and not own:
            self._wrong.append(
                Suspicion("not its claim", key, f"Draco allocated claim {name(claim)}, whose classes are not its own")
            )
        if who != DRACO:
            return
        self.by_draco += 1
        for result in results(claim):
            device = DeviceName(result["driver"], result["pool"], result["device"])
            text = f"Draco gave {device} to claim {name(claim)} when it was not published as Draco's"
            self._doubted.append(
                Doubted(now, revision(claim), device, Suspicion("not its device", f"{key} {device}", text))
            )

    def weighed(self, now: float) -> Iterator[Suspicion]:
        """Suspicions that proved right. A device that was never seen published raises none."""
        wrong, self._wrong = self._wrong, []
        yield from wrong
        for one in [each for each in self._doubted if now - each.at >= WEIGHED_AFTER_S]:
            self._doubted.remove(one)
            said = [own for since, own in self._said.get(one.device, []) if since <= one.revision]
            if said and not said[-1]:
                yield one.suspicion

    def traded(self) -> Iterator[Traded]:
        """GPUs whose allocator changed and that are usable now."""
        held = [holding.part for holding in self._world.holdings() if holding.part is not None]
        for device, published in self._world.published():
            part, own = part_of(published), is_dracos(published)
            others = [each for each in self._world.taints(device, published) if each["key"] != TAINT]
            if part is None or part.slices or {said for _, said in self._said.get(device, ())} != {True, False}:
                continue
            if not any(each["effect"] in BLOCKING for each in others) and not any(map(part.overlaps, held)):
                yield Traded(device, part.gpu, own)


def is_dracos(device: Object) -> bool:
    """Whether a device is published as Draco's to allocate."""
    return any(each["key"] == TAINT for each in device.get("taints") or [])


def is_for_draco(claim: Object) -> bool:
    """Whether all requests are for Draco's classes, without administrative access."""
    asked: list[Object] = []
    for request in claim["spec"]["devices"].get("requests") or []:
        asked += [request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or []
    return bool(asked) and all(
        each["deviceClassName"] in DRACOS_CLASSES and not each.get("adminAccess") for each in asked
    )


def allocator(claim: Object) -> str:
    """The field manager of the claim's allocation."""
    for entry in claim["metadata"].get("managedFields") or []:
        if "f:allocation" in ((entry.get("fieldsV1") or {}).get("f:status") or {}):
            return str(entry.get("manager"))
    return ""


def kept_for_nobody(world: World) -> Iterator[Suspicion]:
    """At rest, devices are kept from the scheduler only on nodes that a policy hands over."""
    handed = {
        ((policy["spec"].get("nodeSelector") or {}).get("matchLabels") or {}).get(HOST, "")
        for policy in world.policies.values()
        if policy["spec"].get("allocator") == "Operator"
    }
    for device, published in world.published():
        if is_dracos(published) and device.pool not in handed:
            yield Suspicion(
                "kept for nobody", str(device), f"{device} is kept from the scheduler, and no policy wants that"
            )
