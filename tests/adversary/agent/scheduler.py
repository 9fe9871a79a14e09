"""Claims, and the devices that kube-scheduler could allocate to them from a node's slices.

Owns which devices are free according to slices: names, counters, capacities, taints. It reads JSON and knows nothing of GPUs. As
kube-scheduler, it counts neither the holder of a whole device against its shares nor shares against a whole device.
"""

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
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
    consumed: Mapping[str, int] = {}
    """What a share has of each capacity."""
    limited: bool = False
    """Whether it was published that the driver holds shares of it to their memory."""


class Claim(msgspec.Struct, kw_only=True):
    """A claim, and what kubelet knows of it.

    `told`: kubelet was told that it is prepared. `unsure`: kubelet asked to prepare it and got no answer. `leaving`: it is being
    unprepared, and kubelet was not told that this is done. `gone`: its object was deleted. `parts` is the hardware that kubelet
    was told of, `boards` the board of each device when the scheduler chose it. `said`: NVIDIA's configurations. `blind`: no
    scheduler allocated it. `kept`: somebody may keep MPS daemons on the node.
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
    blind: bool = False
    kept: bool = False

    @property
    def uid(self) -> str:
        """The claim's UID."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, self.name))

    @property
    def pod_uid(self) -> str:
        """The UID of its pod, which has the same name."""
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name))

    @property
    def exclusive(self) -> dict[str, Part]:
        """The hardware that is its own, by device, or of which it has shares: all but administrative access."""
        admin = {one.device for one in self.results if one.admin}
        return {device: part for device, part in self.parts.items() if device not in admin}

    @property
    def shared(self) -> set[str]:
        """The devices of which it has shares."""
        return {one.device for one in self.results if one.share and not one.admin}

    @property
    def limits_mib(self) -> dict[str, int]:
        """The memory that the driver is to give the claim's containers, by device; its shares of one device add up."""
        limited = [one for one in self.results if one.limited and not one.admin]
        return {
            device: sum(each.consumed.get("memory", 0) for each in limited if each.device == device) >> 20
            for device in {one.device for one in limited}
        }

    @property
    def time_slices(self) -> dict[str, int]:
        """The time slice that it asks for on each of its whole GPUs. Administrative access changes nothing."""
        asked = configurations.time_slice(self.said)
        return {one.device: asked for one in self._whole if not one.admin}

    @property
    def must_be_refused(self) -> bool:
        """Whether its configurations forbid to prepare it."""
        admin = any(one.admin for one in self._whole)
        return configurations.must_be_refused(self.said, whole=bool(self._whole), admin=admin, kept=self.kept)

    @property
    def percentage(self) -> int | None:
        """The part of the threads that its clients of MPS have on its whole GPUs; None without MPS."""
        return configurations.percentage(self.said)

    @property
    def _whole(self) -> list[Result]:
        return [one for one in self.results if "-mig-" not in one.device]

    def object(self, pool: str) -> dict[str, Any]:
        """The claim as the API server has it, without device statuses."""
        results = [
            {"request": f"r{index}", "driver": DRIVER, "pool": pool, "device": one.device}
            | ({"adminAccess": True} if one.admin else {})
            | ({"shareID": one.share} if one.share else {})
            | ({"consumedCapacity": {name: str(much) for name, much in one.consumed.items()}} if one.consumed else {})
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

    def free(
        self, claims: Iterable[Claim], *, tolerant: bool, asked: Mapping[str, str] = MappingProxyType({})
    ) -> list[str]:
        """Names of the devices that a claim could be allocated, or shares of them of what it asks for."""
        given = held(claims)
        taken = {one.device for one in given if not one.share}
        counted = {one.device for one in given}
        left = {
            (each["name"], name): amount(counter["value"])
            for each in self.counters
            for name, counter in each["counters"].items()
        }
        for device in self.devices:
            if device["name"] in counted:
                for key, drawn in _drawn(device):
                    left[key] = left.get(key, 0) - drawn
        return [
            str(device["name"])
            for device in self.devices
            if (device.get("allowMultipleAllocations") or device["name"] not in taken)
            and self.consumption(device["name"], asked, given) is not None
            and (tolerant or not _tainted(device))
            and (
                (device.get("allowMultipleAllocations") and device["name"] in counted)
                or all(left.get(key, 0) >= drawn for key, drawn in _drawn(device))
            )
        ]

    def consumption(self, name: str, asked: Mapping[str, str], held: Iterable[Result]) -> dict[str, int] | None:
        """What a share of a device would have of each capacity, {} for one that a claim has alone; None if it does not fit."""
        device = self.device(name)
        if not device.get("allowMultipleAllocations"):
            return {}
        found = {}
        mine = [one.consumed for one in held if one.device == name]
        for what, capacity in device.get("capacity", {}).items():
            there = amount(capacity["value"])
            found[what] = _rounded(asked.get(what), capacity.get("requestPolicy"), there)
            if found[what] + sum(each.get(what, 0) for each in mine) > there:
                return None
        return found if asked.keys() <= found.keys() else None

    def device(self, name: str) -> Mapping[str, Any]:
        """The device of this name."""
        return next(each for each in self.devices if each["name"] == name)

    def limits(self, name: str) -> bool:
        """Whether it is published that the driver holds shares of a device to their memory."""
        limit = self.device(name)["attributes"].get("draco.dev/memoryLimit", {})
        return bool(limit.get("string") == "driver")

    def form(self, name: str) -> tuple[object, ...]:
        """How a device is published for claims; () if it is not."""
        found = [each for each in self.devices if each["name"] == name]
        return tuple(
            (bool(each.get("allowMultipleAllocations")), self.limits(name), *sorted(each.get("capacity", {})))
            for each in found
        )

    def names(self) -> list[str]:
        """Names of all devices."""
        return [str(device["name"]) for device in self.devices]

    def board(self, name: str) -> str:
        """UUID of the board that a device name stands for."""
        attributes = self.device(name)["attributes"]
        return str((attributes.get("parentUUID") or attributes["uuid"])["string"])


def held(claims: Iterable[Claim]) -> list[Result]:
    """What claims hold of devices."""
    return [one for claim in claims if not claim.gone for one in claim.results if not one.admin]


def _drawn(device: Mapping[str, Any]) -> list[tuple[tuple[str, str], int]]:
    return [
        ((drawn["counterSet"], name), amount(counter["value"]))
        for drawn in device.get("consumesCounters", ())
        for name, counter in drawn["counters"].items()
    ]


def _tainted(device: Mapping[str, Any]) -> bool:
    return any(taint["effect"] != "None" for taint in device.get("taints", ()))


def _rounded(asked: str | None, policy: Mapping[str, Any] | None, there: int) -> int:
    """What a request consumes: its default, or a multiple of the step from the minimum on; without a policy all of it."""
    if policy is None:
        return there
    if asked is None:
        return amount(policy["default"])
    within = policy["validRange"]
    least, step = amount(within["min"]), amount(within["step"])
    return least + max(0, -(-(amount(asked) - least) // step)) * step


def amount(quantity: str) -> int:
    """A quantity as a number."""
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi)?", quantity)
    if found is None:
        raise ValueError(quantity)
    return int(found[1]) * _UNITS[found[2] or ""]
