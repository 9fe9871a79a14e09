"""What claims' device status says of usage: devices that nobody uses, and shares that are exceeded.

Owns the conditions and their texts, and whose status changes. `report.claim_status` writes them.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from draco.agent.mig.users import HeldDevice
from draco.agent.record.contents import PreparedClaim
from draco.agent.usage.findings import UsageFindings
from draco.agent.usage.reading import UsageReading
from draco.agent.usage.unused import held_devices
from draco.resources.api.meta import Condition
from draco.resources.names import CONDITION_MEMORY_EXCEEDED, CONDITION_UNUSED


class UsageConditions:
    """The conditions by claim and device, None before the first reading.

    A device unused for `after_s` is reported as such; 0: none is. `changed` is called with each claim whose conditions changed.
    """

    def __init__(
        self,
        findings: UsageFindings,
        *,
        after_s: float,
        changed: Callable[[PreparedClaim], None],
    ) -> None:
        self.known: Mapping[HeldDevice, Sequence[Condition]] | None = None
        self._findings = findings
        self._after = timedelta(seconds=after_s)
        self._changed = changed

    def read(self, reading: UsageReading) -> None:
        """Take over what was found in a reading."""
        found: dict[HeldDevice, list[Condition]] = {}
        for one, since in self._findings.unused.since_before(reading.at, self._after).items() if self._after else ():
            message = f"No program has used it since {since:%Y-%m-%d %H:%M} UTC."
            found.setdefault(one, []).append(_condition(CONDITION_UNUSED, "NoUse", message))
        for one, sentence in self._findings.exceeded.sentences.items():
            found.setdefault(one, []).append(_condition(CONDITION_MEMORY_EXCEEDED, "MoreThanShare", sentence))
        before, self.known = self.known, found
        changed = (
            {one.claim for one in held_devices(reading.claims)}
            if before is None
            else {one.claim for one in before.keys() | found.keys() if before.get(one) != found.get(one)}
        )
        for claim in reading.claims:
            if claim.uid in changed:
                self._changed(claim)


def _condition(name: str, reason: str, message: str) -> Condition:
    return Condition(type=name, status="True", reason=reason, message=message)
