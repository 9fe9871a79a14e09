"""Reports why groups wait: once per cause, in an Event on the group's first pod.

Owns which causes were reported, and how long a group may be incomplete before that is reported. Finds no causes.
"""

from collections.abc import Collection, Iterable

import structlog

from draco.controller.allocation.waiting_group import WaitingGroup
from draco.kube.clock import Clock
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.resources.kinds import CLAIMS, PODS

log = structlog.get_logger(__name__)

WAITING_REASON = EventReason("GroupWaiting", "Allocating", "Warning")


class GroupNotes:
    """The reports by group."""

    def __init__(self, events: EventRecorder, *, clock: Clock, tell_after_s: float) -> None:
        self._events = events
        self._clock = clock
        self._tell_after_s = tell_after_s
        self._said: dict[str, str] = {}
        self._unready_since: dict[str, float] = {}

    def forget_others(self, uids: Collection[str]) -> None:
        """Forget groups that no longer wait."""
        self._said = {uid: why for uid, why in self._said.items() if uid in uids}

    def tell_unready(self, waiting: Iterable[WaitingGroup]) -> float:
        """Report groups that have been incomplete for a while. Return seconds until there may be more to report."""
        now_s = self._clock.monotonic()
        unready = {each.uid: each for each in waiting if each.unready}
        self._unready_since = {uid: self._unready_since.get(uid, now_s) for uid in unready}
        next_s = float("inf")
        for uid, each in unready.items():
            left_s = self._unready_since[uid] + self._tell_after_s - now_s
            if left_s <= 0:
                self.tell(each, each.unready)
            else:
                next_s = min(next_s, left_s)
        return next_s

    def tell(self, waiting: WaitingGroup, why: str) -> None:
        """Report why a group waits, unless that was its last report."""
        if self._said.get(waiting.uid) == why:
            return
        self._said[waiting.uid] = why
        member = waiting.group.members[0]
        regarding = (
            PODS.reference(member.pods[0].metadata) if member.pods else CLAIMS.reference(member.claims[0].metadata)
        )
        log.info("allocation.group_waits", group=waiting.group.name, why=why)
        self._events.record(regarding, WAITING_REASON, why)
