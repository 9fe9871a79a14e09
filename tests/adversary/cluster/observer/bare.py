"""The law of bare GPUs: a published GPU keeps the taints of a hand-over or a fault until an operator decides otherwise.

A deleted GpuNode, or one that no operator has written yet, decides nothing. Slices and GpuNodes come on different watches, so a
suspicion is judged later, by the decisions at the slice's revision and by whether the fault is still the same. An agent may lag:
any decision since the taint's reason excuses it. `laws` judges devices that are ready for work. Does no I/O.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from tests.adversary.cluster.observer.ledger import BLOCKING, DOMAIN, FAMILIES, TAINT_OF
from tests.adversary.cluster.observer.service import OPERATOR_ALLOCATED
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import DeviceName, Object, World, part_of, revision

WEIGHED_AFTER_S = 1.5
MOST_TAINTS = 4
"""The API server's limit of taints per device."""
_FULL = ""
"""Marks, among a device's taint keys, that the limit is reached."""


class Fault(NamedTuple):
    """A fault of a whole GPU. A fault with another start time is another fault."""

    family: str
    name: str
    began: str


class Decision(NamedTuple):
    """What an operator wrote for a GPU: whether Draco allocates it, and the effects that policies set for its faults."""

    revision: int
    handed_over: bool
    effects: Mapping[str, str]


class Report(NamedTuple):
    """A GPU's faults and their effects, as its agent reported them for a pool generation."""

    revision: int
    generation: int
    faults: Mapping[Fault, str]


class Doubted(NamedTuple):
    """A device that lost a taint which its GPU had since revision `since`, for these faults or for a hand-over."""

    at: float
    since: int
    revision: int
    generation: int
    gpu: str
    faults: frozenset[Fault]
    suspicion: Suspicion


class Bare:
    """Told of each change of slices and GpuNodes."""

    def __init__(self, world: World) -> None:
        self.looked_at = 0
        """Number of devices that lost such a taint."""
        self._world = world
        self._decided: dict[str, list[Decision]] = {}
        self._reported: dict[str, Report] = {}
        self._blocks: set[str] = set()
        """Faults that keep claims away by default."""
        self._had: dict[tuple[str, str], int] = {}
        """The revision since which all devices of a GPU have had a taint, by GPU and taint key."""
        self._doubted: list[Doubted] = []

    def report_changed(self, after: Object | None) -> None:
        """A GpuNode was written or deleted. After a deletion, its last content stays known."""
        if after is None:
            return
        spec, status = after.get("spec") or {}, after.get("status") or {}
        handed_over = set(spec.get("operatorAllocated") or [])
        for uuid in {*(spec.get("decided") or []), *handed_over}:
            said = [each for each in spec.get("health") or [] if each["uuid"] == uuid]
            effects = {each["fault"]: each["effect"] for each in said if each.get("effect")}
            known = self._decided.setdefault(uuid, [])
            if not known or known[-1][1:] != (uuid in handed_over, effects):
                known.append(Decision(revision(after), uuid in handed_over, effects))
        for gpu in status.get("gpus") or []:
            of_all = [each for each in gpu.get("faults") or [] if each.get("instance") is None]
            self._blocks |= {each["name"] for each in of_all if not each.get("policy") and _keeps_away(each["effect"])}
            faults = {
                Fault(each["family"], each["name"], each.get("firstSeen") or ""): each["effect"] for each in of_all
            }
            self._reported[gpu["uuid"]] = Report(revision(after), status.get("poolGeneration") or 0, faults)

    def slice_changed(self, after: Object | None, now: float) -> None:
        """A slice was written or deleted. Slices of outdated generations are ignored."""
        if after is None:
            return
        pool = after["spec"]["pool"]
        driver, generation = after["spec"]["driver"], pool.get("generation", 0)
        if generation < self._world.generation((driver, pool["name"])):
            return
        by_gpu: dict[str, dict[str, frozenset[str]]] = {}
        for device in after["spec"].get("devices") or []:
            if part := part_of(device):
                taints = [each["key"] for each in device.get("taints") or [] if each["effect"] in BLOCKING]
                full = {_FULL} if len(taints) >= MOST_TAINTS else set()
                by_gpu.setdefault(part.gpu, {})[device["name"]] = frozenset(filter(_is_judged, taints)) | full
        for gpu, devices in by_gpu.items():
            all_have = frozenset.intersection(*devices.values()) - {_FULL}
            for key in {key for uuid, key in self._had if uuid == gpu} - all_have:
                since = self._had.pop((gpu, key))
                for name in (name for name, keys in devices.items() if _lacks(keys, key)):
                    device_name = DeviceName(driver, pool["name"], name)
                    self._doubt(device_name, gpu, key, since, after, now)
            for key in all_have:
                self._had.setdefault((gpu, key), revision(after))

    def weighed(self, now: float) -> Iterator[Suspicion]:
        """Suspicions that proved right. Each waits for the agent's report; earlier decisions are seen by then."""
        for one in [each for each in self._doubted if now - each.at >= WEIGHED_AFTER_S]:
            report = self._reported.get(one.gpu)
            if report is None or report.revision < one.revision or report.generation < one.generation:
                continue
            self._doubted.remove(one)
            if not one.faults:
                if not self._was_decided(one, lambda said: said.handed_over):
                    yield one.suspicion
                continue
            still = one.faults & report.faults.keys()
            if any(not self._was_decided(one, partial(self._keeps_away, fault.name)) for fault in still):
                yield one.suspicion

    def _doubt(self, device: DeviceName, gpu: str, key: str, since: int, after: Object, now: float) -> None:
        faults: frozenset[Fault] = frozenset()
        if key != OPERATOR_ALLOCATED:
            reported = self._reported[gpu].faults.items() if gpu in self._reported else ()
            faults = frozenset(
                fault for fault, effect in reported if DOMAIN + fault.family == key and _keeps_away(effect)
            )
            if not faults:
                return
        self.looked_at += 1
        text = f"{device} ({gpu}) had the taint {key} and is published without, and no operator has decided that"
        suspicion = Suspicion("bare", f"{device} {key} {revision(after)}", text)
        generation = after["spec"]["pool"].get("generation", 0)
        self._doubted.append(Doubted(now, since, revision(after), generation, gpu, faults, suspicion))

    def _was_decided(self, one: Doubted, is_reason: Callable[[Decision], bool]) -> bool:
        """Whether an operator removed the taint's reason before the device was published without it."""
        said = [each for each in self._decided.get(one.gpu, []) if each.revision < one.revision]
        reason = max((each.revision for each in said if is_reason(each) and each.revision < one.since), default=0)
        return any(each.revision > reason and not is_reason(each) for each in said)

    def _keeps_away(self, fault: str, said: Decision) -> bool:
        effect = said.effects.get(fault)
        return fault in self._blocks if effect is None else _keeps_away(effect)


def _is_judged(key: str) -> bool:
    return key == OPERATOR_ALLOCATED or _is_of_a_fault(key)


def _is_of_a_fault(key: str) -> bool:
    return key.startswith(DOMAIN) and key.removeprefix(DOMAIN) in FAMILIES


def _lacks(keys: frozenset[str], key: str) -> bool:
    """Whether a device lacks a needed taint. Another fault's taint replaces a fault's; so do four taints, which leave no room."""
    return key not in keys and (key == OPERATOR_ALLOCATED or not (_FULL in keys or any(map(_is_of_a_fault, keys))))


def _keeps_away(effect: str) -> bool:
    return TAINT_OF.get(effect) in BLOCKING
