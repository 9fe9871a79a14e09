"""Counts what each taint rule affects: devices, the claims that hold them, the pods that use those claims.

Owns these counts, their metrics, and the warning about a rule that affects everything. Counts are updated by pool as slices,
claims, pods and rules change, in short turns that yield the event loop; reading them costs nothing. A rule that Draco extends
affects everything on the same hardware, and its extensions count as part of it. Writes no rule.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import structlog

from draco.controller.loop_watch import CooperativeWork
from draco.controller.metrics import OperatorMetrics
from draco.controller.view import BY_POOL, ClusterView
from draco.kube.listeners import Listeners
from draco.kube.watch.store import Change
from draco.maintenance.taint_impact import TaintAmounts
from draco.maintenance.taint_rules import extended_device, extends, maintenance_uid
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import EFFECTS, DeviceTaintRule, DeviceTaintSelector
from draco.resources.names import DeviceKey, PoolKey

NAMED_RULES: Final = 100
"""Number of rules with metrics of their own, people's rules before those of maintenance; the others are summed."""
OTHERS: Final = "(others)"
_REST: Final = 10
"""After a round, rest this many times its duration, so that counting takes at most a tenth of the time."""
_LONGEST_REST_S: Final = 5.0


_NOTHING: Final = TaintAmounts()


class _Selection(NamedTuple):
    """What a rule selects; equal selections are counted once. `extended`: including the same hardware."""

    driver: str | None
    pool: str | None
    device: str | None
    extended: bool

    def may_match(self, pool: PoolKey) -> bool:
        return self.driver in {None, pool.driver} and self.pool in {None, pool.pool}


