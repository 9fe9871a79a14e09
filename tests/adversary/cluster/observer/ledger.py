"""The laws of faults: an agent's reported faults match its published taints, and it reports the XIDs of its boards.

Owns the comparison of a GpuNode's faults with the taints of that node's devices, and of accidents with both. Does no I/O.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.adversary.cluster.observer.service import part_now
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, name

FAMILIES = frozenset(
    {"xid", "ecc", "row-remap", "thermal", "nvlink", "fabric", "recovery", "lost", "driver", "unreadable"}
)
TAINT_OF = {"Announce": "None", "NoSchedule": "NoSchedule", "Evict": "NoSchedule", "NoExecute": "NoExecute"}
BLOCKING = frozenset({"NoSchedule", "NoExecute"})
HEARD_WITHIN_S = 20.0
"""Events are heard at once; the next reading follows within ten seconds, and a faulty driver is slow."""
DEAF_S = 15.0
"""How long an agent may not listen after a driver reload: it reopens NVML some five seconds later."""
DOMAIN = "draco.dev/"


def disagreements(world: World) -> Iterator[Suspicion]:
    """Each fault that keeps claims away has its family's taint, and each such taint has a fault."""
    for node in world.gpu_nodes.values():
        faults = {gpu["uuid"]: gpu.get("faults") or [] for gpu in (node.get("status") or {}).get("gpus") or []}
        for device, published in world.published():
            part = part_now(world, device)
            if device.pool != name(node) or part is None or part.gpu not in faults:
                continue
            tainted = _tainted(published)
            for fault in faults[part.gpu]:
                partial = fault.get("instance") is not None and bool(part.slices)
                effect = TAINT_OF.get(fault["effect"])
                if effect in BLOCKING and not partial and fault["family"] not in tainted:
                    text = f"{device} has fault {fault['name']} with effect {fault['effect']}, and no taint for it"
                    yield Suspicion("fault not tainted", f"{device} {fault['name']}", text)
            known = {(fault["family"], TAINT_OF.get(fault["effect"])) for fault in faults[part.gpu]}
            for family, effects in tainted.items():
                if not any((family, effect) in known for effect in effects):
                    text = (
                        f"{device} is tainted {family}:{'/'.join(sorted(effects))}, and no fault of it has that effect"
                    )
                    yield Suspicion("taint without fault", f"{device} {family}", text)


def still_tainted(world: World) -> Iterator[Suspicion]:
    """After every board is healed, rebooted and returned to service, no device has a taint for a fault or maintenance."""
    for device, published in world.published():
        for taint in world.taints(device, published):
            family = taint["key"].removeprefix(DOMAIN)
            if taint["key"].startswith(DOMAIN) and family in FAMILIES | {"maintenance", "agent-lost"}:
                text = f"all is given back and healed, and {device} has the taint {taint['key']}:{taint['effect']}"
                yield Suspicion("still tainted", f"{device} {taint['key']}", text)


class Accident(NamedTuple):
    """An XID of a board, and how many seconds its agent has had to report it."""

    node: str
    uuid: str
    code: int
    counted_s: float


class Accidents:
    """Told of each XID that a listening agent can hear, and of what may keep the agent from reporting it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[Accident] = []
        self._reloaded: dict[str, float] = {}
        self.heard = 0

    def reloaded(self, node: str, now: float) -> None:
        """A node's driver may have been reloaded."""
        self._reloaded[node] = now

    def happened(self, node: str, uuid: str, code: int, now: float) -> None:
        """A board reports an XID."""
        if now - self._reloaded.get(node, -math.inf) >= DEAF_S:
            self._waiting.append(Accident(node, uuid, code, 0.0))

    def disturbed(self, node: str) -> None:
        """Something else happened to the node, or to all (""), so that pending XIDs need not be reported."""
        self._waiting = [each for each in self._waiting if node and each.node != node]

    def look(self, passed_s: float, is_up: Callable[[str], bool]) -> Iterator[Suspicion]:
        """XIDs that were not reported in time."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.code in self._told(each.node, each.uuid):
                self.heard += 1
                continue
            later = each._replace(counted_s=each.counted_s + (passed_s if is_up(each.node) else 0.0))
            if later.counted_s < HEARD_WITHIN_S:
                self._waiting.append(later)
                continue
            text = f"XID {each.code} of {each.uuid} on {each.node} is in no fault of its GpuNode after {HEARD_WITHIN_S:g} s"
            yield Suspicion("fault not heard", f"{each.node} {each.uuid} {each.code}", text)

    def _told(self, node: str, uuid: str) -> set[Any]:
        return {
            fault.get("code")
            for one in self._world.gpu_nodes.values()
            if name(one) == node
            for gpu in (one.get("status") or {}).get("gpus") or []
            if gpu["uuid"] == uuid
            for fault in gpu.get("faults") or []
        }


def _tainted(published: Object) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for taint in published.get("taints") or []:
        family = taint["key"].removeprefix(DOMAIN)
        if taint["key"].startswith(DOMAIN) and family in FAMILIES and taint["effect"] in BLOCKING:
            found.setdefault(family, set()).add(taint["effect"])
    return found
