"""Orders the questions of namespaces: decides which one is answered next.

Owns the order and each namespace's budget of CPU time. The laws:

- What people wait for comes first (`QueuePriority`); among equally urgent questions, the namespace with the least usage.
- A namespace's budget refills by `refill` CPU seconds per second, up to `burst_s`. Without budget its questions wait, so that no
  namespace can monopolize the workers.
- Repeated questions (`AGAIN`) run only for namespaces with half their budget left, in one place, on at most half a CPU.
- At most `most` questions of a namespace wait at one priority; further ones are refused, without effect on others.
"""

from collections import OrderedDict
from collections.abc import Hashable
from enum import IntEnum
from typing import Final, Generic, TypeVar

import msgspec

T = TypeVar("T", bound=Hashable)


MOST_WAITING: Final = 256
"""Questions of one namespace with the same priority."""
_KEPT_NAMESPACES: Final = 32
"""Budgets kept without looking for full ones, because that search takes time."""


class QueuePriority(IntEnum):
    """The order of answering."""

    REVIEW = 0
    """Somebody writes a claim, and the API server waits."""
    FIRST = 1
    """A waiting pod has no explanation yet."""
    SEARCH = 2
    """Something could be moved out of the way."""
    AGAIN = 3
    """An explanation may be outdated."""


class _Namespace(msgspec.Struct):
    left_s: float
    """Budget left at `at_s`. May be negative: a question's cost is known only afterwards."""
    at_s: float
    served: int = 0


class FairQueue(Generic[T]):
    """Questions of namespaces. `now_s` is monotonic time."""

    def __init__(
        self, *, burst_s: float = 20.0, refill: float = 0.25, rest: float = 1.0, most: int = MOST_WAITING
    ) -> None:
        self._burst_s = burst_s
        self._refill = refill
        self._rest = rest
        self._most = most
        self._by_urgency: dict[QueuePriority, OrderedDict[str, OrderedDict[T, None]]] = {
            urgency: OrderedDict() for urgency in QueuePriority
        }
        self._namespaces: dict[str, _Namespace] = {}
        self._served = 0
        self._running_again = 0
        self._again_from_s = float("-inf")
        self._owed_s = 0.0  # the rest after the running ones

    def __len__(self) -> int:
        return sum(map(self.as_urgent, self._by_urgency))

    def put(self, item: T, namespace: str, urgency: QueuePriority) -> bool:
        """Queue the item. Return whether there was room."""
        waiting = self._by_urgency[urgency].setdefault(namespace, OrderedDict())
        if len(waiting) >= self._most:
            return False
        waiting[item] = None
        return True

    def put_back(self, item: T, namespace: str, urgency: QueuePriority) -> None:
        """Requeue an item that was taken and not started, as the first of its namespace."""
        waiting = self._by_urgency[urgency].setdefault(namespace, OrderedDict())
        waiting[item] = None
        waiting.move_to_end(item, last=False)

    def discard(self, item: T, namespace: str, urgency: QueuePriority) -> None:
        """Remove an item that nobody waits for; no effect if it is not queued."""
        waiting = self._by_urgency[urgency].get(namespace)
        if waiting is not None and item in waiting:
            del waiting[item]
            if not waiting:
                del self._by_urgency[urgency][namespace]

    def take(self, now_s: float, *, least_urgent: QueuePriority = QueuePriority.AGAIN) -> T | None:
        """Take the next item, if any may be answered now. `finished` reports its cost afterwards."""
        for urgency in self._by_urgency:
            if urgency > least_urgent:
                return None
            if urgency is QueuePriority.AGAIN and (self._running_again or now_s < self._again_from_s):
                continue
            if (item := self.take_behind(urgency, now_s)) is not None:
                return item
        return None

    def take_behind(self, urgency: QueuePriority, now_s: float) -> T | None:
        """Take another item of the same urgency, to be answered in the same place after the one just taken."""
        namespaces = self._by_urgency[urgency]
        allowed = [name for name in namespaces if self._left_s(name, now_s) > self._needed_s(urgency)]
        if not allowed:
            return None
        name = max(allowed, key=lambda each: (self._left_s(each, now_s), -self._namespaces[each].served))
        self._served += 1
        self._namespaces[name].served = self._served
        self._running_again += urgency is QueuePriority.AGAIN
        item, _ = namespaces[name].popitem(last=False)
        if not namespaces[name]:
            del namespaces[name]
        return item

    def as_urgent(self, urgency: QueuePriority) -> int:
        """How many equally urgent items wait."""
        return sum(map(len, self._by_urgency[urgency].values()))

    def hold(self, namespace: str, cpu_s: float, now_s: float) -> None:
        """Reserve CPU time for a running item; a negative time returns it."""
        self._left_s(namespace, now_s)
        self._namespaces[namespace].left_s -= cpu_s

    def finished(self, namespace: str, urgency: QueuePriority, cpu_s: float, now_s: float) -> None:
        """Charge an answered item's CPU time."""
        self.hold(namespace, cpu_s, now_s)
        if urgency is QueuePriority.AGAIN:
            self._running_again -= 1
            self._owed_s += self._rest * cpu_s
            if not self._running_again:
                self._again_from_s, self._owed_s = now_s + self._owed_s, 0.0
        self._forget(now_s)

    def may_ask(self, namespace: str, now_s: float) -> bool:
        """Whether the namespace has budget left."""
        return self._left_s(namespace, now_s) > 0

    def due_in_s(self, now_s: float) -> float | None:
        """Seconds until an item that waits for budget or a rest may be taken; None if there is none."""
        waits = []
        for urgency, namespaces in self._by_urgency.items():
            if urgency is QueuePriority.AGAIN and (self._running_again or not namespaces):
                continue
            rest_s = self._again_from_s - now_s if urgency is QueuePriority.AGAIN else 0.0
            for name in namespaces:
                short_s = self._needed_s(urgency) - self._left_s(name, now_s)
                waits.append(max(rest_s, short_s / self._refill, 0.0))
        return min(waits, default=None)

    def _needed_s(self, urgency: QueuePriority) -> float:
        return self._burst_s / 2 if urgency is QueuePriority.AGAIN else 0.0

    def _left_s(self, name: str, now_s: float) -> float:
        known = self._namespaces.get(name)
        if known is None:
            known = self._namespaces[name] = _Namespace(self._burst_s, now_s)
        known.left_s = min(self._burst_s, known.left_s + self._refill * (now_s - known.at_s))
        known.at_s = now_s
        return known.left_s

    def _forget(self, now_s: float) -> None:
        """A namespace with a full budget can be forgotten."""
        if len(self._namespaces) > _KEPT_NAMESPACES:
            waiting = {name for namespaces in self._by_urgency.values() for name in namespaces}
            for name in [name for name in self._namespaces if name not in waiting]:
                if self._left_s(name, now_s) >= self._burst_s:
                    del self._namespaces[name]
