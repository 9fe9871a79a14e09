"""Fences nodes whose agent is lost, unfences those that are back, and reports lost agents in their GpuNodes.

Owns the writes of these rules and of that condition, the Events, and what people are told of an outage. `health.fencing` decides
over all agents together, so there is one key. Before either write the lease is read directly from the API server, since the watch
may lag. Without taint rules in the cluster nothing is fenced; `discovery` reports that.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import msgspec
import structlog

from draco.controller.fencing.observed_leases import AgentLeases
from draco.controller.metrics import OperatorMetrics
from draco.controller.taints.extensions import delete_rule
from draco.controller.view import FENCES, ClusterView
from draco.health.fencing import FencingPlan, FencingTerms, plan_fencing
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Conflict, NotFound
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.kube.watch.store import Change
from draco.maintenance.taint_rules import fence_for, fenced_node, is_fence, isolates_as
from draco.resources.api.draco import GpuNode
from draco.resources.api.meta import Condition, is_true, timed
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import GPU_NODES, LEASES, Kind
from draco.resources.names import CONDITION_READY, FIELD_MANAGER_OPERATOR, REASON_AGENT_LOST, NodeName

log = structlog.get_logger(__name__)

_Work = Callable[[], Awaitable[None]]
AGENTS = "agents"
AGENT_LOST = EventReason(REASON_AGENT_LOST, "Fence", "Warning")
AGENT_BACK = EventReason("AgentBack", "Fence")
_LOST = (
    "The agent has not renewed its lease, so its report about the GPUs may be out of date. See the agent's pod on the node; if "
    "no agent should run there any more, delete this GpuNode."
)
_AT_ONCE = 8
_MARGIN_S = 0.01
"""Wait this much past a lease's expiry to be safe from rounding."""


