"""What each DeviceTaintRule hits, and what a new rule would hit, for `draco status` and `draco taint`."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from draco.maintenance.taint_impact import TaintImpact, impact_of, sentences, with_budgets
from draco.maintenance.taint_rules import extends, maintenance_uid
from draco.overview.hardware_use import HardwareByPool
from draco.overview.status_schema import RuleView
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod, PodDisruptionBudget
from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.api.taints import DeviceTaintRule, DeviceTaintSelector
from draco.resources.names import DeviceKey


class TaintedCluster(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What taints can hit. `devices` are the published ones.

    `pods` contain at least the users of hit claims; None if they may not be read. There can be as many rules as devices, so a
    rule that names a pool is matched only within that pool.
    """

    devices: Sequence[DeviceKey]
    hardware: HardwareByPool
    claims: Sequence[ResourceClaim] = ()
    pods: Sequence[Pod] | None = None
    budgets: Sequence[PodDisruptionBudget] = ()
    spares_extended: bool = True
    """Whether NoExecute spares pods that have their GPUs as extended resources."""

    def impact(self, rules: Iterable[DeviceTaintRule]) -> TaintImpact:
        """What these rules hit together, including Draco's extensions. All have the same taint."""
        several = list(rules)
        pools = {each.spec.device_selector.pool for each in several if each.spec.device_selector is not None}
        named = None if None in pools else sorted(filter(None, pools))
        found = impact_of(
            several[0].spec.taint,
            self._hit_by(several),
            devices=self.devices
            if named is None
            else [key for pool in named for key in self._devices_of.get(pool, ())],
            claims=self.claims if named is None else self._claims_in(named),
            pods=self.pods,
            spares_extended=self.spares_extended,
        )
        return with_budgets(found, self.budgets, self.pods or ())

    def claims_hit(self, rules: Iterable[DeviceTaintRule]) -> list[ResourceClaim]:
        """The claims that have a device which any of these rules hits."""
        hits = self._hit_by(list(rules))
        return [claim for claim in self.claims if any(hits(result.key) for result in claim.results)]

    def _claims_in(self, pools: Iterable[str]) -> Iterable[ResourceClaim]:
        return {each.metadata.key: each for pool in pools for each in self._claims_of.get(pool, ())}.values()

    @cached_property
    def _devices_of(self) -> Mapping[str, Sequence[DeviceKey]]:
        """By pool name, for any driver."""
        found: dict[str, list[DeviceKey]] = defaultdict(list)
        for key in self.devices:
            found[key.pool].append(key)
        return found

    @cached_property
    def _claims_of(self) -> Mapping[str, Sequence[ResourceClaim]]:
        """By the pools of their devices."""
        found: dict[str, list[ResourceClaim]] = defaultdict(list)
        for claim in self.claims:
            for pool in {result.pool for result in claim.results}:
                found[pool].append(claim)
        return found

    def _hit_by(self, rules: Sequence[DeviceTaintRule]) -> Callable[[DeviceKey], bool]:
        rules_in = rules_by_pool(rules)
        return lambda device: any(self.hardware.hits(rule, device) for rule in rules_in(device.pool))


def rules_by_pool(rules: Iterable[DeviceTaintRule]) -> Callable[[str], Sequence[DeviceTaintRule]]:
    """Return a function from a pool's name to the rules that may hit its devices; there can be as many rules as devices."""
    by_pool: dict[str | None, list[DeviceTaintRule]] = defaultdict(list)
    for rule in rules:
        if (selector := rule.spec.device_selector) is not None:
            by_pool[selector.pool].append(rule)
    return lambda pool: [*by_pool.get(None, ()), *by_pool.get(pool, ())]


def rule_views(
    rules: Iterable[DeviceTaintRule], maintenances: Iterable[DeviceMaintenance], cluster: TaintedCluster
) -> list[RuleView]:
    """A row for each rule, by name."""
    ordered = sorted(rules, key=lambda rule: rule.metadata.name)
    named = {rule.metadata.uid: rule.metadata.name for rule in ordered if not extends(rule)}
    named |= {request.metadata.uid: request.metadata.name for request in maintenances}
    return [
        view_of(
            rule,
            cluster.impact([rule]),
            extended=named.get(extends(rule), ""),
            maintenance=named.get(maintenance_uid(rule), ""),
        )
        for rule in ordered
    ]


def view_of(rule: DeviceTaintRule, impact: TaintImpact, *, extended: str = "", maintenance: str = "") -> RuleView:
    """The row of one rule."""
    taint = rule.spec.taint
    return RuleView(
        name=rule.metadata.name,
        taint=str(taint.identity),
        selector=selector_text(rule.spec.device_selector),
        devices=list(map(str, impact.devices)),
        claims=list(map(str, impact.claims)),
        pods=list(map(str, impact.pods)),
        evicted=[str(each.key) for each in impact.evicted],
        budgets=[str(each.key) for each in impact.broken] if taint.effect != "NoSchedule" else [],
        extends=extended,
        maintenance=maintenance,
        message=" ".join(sentences(rule, impact)),
    )


def selector_text(selector: DeviceTaintSelector | None) -> str:
    """What a rule selects, in a few words."""
    if selector is None:
        return "nothing"
    fields = (("driver", selector.driver), ("pool", selector.pool), ("device", selector.device))
    return ", ".join(f"{name}={value}" for name, value in fields if value is not None) or "every device"