class RuleReach:
    """The effect of every rule. `rows` are counts by rule and effect, as of the last round."""

    def __init__(self, view: ClusterView) -> None:
        self.rows: Mapping[tuple[str, str], TaintAmounts] = MappingProxyType({})
        self._view = view
        self.listeners = Listeners[[]]()
        self._changed = asyncio.Event()
        self._due: dict[PoolKey, None] = {}
        self._rules_changed = True
        self._counted: dict[_Selection, dict[PoolKey, TaintAmounts]] = {}
        self._totals: dict[_Selection, TaintAmounts] = {}
        self._exact: dict[PoolKey, list[_Selection]] = {}
        self._wide: list[_Selection] = []
        view.slices.subscribe(self._slice_changed, reads=lambda item: item.spec)
        view.claims.subscribe(self._claim_changed, reads=lambda claim: claim.devices_held)
        view.pods.subscribe(self._pod_changed, reads=lambda pod: pod.claims)
        view.rules.subscribe(self._rule_changed)

    def of(self, rule: DeviceTaintRule) -> TaintAmounts | None:
        """What the rule affects as of the last round; None if the rule is newer."""
        selection = _selection(rule)
        return self._totals.get(selection) if selection else TaintAmounts()

    async def run(self) -> None:
        """Keep the counts up to date until cancelled."""
        self._changed.set()
        while True:
            await self._changed.wait()
            took_s = await self.catch_up()
            await self._view.clock.sleep(min(took_s * _REST, _LONGEST_REST_S))

    async def catch_up(self) -> float:
        """Process all changes so far. Return how long that took, without the time of other tasks."""
        self._changed.clear()
        cooperative = CooperativeWork(self._view.clock)
        if self._rules_changed:
            self._rules_changed = False
            await self._take_rules(cooperative)
        due, self._due = self._due, {}  # later changes are for the next round, so that this one ends
        for pool in due:
            for selection in (*self._exact.get(pool, ()), *(each for each in self._wide if each.may_match(pool))):
                self._count(selection, pool)
                await cooperative.pause()
        self.rows = MappingProxyType(await self._make_rows(cooperative))
        self.listeners.tell()
        return cooperative.spent_s

    async def _take_rules(self, cooperative: CooperativeWork) -> None:
        """Count the selections of new rules, and forget those of deleted rules only."""
        wanted: set[_Selection] = set()
        for rule in self._view.rules.store.values():
            if selection := _selection(rule):
                wanted.add(selection)
            await cooperative.pause()
        for gone in self._totals.keys() - wanted:
            del self._totals[gone], self._counted[gone]
        fresh = wanted - self._totals.keys()
        self._exact = defaultdict(list)
        self._wide = []
        for selection in wanted:
            if selection.driver and selection.pool:
                self._exact[PoolKey(selection.driver, selection.pool)].append(selection)
            else:
                self._wide.append(selection)
        is_wide = any(not (each.driver and each.pool) for each in fresh)
        everywhere = await self._all_pools(cooperative) if is_wide else set()
        for selection in fresh:
            self._totals[selection], self._counted[selection] = _NOTHING, {}
        for selection in fresh:
            exact = selection.driver and selection.pool
            pools = {PoolKey(selection.driver or "", selection.pool or "")} if exact else everywhere
            for pool in pools:
                if selection.may_match(pool):
                    self._count(selection, pool)
                    await cooperative.pause()

    def _count(self, selection: _Selection, pool: PoolKey) -> None:
        counted = self._counted.get(selection)
        if counted is None:
            return
        now, before = self._amounts(selection, pool), counted.get(pool, _NOTHING)
        if now == before:
            return
        self._totals[selection] = self._totals[selection].plus(now).plus(before, -1)
        if now == _NOTHING:
            del counted[pool]
        else:
            counted[pool] = now

    def _amounts(self, selection: _Selection, pool: PoolKey) -> TaintAmounts:
        """What a selection affects in one pool. Claims and pods in several pools count in the first."""
        claims = [
            claim for claim in self._view.claims.store.by_index(BY_POOL, pool) if self._home(selection, claim) == pool
        ]
        pods: set[ObjectKey] = set()
        for claim in claims:
            for pod in self._view.pods_of(claim.metadata.key):
                used = (self._view.claims.store.get(key) for key in pod.claims)
                homes = [home for each in used if each is not None and (home := self._home(selection, each))]
                if min(homes, default=pool) == pool:
                    pods.add(pod.metadata.key)
        return TaintAmounts(self._devices(selection, pool), len(claims), len(pods))

    def _devices(self, selection: _Selection, pool: PoolKey) -> int:
        if selection.extended and selection.device:
            hardware = self._view.hardware(pool)
            there = {each.device for each in self._view.extended_to(DeviceKey(*pool, selection.device))}
            return len(({selection.device} | hardware.overlapping(selection.device) | there) & hardware.expected)
        devices = self._view.devices_of(pool)
        if selection.device is None:
            return len(devices)
        return sum(device.name == selection.device for device in devices)

    def _home(self, selection: _Selection, claim: ResourceClaim) -> PoolKey | None:
        hit = [held.pool_key for held in claim.devices_held if self._hits(selection, held)]
        return min(hit, default=None)

    def _hits(self, selection: _Selection, held: DeviceKey) -> bool:
        pool = held.pool_key
        if not selection.may_match(pool):
            return False
        if selection.device in {None, held.device}:
            return True
        if not (selection.extended and selection.device):
            return False
        named = DeviceKey(*pool, selection.device)
        return held in self._view.extended_to(named) or self._view.hardware(pool).overlap(held.device, named.device)

    async def _make_rows(self, cooperative: CooperativeWork) -> dict[tuple[str, str], TaintAmounts]:
        rules: list[tuple[bool, str, str, _Selection]] = []
        for rule in self._view.rules.store.values():
            if selection := _selection(rule):
                effect = rule.spec.taint.effect if rule.spec.taint.effect in EFFECTS else OTHERS
                rules.append((bool(maintenance_uid(rule)), rule.metadata.name, effect, selection))
            await cooperative.pause()
        rules.sort(key=lambda each: each[:2])
        rows: dict[tuple[str, str], TaintAmounts] = {}
        for number, (_, name, effect, selection) in enumerate(rules):
            label = (name if number < NAMED_RULES else OTHERS, effect)
            rows[label] = rows.get(label, _NOTHING).plus(self._totals.get(selection, _NOTHING))
            await cooperative.pause()
        return rows

    async def _all_pools(self, cooperative: CooperativeWork) -> set[PoolKey]:
        found: set[PoolKey] = set()
        for item in self._view.slices.store.values():
            found.add(item.pool)
            await cooperative.pause()
        for claim in self._view.claims.store.values():
            found.update(device.pool_key for device in claim.devices_held)
            await cooperative.pause()
        return found

    def _look_at(self, pools: Iterable[PoolKey]) -> None:
        self._due |= dict.fromkeys(pools)
        self._changed.set()

    def _slice_changed(self, change: Change[ResourceSlice]) -> None:
        self._look_at(item.pool for item in change.versions)

    def _claim_changed(self, change: Change[ResourceClaim]) -> None:
        held = (device for claim in change.versions for device in claim.devices_held)
        self._look_at(device.pool_key for device in held)
        for pod in self._view.pods_of(change.key):
            self._look_at(self._pools_of(pod))

    def _pod_changed(self, change: Change[Pod]) -> None:
        self._look_at(pool for pod in change.versions for pool in self._pools_of(pod))

    def _pools_of(self, pod: Pod) -> Iterable[PoolKey]:
        for key in pod.claims:
            claim = self._view.claims.store.get(key)
            for device in claim.devices_held if claim else ():
                yield device.pool_key

    def _rule_changed(self, change: Change[DeviceTaintRule]) -> None:
        selectors = (rule.spec.device_selector for rule in change.versions if extends(rule))
        self._look_at(named.pool_key for each in selectors if each is not None and (named := each.named))
        self._rules_changed = True
        self._changed.set()


