"""Decides the wanted layout of every node's GPUs from the current view.

Owns the reading of the view for MIG policies; `node_decisions` keeps the decisions. Writes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple

from draco.allocation.ownership.handover import GpuPlace
from draco.controller.metrics import OperatorMetrics
from draco.controller.node_decisions import NodeDecisions, said_by
from draco.controller.view import BY_POOL, ClusterView
from draco.kube.listeners import Listeners
from draco.kube.watch.store import Change
from draco.mig_policy.decide import Ahead, NodeDecision, SeenNode, decide
from draco.mig_policy.gpu_state import LayoutState
from draco.mig_policy.matching import Rules, oldest_first, permit, rules_of
from draco.resources.api.draco import GpuNode, MigPolicy
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import ResourceSlice, own_slices
from draco.resources.names import DeviceKey

_NONE_AHEAD: Ahead = {}
_NEVER = datetime.max.replace(tzinfo=UTC)
_LONGEST_WAIT_S = 3600.0
"""Clocks may be set: check a window again after this at the latest, however far away it is."""


class AheadReport(NamedTuple):
    """What is kept ahead of claims. `said` is text by policy; the others are by policy and profile."""

    said: Mapping[str, str] = MappingProxyType({})
    rates: Mapping[tuple[str, str], float] = MappingProxyType({})
    """Instances that claims take per minute."""
    counts: Mapping[tuple[str, str], int] = MappingProxyType({})
    """Idle instances wanted for these rates."""


class MigDecisions:
    """Decisions by node, made on demand. Must subscribe before everyone who asks because of a change."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._rules: tuple[Rules, ...] | None = None
        self._permits: dict[str, bool] = {}
        self._permits_hold: tuple[datetime, datetime] = (_NEVER, _NEVER)  # from when to when
        self._all_decided = False  # at least once
        self._ahead: dict[str, Ahead] | None = None  # by node; None: not measured here yet
        self.when_ahead = Listeners[[str]]()
        """Called with a node's name when the idle instances to keep on it change."""
        self.when_told = Listeners[[]]()
        """Called when the report of what is kept ahead changes."""
        self.ahead = AheadReport()
        """What is kept ahead of claims, and why."""
        view.mig_policies.subscribe(self._forget_rules, reads=said_by)
        self._decisions: NodeDecisions[NodeDecision] = NodeDecisions(view)

    @property
    def rules(self) -> Sequence[Rules]:
        """The compiled policies, oldest first. Their status may be outdated."""
        if self._rules is None:
            self._rules = tuple(rules_of(policy) for policy in oldest_first(self._view.mig_policies.store.values()))
            self._permits_hold = (_NEVER, _NEVER)
        return self._rules

    def of(self, node: str) -> NodeDecision | None:
        """The decision for a node; None without a GpuNode."""
        gpu_node = self._view.gpu_nodes.store.get(ObjectKey("", node))
        return self._decided(gpu_node, self.rules, self._permitted(self.rules)) if gpu_node else None

    def policies_of(self, devices: Iterable[DeviceKey]) -> list[MigPolicy | None]:
        """The policy of each GPU that has one of these devices; None for a GPU without a known policy."""
        by_name = {each.name: each.policy for each in self.rules}
        found = []
        for place in dict.fromkeys(map(GpuPlace.of, devices)):
            decision = self.of(place.pool)
            names = [each.policy for each in (decision.gpus if decision else ()) if each.device == place.gpu]
            found.append(by_name.get(names[0]) if names else None)
        return found

    async def all(self) -> list[NodeDecision]:
        """The decisions for all nodes with a GpuNode, by name. Yields the event loop in between.

        All use the policies and windows from the start, and each node's state at its turn. A change in between may be missed, but
        callers that act on changes are woken by it and ask again; then only what depends on replaced objects is decided again.
        """
        rules = self.rules
        permits = self._permitted(rules)
        decisions = await self._decisions.all(lambda gpu_node: self._decided(gpu_node, rules, permits))
        self._all_decided = True
        return decisions

    @property
    def gpu_counts(self) -> Mapping[tuple[str, str], int]:
        """GPUs by policy and state, from the last decisions; empty until somebody has asked for all."""
        if not self._all_decided:
            return {}
        policies = (each.metadata for each in self._view.mig_policies.store.values())
        names = [meta.name for meta in policies if meta.deletion_timestamp is None]
        gpus = (gpu for decision in self._decisions.known for gpu in decision.gpus)
        counts = Counter((gpu.policy, gpu.condition.state) for gpu in gpus)
        return {(name, state.value): counts[name, state] for name in names for state in LayoutState}

    def keep_ahead(self, ahead: Mapping[str, Ahead], report: AheadReport) -> None:
        """Take over what GPUs are to keep idle by demand, by node."""
        before, told = self._ahead or {}, self.ahead.said
        self.ahead = report
        self._ahead = {node: before[node] if before.get(node) == each else each for node, each in ahead.items()}
        for node in before.keys() | ahead.keys():
            if before.get(node) != ahead.get(node):
                self.when_ahead.tell(node)
        if told != report.said:
            self.when_told.tell()

    def seconds_to_next_window(self) -> float | None:
        """Seconds until a window for resets opens or closes; None without windows."""
        self._permitted(self.rules)
        end = self._permits_hold[1]
        return None if end == _NEVER else min(max(0.0, (end - self._view.clock.now()).total_seconds()), _LONGEST_WAIT_S)

    def _decided(self, gpu_node: GpuNode, rules: Sequence[Rules], permits: Mapping[str, bool]) -> NodeDecision:
        name = gpu_node.metadata.name
        node = self._view.nodes.store.get(ObjectKey("", name))
        slices = self._slices(gpu_node)
        ahead = self._ahead.get(name, _NONE_AHEAD) if self._ahead is not None else None
        basis = (rules, permits, gpu_node, node, ahead, *slices)
        return self._decisions.of(
            name, basis, lambda: decide(SeenNode.of(gpu_node, node, slices), rules, permits, ahead)
        )

    def _slices(self, gpu_node: GpuNode) -> list[ResourceSlice]:
        own = own_slices(self._view.slices.store.by_index(BY_POOL, gpu_node.pool), gpu_node.metadata.name)
        return sorted(own, key=lambda each: each.metadata.name)

    def _permitted(self, rules: Sequence[Rules]) -> Mapping[str, bool]:
        """Whether each policy may reset now; the same object while nothing changes."""
        now = self._view.clock.now()
        since, end = self._permits_hold
        if not since <= now < end:  # also if the clock was set back
            permits = {each.name: permit(each.policy.spec.reset, now) for each in rules}
            granted = {name: each.is_open for name, each in permits.items()}
            if granted != self._permits:
                self._permits = granted
            self._permits_hold = now, min((each.until for each in permits.values() if each.until), default=_NEVER)
        return self._permits

    def _forget_rules(self, _: Change[MigPolicy]) -> None:
        self._rules = None


def register_mig(metrics: OperatorMetrics, decisions: MigDecisions) -> None:
    """Export the states of each policy's GPUs."""
    metrics.on_scrape(
        "draco_mig_policy_gpus",
        "GPUs of each MigPolicy by state: applied, changing, or failed. On the leader only.",
        ["policy", "standing"],
        lambda: decisions.gpu_counts,
    )
    metrics.on_scrape(
        "draco_mig_policy_warm_taken_per_minute",
        "Instances that claims take in a minute, by MigPolicy with spec.warmAhead and profile. On the leader only.",
        ["policy", "profile"],
        lambda: decisions.ahead.rates,
    )
    metrics.on_scrape(
        "draco_mig_policy_warm_wanted",
        "Idle instances wanted by spec.warmAhead, by MigPolicy and profile. On the leader only.",
        ["policy", "profile"],
        lambda: decisions.ahead.counts,
    )
