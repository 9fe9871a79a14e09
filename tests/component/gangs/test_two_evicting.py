"""Two operators that both believe that they lead evict for one group: no more pods are evicted than it needs."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from draco.kube.connect.client import Client
from draco.kube.election import LeadershipLost
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import POD_DISRUPTION_BUDGETS
from tests.component.allocation import preempting
from tests.component.allocation.lab import ALLOCATING, Guarded
from tests.component.allocation.preempting import events_of, of_priority, permit, staying
from tests.component.controller.replicas import Died, an_operator, until
from tests.component.gangs.lab import make_member, make_template
from tests.component.gangs.test_groups_by_label import sized
from tests.component.simulator.test_nodes import running, until_running

priorities = preempting.priorities
LOW, MIDDLE, HIGH = map(of_priority, ("low", "middle", "high"))
GROUP = {"kueue.x-k8s.io/pod-group-name": "high"}
BOTH = (Died, LeadershipLost)
"""They have one identity and so one lease: one that ends releases it for both."""
SLOW: dict[str, Any] = {"terminationGracePeriodSeconds": 5}


class Gate:
    """Holds an operator back before its eviction of this number, dry runs included, until it is opened."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.reached, self.open, self.went_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def before(self, method: str, path: str) -> None:
        """`went_on` is set by its first request about pods after the gate opens: a list or an eviction."""
        if self.open.is_set() and "/namespaces/" in path and path.endswith(("/pods", "/eviction")):
            self.went_on.set()
        if method == "POST" and path.endswith("/eviction"):
            self._left -= 1
            if self._left == 0:
                self.reached.set()
                await self.open.wait()


async def test_two_that_decided_before_either_evicted_evict_the_same_pods(
    guarded: Guarded, all_dracos: Client, priorities: None, namespace: str, folder: Path
) -> None:
    """Both have read the cluster for the last time when the first evicts: they choose the same pods."""
    await permit(all_dracos)
    low, high = ("low-a", "low-b", "low-c"), ("high-a", "high-b")
    async with running(all_dracos, folder):
        await make_template(all_dracos, namespace, "eight", gpus=8)
        async with an_operator(guarded, ALLOCATING):
            for name in low:
                await make_member(all_dracos, namespace, name, template="eight", **LOW, **SLOW)
            await until_running(all_dracos, namespace, *low)
        for name in high:
            await make_member(all_dracos, namespace, name, template="eight", labels=GROUP, annotations=sized(2), **HIGH)
        gates = [Gate(3), Gate(3)]  # after two dry runs
        async with AsyncExitStack() as stack:
            for gate in gates:
                await stack.enter_async_context(
                    an_operator(guarded, ALLOCATING, before_requests=gate.before, ends=BOTH)
                )
            await until(set_all(each.reached for each in gates), what="the first eviction of each")
            assert await staying(all_dracos, namespace) == {*low, *high}
            for gate in gates:
                gate.open.set()
            await until_running(all_dracos, namespace, *high)
            assert len(await staying(all_dracos, namespace) & {*low}) == 1


async def test_one_that_goes_on_when_the_other_has_evicted_somebody_else_evicts_nobody_any_more(
    guarded: Guarded, all_dracos: Client, priorities: None, namespace: str, folder: Path
) -> None:
    """A budget protects the pod of the lowest priority while the first operator chooses, and is gone when the second does.

    The first gets no events of pods meanwhile, like one that was cut off or suspended.
    """
    await permit(all_dracos)
    async with running(all_dracos, folder):
        await make_template(all_dracos, namespace, "eight", gpus=8)
        async with an_operator(guarded, ALLOCATING):
            for name in ("middle-a", "middle-b"):
                await make_member(all_dracos, namespace, name, template="eight", **MIDDLE, **SLOW)
            await make_member(all_dracos, namespace, "low", template="eight", labels={"app": "low"}, **LOW, **SLOW)
            await until_running(all_dracos, namespace, "middle-a", "middle-b", "low")
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "low"}}}
        await all_dracos.create(
            POD_DISRUPTION_BUDGETS, {"metadata": {"name": "budget", "namespace": namespace}, "spec": spec}
        )
        await make_member(all_dracos, namespace, "high", template="eight", **HIGH)
        gate, heard = Gate(1), asyncio.Event()

        async def silent(path: str) -> None:
            if gate.reached.is_set() and path.endswith("/pods"):
                await heard.wait()

        async with an_operator(guarded, ALLOCATING, before_requests=gate.before, before_news=silent, ends=BOTH):
            await until(set_all([gate.reached]), what="the first one's choice")
            await all_dracos.delete(POD_DISRUPTION_BUDGETS, ObjectKey(namespace, "budget"))
            async with an_operator(guarded, ALLOCATING, ends=BOTH):

                async def evicted() -> bool:
                    return "low" not in await staying(all_dracos, namespace)

                await until(evicted, what="the eviction of the other's choice")
                gate.open.set()
                await until(set_all([gate.went_on]), what="what the first one does then")
                await until_running(all_dracos, namespace, "high")
                heard.set()
                assert await staying(all_dracos, namespace) == {"middle-a", "middle-b", "high"}
                assert {*await events_of(all_dracos, namespace, "Preempted")} <= {"low"}


def set_all(events: Iterable[asyncio.Event]) -> Callable[[], Awaitable[bool]]:
    found = list(events)

    async def look() -> bool:
        return all(each.is_set() for each in found)

    return look
