"""kube-scheduler and Draco allocate side by side while GPUs are handed over and back, and the operator dies repeatedly.

The tests check the API server's history of claims: at no version do two claims hold one device.
"""

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, MIG_POLICIES, PODS
from draco.resources.names import DeviceKey
from tests.component.allocation.lab import ALLOCATING, CLASS, Guarded, make_claim, until_allocated
from tests.component.allocation.published import publishing
from tests.component.controller.replicas import an_operator, until
from tests.component.simulator.test_nodes import NODE_COUNT, make_pod, running
from tests.side_by_side import REPORTS

log = structlog.get_logger(__name__)

LASTS_S = float(os.environ.get("DRACO_RACE_SECONDS", "0"))
CLAIMS_AT_LEAST = int(os.environ.get("DRACO_RACE_CLAIMS", "60"))
"""Minimum number of allocated claims, which sets the duration. `make race` sets 20,000."""
EACH_AT_LEAST = min(CLAIMS_AT_LEAST // 4, 2000)
"""Minimum number by each of the two allocators."""
UNSERVED_S = 5.0
"""An unserved claim is deleted after this time: its node may belong to the other allocator now."""
IS_LARGE = CLAIMS_AT_LEAST >= 1000
"""In a large run nodes only publish: thousands of pods on simulated nodes would use most of the machine."""
HELD_S = 0.03 if IS_LARGE else 0.3
EACH = 20 if IS_LARGE else 10
"""Concurrent claims of each kind: more than there are free devices while a node is handed over."""
STAYS_S = (("Scheduler", 20), ("Operator", 4)) if IS_LARGE else (("Scheduler", 6), ("Operator", 2))
"""To which allocator the GPUs go, and for how long."""
NAMES = [f"sim-{number}" for number in range(NODE_COUNT)]
TOLD_EVERY_S = 30.0
WRITES = (100, 300) if IS_LARGE else (30, 100)
"""Range of writes after which an operator dies."""


class Observer:
    """Follows every version of every claim."""

    def __init__(self, client: Client) -> None:
        self.informer: Informer[ResourceClaim] = Informer(client, CLAIMS, clock=SystemClock())
        self.informer.subscribe(self._look)
        self._holders: dict[DeviceKey, ObjectKey] = {}
        self.doubles: list[str] = []
        self.allocated: Counter[str] = Counter()
        self.versions = 0
        """Number of claim versions seen."""
        self._waiting: dict[ObjectKey, asyncio.Event] = {}

    async def until_allocated(self, key: ObjectKey, within_s: float) -> None:
        """Return when the claim is allocated or the time is over."""
        known = self.informer.store.get(key)
        if known is not None and known.devices_held:
            return
        told = self._waiting[key] = asyncio.Event()
        # Not wait_for: before Python 3.12 it can mistake a cancellation for its own timeout.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await told.wait()
        self._waiting.pop(key, None)

    def _look(self, change: Change[ResourceClaim]) -> None:
        self.versions += 1
        before = set(change.before.devices_held) if change.before else set()
        after = set(change.after.devices_held) if change.after else set()
        for device in before - after:
            if self._holders.get(device) == change.key:
                del self._holders[device]
        for device in after - before:
            other = self._holders.setdefault(device, change.key)
            if other != change.key:
                self.doubles.append(f"{device} was allocated to {change.key} and to {other}")
        if after and (told := self._waiting.get(change.key)):
            told.set()
        if after and not before and change.after is not None:
            (request,) = change.after.spec.devices.requests
            self.allocated[request.exactly.device_class_name if request.exactly else ""] += 1


@contextlib.asynccontextmanager
async def no_device_in_two_claims(client: Client) -> AsyncIterator[None]:
    """Check within the block that no device is in two claims; fails at its end otherwise."""
    observer = Observer(client)
    watching = asyncio.create_task(observer.informer.run())
    try:
        await observer.informer.synced.wait()
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert observer.doubles == []


async def churn(client: Client, observer: Observer, namespace: str, name: str, device_class: str, *, pod: bool) -> None:
    """Claim one GPU after another, each for a moment."""
    number = 0
    while True:
        key = ObjectKey(namespace, f"{name}-{number}")
        number += 1
        request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
        spec = {"devices": {"requests": [request]}}
        await client.create(CLAIMS, {"metadata": {"name": key.name, "namespace": namespace}, "spec": spec})
        if pod:
            await make_pod(client, namespace, key.name, key.name)
        await observer.until_allocated(key, UNSERVED_S)
        await asyncio.sleep(random.Random(f"{name} {number}").uniform(0, HELD_S))
        if pod:
            await client.delete(PODS, ObjectKey(namespace, key.name), grace_period_s=0)
        await client.delete(CLAIMS, key)


async def hand_back_and_forth(client: Client, handed: Counter[str]) -> None:
    policy = ObjectKey("", "draco")
    while True:
        for allocator, after_s in STAYS_S:
            await asyncio.sleep(after_s)
            await client.patch(MIG_POLICIES, policy, {"spec": {"allocator": allocator}})
            handed[allocator] += 1


async def live_and_die(guarded: Guarded, died: Counter[str]) -> int:
    """Run one operator after another. Never returns."""
    deaths = random.Random(1)
    while True:
        async with an_operator(guarded, ALLOCATING, dies_after_writes=deaths.randint(*WRITES)) as (_, task):
            await asyncio.wait([task])
        died["after a write"] += 1


async def nothing_is_stuck(client: Client, guarded: Guarded, namespace: str) -> None:
    """Check that every claim can be deleted and the next operator allocates, whatever was left undone."""
    await client.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"allocator": "Operator"}})
    for pod in await client.list(PODS, namespace=namespace):
        with contextlib.suppress(NotFound):
            await client.delete(PODS, pod.metadata.key, grace_period_s=0)
    for claim in await client.list(CLAIMS, namespace=namespace):
        with contextlib.suppress(NotFound):
            await client.delete(CLAIMS, claim.metadata.key)
    async with an_operator(guarded, ALLOCATING):

        async def all_gone() -> bool:
            return not await client.list(CLAIMS, namespace=namespace)

        await until(all_gone, what="the end of all claims")
        await make_claim(client, namespace, "after-all")
        await until_allocated(client, namespace, "after-all")


