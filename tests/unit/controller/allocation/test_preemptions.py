"""For whom a worker is asked to choose victims, and who can be one."""

from typing import Any, cast

import msgspec

from draco.allocation.ownership.handover import GpuPlace
from draco.controller.allocation.gang_reading import Gangs
from draco.controller.allocation.ownership.handover import HandoverReconciler
from draco.controller.allocation.preempting.preemption import Preemptions
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.controller.view import ClusterView
from draco.controller.workers.messages import PlanPreemption
from draco.controller.workers.pool import Workers
from draco.kube.connect.client import Client
from draco.placing.groups.group import ClaimGroup, GroupMember
from draco.resources.api.core import Pod, PodStatus
from draco.resources.names import LABEL_ALLOCATOR
from tests.builders import a_budget, a_claim, a_device_class, a_device_key, a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import forget, tell


class Lab:
    """Pod `low` holds a GPU from which pods of a lower priority may be evicted; a group of priority 100 waits."""

    spread = frozenset[Any]()
    preemptible = frozenset({GpuPlace.of(a_device_key("node-0/gpu-0"))})

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.asked: list[list[str]] = []
        """The victims in each question to the workers, which never answer."""
        self.view = ClusterView(cast("Client", None), None, clock=self.clock)
        gangs = Gangs(self.view)
        self.preemptions = Preemptions(self.view, cast("HandoverReconciler", self), cast("Workers", self), gangs)
        ours = a_device_class("ours")
        labels = {LABEL_ALLOCATOR: "operator"}
        self.low: Pod = a_pod("low", node="node-0", claims=["held"], status=PodStatus(phase="Running"))
        tell(
            self.view,
            msgspec.structs.replace(ours, metadata=msgspec.structs.replace(ours.metadata, labels=labels)),
            a_claim("held", device_class="ours", on=["node-0/gpu-0"], reserved_for=["low"]),
            self.low,
        )
        group = ClaimGroup([GroupMember([a_claim("waits", device_class="ours")])])
        self.waiting = WaitingGroup(uid="waits", group=group, order=(0, "", "waits"), priority=100, may_preempt=True)

    async def ask_within(self, question: object, *_: Any) -> None:
        assert isinstance(question, PlanPreemption)
        self.asked.append([key.name for each in question.wanted.victims for key in each.pods])

    async def plan(self, after_s: float = 0.0) -> list[list[str]]:
        """The questions that planning for the group asks after this time."""
        await self.clock.advance(after_s)
        assert self.preemptions.is_entitled(self.waiting)
        assert not await self.preemptions.plan(self.waiting, [], lambda _: True)
        asked, self.asked = self.asked, []
        return asked


async def test_nobody_is_a_victim_whom_a_budget_protects_or_while_budgets_are_unknown() -> None:
    lab, budget = Lab(), a_budget(allows=0)
    assert await lab.plan() == [["low"]]
    tell(lab.view, budget)
    assert await lab.plan(5) == []
    forget(lab.view, budget)
    lab.view.disruption_budgets.forbidden = True
    assert await lab.plan(10) == []
    lab.view.disruption_budgets.heard()
    assert lab.preemptions.due_s(lab.waiting) == 20, "it is planned for again without another change"
    assert await lab.plan(20) == [["low"]]


async def test_a_pod_whose_eviction_was_refused_is_spared_for_a_minute() -> None:
    lab = Lab()
    lab.preemptions.spare([lab.low])
    assert await lab.plan() == []
    assert await lab.plan(59) == []
    assert await lab.plan(10) == [["low"]]


async def test_a_pod_that_becomes_a_victim_within_the_pause_after_a_plan_is_evicted_when_it_ends() -> None:
    """What wakes the round then, wakes none later: without a timer the group would wait beside it."""
    lab = Lab()
    equal = msgspec.structs.replace(lab.low, spec=msgspec.structs.replace(lab.low.spec, priority=100))
    tell(lab.view, equal)
    assert await lab.plan() == []
    assert lab.preemptions.due_s(lab.waiting) == float("inf"), "only a change can give it a victim"
    tell(lab.view, lab.low)
    assert await lab.plan(0.25) == []
    assert lab.preemptions.due_s(lab.waiting) == 0.75
    assert await lab.plan(0.75) == [["low"]]
