"""What this node offers, handed to the publisher whenever it may be something else.

Owns the moment. Nothing is offered before it is known whose the instances are and what is wanted of the GPUs: an agent that
starts would otherwise withdraw partitions and publish them again a second later. What is offered is `offering`'s decision.
"""

import asyncio
from collections.abc import Callable
from random import Random

import structlog

from draco.agent.hardware.monitor import View
from draco.agent.mig.parts import Dividing
from draco.agent.publish.offering import Offering
from draco.agent.publish.publisher import SlicePublisher
from draco.kube.clock import Clock, wait_for
from draco.kube.queue import WorkQueue, run_workers

log = structlog.get_logger()

PATIENCE_S = 30.0
"""So long a GpuNode that is served and cannot be read is waited for; the GPUs no claim holds a part of are offered whole then."""


class Offers:
    """Keeps the publisher told. `touch` says that something that counts may have changed."""

    def __init__(
        self,
        publisher: SlicePublisher,
        dividing: Dividing,
        *,
        view: Callable[[], View],
        clock: Clock,
        random: Random,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._publisher = publisher
        self._dividing = dividing
        self._view = view
        self._clock = clock
        self._patience_s = patience_s
        self._queue: WorkQueue[str] = WorkQueue(clock=clock, random=random, base_s=0.5, cap_s=30.0)
        self._offering = Offering()

    def touch(self) -> None:
        """Offer what there is now."""
        self._queue.add("")

    def keep_counters(self, kept: bool) -> None:
        """From now on the cluster keeps the counters of partitions, or keeps them no more."""
        self._offering.partitionable = kept
        self.touch()

    async def run(self, *, recovered: asyncio.Event, follows: bool, partitionable: bool) -> None:
        """Offer until cancelled, from `recovered` on. `follows`: there are GpuNodes, so what is wanted will be known.

        `partitionable`: the cluster keeps the counters of partitions.
        """
        self._offering = Offering(partitionable=partitionable)
        await recovered.wait()
        if follows:
            known = self._dividing.keeper.known
            await wait_for(known, self._clock, self._patience_s)
            if not known.is_set():
                log.warning(
                    "offers.wishes_unknown", remedy="give the agent the right to list and watch gpunodes.draco.dev"
                )
        self.touch()
        await run_workers(self._queue, self._reconcile, workers=1, log=log)

    async def _reconcile(self, _: str) -> float | None:
        view = self._view()
        if view.driver is None:
            return None
        offer = self._offering.offer(
            view.gpus,
            view.driver,
            migs=self._dividing.offered(located.gpu for located in view.gpus),
            wanted=self._dividing.wanted,
            promised=self._dividing.promised,
            isolated=self._dividing.isolated,
            now_s=self._clock.monotonic(),
        )
        self._publisher.want(offer.devices, offer.counters)
        return offer.again_in_s
