"""The observer's knowledge of the cluster: objects as JSON, and which part of which board each device name has stood for.

Judges nothing: `laws` does. Does no I/O.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Object = dict[str, Any]
WHOLE: frozenset[str] = frozenset()
SINGLE = frozenset({"ofa-engines"})
"""Counters of engines that each board in these tests has once, so that two partitions with it exclude each other."""


class DeviceName(NamedTuple):
    """A device's full name."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.pool}/{self.device}"


class Part(NamedTuple):
    """A part of a board: its memory slices and its single engines. No slices mean the whole board."""

    gpu: str
    slices: frozenset[str] = WHOLE
    engines: frozenset[str] = frozenset()

    def overlaps(self, other: "Part") -> bool:
        """Whether the two exclude each other."""
        if self.gpu != other.gpu or not self.slices or not other.slices:
            return self.gpu == other.gpu
        return bool(self.slices & other.slices or self.engines & other.engines)

    def __str__(self) -> str:
        return f"{self.gpu} {'whole' if not self.slices else '+'.join(sorted(self.slices))}"


class Holding(NamedTuple):
    """A claim that holds a device. `part` is what the name stood for when the claim got it; None if that was not seen."""

    claim: str
    uid: str
    device: DeviceName
    part: Part | None
    revision: int
    tolerations: tuple[tuple[str, str, str, str], ...]
    share: str = ""
    consumed: tuple[tuple[str, str], ...] = ()
    """What a share has of each capacity."""


@dataclass
class Names:
    """What each device name has stood for, by revision: names may move, and a claim refers to what it was given."""

    history: dict[DeviceName, list[tuple[int, Part]]] = field(default_factory=dict)
    most: dict[DeviceName, dict[str, int]] = field(default_factory=dict)
    """The most that each device has been published with of each capacity."""

    def learn(self, one: Object) -> None:
        """Read a slice."""
        spec = one["spec"]
        pool = (spec["driver"], spec["pool"]["name"])
        for device in spec.get("devices") or []:
            most = self.most.setdefault(DeviceName(*pool, device["name"]), {})
            for what, capacity in (device.get("capacity") or {}).items():
                most[what] = max(most.get(what, 0), amount(capacity["value"]))
            part = part_of(device)
            if part is None:
                continue
            seen = self.history.setdefault(DeviceName(*pool, device["name"]), [])
            if not seen or seen[-1][1] != part:
                seen.append((revision(one), part))

    def at(self, name: DeviceName, when: int) -> Part | None:
        """What the name stood for at a revision, or first stood for if that was later; None if it was never published."""
        seen = self.history.get(name)
        if not seen:
            return None
        return next((part for since, part in reversed(seen) if since <= when), seen[0][1])


