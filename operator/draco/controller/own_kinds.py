"""The kinds that people write, as Kopf sees them, with the repair of what Kopf misses.

Kopf has the only watch of these kinds; its events come here and fill the store that reconcilers read. Owns what Kopf's watch
leaves open (docs/design/0001-kopf.md):

- After an expired version Kopf lists again without reporting what was deleted meanwhile. So the collection is listed here each
  time a watch has begun, and every few minutes.
- Lists and events arrive in any order. The newer version of an object wins, and what a newer list lacks stays deleted.
- A watch may never begin: Kopf discovers served kinds once, and ends on errors that a watch should survive. A kind that is served
  but not watched is listed often, and Kopf is restarted for it.
- Before a reconciler writes, it asks whether the object is still the version it planned on.

Knows nothing of Kopf itself or of threads: everything here runs on the operator's loop.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from draco.kube.clock import Clock, wait_for
from draco.kube.connect.client import Client, Undecodable
from draco.kube.connect.retry import Backoff, asked_to_wait_s
from draco.kube.errors import ApiError, NotFound
from draco.kube.watch.collection import Collection
from draco.kube.watch.store import ApiObject
from draco.kube.watch.watching import ListedCollection, Removal, Upsert, WatchEvent, list_all
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import Kind

T = TypeVar("T", bound=ApiObject)


class OwnKindSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All times in seconds."""

    list_every_s: float = 240.0
    unwatched_list_every_s: float = 2.0
    """How often to list a kind that Kopf does not watch."""
    unwatched_after_s: float = 60.0
    """When to restart Kopf if it does not watch a served kind."""
    list_timeout_s: float = 60.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 30.0


class OwnKind(Collection[T]):
    """The objects of one kind. `run` lists them; Kopf's events come through `watching`, `seen` and `unwatched`."""

    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        *,
        clock: Clock,
        keep: Callable[[T], T] = lambda obj: obj,
        settings: OwnKindSettings | None = None,
    ) -> None:
        super().__init__(kind, clock=clock, keep=keep)
        self.restarts = 0
        """How often Kopf had to restart its watch with a new list."""
        self.start_again: Callable[[], None] = lambda: None
        """Called when Kopf should discover the served kinds again."""
        self._client = client
        self._settings = settings or OwnKindSettings()
        self._listed = 0  # the version of the newest list
        self._gone: dict[ObjectKey, int] = {}  # deleted since, with the version of the deletion
        self._wanted = asyncio.Event()
        self._begun = False
        self._unwatched_since: float | None = clock.monotonic()
        self._asked_again: float = clock.monotonic()

    @property
    def unwatched_s(self) -> float:
        """Seconds since Kopf watched the kind; 0 while it does, or if the kind is not served."""
        if self._unwatched_since is None or self._unserved_since is not None:
            return 0.0
        return self._clock.monotonic() - self._unwatched_since

    def listing(self) -> None:
        """Kopf lists: it starts a watch, the first or one after a failure."""
        self.restarts += self._begun
        self._begun = True

    def watching(self) -> None:
        """Kopf's watch has begun, or goes on over a new connection."""
        self.counts.watches += 1
        self._unwatched_since = None
        self._wanted.set()

    def unwatched(self) -> None:
        """Kopf has ended, and its watch with it."""
        if self._unwatched_since is None:
            self._unwatched_since = self._asked_again = self._clock.monotonic()
        self._wanted.set()

    def seen(self, event: WatchEvent[T], version: str) -> None:
        """Take in an event that Kopf saw."""
        self.heard()
        match event:
            case Upsert(obj):
                key = obj.metadata.key
            case Removal(key) | Undecodable(key):
                pass
            case _:
                return
        at = int(version)
        known = self.store.get(key)
        if at <= (_version(known) if known else max(self._listed, self._gone.get(key, 0))):
            return
        if isinstance(event, Removal):
            self._gone[key] = at
        self.apply(event)

    def take(self, listed: ListedCollection[T]) -> None:
        """Replace the contents with the list, except for what is known to be newer."""
        at = int(listed.version)
        for key, gone_at in self._gone.items():
            if gone_at > at:
                listed.objects.pop(key, None)
        self._gone = {key: gone_at for key, gone_at in self._gone.items() if gone_at > at}
        for key, known in self.store.items():
            if _version(known) > at:
                listed.objects[key] = known
        self._listed = max(self._listed, at)
        super().take(listed)

    async def run(self) -> None:
        """List when there is a reason, until cancelled. Kopf's events arrive in between."""
        backoff = Backoff(self._clock, base_s=self._settings.first_pause_s, cap_s=self._settings.longest_pause_s)
        while True:
            self._wanted.clear()
            try:
                pause_s = await self._list()
                backoff.reset()
            except Exception as error:  # noqa: BLE001 - the outermost loop; a bug of ours must not leave the store outdated
                if isinstance(error, NotFound):
                    self.absent()
                elif not isinstance(error, ApiError):
                    self._log.exception("informer.fault")
                pause_s = backoff.next(at_least_s=asked_to_wait_s(error))
                self.counts.failures += 1
                self._log.warning("informer.interrupted", error=str(error), relist=True, again_in_s=round(pause_s, 2))
                await self._clock.sleep(pause_s)
                continue
            await wait_for(self._wanted, self._clock, pause_s)

    async def is_current(self, obj: T) -> bool:
        """Whether the object is still this version. If not, the current one is stored, which wakes subscribers."""
        key = obj.metadata.key
        try:
            found = await self._client.get(self.kind, key)
        except NotFound:
            found = None
        except msgspec.ValidationError:
            return False  # somebody changed it to something unreadable
        if found is not None and _version(found) == _version(obj):
            return True
        known = self.store.get(key)
        if found is not None:
            self.seen(Upsert(found), found.metadata.resource_version)
        elif known is not None and _version(known) == _version(obj):
            self.apply(Removal(key))
        return False

    async def _list(self) -> float:
        self.counts.lists += 1
        timeout_s = self._settings.list_timeout_s
        self.take(await list_all(self._client, self.kind, timeout_s=timeout_s, keep=self._keep))
        if self._unwatched_since is None:
            return self._settings.list_every_s
        if self._clock.monotonic() - self._asked_again > self._settings.unwatched_after_s:
            self._asked_again = self._clock.monotonic()
            self._log.warning("kopf.watches_nothing", seconds=round(self.unwatched_s))
            self.start_again()
        return self._settings.unwatched_list_every_s


def _version(obj: ApiObject) -> int:
    """Versions of a kind are growing numbers (Kubernetes 1.35 promises it, and etcd's have always been)."""
    return int(obj.metadata.resource_version or 0)
