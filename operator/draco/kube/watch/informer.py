"""Follows one collection of the API server, whatever happens to the connection.

Owns the life of a `collection`: first list, watch, resume, relist. Its laws:

- The store is always a snapshot of the collection. A relist swaps it in one step; objects that vanished unseen are delivered as
  deletes, those recreated under an old name as a delete and an add.
- Nothing that the server or the network does ends `run`: an expired version, an error in the stream, a truncated line, silence,
  refused credentials, an unserved kind. Each leads to a resumed watch or a new list, after a backoff that is never zero.

Must not decide anything: a change is a wake-up, a reconciler reads the store.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

import msgspec

from draco.kube.clock import Clock
from draco.kube.connect.client import PAGE_SIZE, Client, Undecodable, selectors
from draco.kube.connect.retry import Backoff, asked_to_wait_s
from draco.kube.errors import ApiError, Expired, Forbidden, NotFound
from draco.kube.watch import watching
from draco.kube.watch.collection import Collection
from draco.kube.watch.store import ApiObject
from draco.resources.kinds import Kind

T = TypeVar("T", bound=ApiObject)


class InformerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts of an informer, in seconds, and the size of its first page.

    `idle_timeout_s` must exceed the minute after which the server sends a bookmark on an idle watch: longer silence means a dead
    connection. The server ends each watch after `watch_timeout_s` to twice that, at random, so that watches do not restart
    together.
    """

    idle_timeout_s: float = 90.0
    watch_timeout_s: float = 240.0
    list_timeout_s: float = 60.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 30.0
    page_size: int = PAGE_SIZE


class Informer(Collection[T]):
    """A collection that is followed while `run` runs."""

    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        clock: Clock,
        settings: InformerSettings | None = None,
        keep: Callable[[T], T] = lambda obj: obj,
        optional: bool = False,
    ) -> None:
        """`keep` as in `Collection`. `optional`: if the right to read is missing, it counts as synced."""
        super().__init__(kind, clock=clock, keep=keep)
        self._optional = optional
        self._client = client
        self._namespace = namespace
        self._params = selectors(label_selector, field_selector)
        self._settings = settings or InformerSettings()
        self._version = ""
        self._streams_lists = True  # until the server says that it cannot
        self._pages_next = True
        self._watching_since: float | None = None

    async def run(self) -> None:
        """Follow the collection until cancelled."""
        backoff = Backoff(self._clock, base_s=self._settings.first_pause_s, cap_s=self._settings.longest_pause_s)
        pause_s = 0.0
        while True:
            self._watching_since = None
            error: Exception | None = None
            try:
                await self._follow()
            except (Expired, watching.StreamBroken) as stale:
                error, self._version = stale, ""
            except NotFound as absent:
                # A recreated CRD has other objects.
                error, self._version = absent, ""
                self.absent()
            except ApiError as failure:
                error = failure  # the known version is still good
                if isinstance(failure, Forbidden):
                    self.forbidden = True
                    if self._optional:
                        self.synced.set()
                        self._version = ""  # the right to list may be there, without that to watch
            except Exception as fault:  # noqa: BLE001 - the outermost loop; a bug of ours must not leave the store outdated
                error, self._version = fault, ""
                self._log.exception("informer.fault")
            if self._watched_s() > pause_s:
                backoff.reset()  # the watch lasted longer than the last pause
            pause_s = backoff.next(at_least_s=asked_to_wait_s(error) if error else None)
            if error:
                self.counts.failures += 1
                self.steady_since = None
                self._log.warning(
                    "informer.interrupted", error=str(error), relist=not self._version, again_in_s=round(pause_s, 2)
                )
            await self._clock.sleep(pause_s)

    async def _follow(self) -> None:
        """List if there is no version to resume from, then watch until the stream ends.

        The first list is read in pages, which is fastest. A relist is streamed if the server supports that: relists come when the
        server is in trouble and all its clients list again, and a stream costs it the least memory.
        """
        if not self._version and self._streams_lists and not self._pages_next:
            await self._stream_list_and_watch()
            return
        if not self._version:
            self.counts.lists += 1
            listed = await watching.list_all(
                self._client,
                self.kind,
                namespace=self._namespace,
                params=self._params,
                timeout_s=self._settings.list_timeout_s,
                page_size=self._settings.page_size,
                keep=self._keep,
            )
            self.take(listed)
            self._pages_next = False
        self._watching_since = self._clock.monotonic()
        async with aclosing(self._watch()) as batches:
            async for batch in batches:
                self.heard()
                for step in batch:
                    self._apply(step)

    async def _stream_list_and_watch(self) -> None:
        """The same in one stream: existing objects, a bookmark that ends them, then changes."""
        self.counts.lists += 1
        listed: watching.ListedCollection[T] | None = watching.ListedCollection({}, "", [])
        try:
            async with aclosing(self._watch()) as batches:
                async for batch in batches:
                    self.heard()
                    for step in batch:
                        if listed is None:
                            self._apply(step)
                        elif _collect(listed, step, self._keep):
                            self.take(listed)
                            listed = None
                            self._watching_since = self._clock.monotonic()
        except ApiError as error:
            if watching.cannot_stream_lists(error):
                self._streams_lists = False
                self._log.info("informer.no_streaming_lists", error=str(error))
            raise
        finally:
            # Whatever kept the stream from completing its list, the next attempt uses pages.
            self._pages_next = listed is not None

    def _watch(self) -> AsyncGenerator[list[watching.WatchStep[T]], None]:
        self.counts.watches += 1
        return watching.watch(
            self._client,
            self.kind,
            namespace=self._namespace,
            params=self._params,
            version=self._version,
            server_timeout_s=self._settings.watch_timeout_s * (1 + self._clock.jitter()),
            idle_timeout_s=self._settings.idle_timeout_s,
        )

    def _watched_s(self) -> float:
        return self._clock.monotonic() - self._watching_since if self._watching_since is not None else 0.0

    def take(self, listed: watching.ListedCollection[T]) -> None:
        """Replace the contents with the list."""
        self._version = listed.version
        super().take(listed)

    def _apply(self, step: watching.WatchStep[T]) -> None:
        self._version = step.version or self._version
        self.apply(step.event)


def _collect(listed: watching.ListedCollection[T], step: watching.WatchStep[T], keep: Callable[[T], T]) -> bool:
    """Add one event of a streaming list to `listed`. Return whether it was the last."""
    match step.event:
        case watching.Upsert(obj):
            listed.objects[obj.metadata.key] = keep(obj)
        case watching.Removal(key):
            listed.objects.pop(key, None)
        case Undecodable() as what:
            listed.undecodable.append(what)
        case watching.Bookmark(initial_end):
            listed.version = step.version
            return initial_end
    return False
