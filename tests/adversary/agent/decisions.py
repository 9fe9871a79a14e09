"""An operator's decisions about the GPUs of a node, and the taints that the agent publishes for them.

Owns the GpuNode's spec, and the promise that a published device keeps a decided taint until an operator decides otherwise. A
GpuNode that is deleted, unreadable or empty decides nothing. Shares no code with the product.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tests.adversary.agent.scheduler import Published
from tests.adversary.agent.sickness import APPLICATION, Sickness, fenced

MAINTENANCE = "draco.dev/maintenance"
HANDED_OVER = "draco.dev/operator-allocated"
HEALTH = "draco.dev/xid"
"""The taint of an application's XID, if a policy demands one."""
FAULT = f"Xid{APPLICATION}"
KEYS = (MAINTENANCE, HANDED_OVER, HEALTH)

Kept = dict[str, frozenset[str]]
"""Taint keys by GPU UUID."""


class Decisions:
    """The decisions about one node."""

    def __init__(self) -> None:
        self.now: dict[str, set[str]] = {}
        """The taints that each GPU must have."""
        self._published: Kept = {}
        """The taints that all devices of a GPU had when they were last published."""
        self._taken_back: Kept = {}
        """The taints that an operator has removed since."""

    def spec(self, gpus: Collection[str]) -> dict[str, Any]:
        """The GpuNode's spec for these GPUs. From now on the agent may remove taints that are not in it."""
        for gpu in gpus:
            wanted = frozenset(self.now.get(gpu, ()))
            self._taken_back[gpu] = self._taken_back.get(gpu, frozenset()) | (frozenset(KEYS) - wanted)

        def having(key: str) -> list[str]:
            return sorted(gpu for gpu in gpus if key in self.now.get(gpu, ()))

        return {
            "decided": sorted(gpus),
            "operatorAllocated": having(HANDED_OVER),
            "isolated": [
                {"request": "r", "uuid": gpu, "key": MAINTENANCE, "effect": "NoSchedule"} for gpu in having(MAINTENANCE)
            ],
            "health": [{"uuid": gpu, "fault": FAULT, "policy": "p", "effect": "NoSchedule"} for gpu in having(HEALTH)],
        }

    def lost(self, keys: Iterable[str]) -> None:
        """These taints are on no record any more, so devices may lose them."""
        self._published = {gpu: kept - frozenset(keys) for gpu, kept in self._published.items()}

    def why_bare(self, published: Published, sickness: Sickness) -> str:
        """Names a device that lost a taint which no operator removed; "" if none did."""
        for gpu, devices in _by_gpu(published).items():
            kept = {key for key in self._published.get(gpu, ()) if key != HEALTH or sickness.has_heard(gpu)}
            for device in devices:
                lost = {key for key in kept if not _has(device, key)} - self._taken_back.get(gpu, frozenset())
                if lost:
                    return f"{device['name']} of {gpu} had {sorted(lost)} and is published without, which nobody has decided"
            have = frozenset(key for key in KEYS if all(_is_for(device, key) for device in devices))
            self._published[gpu] = have
            self._taken_back[gpu] = self._taken_back.get(gpu, frozenset()) - (have & frozenset(self.now.get(gpu, ())))
        return ""

    def why_not_heard(self, published: Published) -> str:
        """Names a device whose taints differ from the decisions that the agent has read; "" if none does."""
        for gpu, devices in _by_gpu(published).items():
            for device in devices:
                for key in (MAINTENANCE, HANDED_OVER):
                    if _has(device, key) is not (key in self.now.get(gpu, ())):
                        said = "taken back" if _has(device, key) else "decided"
                        return f"{key} of {device['name']} was {said}, and the agent publishes it as before"
        return ""


def _by_gpu(published: Published) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for device in published.devices:
        found.setdefault(published.board(device["name"]), []).append(device)
    return found


def _has(device: Mapping[str, Any], key: str) -> bool:
    """Whether a device has this taint. For HEALTH, any fault's taint counts."""
    if key == HEALTH:
        return fenced(device)
    return any(taint["key"] == key and taint["effect"] == "NoSchedule" for taint in device.get("taints", ()))


def _is_for(device: Mapping[str, Any], key: str) -> bool:
    """Whether a device has the taint because of the decision and not because of another fault."""
    if key != HEALTH:
        return _has(device, key)
    taints = device.get("taints", ())
    return any((each["key"], each.get("value"), each["effect"]) == (HEALTH, FAULT, "NoSchedule") for each in taints)
