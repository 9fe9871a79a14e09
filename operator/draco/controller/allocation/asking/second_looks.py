"""A net below the wake-ups: what was decided more than a minute ago is decided again, and is to come out the same.

A group that waits is asked about when something changes that its answer rests on, and when a time has come. Should one of these
be missing, or a wake-up be lost, it would wait for ever. So the allocator looks again after a minute without a reason, and asks
again about who found no place though something is free. If that finds anything to do, Draco has a fault: it is logged with what
was known then and now, and counted, and tests hold the count at 0. Owns the minute and the count. Wakes nobody for anything else.
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
    """Of the one decision that follows the other."""

    def __init__(self, view: ClusterView, *, count: Counter) -> None:
        self._view = view
        self._count = count
        self._is_woken = True
        """Whether something has changed since the look began that goes on, or else the last one."""
        self._began_s = self._due_s = float("-inf")
        self._reason_s = float("-inf")
        """From when on there is a reason for the look that goes on."""

    def woken(self, wake: Callable[[], None]) -> Callable[..., None]:
        """What to call instead of `wake`, so that it is known that there is a reason to look."""

        def called(*_: object) -> None:
            self._is_woken = True
            wake()

        return called

    def begin(self) -> None:
        """A look begins: because something has changed, because a time has come, or without a reason."""
        self._began_s = self._view.clock.monotonic()
        self._reason_s = self._began_s if self._is_woken else self._due_s
        self._is_woken, self._due_s = False, float("-inf")  # what fails is tried again for that reason

    def end(self, again_s: float) -> float | None:
        """The look has ended, and there is a reason for the next in so many seconds. Returns in how many to look, or None."""
        self._due_s = self._began_s + again_s  # at the earliest: what it was found from may be as old as the look
        waits = bool(self._view.claims.store.by_index(UNALLOCATED, True))
        again_s = min(again_s, SECOND_LOOK_S) if waits else again_s
        return None if again_s == float("inf") else again_s

    def is_anything_free(self, owned: Iterable[GpuPlace]) -> bool:
        """Whether any device of these GPUs is published and nobody's. Of GPUs that are divided some may fit nowhere."""
        owned = frozenset(owned)
        for pool in {each.pool_key for each in owned}:
            for item in self._view.current_slices_of(pool):
                for device in item.spec.devices:
                    key = DeviceKey(pool.driver, pool.pool, device.name)
                    if GpuPlace.of(key) in owned and not self._view.claims.store.by_index(BY_DEVICE, key):
                        return True
        return False

    def due(self, groups: Iterable[str], basis: Basis) -> None:
        """These groups are to be asked about now, as nobody has yet, or as something has changed since."""
        # A change, or the end of a pause, that this look has met on its way is a reason for it as well.
        has_reason = self._is_woken or self._view.clock.monotonic() >= self._reason_s
        if not has_reason and (found := list(groups)):
            self._count.inc()
            log.warning("allocation.not_woken", groups=found, known=str(basis))

    def found(self, group: str, devices: Iterable[DeviceKey], before: NoPlace, basis: Basis) -> None:
        """A group has found a place though all that its last answer rests on is as it was."""
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
