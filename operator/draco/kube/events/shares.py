"""Which series of Events are remembered, and which is posted next, so that one tenant cannot silence others.

Owns the limits and the order:

- Each namespace has a share, and cluster-scoped objects have their own, which no namespace can fill. All namespaces together also
  have a limit: beyond it, the largest gives up its oldest series.
- In a full share, a Warning replaces a Normal series, preferably one that has been posted. A Normal series replaces nothing.
- Events of cluster-scoped objects are posted first, then those of each namespace in turn, Warnings before others.

Pure: knows nothing of the API server; the caller brings the time.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec

from draco.kube.listeners import Listeners
from draco.resources.api.core import ObjectReference

EventType = Literal["Normal", "Warning"]

_TYPES: Final[tuple[EventType, ...]] = ("Warning", "Normal")
_CLUSTER: Final = ""


class EventReason(NamedTuple):
    """Why Events are written: their reason and action, in CamelCase, and their type."""

    name: str
    action: str
    type: EventType = "Normal"


class EventSubject(NamedTuple):
    """What an Event, or series of equal ones, is about."""

    regarding: ObjectReference
    reason: EventReason


class EventContent(msgspec.Struct, frozen=True):
    """An Event's note, count, and start."""

    note: str
    count: int
    first: datetime
    last: datetime


class RememberedSeries(msgspec.Struct):
    """An Event's wanted contents, and when it last happened."""

    name: str
    said: EventContent
    last_at: float


class _Share(msgspec.Struct):
    """One namespace's series by type, and those to post; each longest silent first."""

    series: dict[EventType, OrderedDict[EventSubject, None]] = msgspec.field(
        default_factory=lambda: {each: OrderedDict() for each in _TYPES}
    )
    unposted: dict[EventType, OrderedDict[EventSubject, None]] = msgspec.field(
        default_factory=lambda: {each: OrderedDict() for each in _TYPES}
    )

    def __len__(self) -> int:
        return sum(map(len, self.series.values()))


class EventShares:
    """Series by subject: at most `most_in_namespace` per namespace, `most` in all, and as many of cluster-scoped objects."""

    def __init__(self, *, most: int, most_in_namespace: int) -> None:
        self._most = most
        self._most_in_namespace = most_in_namespace
        self._series: OrderedDict[EventSubject, RememberedSeries] = OrderedDict()  # longest silent first
        self._shares: OrderedDict[str, _Share] = OrderedDict()  # in the order of turns
        self.when_dropped = Listeners[[EventSubject]]()
        """Called with each unposted series that finds no room or loses it."""

    def __len__(self) -> int:
        return len(self._series)

    @property
    def waiting(self) -> int:
        """Number of series to post."""
        return sum(len(each) for share in self._shares.values() for each in share.unposted.values())

    def get(self, subject: EventSubject) -> RememberedSeries | None:
        """The series, if remembered."""
        return self._series.get(subject)

    def has_room(self, subject: EventSubject) -> bool:
        """Whether a new series can be remembered, after making room if possible. If not, it counts as dropped."""
        namespace = subject.regarding.namespace
        if not self._is_full(namespace) or self._make_room(subject):
            return True
        self.when_dropped.tell(subject)
        return False

    def put(self, subject: EventSubject, series: RememberedSeries) -> None:
        """Remember a happening: the series must be posted."""
        share = self._shares.setdefault(subject.regarding.namespace, _Share())
        self._series[subject] = series
        self._series.move_to_end(subject)
        share.series[subject.reason.type][subject] = None
        share.series[subject.reason.type].move_to_end(subject)
        share.unposted[subject.reason.type].setdefault(subject)

    def posted(self, subject: EventSubject) -> None:
        """The series was posted: the next turn is another namespace's."""
        if (share := self._shares.get(subject.regarding.namespace)) is not None:
            share.unposted[subject.reason.type].pop(subject, None)
            self._shares.move_to_end(subject.regarding.namespace)

    def unposted(self, subject: EventSubject) -> None:
        """The series must be posted again."""
        if subject in self._series:
            self._shares[subject.regarding.namespace].unposted[subject.reason.type].setdefault(subject)

    def to_post(self) -> Iterator[EventSubject]:
        """The series to post, in order."""
        yield from self._of(_CLUSTER)
        turns = deque(self._of(namespace) for namespace in list(self._shares) if namespace != _CLUSTER)
        while turns:
            turn = turns.popleft()
            for subject in turn:
                yield subject
                turns.append(turn)
                break

    def forget_silent(self, before: float) -> None:
        """Forget posted series without a happening since then."""
        gone = []
        for subject, series in self._series.items():
            if series.last_at > before:
                break
            if subject not in self._shares[subject.regarding.namespace].unposted[subject.reason.type]:
                gone.append(subject)
        for subject in gone:
            self._remove(subject)

    def _of(self, namespace: str) -> Iterator[EventSubject]:
        share = self._shares.get(namespace)
        for each in share.unposted.values() if share is not None else ():
            yield from each

    def _is_full(self, namespace: str) -> bool:
        share = self._shares.get(namespace)
        if namespace == _CLUSTER:
            return share is not None and len(share) >= self._most
        if share is not None and len(share) >= self._most_in_namespace:
            return True
        return self._in_namespaces >= self._most

    @property
    def _in_namespaces(self) -> int:
        cluster = self._shares.get(_CLUSTER)
        return len(self._series) - (len(cluster) if cluster is not None else 0)

    def _make_room(self, subject: EventSubject) -> bool:
        namespace = subject.regarding.namespace
        own = self._shares.get(namespace)
        if own is not None and subject.reason.type == "Warning" and (normal := _first_of(own, "Normal")) is not None:
            self._give_up(normal)
            return True
        if namespace == _CLUSTER or (own is not None and len(own) >= self._most_in_namespace):
            return False
        largest = max((each for name, each in self._shares.items() if name != _CLUSTER), key=len)
        if len(largest) <= (len(own) if own is not None else 0) + 1:
            return False
        self._give_up(_first_of(largest, "Normal") or next(iter(largest.series["Warning"])))
        return True

    def _give_up(self, subject: EventSubject) -> None:
        if subject in self._shares[subject.regarding.namespace].unposted[subject.reason.type]:
            self.when_dropped.tell(subject)
        self._remove(subject)

    def _remove(self, subject: EventSubject) -> None:
        namespace = subject.regarding.namespace
        share = self._shares[namespace]
        del self._series[subject], share.series[subject.reason.type][subject]
        share.unposted[subject.reason.type].pop(subject, None)
        if not len(share):
            del self._shares[namespace]


def _first_of(share: _Share, kind: EventType) -> EventSubject | None:
    """The longest silent posted series of the type, or else the longest silent of all."""
    series, unposted = share.series[kind], share.unposted[kind]
    if len(unposted) < len(series):
        return next(each for each in series if each not in unposted)
    return next(iter(series), None)