def counts(observer: Observer) -> dict[str, int]:
    """Number of allocations so far by allocator."""
    return {"scheduler": observer.allocated["gpu.nvidia.com"], "draco": observer.allocated[CLASS]}


async def test_no_device_is_allocated_twice(
    guarded: Guarded,
    handed_over: Client,
    namespace: str,
    folder: Path,
) -> None:
    observer = Observer(handed_over)
    watching = asyncio.create_task(observer.informer.run())
    await observer.informer.synced.wait()
    try:
        nodes = publishing(handed_over, NAMES, 16) if IS_LARGE else running(handed_over, folder)
        async with nodes:
            died: Counter[str] = Counter()
            handed: Counter[str] = Counter()
            work = [live_and_die(guarded, died), hand_back_and_forth(handed_over, handed)]
            for each in range(EACH):
                work.append(churn(handed_over, observer, namespace, f"s{each}", "gpu.nvidia.com", pod=True))
                work.append(churn(handed_over, observer, namespace, f"d{each}", CLASS, pod=False))
            tasks = [asyncio.create_task(each) for each in work]
            last_told_s = 0.0

            def told(lasted_s: float) -> None:
                nonlocal last_told_s
                if lasted_s - last_told_s >= TOLD_EVERY_S:
                    last_told_s = lasted_s
                    log.info(
                        "race",
                        lasts_s=int(lasted_s),
                        died=died,
                        handed=handed,
                        doubles=observer.doubles,
                        **counts(observer),
                    )

            began_s = asyncio.get_running_loop().time()

            async def enough() -> bool:
                lasted_s = asyncio.get_running_loop().time() - began_s
                told(lasted_s)
                each = [observer.allocated[one] for one in ("gpu.nvidia.com", CLASS)]
                many = sum(each) >= CLAIMS_AT_LEAST and min(each) >= EACH_AT_LEAST
                disturbed = died.total() >= 1 and handed["Operator"] >= 1
                over = many and disturbed and lasted_s >= LASTS_S
                return bool(observer.doubles) or any(task.done() for task in tasks) or over

            await until(enough, within_s=LASTS_S + 240 + CLAIMS_AT_LEAST, what=f"{CLAIMS_AT_LEAST} allocations")
            done = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert not done, ended
            await nothing_is_stuck(handed_over, guarded, namespace)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert observer.doubles == []
    by_scheduler, by_draco = observer.allocated["gpu.nvidia.com"], observer.allocated[CLASS]
    REPORTS.append(
        f"race: {by_scheduler} claims allocated by kube-scheduler, {by_draco} by Draco, none twice in {observer.versions} "
        f"changes of claims; the operator died {died.total()} times, and GPUs went over {handed['Operator']} times"
    )
