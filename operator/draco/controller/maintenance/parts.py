"""What the reconciler of requests asks of those who drain devices and run Jobs.

Owns the protocols, and what Events about a request refer to. Each part reads and decides when it is looked at, and writes only
when it is told to carry that out.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Protocol

from draco.maintenance.progress import DrainState, JobsState, Purpose
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import ObjectReference
from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import DEVICE_MAINTENANCES
from draco.resources.names import DeviceKey


def request_reference(request: DeviceMaintenance) -> ObjectReference:
    """What Events about a request refer to."""
    return DEVICE_MAINTENANCES.reference(request.metadata)


class Drains(Protocol):
    """Makes pods leave devices."""

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Have `wake` called with the UID of every request whose draining a change may concern."""
        ...

    def look(
        self,
        request: DeviceMaintenance,
        devices: Collection[DeviceKey],
        claims: Sequence[ResourceClaim],
        rules: Sequence[DeviceTaintRule],
        *,
        now: datetime,
        paused: str,
    ) -> DrainState | None:
        """How draining `devices` goes; None where nobody is evicted. `paused` is the budget that forbids it, "" if none does."""
        ...

    async def carry_out(self, request: DeviceMaintenance, state: DrainState) -> float | None:
        """Ask the pods to leave that are to be asked now. Returns in how many seconds to look again. Raises ApiError."""
        ...

    def forget(self, uid: str) -> None:
        """The request is gone."""
        ...


class RunsJobs(Protocol):
    """Runs the Jobs of requests."""

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Have `wake` called with the UID of every request whose Jobs a change may concern."""
        ...

    def look(self, request: DeviceMaintenance, purpose: Purpose, *, now: datetime) -> JobsState | None:
        """How the Jobs of this purpose stand; None where the request asks for none."""
        ...

    def own_claims(self, request: DeviceMaintenance) -> frozenset[ObjectKey]:
        """Claims of the request's own Jobs."""
        ...

    async def make(self, request: DeviceMaintenance, purpose: Purpose, state: JobsState) -> None:
        """Make the Jobs that are missing. Raises ApiError."""
        ...

    async def stop(self, request: DeviceMaintenance) -> None:
        """Delete the request's Jobs, their pods first. Raises ApiError."""
        ...
