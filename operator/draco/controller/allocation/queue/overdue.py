"""For which group devices are kept, should it find no place: the one that could have been served for too long.

Owns that choice. A group counts from when it was whole, or from when it was seen to become so or a limit to permit it, where that
is later; the first is what the cluster records, and the rest is kept in memory, so a new leader may find a group overdue sooner
that a limit has held back. Among groups of one priority the first that is overdue is chosen, and never one of a lower priority
than another that could find a place. Keeps nothing free itself.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from draco.controller.allocation.waiting_group import WaitingGroup
from draco.kube.clock import Clock


class OverdueGroups:
    """By the UIDs of groups."""

    def __init__(self, *, clock: Clock, overdue_s: float) -> None:
        self._clock = clock
        self._overdue_s = overdue_s
        self._unready: set[str] = set()
        self._limited: set[str] = set()
        self._since: dict[str, datetime] = {}
        """When something was seen to be no longer in a group's way."""

    def look(self, waiting: Iterable[WaitingGroup]) -> None:
        """See which groups are whole. Those that do not wait any more are forgotten."""
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
        """A DeviceLimit forbids these groups to take anything."""
        self._limited.update(uids)

    def permitted(self, uids: Iterable[str]) -> None:
        """No limit is in the way of these, as far as is known before they have a place."""
        for uid in uids:
            self._let_go(self._limited, uid)

    def head(self, groups: Mapping[str, WaitingGroup], may_find_place: Callable[[str], bool]) -> tuple[str, float]:
        """The group for which devices are kept; "" if there is none. `groups` are in their order.

        Returns also in how many seconds another may be overdue.
        """
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
