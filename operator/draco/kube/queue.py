"""The work queue between stores and reconcilers.

Owns its laws: a key is queued at most once; a key is never reconciled twice in parallel; a key added during its reconcile is
reconciled again afterwards; a failed key is retried with its own backoff; of several delayed adds of a key the earliest counts; a
reconcile that needs no other look cancels the delayed add from before it began, so no key of a deleted object is kept; a worker
yields the event loop between two keys even if neither had to wait. Knows nothing of what a key means.
"""

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NoReturn, TypeVar

from structlog.typing import FilteringBoundLogger

from draco.kube.clock import Clock, wait_for
from draco.kube.connect.retry import Backoff, asked_to_wait_s
from draco.kube.errors import ApiError, Conflict

K = TypeVar("K", bound=Hashable)

Reconcile = Callable[[K], Awaitable[float | None]]
"""Reconciles one key; returns seconds until the next look, or None for changes only."""

_MOST_VOID = 64
"""Cancelled heap entries to tolerate in addition to the number of delayed keys."""


class WorkQueue(Generic[K]):
    """Keys to reconcile. Use only on the event loop's thread."""

    def __init__(
        self,
        *,
        clock: Clock,
        base_s: float = 0.1,
        cap_s: float = 300.0,
        waited: Callable[[float], object] = lambda _: None,
        took: Callable[[float], object] = lambda _: None,
        failed: Callable[[], object] = lambda: None,
    ) -> None:
        """For metrics: `waited` gets the seconds that a key waited, `took` those of its reconcile; `failed` hears of failures."""
        self._clock = clock
        self._base_s = base_s
        self._cap_s = cap_s
        self._waited, self._took, self._failed = waited, took, failed
        self._ready: OrderedDict[K, float] = OrderedDict()  # when each was added
        self._running: dict[K, float] = {}  # since when
        self._stood: dict[K, float] = {}  # the running keys' delayed adds when the work began
        self._again: dict[K, float] = {}  # added while running
        self._due: dict[K, float] = {}  # delayed: when
        self._heap: list[tuple[float, int, K]] = []  # the same in order; entries that `_due` contradicts are cancelled
        self._order = itertools.count()
        self._backoffs: dict[K, Backoff] = {}
        self._available = asyncio.Event()  # a key is ready
        self._earlier = asyncio.Event()  # the next delayed key may now be earlier

    @property
    def depth(self) -> int:
        """Number of keys that wait for a worker."""
        return len(self._ready)

    @property
    def longest_running_s(self) -> float:
        """Seconds that the slowest current reconcile has been running; 0 without any."""
        return self._clock.monotonic() - min(self._running.values()) if self._running else 0.0

    def add(self, key: K) -> None:
        """Reconcile `key` as soon as possible. A delayed add of it stays."""
        now = self._clock.monotonic()
        if key in self._running:
            self._again.setdefault(key, now)
        elif key not in self._ready:
            self._ready[key] = now
            self._notify()

    def add_after(self, key: K, seconds: float) -> None:
        """Reconcile `key` after `seconds`, unless an earlier delayed add exists."""
        if seconds <= 0:
            self.add(key)
            return
        self._stood.pop(key, None)  # added during the reconcile, so its end does not cancel it
        due = self._clock.monotonic() + seconds
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))
        self._drop_void()
        self._earlier.set()

    def retry(self, key: K, *, at_least_s: float | None = None) -> float:
        """Reconcile `key` again after its backoff, which grows with every call until `forget`. Return the seconds."""
        backoff = self._backoffs.get(key)
        if backoff is None:
            backoff = self._backoffs[key] = Backoff(self._clock, base_s=self._base_s, cap_s=self._cap_s)
        pause_s = backoff.next(at_least_s=at_least_s)
        self.add_after(key, pause_s)
        return pause_s

    def forget(self, key: K) -> None:
        """Reset the key's backoff after a success."""
        self._backoffs.pop(key, None)

    def settle(self, key: K) -> None:
        """Cancel the delayed add from before the reconcile, which found nothing to look at again."""
        if (stood := self._stood.get(key)) is not None and self._due.get(key) == stood:
            del self._due[key]
            self._drop_void()

    async def get(self) -> K:
        """Wait for a key and start working on it; call `done` when finished."""
        while not self._ready:
            await self._available.wait()
        key, added = self._ready.popitem(last=False)
        now = self._running[key] = self._clock.monotonic()
        if key in self._due:
            self._stood[key] = self._due[key]
        self._notify()
        self._waited(now - added)
        return key

    def done(self, key: K, *, failed: bool = False) -> None:
        """End the work started by `get`; a key added meanwhile is queued again."""
        self._took(self._clock.monotonic() - self._running.pop(key))
        self._stood.pop(key, None)
        if failed:
            self._failed()
        added = self._again.pop(key, None)
        if added is not None:
            self._ready[key] = added
        self._notify()

    async def tick(self) -> NoReturn:
        """Move delayed keys to the ready ones when due, until cancelled. `run_workers` runs this."""
        while True:
            self._earlier.clear()
            now = self._clock.monotonic()
            while self._heap and self._heap[0][0] <= now:
                due, _, key = heapq.heappop(self._heap)
                if self._due.get(key) == due:
                    del self._due[key]
                    self.add(key)
            await wait_for(self._earlier, self._clock, self._heap[0][0] - now if self._heap else None)

    def _drop_void(self) -> None:
        if len(self._heap) > 2 * len(self._due) + _MOST_VOID:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def _notify(self) -> None:
        if self._ready:
            self._available.set()
        else:
            self._available.clear()


async def run_workers(queue: WorkQueue[K], reconcile: Reconcile[K], *, workers: int, log: FilteringBoundLogger) -> None:
    """Reconcile the queue's keys, `workers` in parallel, until cancelled. A failed key is logged and retried with its backoff."""
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.tick())
        for _ in range(workers):
            group.create_task(_work(queue, reconcile, log))


async def _work(queue: WorkQueue[K], reconcile: Reconcile[K], log: FilteringBoundLogger) -> NoReturn:
    while True:
        key = await queue.get()
        failed = True
        try:
            again_s = await reconcile(key)
            failed = False
        except Conflict as error:
            # Someone else was faster: normal between controllers, not worth a traceback.
            log.info("reconcile.conflict", key=str(key), error=str(error), again_in_s=queue.retry(key))
        except ApiError as error:
            # An API error, such as a kind that is gone, is not our bug: its sentence says everything.
            again_in_s = queue.retry(key, at_least_s=asked_to_wait_s(error))
            log.warning("reconcile.failed", key=str(key), error=str(error), again_in_s=again_in_s)
        except Exception as error:
            # The outermost loop: one key's failure must not stop the others.
            again_in_s = queue.retry(key, at_least_s=asked_to_wait_s(error))
            log.exception("reconcile.failed", key=str(key), error=str(error), again_in_s=again_in_s)
        else:
            queue.forget(key)
            if again_s is None:
                queue.settle(key)
            else:
                queue.add_after(key, again_s)
        finally:
            queue.done(key, failed=failed)
        await asyncio.sleep(0)