class FencingReconciler:
    """Reconciles all agents under one key. `plan` is the last plan."""

    def __init__(
        self, client: Client, view: ClusterView, leases: AgentLeases, events: EventRecorder, *, terms: FencingTerms
    ) -> None:
        self.plan = FencingPlan()
        self._client = client
        self._view = view
        self._leases = leases
        self._events = events
        self._terms = terms
        self._suspended = False

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` whenever a fence may have to be added or removed. Renewals in time do not count."""

        def look(_: object = None) -> None:
            wake(AGENTS)

        self._leases.listeners.add(look)
        self._view.nodes.subscribe(look, reads=lambda node: node.metadata.uid)
        self._view.gpu_nodes.subscribe(lambda change: self._gpu_node_changed(change, look))
        self._view.slices.subscribe(lambda change: self._slice_changed(change, look))
        self._view.rules.subscribe(lambda change: look() if any(map(is_fence, change.versions)) else None)

    def all_keys(self) -> set[str]:
        """The one key."""
        return {AGENTS}

    async def reconcile(self, _key: str) -> float | None:
        """Update the fences. Return seconds until the next lease may expire."""
        kind = self._view.taint_rules
        if not self._leases.informer.synced.is_set():
            return 1.0
        self.plan = plan = plan_fencing(self._leases.signs(), self._terms)
        self._say_suspended(plan)
        await _all(
            [*(self._changes(kind, plan) if kind else ()), *(partial(self._call_lost, node) for node in plan.lost)]
        )
        return None if plan.look_again_s is None else plan.look_again_s + _MARGIN_S

    def _changes(self, kind: Kind[DeviceTaintRule], plan: FencingPlan) -> Iterable[_Work]:
        yield from (partial(self._fence, kind, node) for node in plan.fence)
        wanted = {rule.metadata.name: rule for node in plan.keep if (rule := self._rule_for(node))}
        for rule in self._view.rules.store.by_index(FENCES, True):
            want = wanted.get(rule.metadata.name)
            if want is None:
                yield partial(self._lift, kind, rule)
            elif not isolates_as(rule, want):  # somebody changed it, or its owner was recreated
                yield partial(self._apply, kind, want)

    def troubles(self) -> list[str]:
        """Problems that an administrator should fix, one sentence each."""
        plan = self.plan
        if not plan.suspended:
            return []
        said = (
            f"{len(plan.overdue)} of {plan.agents} agents do not renew their leases. That many at a time point to the network or "
            "the API server, so no further node is fenced. See lease.not_renewed in the agents' logs."
        )
        return [said]

    @property
    def fenced(self) -> int:
        """Number of fenced nodes."""
        return len(self._view.rules.store.by_index(FENCES, True))

    def _rule_for(self, node: NodeName) -> DeviceTaintRule | None:
        pool, gpu_node = self._leases.pool(node), self._leases.gpu_node(node)
        return fence_for(gpu_node, pool) if pool and gpu_node else None

    async def _fence(self, kind: Kind[DeviceTaintRule], node: NodeName) -> None:
        rule = self._rule_for(node)
        if rule is None or await self._renewed_meanwhile(node):
            return
        await self._apply(kind, rule)
        log.warning("agent.fenced", node=node, rule=rule.metadata.name)
        self._say(
            node,
            AGENT_LOST,
            "The agent has not renewed its lease, so no new claim gets a GPU of this node until it does. Running pods continue. "
            f"See the agent's pod on node {node}; if no agent should run there any more, delete GpuNode {node}.",
        )

    async def _call_lost(self, node: NodeName) -> None:
        """Set the GpuNode's readiness to unknown. The agent's reports about GPUs stay."""
        gpu_node = self._leases.gpu_node(node)
        if gpu_node is None or not is_true(gpu_node.status.conditions, CONDITION_READY):
            return
        if await self._renewed_meanwhile(node):
            return
        wanted = Condition(type=CONDITION_READY, status="Unknown", reason=REASON_AGENT_LOST, message=_LOST)
        ready = timed(
            wanted, gpu_node.status.conditions, self._view.clock.now(), generation=gpu_node.metadata.generation
        )
        body = {"metadata": gpu_node.metadata.as_seen, "status": {"conditions": [msgspec.to_builtins(ready)]}}
        try:
            await self._client.apply(
                GPU_NODES, gpu_node.metadata.key, body, manager=FIELD_MANAGER_OPERATOR, subresource="status"
            )
        except (Conflict, NotFound):
            return  # its agent may have reported meanwhile; that change wakes us
        log.warning("agent.lost", node=node)

    async def _renewed_meanwhile(self, node: NodeName) -> bool:
        try:
            lease = await self._client.get(LEASES, self._leases.key(node))
        except NotFound:
            return False
        return self._leases.is_news(node, lease)

    async def _lift(self, kind: Kind[DeviceTaintRule], rule: DeviceTaintRule) -> None:
        await delete_rule(self._client, kind, rule)
        node = NodeName(fenced_node(rule))
        log.info("agent.unfenced", node=node, rule=rule.metadata.name)
        if node in self.plan.lift:
            self._say(node, AGENT_BACK, "The node is not fenced any more: claims get its GPUs again.")

    async def _apply(self, kind: Kind[DeviceTaintRule], rule: DeviceTaintRule) -> None:
        await self._client.apply(kind, rule.metadata.key, rule, manager=FIELD_MANAGER_OPERATOR)

    def _say(self, node: NodeName, reason: EventReason, note: str) -> None:
        if (gpu_node := self._leases.gpu_node(node)) is not None:
            self._events.record(GPU_NODES.reference(gpu_node.metadata), reason, note)

    def _say_suspended(self, plan: FencingPlan) -> None:
        if plan.suspended != self._suspended:
            say = log.warning if plan.suspended else log.info
            event = "fencing.suspended" if plan.suspended else "fencing.resumed"
            say(event, overdue=len(plan.overdue), agents=plan.agents)
        self._suspended = plan.suspended

    def _gpu_node_changed(self, change: Change[GpuNode], look: Callable[[], None]) -> None:
        pool = self._leases.pool(NodeName(change.key.name))
        made_or_gone = change.differs(lambda each: each.metadata.uid)
        if made_or_gone or (pool is not None and self._view.is_fenced(pool)):
            look()

    def _slice_changed(self, change: Change[ResourceSlice], look: Callable[[], None]) -> None:
        made_or_gone = None in (change.before, change.after)
        if made_or_gone or any(self._view.is_fenced(item.pool) for item in change.versions):
            look()


async def _all(works: Iterable[_Work]) -> None:
    """Do all works, a few in parallel. Raises the first ApiError after the rest is done."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(work: _Work) -> None:
        async with places:
            await work()

    done = await asyncio.gather(*map(one, works), return_exceptions=True)
    errors = [each for each in done if isinstance(each, BaseException)]
    for error in sorted(errors, key=lambda each: isinstance(each, ApiError)):
        raise error


def register_fencing(metrics: OperatorMetrics, fences: FencingReconciler) -> None:
    """Export how many agents are silent and how many nodes are fenced."""
    metrics.on_scrape(
        "draco_agents_stale",
        "Agents whose lease has run out while their GPUs are published. On the leader only.",
        [],
        lambda: float(len(fences.plan.stale)),
    )
    metrics.on_scrape(
        "draco_agents_fenced",
        "Fenced nodes: new claims get none of their GPUs, because the agent is lost.",
        [],
        lambda: fences.fenced,
    )
    metrics.on_scrape(
        "draco_fencing_suspended",
        "1 while fencing is suspended because too many agents are silent. On the leader only.",
        [],
        lambda: float(fences.plan.suspended),
    )
