"""Devices that claims hold and nobody uses, and since when.

A device is used while a kernel of the claim's processes runs on it or, where the driver does not tell that (MIG before Hopper),
while a process of the claim is there. What cannot be attributed may be of any claim of the device. Administrative access uses
nothing.
Pure: a reading comes in, and `UnusedDevices` remembers since when.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from draco.agent.mig.users import HeldDevice, device_uuid
from draco.agent.record.contents import PreparationState, PreparedClaim
from draco.agent.usage.reading import UsageReading
from draco.resources.api.usage import GpuUsageStatus, UnusedDevice
from draco.resources.names import ClaimUid

REPORTED_AFTER: Final = timedelta(minutes=5)
"""A shorter pause is not reported: many programs pause."""
FORGOTTEN_AFTER: Final = timedelta(minutes=15)
"""A longer gap between two readings of a device counts as use, also that of an agent's restart."""


class UnusedDevices:
    """The devices of one node, each with the time since when it is unused."""

    def __init__(self) -> None:
        self.since: Mapping[HeldDevice, datetime] = {}
        self._seen: Mapping[HeldDevice, datetime] = {}  # when each was last read

    def restore(self, said: GpuUsageStatus, now: datetime) -> None:
        """Take over what the last agent knew."""
        if said.time is not None and now - said.time <= FORGOTTEN_AFTER:
            self.since = {HeldDevice(ClaimUid(one.claim_uid), one.uuid): one.since for one in said.unused}
            self._seen = dict.fromkeys(self.since, said.time)

    def read(self, reading: UsageReading) -> None:
        """Compare with a reading. A device that could not be read stays as it was for a while."""
        held = held_devices(reading.claims)
        read = {one.uuid for one in reading.devices}
        used = set(_used(reading, held))
        lately = {one for one, at in self._seen.items() if reading.at - at <= FORGOTTEN_AFTER}
        self.since = MappingProxyType(
            {
                one: self.since.get(one, reading.at) if one in lately else reading.at
                for one in held - used
                if one.uuid in read or (one in lately and one in self.since)
            }
        )
        self._seen = {
            one: reading.at if one.uuid in read else self._seen[one]
            for one in held
            if one.uuid in read or one in lately
        }

    def reported(self, reading: UsageReading) -> list[UnusedDevice]:
        """What the GpuUsage says of them."""
        claims = {one.uid: one for one in reading.claims}
        return [
            UnusedDevice(
                uuid=one.uuid,
                namespace=claims[one.claim].namespace,
                claim=claims[one.claim].name,
                claim_uid=one.claim,
                since=since.replace(microsecond=0),
            )
            for one, since in sorted(self.since_before(reading.at, REPORTED_AFTER).items())
        ]

    def since_before(self, now: datetime, shortest: timedelta) -> Mapping[HeldDevice, datetime]:
        """Those that have been unused for at least that time."""
        return {one: since for one, since in self.since.items() if now - since >= shortest}


def held_devices(claims: Iterable[PreparedClaim]) -> set[HeldDevice]:
    """The devices that prepared claims hold, without administrative access."""
    return {
        HeldDevice(claim.uid, device_uuid(device))
        for claim in claims
        if claim.state is PreparationState.PREPARED
        for device in claim.devices
        if not device.admin
    }


def _used(reading: UsageReading, held: Iterable[HeldDevice]) -> Iterable[HeldDevice]:
    """The devices that are used, or may be."""
    by_uuid: dict[str, list[HeldDevice]] = {}
    for one in held:
        by_uuid.setdefault(one.uuid, []).append(one)
    for device in reading.devices:
        if device.instance is not None and device.utilization and not device.processes:
            yield from by_uuid.get(device.uuid, [])  # by a process that the driver does not list
    for use in reading.uses:
        if use.processes and use.utilization != 0:
            own = [HeldDevice(one.uid, use.device.uuid) for one in use.claims]
            yield from own or by_uuid.get(use.device.uuid, [])
