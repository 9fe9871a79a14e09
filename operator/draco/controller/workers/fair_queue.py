"""Orders the questions of namespaces: decides which one is answered next.

Owns the order and each namespace's budget of CPU time. The laws:

- What people wait for comes first (`QueuePriority`), and of equally urgent questions that of the namespace which has used least.
- A namespace's budget fills up by `refill` CPU seconds each second, to `burst_s` at most. While it has none left, its questions
  wait, so that nobody has the workers to himself by asking for ever.
- What was answered before is answered again only for namespaces with half of their budget left, in one place at a time, and all
  of that together takes half of one processor at most.
- No more than `most` questions of a namespace wait with the same priority: who asks more is refused, and nobody else notices.
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
"""Budgets that are kept at least, though some may be whole again: to look for those takes time."""


class QueuePriority(IntEnum):
    """What is answered first."""

    REVIEW = 0
    """Somebody writes a claim, and the API server waits."""
    FIRST = 1
    """Nothing has been said yet of a pod that waits."""
    SEARCH = 2
    """Something could be moved out of the way."""
    AGAIN = 3
    """What is said may not be so any more."""


class _Namespace(msgspec.Struct):
    left_s: float
    """Of its budget, at `at_s`. May be less than none: what a question takes is known afterwards."""
    at_s: float
    served: int = 0


class FairQueue(Generic[T]):
    """Questions of namespaces. `now_s` is monotonic time; it never goes back."""

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
        self._owed_s = 0.0  # the rest after those that are running

    def __len__(self) -> int:
        return sum(map(self.as_urgent, self._by_urgency))

    def put(self, item: T, namespace: str, urgency: QueuePriority) -> bool:
        """Have it wait for its turn. Whether there was room for it."""
        waiting = self._by_urgency[urgency].setdefault(namespace, OrderedDict())
        if len(waiting) >= self._most:
            return False
        waiting[item] = None
        return True

    def put_back(self, item: T, namespace: str, urgency: QueuePriority) -> None:
        """It was taken and not begun: it is the first of its namespace again, and keeps its place in the queue."""
        waiting = self._by_urgency[urgency].setdefault(namespace, OrderedDict())
        waiting[item] = None
        waiting.move_to_end(item, last=False)

    def discard(self, item: T, namespace: str, urgency: QueuePriority) -> None:
        """Nobody waits for it any more; nothing happens if it does not wait here."""
        waiting = self._by_urgency[urgency].get(namespace)
        if waiting is not None and item in waiting:
            del waiting[item]
            if not waiting:
                del self._by_urgency[urgency][namespace]

    def take(self, now_s: float, *, least_urgent: QueuePriority = QueuePriority.AGAIN) -> T | None:
        """The next one, if any may be answered now. What it takes is told by `finished` afterwards."""
        for urgency in self._by_urgency:
            if urgency > least_urgent:
                return None
            if urgency is QueuePriority.AGAIN and (self._running_again or now_s < self._again_from_s):
                continue
            if (item := self.take_behind(urgency, now_s)) is not None:
                return item
        return None

    def take_behind(self, urgency: QueuePriority, now_s: float) -> T | None:
        """One more that is as urgent as the one just taken, to be answered after it in the same place."""
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
        """How many wait that are just as urgent."""
        return sum(map(len, self._by_urgency[urgency].values()))

    def hold(self, namespace: str, cpu_s: float, now_s: float) -> None:
        """Something of the namespace is being answered that may take so long. It is given back by a negative time."""
        self._left_s(namespace, now_s)
        self._namespaces[namespace].left_s -= cpu_s

    def finished(self, namespace: str, urgency: QueuePriority, cpu_s: float, now_s: float) -> None:
        """What was taken has been answered, and took so long."""
        self.hold(namespace, cpu_s, now_s)
        if urgency is QueuePriority.AGAIN:
            self._running_again -= 1
            self._owed_s += self._rest * cpu_s
            if not self._running_again:
                self._again_from_s, self._owed_s = now_s + self._owed_s, 0.0
        self._forget(now_s)

    def may_ask(self, namespace: str, now_s: float) -> bool:
        """Whether the namespace has some of its budget left."""
        return self._left_s(namespace, now_s) > 0

    def due_in_s(self, now_s: float) -> float | None:
        """In how many seconds something that waits for its budget, or for a rest, may be taken; None if nothing does."""
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
