"""Chooses the group to keep devices for if it finds no place: the one that has been servable for too long.

Owns this choice. A group's time starts when it was complete, became complete, or a limit began to permit it, whichever is latest.
The first is recorded in the cluster; the others are in memory, so a new leader may treat a group that a limit held back as
overdue too early. The first overdue group of a priority is chosen, but never one of lower priority than a group that could find a
place. Keeps nothing free itself.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from draco.controller.allocation.waiting_group import WaitingGroup
from draco.kube.clock import Clock


class OverdueGroups:
    """Tracks groups by UID."""

    def __init__(self, *, clock: Clock, overdue_s: float) -> None:
        self._clock = clock
        self._overdue_s = overdue_s
        self._unready: set[str] = set()
        self._limited: set[str] = set()
        self._since: dict[str, datetime] = {}
        """When an obstacle of the group was first seen to be gone."""

    def look(self, waiting: Iterable[WaitingGroup]) -> None:
        """Note which groups are complete. Forget those that no longer wait."""
        uids = set[str]()
        for each in waiting:
            uids.add(each.uid)
            if each.unready:
                self._unready.add(each.uid)
            else:
                self._let_go(self._unready, each.uid)
        self._unready &= uids
        self._limited &= uids
        self._since = {uid: since for uid, since in self._since.items() if uid in uids}

    def limited(self, uids: Iterable[str]) -> None:
        """Record that a DeviceLimit forbids these groups any device."""
        self._limited.update(uids)

    def permitted(self, uids: Iterable[str]) -> None:
        """Record that no limit stops these groups, as far as is known before they have a place."""
        for uid in uids:
            self._let_go(self._limited, uid)

    def head(self, groups: Mapping[str, WaitingGroup], may_find_place: Callable[[str], bool]) -> tuple[str, float]:
        """The UID of the group to keep devices for, or ""; and seconds until another may be overdue. `groups` is in order."""
        now, urgency, next_s = self._clock.now(), None, float("inf")
        for uid, each in groups.items():
            if uid in self._limited or not may_find_place(uid):
                continue
            if urgency is None:
                urgency = each.order[0]
            elif each.order[0] != urgency:
                break
            since = max(filter(None, [each.since, self._since.get(uid)]), default=None)
            if since is None:
                continue
            left_s = self._overdue_s - (now - since).total_seconds()
            if left_s <= 0:
                return uid, next_s
            next_s = min(next_s, left_s)
        return "", next_s

    def _let_go(self, held: set[str], uid: str) -> None:
        if uid in held:
            held.remove(uid)
            self._since[uid] = self._clock.now()
