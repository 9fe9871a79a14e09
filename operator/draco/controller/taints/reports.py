"""Reports on each DeviceTaintRule what it does, in one Event: devices, claims, pods, and the disruption budgets it violates.

Owns the wake-ups and these Events. Draco's own rules are left out: their purpose is reported on the request or rule that they
serve. A rule for one pool is reported with names; one that may affect the whole fleet with the counts of `reach`, which do not
block the loop. Keys are UIDs of rules, including deleted ones. Writes no rule.
"""

from collections.abc import Callable, Hashable, Iterable
from functools import partial

from draco.controller.taints.reach import RuleReach
from draco.controller.view import BY_TAINTED_POOL, BY_UID, WIDE, ClusterView
from draco.kube.connect.retry import attempted
from draco.kube.events.notes import Notes, NotesByKey
from draco.kube.events.shares import EventReason
from draco.maintenance.taint_impact import TaintImpact, impact_of, sentences, spares_extended_resources, with_budgets
from draco.maintenance.taint_rules import extended_device, extends, is_draco_own, means
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.taints import DeviceTaintRule, DeviceTaintSelector
from draco.resources.names import DeviceKey, PoolKey

EVENT_REASON = EventReason("TaintImpact", "ReportTaint")
_BUDGETS_EVERY_S = 300.0
"""How often to check PodDisruptionBudgets: their status changes too often to write an Event each time."""


class TaintRuleReports:
    """Reconciles one rule at a time."""

    def __init__(self, view: ClusterView, reach: RuleReach, notes: Notes) -> None:
        self._view = view
        self._reach = reach
        self._notes = NotesByKey(notes, lambda each: each.uid)

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with the UID of every rule that a change may affect."""

        def wake_wide() -> None:
            for uid in self._tainting([WIDE]):
                wake(uid)

        self._view.rules.subscribe_keys(wake, _reported_rule)
        self._view.slices.subscribe_keys(wake, lambda item: self._tainting([item.pool]), reads=lambda item: item.spec)
        self._view.claims.subscribe_keys(
            wake, lambda claim: self._tainting(_pools_of(claim)), reads=lambda claim: claim.status
        )
        self._view.pods.subscribe_keys(wake, self._concerned, reads=_of_pod)
        self._reach.listeners.add(wake_wide)

    def all_keys(self) -> set[str]:
        """Every rule that is not Draco's own."""
        return {rule.metadata.uid for rule in self._view.rules.store.values() if not is_draco_own(rule)}

    async def adopt(self, wake: Callable[[str], None]) -> None:
        """Adopt a former leader's Events, so that outdated ones are withdrawn."""
        for uid in await attempted("events.not_adopted", self._notes.adopt, clock=self._view.clock) or ():
            wake(uid)

    async def reconcile(self, uid: str) -> float | None:
        """Report what the rule does now, or withdraw the Event of a deleted rule."""
        rule = next(iter(self._view.rules.store.by_index(BY_UID, uid)), None)
        kind = self._view.taint_rules
        if rule is None or kind is None:
            await self._notes.withdraw(uid)
            return None
        impact = self._impact(rule)
        if impact is None:
            return None  # the next counting round wakes us
        again_s = await self._notes.say(
            kind.reference(rule.metadata),
            " ".join(sentences(rule, impact)),
            type="Warning" if _needs_a_look(rule, impact) else "Normal",
        )
        return min(again_s, _BUDGETS_EVERY_S) if impact.evicted and rule.spec.taint.effect != "NoSchedule" else again_s

    def _impact(self, rule: DeviceTaintRule) -> TaintImpact | None:
        """What the rule affects: by name if it names one pool, else as counts; None if not counted yet."""
        selector = rule.spec.device_selector
        if selector is None or not (selector.driver and selector.pool):
            totals = self._reach.of(rule)
            return None if totals is None else TaintImpact(totals=totals)
        pool = PoolKey(selector.driver, selector.pool)
        claims = self._view.claims_in(pool)
        pods = {pod.metadata.key: pod for claim in claims for pod in self._view.pods_of(claim.metadata.key)}
        hardware, named = self._view.hardware(pool), extended_device(rule)
        impact = impact_of(
            rule.spec.taint,
            partial(means, rule, hardware, extended_to=self._view.extended_to(named) if named else ()),
            devices=[DeviceKey(*pool, name) for name in hardware.expected],
            claims=claims,
            pods=pods.values(),
            spares_extended=spares_extended_resources(self._view.taint_rules),
        )
        if rule.spec.taint.effect == "NoSchedule" or not impact.evicted:
            return impact
        budgets = self._view.budgets_in({each.key.namespace for each in impact.evicted})
        return with_budgets(impact, budgets, pods.values())

    def _concerned(self, pod: Pod) -> list[str]:
        known = filter(None, map(self._view.claims.store.get, pod.claims))
        return self._tainting({pool for claim in known for pool in _pools_of(claim)})

    def _tainting(self, pools: Iterable[Hashable]) -> list[str]:
        """The UIDs of rules that name one of these pools, or of WIDE ones."""
        rules = self._view.rules.store
        return [rule.metadata.uid for pool in pools for rule in rules.by_index(BY_TAINTED_POOL, pool)]


def _needs_a_look(rule: DeviceTaintRule, impact: TaintImpact) -> bool:
    """Whether the rule does something hardly anybody wants."""
    selector = rule.spec.device_selector
    hits_nothing = not impact.amounts.devices and not impact.amounts.claims
    breaks = rule.spec.taint.effect == "NoExecute" and bool(impact.broken or impact.overlooked)
    return selector in {None, DeviceTaintSelector()} or hits_nothing or breaks


def _of_pod(pod: Pod) -> tuple[object, ...]:
    return pod.claims, pod.is_over, pod.spec.node_name, pod.metadata.labels


def _pools_of(claim: ResourceClaim) -> set[PoolKey]:
    return {each.key.pool_key for each in claim.results}


def _reported_rule(rule: DeviceTaintRule) -> list[str]:
    if original := extends(rule):
        return [original]
    return [] if is_draco_own(rule) else [rule.metadata.uid]
