"""Safety net below the wake-ups: repeats decisions older than a minute and expects the same result.

A waiting group is asked about when its basis changes or a timer fires. A missing dependency or a lost wake-up would leave it
waiting forever. So the allocator looks again after a minute without a reason, and asks again about groups without a place while a
device is free. Anything to do then is a bug in Draco: it is logged with what was known then and now, and counted; tests require a
count of 0. Owns the minute and the count. Triggers nothing else.
"""

from collections.abc import Callable, Iterable

import structlog
from prometheus_client import Counter

from draco.allocation.ownership.handover import GpuPlace
from draco.controller.allocation.asking.basis import Basis
from draco.controller.allocation.asking.schedule import SECOND_LOOK_S, NoPlace
from draco.controller.view import BY_DEVICE, UNALLOCATED, ClusterView
from draco.resources.names import DeviceKey

log = structlog.get_logger(__name__)


class SecondLooks:
    """Detects decisions that no wake-up triggered."""

    def __init__(self, view: ClusterView, *, count: Counter) -> None:
        self._view = view
        self._count = count
        self._is_woken = True
        """Whether something has changed since the current, or else the last, look began."""
        self._began_s = self._due_s = float("-inf")
        self._reason_s = float("-inf")
        """Monotonic time from which the current look has a reason."""

    def woken(self, wake: Callable[[], None]) -> Callable[..., None]:
        """Wrap `wake` so that the call is recorded as a reason to look."""

        def called(*_: object) -> None:
            self._is_woken = True
            wake()

        return called

    def begin(self) -> None:
        """Start a look: for a change, a timer, or without a reason."""
        self._began_s = self._view.clock.monotonic()
        self._reason_s = self._began_s if self._is_woken else self._due_s
        self._is_woken, self._due_s = False, float("-inf")  # a failed look is retried for the same reason

    def end(self, again_s: float) -> float | None:
        """End a look; `again_s` is when the next has a reason. Return seconds until the next look, or None."""
        self._due_s = self._began_s + again_s  # counted from the start of the look, which may have read data that old
        waits = bool(self._view.claims.store.by_index(UNALLOCATED, True))
        again_s = min(again_s, SECOND_LOOK_S) if waits else again_s
        return None if again_s == float("inf") else again_s

    def is_anything_free(self, owned: Iterable[GpuPlace]) -> bool:
        """Whether any published device of these GPUs is unallocated or shared. It may still fit nowhere, or be used up."""
        owned = frozenset(owned)
        for pool in {each.pool_key for each in owned}:
            for item in self._view.current_slices_of(pool):
                for device in item.spec.devices:
                    key = DeviceKey(pool.driver, pool.pool, device.name)
                    is_open = device.allow_multiple_allocations or not self._view.claims.store.by_index(BY_DEVICE, key)
                    if is_open and GpuPlace.of(key) in owned:
                        return True
        return False

    def due(self, groups: Iterable[str], basis: Basis) -> None:
        """Check that there is a reason to ask about these groups, which are new or whose basis has changed."""
        # A change or timer that occurred during the look is a reason, too.
        has_reason = self._is_woken or self._view.clock.monotonic() >= self._reason_s
        if not has_reason and (found := list(groups)):
            self._count.inc()
            log.warning("allocation.not_woken", groups=found, known=str(basis))

    def found(self, group: str, devices: Iterable[DeviceKey], before: NoPlace, basis: Basis) -> None:
        """Report a group that found a place though its basis has not changed."""
        self._count.inc()
        log.warning(
            "allocation.late",
            group=group,
            devices=[f"{each.pool}/{each.device}" for each in devices],
            known=str(basis),
            before_s=round(self._view.clock.monotonic() - before.at_s, 1),
            said=before.why_not,
            known_then=str(before.basis),
        )
