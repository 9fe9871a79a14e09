"""Keeps one collection of the API server in memory and notifies subscribers of its changes.

Owns a store's updates: taking in a whole list or a single event, leaving out what cannot be read, and notifying subscribers. An
object that does not fit its struct is logged, counted and left out; an earlier version that did fit stays, because reporting a
deletion would be wrong. Subclasses list and watch: an `informer`, or Kopf for the kinds that people write.

Must not decide anything: a change is a wake-up, a reconciler reads the store.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import msgspec
import structlog

from draco.kube.clock import Clock
from draco.kube.collector import collector_at_rest
from draco.kube.connect.client import Undecodable
from draco.kube.watch.store import ApiObject, Change, Store
from draco.kube.watch.watching import Bookmark, ListedCollection, Removal, Upsert, WatchEvent
from draco.resources.kinds import Kind

log = structlog.get_logger()

T = TypeVar("T", bound=ApiObject)
K = TypeVar("K", bound=Hashable)

Subscriber = Callable[[Change[T]], None]


class WatchCounts(msgspec.Struct):
    """Totals for metrics. `last_heard` is the monotonic time of the last sign of life."""

    lists: int = 0
    watches: int = 0
    failures: int = 0
    events: int = 0
    undecodable: int = 0
    last_heard: float = 0.0


class Collection(Generic[T]):
    """The objects of a kind. `synced` is set by the first fill and stays: later trouble makes the store outdated, not wrong."""

    def __init__(self, kind: Kind[T], *, clock: Clock, keep: Callable[[T], T] = lambda obj: obj) -> None:
        """`keep` transforms each object before it is stored; the result must be equal to the object."""
        self.kind = kind
        self.store: Store[T] = Store()
        self.synced = asyncio.Event()
        self.counts = WatchCounts(last_heard=clock.monotonic())
        self._clock = clock
        self._keep = keep
        self._subscribers: list[Subscriber[T]] = []
        self._unserved_since: float | None = None
        self.forbidden = False
        """Whether the right to list or watch was missing, and nothing was heard since: the store may be outdated for good."""
        self.steady_since: float | None = None
        """Monotonic time since which the connection was uninterrupted, or None. Silence before it proves nothing."""
        self._log = log.bind(kind=kind.kind)

    async def run(self) -> None:
        """Follow the collection until cancelled."""
        raise NotImplementedError

    @property
    def silent_s(self) -> float:
        """Seconds since the last sign of life from the server. After a few minutes the store may be outdated."""
        return self._clock.monotonic() - self.counts.last_heard

    @property
    def unserved_s(self) -> float:
        """Seconds for which the server has not served this kind; 0 if it serves it."""
        return self._clock.monotonic() - self._unserved_since if self._unserved_since is not None else 0.0

    def subscribe(self, callback: Subscriber[T], *, reads: Callable[[T], object] | None = None) -> Callable[[], None]:
        """Call `callback` with every change after it is in the store, starting with what exists.

        With `reads`, only if its value for the object changes. Neither may be slow or raise. Returns a function that ends the
        subscription.
        """
        subscriber = callback if reads is None else _subscriber_to(reads, callback)
        self._subscribers.append(subscriber)
        for key, obj in self.store.items():
            self._tell(subscriber, Change(key, None, obj))
        return lambda: self._subscribers.remove(subscriber)

    def subscribe_keys(
        self, wake: Callable[[K], None], keys: Callable[[T], Iterable[K]], *, reads: Callable[[T], object] | None = None
    ) -> None:
        """Call `wake` with every key that `keys` returns for a changed object, old and new; `reads` as above."""

        def changed(change: Change[T]) -> None:
            for key in dict.fromkeys(key for each in change.versions for key in keys(each)):
                wake(key)

        self.subscribe(changed, reads=reads)

    def heard(self) -> None:
        """Record a sign of life from the server."""
        self.counts.last_heard = self._clock.monotonic()
        self._unserved_since, self.forbidden = None, False
        if self.steady_since is None:
            self.steady_since = self.counts.last_heard

    def absent(self) -> None:
        """Record that the server does not serve the kind."""
        if self._unserved_since is None:
            self._unserved_since = self._clock.monotonic()

    def take(self, listed: ListedCollection[T]) -> None:
        """Replace the contents with the list."""
        for what in listed.undecodable:
            known = self.store.get(what.key)
            if self._left_out(what) and known is not None:
                listed.objects[what.key] = known
        with collector_at_rest():
            changes = self.store.swap(listed.objects)
        self.heard()
        self._log.debug("informer.listed", objects=len(self.store), changes=len(changes))
        self._publish(changes)
        self.synced.set()

    def apply(self, event: WatchEvent[T]) -> None:
        """Apply one event."""
        changes: list[Change[T]] = []
        match event:
            case Upsert(obj):
                changes = self.store.put(self._keep(obj))
            case Removal(key):
                changes = self.store.remove(key)
            case Undecodable() as what:
                if not self._left_out(what):
                    changes = self.store.remove(what.key)
            case Bookmark():
                pass
        self.counts.events += 1
        self._publish(changes)

    def _left_out(self, what: Undecodable) -> bool:
        """Report an unreadable object. Return whether the store holds an earlier version of it, which stays."""
        self.counts.undecodable += 1
        known = self.store.get(what.key)
        stays = known is not None and known.metadata.uid == what.uid
        self._log.error("informer.undecodable", key=str(what.key), error=what.error, earlier_version_stays=stays)
        return stays

    def _publish(self, changes: list[Change[T]]) -> None:
        for change in changes:
            for callback in tuple(self._subscribers):
                self._tell(callback, change)

    def _tell(self, callback: Subscriber[T], change: Change[T]) -> None:
        try:
            callback(change)
        except Exception:  # noqa: BLE001 - one subscriber's bug must not keep the change from the others
            self._log.exception("informer.subscriber_failed", key=str(change.key))


def _subscriber_to(reads: Callable[[T], object], callback: Subscriber[T]) -> Subscriber[T]:
    def told(change: Change[T]) -> None:
        if change.differs(reads):
            callback(change)

    return told
