"""What follows from the readings of usage: unused devices, exceeded shares, and hours held.

Owns their order: hours are counted after it is known what is unused.
"""

from typing import Final

from draco.agent.usage.exceeded import ExceededShares
from draco.agent.usage.held_hours import HeldHours
from draco.agent.usage.reading import UsageReading
from draco.agent.usage.unused import UnusedDevices


class UsageFindings:
    """The findings of one node."""

    def __init__(self) -> None:
        self.unused: Final = UnusedDevices()
        self.exceeded: Final = ExceededShares()
        self.held: Final = HeldHours(self.unused)

    def read(self, reading: UsageReading) -> None:
        """Bring all of them up to date."""
        self.unused.read(reading)
        self.exceeded.read(reading)
        self.held.read(reading)
