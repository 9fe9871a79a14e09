"""Runs a reconciler: its queue, workers and metrics.

Owns what is the same for every reconciler. The reconciler defines its keys and what is done about them.
"""

from collections.abc import Callable, Collection, Hashable
from typing import Generic, Protocol, TypeVar

import structlog

from draco.controller.metrics import OperatorMetrics
from draco.kube.clock import Clock
from draco.kube.queue import WorkQueue, run_workers

K = TypeVar("K", bound=Hashable)

_LONGEST_BACKOFF_S = 60.0


class Reconciler(Protocol[K]):
    """Level-triggered: `reconcile` reads the current state, whichever change woke it."""

    def subscribe(self, wake: Callable[[K], None]) -> None:
        """Call `wake` with every key that a change may affect."""
        ...

    def all_keys(self) -> Collection[K]:
        """Every key worth a look."""
        ...

    async def reconcile(self, key: K) -> float | None:
        """Reconcile one key; return seconds until the next look, or None."""
        ...


class Reconciling(Generic[K]):
    """Collects and reconciles keys while `run` runs. A standby collects none: its queue would only grow, and `run` lists all."""

    def __init__(
        self,
        name: str,
        reconciler: Reconciler[K],
        *,
        workers: int,
        metrics: OperatorMetrics,
        clock: Clock,
    ) -> None:
        self.name = name
        self._reconciler = reconciler
        self._workers = workers
        self.queue: WorkQueue[K] = WorkQueue(
            clock=clock,
            cap_s=_LONGEST_BACKOFF_S,
            waited=metrics.queue_wait_seconds.labels(name).observe,
            took=metrics.reconcile_seconds.labels(name).observe,
            failed=metrics.reconcile_errors.labels(name).inc,
        )
        self._log = structlog.get_logger(__name__).bind(reconciler=name)
        self._at_work = False
        reconciler.subscribe(self.wake)

    def wake(self, key: K) -> None:
        """Reconcile the key soon."""
        if self._at_work:
            self.queue.add(key)

    async def run(self) -> None:
        """Reconcile all keys once, then those that change, until cancelled."""
        self._at_work = True
        for key in self._reconciler.all_keys():
            self.queue.add(key)
        await run_workers(self.queue, self._reconciler.reconcile, workers=self._workers, log=self._log)

    def stalled(self, after_s: float) -> list[str]:
        """Problem sentences if one reconcile has been running for longer than `after_s`."""
        running_s = self.queue.longest_running_s
        if running_s <= after_s:
            return []
        return [f"{self.name}: one reconciliation has been running for {running_s:.0f} s"]
