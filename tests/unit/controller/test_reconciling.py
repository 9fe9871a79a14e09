"""When a reconciler's keys are queued: not before this replica leads, and from then on all of them."""

import asyncio
from collections.abc import Callable

from draco.controller.metrics import OperatorMetrics
from draco.controller.reconciling import Reconciling
from draco.kube.clock import SystemClock


class Recording:
    """A reconciler that records its keys."""

    def __init__(self) -> None:
        self.wake: Callable[[str], None] = lambda _: None
        self.done: asyncio.Queue[str] = asyncio.Queue()

    def subscribe(self, wake: Callable[[str], None]) -> None:
        self.wake = wake

    def all_keys(self) -> set[str]:
        return {"there-already"}

    async def reconcile(self, key: str) -> float | None:
        self.done.put_nowait(key)
        return None


def reconciling(reconciler: Recording) -> Reconciling[str]:
    return Reconciling(
        "test", reconciler, workers=1, metrics=OperatorMetrics(), clock=SystemClock()
    )  # fmt: skip


async def test_a_replica_that_stands_by_collects_nothing() -> None:
    reconciler = Recording()
    standing_by = reconciling(reconciler)
    for number in range(1000):
        reconciler.wake(f"key-{number}")
    assert standing_by.queue.depth == 0


async def test_a_leader_looks_at_everything_and_then_at_what_changes() -> None:
    reconciler = Recording()
    leading = asyncio.create_task(reconciling(reconciler).run())
    async with asyncio.timeout(60):
        assert await reconciler.done.get() == "there-already"
        reconciler.wake("changed")
        assert await reconciler.done.get() == "changed"
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
