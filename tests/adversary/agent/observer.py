"""An independent view of a node: the simulated hardware's state file, the driver's device numbers, and the CDI specs.

Owns the checks of specs and processes against the hardware. Shares no code with the product: it reads JSON and text.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

PREFIX = "draco-gpu.nvidia.com-"


class Part(NamedTuple):
    """Memory units of one board; `whole` for all of it."""

    gpu: str
    units: frozenset[int]
    whole: bool

    def meets(self, other: "Part") -> bool:
        """Whether the two overlap."""
        return self.gpu == other.gpu and (self.whole or other.whole or bool(self.units & other.units))


class Given(NamedTuple):
    """One device of a spec: the UUID that its container gets, and the device nodes."""

    claim: str
    device: str
    uuid: str
    nodes: frozenset[str]
    absent: frozenset[str]
    """Device nodes that the spec names and that are missing."""


class Seen(NamedTuple):
    """The node at one moment."""

    hardware: Mapping[str, Any]
    capabilities: Mapping[str, str]
    """Number of each capability device by path, such as gpu0/gi2/ci0."""
    given: tuple[Given, ...]
    unreadable: tuple[str, ...]

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        """The GPUs that the driver sees."""
        return list(self.hardware["gpus"])

    def instances(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Every GPU instance, with its GPU."""
        for gpu in self.gpus:
            for instance in gpu["instances"]:
                yield gpu, instance

    def serials(self) -> frozenset[int]:
        """The serials of all instances: unique even if two instances have had the same placement."""
        return frozenset(instance["serial"] for _, instance in self.instances())

    def part(self, uuid: str) -> Part | None:
        """The hardware behind a UUID; None if there is none now."""
        for gpu in self.gpus:
            if gpu["uuid"] == uuid:
                return Part(uuid, frozenset(), True)
        for gpu, instance in self.instances():
            if any(compute["uuid"] == uuid for compute in instance["compute"]):
                units = frozenset(range(instance["start"], instance["start"] + instance["size"]))
                return Part(gpu["uuid"], units, False)
        return None

    def serial(self, uuid: str) -> int | None:
        """The serial of a MIG device's GPU instance."""
        for _, instance in self.instances():
            if any(compute["uuid"] == uuid for compute in instance["compute"]):
                return int(instance["serial"])
        return None


def look(folder: Path) -> Seen:
    """Read the node's state."""
    hardware = json.loads((folder / "gpus.json").read_text())
    table = (folder / "gpus.json.proc" / "driver/nvidia-caps/mig-minors").read_text()
    numbers = _numbers(table)
    given: list[Given] = []
    unreadable: list[str] = []
    for file in sorted((folder / "cdi").glob(f"{PREFIX}*.json")) if (folder / "cdi").exists() else []:
        try:
            given += _given(file.name[len(PREFIX) : -len(".json")], json.loads(file.read_text()))
        except (ValueError, KeyError, TypeError) as error:
            unreadable.append(f"{file.name}: {error}")
    return Seen(hardware, numbers, tuple(given), tuple(unreadable))


@lru_cache(maxsize=8)
def _numbers(table: str) -> Mapping[str, str]:
    """Device numbers by path. Cached, because the table has thousands of lines and seldom changes."""
    return dict(re.findall(r"^(gpu\d+/gi\d+(?:/ci\d+)?)/access (\d+)$", table, re.MULTILINE))


def _given(claim: str, spec: Mapping[str, Any]) -> Iterator[Given]:
    shared = spec["containerEdits"].get("deviceNodes", [])
    for device in spec["devices"]:
        edits = device["containerEdits"]
        told = [one.partition("=")[2] for one in edits["env"] if one.startswith("DRACO_DEVICE_")]
        if len(told) != 1:
            raise ValueError(f"device {device['name']} has {len(told)} UUIDs")
        nodes = [*shared, *edits["deviceNodes"]]
        own = {each["path"] for each in nodes if re.fullmatch(r".*/nvidia(\d+|-caps/nvidia-cap\d+)", each["path"])}
        absent = {each["hostPath"] for each in nodes if not Path(each["hostPath"]).exists()}
        yield Given(claim, device["name"].partition(f"-{claim}")[0], told[0], frozenset(own), frozenset(absent))


def wrong(one: Given, seen: Seen) -> str:
    """How a spec differs from the hardware; "" if it does not."""
    if one.absent:
        return f"the spec of claim {one.claim} names {sorted(one.absent)}, which is not there"
    for gpu in seen.gpus:
        if gpu["uuid"] == one.uuid:
            return _differ(one, {f"/dev/nvidia{gpu['minor']}"})
        for instance in gpu["instances"]:
            for compute in instance["compute"]:
                if compute["uuid"] == one.uuid:
                    place = f"gpu{gpu['minor']}/gi{instance['id']}"
                    numbers = (seen.capabilities[place], seen.capabilities[f"{place}/ci{compute['id']}"])
                    caps = {f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers}
                    return _differ(one, {f"/dev/nvidia{gpu['minor']}", *caps})
    return f"the spec of claim {one.claim} tells of {one.uuid}, which is not there"


def _differ(one: Given, right: set[str]) -> str:
    if one.nodes == right:
        return ""
    return f"the spec of claim {one.claim} opens {sorted(one.nodes)} for {one.uuid}, which is {sorted(right)}"


def together(seen: Seen, watching: Collection[str], sharing: Collection[tuple[str, str]] = ()) -> str:
    """Names two pods whose processes use the same hardware; "" if there are none.

    Pods in `watching` may be there beside others, and `sharing` are pods and the GPUs that they may have together.
    """
    using: list[tuple[str, Part]] = []
    for gpu in seen.gpus:
        units = {one["id"]: frozenset(range(one["start"], one["start"] + one["size"])) for one in gpu["instances"]}
        for process in gpu["processes"]:
            pod, instance = process.get("hostname"), process.get("gpu_instance")
            if pod and pod not in watching:
                using.append((pod, Part(gpu["uuid"], units.get(instance, frozenset()), instance is None)))
    for index, (pod, part) in enumerate(using):
        for other, theirs in using[index + 1 :]:
            shared = {(pod, part.gpu), (other, part.gpu)} <= set(sharing)
            if pod != other and part.meets(theirs) and not shared:
                return f"processes of pods {pod} and {other} both run on {part}"
    return ""


def twice(seen: Seen, admin: frozenset[tuple[str, str]], shares: frozenset[tuple[str, str]] = frozenset()) -> str:
    """Names two claims whose specs share hardware or device nodes; "" if none do.

    `admin`: exempt (claim, device) pairs. `shares`: those of which one device may be in several.
    """
    alone = [one for one in seen.given if (one.claim, one.device) not in admin]
    for index, one in enumerate(alone):
        for other in alone[index + 1 :]:
            if one.claim == other.claim:
                continue
            if one.device == other.device and {(one.claim, one.device), (other.claim, other.device)} <= shares:
                continue
            mine, theirs = seen.part(one.uuid), seen.part(other.uuid)
            if one.uuid == other.uuid or (mine and theirs and mine.meets(theirs)):
                return f"claims {one.claim} and {other.claim} both have {mine or one.uuid}"
            common = one.nodes & other.nodes
            parts_of_one = len(one.nodes) > 1 and len(other.nodes) > 1
            # All partitions of a GPU share its device node: without a capability device it gives no access.
            if any("nvidia-cap" in node for node in common) or (common and not parts_of_one):
                return f"claims {one.claim} and {other.claim} are both given {sorted(common)}"
    return ""