@dataclass
class World:
    """Objects by UID. `held_since` is the revision at which a claim's current allocation was first seen."""

    claims: dict[str, Object] = field(default_factory=dict)
    slices: dict[str, Object] = field(default_factory=dict)
    rules: dict[str, Object] = field(default_factory=dict)
    requests: dict[str, Object] = field(default_factory=dict)
    pods: dict[str, Object] = field(default_factory=dict)
    events: dict[str, Object] = field(default_factory=dict)
    leases: dict[str, Object] = field(default_factory=dict)
    nodes: dict[str, Object] = field(default_factory=dict)
    budgets: dict[str, Object] = field(default_factory=dict)
    gpu_nodes: dict[str, Object] = field(default_factory=dict)
    policies: dict[str, Object] = field(default_factory=dict)
    sharing_policies: dict[str, Object] = field(default_factory=dict)
    reservations: dict[str, Object] = field(default_factory=dict)
    limits: dict[str, Object] = field(default_factory=dict)
    pod_budgets: dict[str, Object] = field(default_factory=dict)
    pod_groups: dict[str, Object] = field(default_factory=dict)
    jobs: dict[str, Object] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    held_since: dict[tuple[str, str], int] = field(default_factory=dict)

    def holdings(self) -> Iterator[Holding]:
        """Every device that a claim holds. Administrative access does not count."""
        for uid, claim in self.claims.items():
            for result in results(claim):
                if result.get("adminAccess"):
                    continue
                device = DeviceName(result["driver"], result["pool"], result["device"])
                since = self.held_since.get((uid, stamp(claim)), revision(claim))
                yield Holding(
                    name(claim),
                    uid,
                    device,
                    self.names.at(device, since),
                    since,
                    tuple(_tolerations(result)),
                    result.get("shareID") or "",
                    tuple(sorted((result.get("consumedCapacity") or {}).items())),
                )

    def generation(self, pool: tuple[str, str]) -> int:
        """The newest generation of a pool among existing slices. It restarts after all of them were deleted."""
        specs = [one["spec"] for one in self.slices.values()]
        found = [spec["pool"].get("generation", 0) for spec in specs if (spec["driver"], spec["pool"]["name"]) == pool]
        return max(found, default=0)

    def published(self) -> Iterator[tuple[DeviceName, Object]]:
        """Every device in the newest generation of its pool."""
        newest: dict[tuple[str, str], int] = {}
        for one in self.slices.values():
            spec = one["spec"]
            pool = (spec["driver"], spec["pool"]["name"])
            if pool not in newest:
                newest[pool] = self.generation(pool)
            if spec["pool"].get("generation", 0) < newest[pool]:
                continue
            for device in spec.get("devices") or []:
                yield DeviceName(*pool, device["name"]), device

    def taints(self, device: DeviceName, published: Object) -> list[Object]:
        """A device's taints, from its slice and from rules."""
        found = list(published.get("taints") or [])
        for rule in self.rules.values():
            selector = rule["spec"].get("deviceSelector") or {}
            wanted = (selector.get("driver"), selector.get("pool"), selector.get("device"))
            if all(want in {None, "", have} for want, have in zip(wanted, device, strict=True)):
                found.append(rule["spec"]["taint"])
        return found


def part_of(device: Object) -> Part | None:
    """A published device's part of a board; None if it does not say."""
    attributes = device.get("attributes") or {}

    def text(key: str) -> str:
        found = attributes.get(key) or attributes.get(f"gpu.nvidia.com/{key}") or {}
        return str(found.get("string") or "")

    if parent := text("parentUUID"):
        drawn = {
            counter
            for consumed in device.get("consumesCounters") or []
            for counter, amount in (consumed.get("counters") or {}).items()
            if str(amount.get("value")) != "0"
        }
        slices = {counter for counter in drawn if counter.startswith("memory-slice-")}
        return Part(parent, frozenset(slices or {device["name"]}), frozenset(drawn & SINGLE))
    return Part(text("uuid")) if text("uuid") else None


def name(one: Object) -> str:
    """Namespace and name, or the name alone."""
    metadata = one["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


def revision(one: Object) -> int:
    """The store's revision of an object: one clock for all kinds, because one etcd stores them."""
    return int(one["metadata"].get("resourceVersion") or 0)


def results(claim: Object) -> list[Object]:
    """The devices of a claim's allocation."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or []


def stamp(claim: Object) -> str:
    """Distinguishes a claim's allocations."""
    return ",".join(f"{each['driver']}/{each['pool']}/{each['device']}" for each in results(claim))


def condition(one: Object, kind: str) -> Object:
    """A condition of an object; empty if it has none."""
    found: Iterable[Object] = (one.get("status") or {}).get("conditions") or []
    return next((each for each in found if each["type"] == kind), {})


def phase(pod: Object) -> str:
    """A pod's phase."""
    return str((pod.get("status") or {}).get("phase"))


def is_live(pod: Object) -> bool:
    """Whether the pod has not ended and is not being deleted."""
    return phase(pod) not in {"Succeeded", "Failed"} and not pod["metadata"].get("deletionTimestamp")


def waiting(pod: Object) -> str:
    """Why the pod's containers do not start."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return "; ".join(((each.get("state") or {}).get("waiting") or {}).get("message", "") for each in statuses)


def _tolerations(result: Object) -> Iterator[tuple[str, str, str, str]]:
    for each in result.get("tolerations") or []:
        yield each.get("key", ""), each.get("operator", "Equal"), each.get("value", ""), each.get("effect", "")


_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3, "M": 10**6, "G": 10**9}


def amount(text: str) -> int:
    """A whole quantity, such as 10Gi."""
    digits = text.rstrip("KMGTik")
    return int(float(digits) * _UNITS[text[len(digits) :]])
