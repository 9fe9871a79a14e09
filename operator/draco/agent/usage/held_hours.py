"""How long namespaces hold devices, and use them, by day: what `draco waste` adds up.

A device that several claims share is held by each for its part of the memory or, where claims ask for none, in equal parts. So a
device is never held for more than the time that passes. Time without a reading is counted for nobody. Pure; the totals are kept
in the GpuUsage, from which the next agent takes them over.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from draco.agent.mig.users import HeldDevice
from draco.agent.usage.exceeded import asked_memory
from draco.agent.usage.names import resource_name
from draco.agent.usage.reading import UsageReading
from draco.agent.usage.unused import UnusedDevices, held_devices
from draco.resources.api.usage import HeldTime

LONGEST_S: Final = 60.0
"""A longer time between two readings is a gap: nobody knows what was used."""
DAYS: Final = 31
MOST_A_DAY: Final = 32
"""Namespaces and resources of one day that are told apart; the others are counted together."""


class _Account(NamedTuple):
    day: str
    namespace: str
    resource: str


class HeldHours:
    """The totals of one node, in seconds."""

    def __init__(self, unused: UnusedDevices) -> None:
        self._unused = unused
        self._held: defaultdict[_Account, float] = defaultdict(float)
        self._used: defaultdict[_Account, float] = defaultdict(float)
        self._last_s: float | None = None

    def restore(self, said: Iterable[HeldTime]) -> None:
        """Take over what the last agent counted."""
        for one in said:
            account = _Account(one.day, one.namespace, one.resource)
            self._held[account] += one.held_seconds
            self._used[account] += one.used_seconds

    def read(self, reading: UsageReading) -> None:
        """Count the time since the last reading."""
        passed_s = 0.0 if self._last_s is None else reading.at_s - self._last_s
        self._last_s = reading.at_s
        if not 0 < passed_s <= LONGEST_S:
            return
        devices = {one.uuid: one for one in reading.devices}
        gpus = {gpu.uuid: gpu for gpu in reading.gpus}
        claims = {one.uid: one for one in reading.claims}
        held: set[HeldDevice] = {one for one in held_devices(reading.claims) if one.uuid in devices}
        asked = asked_memory(reading.claims)
        sharers = Counter(one.uuid for one in held)
        for one in held:
            device = devices[one.uuid]
            resource = resource_name(gpus[device.gpu], device)
            account = self._account(reading.at, claims[one.claim].namespace, resource)
            memory, total = asked.get(one, 0), device.total_bytes
            part_s = passed_s * min(1.0, memory / total) if memory and total else passed_s / sharers[one.uuid]
            self._held[account] += part_s
            if one not in self._unused.since:
                self._used[account] += part_s
        self._forget(reading.at)

    def reported(self) -> list[HeldTime]:
        """The totals in whole seconds, the oldest day first."""
        return [
            HeldTime(
                day=one.day,
                namespace=one.namespace,
                resource=one.resource,
                held_seconds=round(seconds),
                used_seconds=round(self._used.get(one, 0.0)),
            )
            for one, seconds in sorted(self._held.items())
        ]

    def _account(self, at: datetime, namespace: str, resource: str) -> _Account:
        wanted = _Account(at.astimezone(UTC).date().isoformat(), namespace, resource)
        if wanted in self._held or sum(one.day == wanted.day for one in self._held) < MOST_A_DAY:
            return wanted
        return wanted._replace(namespace="", resource="")

    def _forget(self, at: datetime) -> None:
        first = (at.astimezone(UTC).date() - timedelta(days=DAYS - 1)).isoformat()
        for one in [one for one in self._held if one.day < first]:
            del self._held[one]
            self._used.pop(one, None)
