"""Claims, and the devices that kube-scheduler could allocate to them from a node's slices.

Owns which devices are free according to slices: names, counters, taints. It reads JSON and knows nothing of GPUs.
"""

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tests.adversary.agent import configurations
from tests.adversary.agent.configurations import Said
from tests.adversary.agent.observer import Part

DRIVER = "gpu.nvidia.com"
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


class Result(msgspec.Struct, frozen=True):
    """One device of an allocation."""

    device: str
    admin: bool = False
    share: str = ""


class Claim(msgspec.Struct, kw_only=True):
    """A claim, and what kubelet knows of it.

    `told`: kubelet was told that it is prepared. `unsure`: kubelet asked to prepare it and got no answer. `leaving`: it is being
    unprepared, and kubelet was not told that this is done. `gone`: its object was deleted. `parts` is the hardware that kubelet
    was told of, `boards` the board of each device when the scheduler chose it. `said`: NVIDIA's configurations.
    """

    name: str
    results: list[Result]
    told: bool = False
    unsure: bool = False
    leaving: bool = False
    gone: bool = False
    parts: dict[str, Part] = {}
    boards: dict[str, str] = {}
    said: Said = ()

    @property
    def uid(self) -> str:
        """The claim's UID."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, self.name))

    @property
    def pod_uid(self) -> str:
        """The UID of its pod, which has the same name."""
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name))

    @property
    def exclusive(self) -> list[Part]:
        """The hardware that it does not share: all but administrative access."""
        admin = {one.device for one in self.results if one.admin}
        return [part for device, part in self.parts.items() if device not in admin]

    @property
    def time_slices(self) -> dict[str, int]:
        """The time slice that it asks for on each of its whole GPUs. Administrative access changes nothing."""
        asked = configurations.time_slice(self.said)
        return {one.device: asked for one in self._whole if not one.admin}

    @property
    def must_be_refused(self) -> bool:
        """Whether its configurations forbid to prepare it."""
        admin = any(one.admin for one in self._whole)
        return configurations.must_be_refused(self.said, whole=bool(self._whole), admin=admin)

    @property
    def _whole(self) -> list[Result]:
        return [one for one in self.results if "-mig-" not in one.device]

    def object(self, pool: str) -> dict[str, Any]:
        """The claim as the API server has it, without device statuses."""
        results = [
            {"request": f"r{index}", "driver": DRIVER, "pool": pool, "device": one.device}
            | ({"adminAccess": True} if one.admin else {})
            | ({"shareID": one.share} if one.share else {})
            for index, one in enumerate(self.results)
        ]
        return {
            "metadata": {"name": self.name, "namespace": "default", "uid": self.uid},
            "spec": {"devices": {"requests": [{"name": one["request"]} for one in results]}},
            "status": {
                "allocation": {"devices": {"results": results, "config": configurations.as_json(self.said, DRIVER)}},
                "reservedFor": [{"resource": "pods", "name": self.name, "uid": self.pod_uid}],
            },
        }


class Published(msgspec.Struct, frozen=True):
    """A pool at one moment: devices and counter sets, as JSON."""

    devices: Sequence[Mapping[str, Any]]
    counters: Sequence[Mapping[str, Any]]

    def free(self, claims: Iterable[Claim], *, tolerant: bool) -> list[str]:
        """Names of the devices that a claim could be allocated."""
        taken = {one.device for claim in claims if not claim.gone for one in claim.results if not one.admin}
        left = {
            (each["name"], name): _amount(counter["value"])
            for each in self.counters
            for name, counter in each["counters"].items()
        }
        for device in self.devices:
            if device["name"] in taken:
                for key, amount in _drawn(device):
                    left[key] = left.get(key, 0) - amount
        return [
            str(device["name"])
            for device in self.devices
            if device["name"] not in taken
            and (tolerant or not _tainted(device))
            and all(left.get(key, 0) >= amount for key, amount in _drawn(device))
        ]

    def names(self) -> list[str]:
        """Names of all devices."""
        return [str(device["name"]) for device in self.devices]

    def board(self, name: str) -> str:
        """UUID of the board that a device name stands for."""
        device = next(each for each in self.devices if each["name"] == name)
        attributes = device["attributes"]
        return str((attributes.get("parentUUID") or attributes["uuid"])["string"])


def _drawn(device: Mapping[str, Any]) -> list[tuple[tuple[str, str], int]]:
    return [
        ((drawn["counterSet"], name), _amount(counter["value"]))
        for drawn in device.get("consumesCounters", ())
        for name, counter in drawn["counters"].items()
    ]


def _tainted(device: Mapping[str, Any]) -> bool:
    return any(taint["effect"] != "None" for taint in device.get("taints", ()))


def _amount(quantity: str) -> int:
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi)?", quantity)
    if found is None:
        raise ValueError(quantity)
    return int(found[1]) * _UNITS[found[2] or ""]
