"""The law of bare GPUs: what is published keeps the taints of a hand-over and of a fault until an operator decides otherwise.

A GpuNode that is deleted, or that no operator has written into yet, decides nothing. Slices and GpuNodes come on different
watches, so what seems wrong is weighed later: by what operators had decided at the slice's own revision, and by whether the fault
is still the same one. An agent may be behind: it may have published by anything that was decided since the taint had its reason.
What is ready for work is for `laws`. Does no I/O.
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
"""The API server takes no more of a device."""
_FULL = ""
"""Among the keys of a device's taints: there is room for no other."""


class Fault(NamedTuple):
    """A fault of a whole GPU, which is another one if it began at another time."""

    family: str
    name: str
    began: str


class Decision(NamedTuple):
    """What an operator wrote about a GPU: whether Draco allocates it, and the effects that policies give its faults."""

    revision: int
    handed_over: bool
    effects: Mapping[str, str]


class Report(NamedTuple):
    """What an agent said of a GPU when its pool had this generation: its faults, each with its effect."""

    revision: int
    generation: int
    faults: Mapping[Fault, str]


class Doubted(NamedTuple):
    """A device without a taint that its GPU had from the revision `since` on: for these faults, or that of the hand-over."""

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
        """Devices that lost such a taint."""
        self._world = world
        self._decided: dict[str, list[Decision]] = {}
        self._reported: dict[str, Report] = {}
        self._blocks: set[str] = set()
        """Faults that keep claims away unless a policy says otherwise."""
        self._had: dict[tuple[str, str], int] = {}
        """From which revision on all devices of a GPU had a taint, by its key."""
        self._doubted: list[Doubted] = []

    def report_changed(self, after: Object | None) -> None:
        """A GpuNode was written or is gone. What it said until then is remembered."""
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
        """A slice was written or is gone. One of an older generation than there is says nothing."""
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
        """Those that were right. Each waits until the agent's report of what it published is seen: so are earlier decisions."""
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
        """Whether the last reason for the taint was taken back before the device was published without it."""
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
    """Whether a device with these taints needs another: any fault keeps claims away, as do four taints that leave no room."""
    return key not in keys and (key == OPERATOR_ALLOCATED or not (_FULL in keys or any(map(_is_of_a_fault, keys))))


def _keeps_away(effect: str) -> bool:
    return TAINT_OF.get(effect) in BLOCKING