def _selection(rule: DeviceTaintRule) -> _Selection | None:
    """What the rule selects; None if nothing, or if it is counted with the rule that it extends."""
    selector = rule.spec.device_selector
    if selector is None or extends(rule):
        return None
    return _Selection(
        selector.driver or None, selector.pool or None, selector.device or None, extended_device(rule) is not None
    )


log = structlog.get_logger(__name__)


def register_reach(metrics: OperatorMetrics, reach: RuleReach) -> None:
    """Export the latest counts of rules."""

    def column(name: str) -> Callable[[], dict[tuple[str, str], float]]:
        return lambda: {row: getattr(amounts, name) for row, amounts in reach.rows.items()}

    metrics.on_scrape(
        "draco_taint_rule_devices",
        "Published devices that a DeviceTaintRule taints, extensions included. Of more than 100 rules all but the first by name, "
        'people\'s before those of maintenance, are summed as "(others)".',
        ["rule", "effect"],
        column("devices"),
    )
    metrics.on_scrape(
        "draco_taint_rule_claims",
        "Claims that hold hardware which a DeviceTaintRule taints; sums as for devices.",
        ["rule", "effect"],
        column("claims"),
    )
    metrics.on_scrape(
        "draco_taint_rule_pods",
        "Pods that use a claim which holds hardware that a DeviceTaintRule taints; sums as for devices.",
        ["rule", "effect"],
        column("pods"),
    )


def warn_of_wide_rules(view: ClusterView) -> None:
    """Log a warning when a rule with an empty selector appears: it taints every device of the cluster."""

    def look(change: Change[DeviceTaintRule]) -> None:
        rule = change.after
        if change.before is None and rule is not None and rule.spec.device_selector == DeviceTaintSelector():
            log.warning(
                "taint_rule.hits_everything",
                rule=rule.metadata.name,
                taint=f"{rule.spec.taint.key}:{rule.spec.taint.effect}",
                remedy="name driver, pool or device in spec.deviceSelector, or delete the rule",
            )

    view.rules.subscribe(look)
