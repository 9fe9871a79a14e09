"""Shares of a device's memory that claims exceed: their programs use more than the claim asked for.

Pure: a reading comes in, and `ExceededShares` remembers the sentence of each excess, so that figures which move change nothing.
Knows nothing of who enforces a share: where the driver or MPS does, no claim exceeds it.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from draco.agent.mig.users import HeldDevice, device_uuid
from draco.agent.record.contents import PreparationState, PreparedClaim
from draco.agent.usage.attribution import ContainerUse
from draco.agent.usage.reading import UsageReading
from draco.resources.quantity import Quantity

_GIB = 1 << 30


class ExceededShares:
    """The exceeded shares of one node, each with its sentence."""

    def __init__(self) -> None:
        self.sentences: Mapping[HeldDevice, str] = {}

    def read(self, reading: UsageReading) -> None:
        """Compare with a reading. A share of a device that could not be read stays as it was."""
        seen = {one.uuid for one in reading.devices}
        asked = asked_memory(reading.claims)
        uses: dict[HeldDevice, list[ContainerUse]] = {}
        for use in reading.uses:
            if use.claim is not None and use.processes:
                uses.setdefault(HeldDevice(use.claim.uid, use.device.uuid), []).append(use)
        found = {}
        for one, most in asked.items():
            used = sum(use.memory_bytes or 0 for use in uses.get(one, ()))
            if used > most or (one.uuid not in seen and one in self.sentences):
                found[one] = self.sentences.get(one) or _sentence(most, uses[one])
        self.sentences = MappingProxyType(found)


def asked_memory(claims: Sequence[PreparedClaim]) -> dict[HeldDevice, int]:
    """The bytes that claims with shares by memory asked for, by device. Several shares of one device add up."""
    found: dict[HeldDevice, int] = {}
    for claim in claims:
        for device in claim.devices if claim.state is PreparationState.PREPARED else ():
            memory = Quantity.read(device.consumed.get("memory", ""))
            if device.share_id and not device.admin and memory is not None and memory.nanos > 0:
                held = HeldDevice(claim.uid, device_uuid(device))
                found[held] = found.get(held, 0) + memory.nanos // 10**9
    return found


def _sentence(most: int, uses: Sequence[ContainerUse]) -> str:
    greedy = max(uses, key=lambda use: use.memory_bytes or 0)
    container = f"container {greedy.place.name} of " if greedy.place.name else ""
    return (
        f"Its programs use more memory than the {most / _GIB:.4g}Gi that the claim asked for. "
        f"Most of it is used in {container}pod {greedy.pod}, by process {greedy.largest}."
    )
