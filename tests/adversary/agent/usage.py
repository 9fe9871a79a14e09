"""The agent machine's layer of usage: what the GpuUsage says of users and of hours held.

Owns the checks. Processes are started and ended in `claims`.
"""

from collections.abc import Callable

from tests.adversary.agent.limits import MemoryLimits
from tests.adversary.agent.node import fired


class UsageReports(MemoryLimits):
    """Checks of the GpuUsage."""

    def __init__(self) -> None:
        super().__init__()
        self.hours: dict[tuple[str, str, str], tuple[int, int]] = {}
        """The seconds held and used of each day, namespace and resource, as reported last."""

    def hours_never_decrease(self) -> None:
        """What has been counted is never lost, whichever agent counts."""
        there = self.source.gpu_usage
        if there is None:
            return
        found = {(one.day, one.namespace, one.resource): one for one in there.status.held}
        for key, (held, used) in self.hours.items():
            one = found.get(key)
            fired["hours counted"] += one is not None and one.held_seconds > held
            is_kept = one is not None and one.held_seconds >= held and one.used_seconds >= used
            assert is_kept, f"{key} had {held} s, {used} s of them used, and now {one}"
        self.hours = {key: (one.held_seconds, one.used_seconds) for key, one in found.items()}

    def _laws_at_rest(self) -> list[Callable[[], None]]:
        reports = self._works() and self._is_reported() and not self.source.slow_s
        return [*super()._laws_at_rest(), *([self.check_usage] if reports else [])]

    def check_usage(self) -> None:
        """At rest nobody is reported as a user by a claim that is gone, and no process that has ended is counted."""
        there = self.source.gpu_usage
        assert there is not None, "nobody makes the GpuUsage"
        known = {claim.name for claim in self.claims.values() if claim.told or claim.unsure or claim.leaving}
        processes = [one for gpu in self._hardware()["gpus"] for one in gpu["processes"] if one["listed"]]
        for user in there.status.users:
            fired["user at rest"] += 1
            assert not user.claim or user.claim in known, (
                f"{user.claim} is reported as a user of {user.uuid}, and is gone"
            )
        counted = sum(user.processes for user in there.status.users)
        assert counted <= len(processes), f"{counted} processes are reported, and there are {len(processes)}"
