"""How far each taint rule reaches: devices, the claims that hold them, the pods that use those claims.

Owns this reading, for metrics and for the warning about a rule that hits everything. Writes no rule.
"""

from collections.abc import Iterable

import msgspec
import structlog
from prometheus_client.core import Metric

from draco.controller.metrics import Metrics, Reading, Values, gauge
from draco.controller.view import BY_POOL, ClusterView
from draco.kube.store import Change
from draco.resources.meta import ObjectKey
from draco.resources.names import DeviceKey, PoolKey
from draco.resources.slices import ResourceSlice, current_slices
from draco.resources.taints import DeviceTaintRule, DeviceTaintSelector

log = structlog.get_logger(__name__)

_METRICS = {
    "draco_taint_rule_devices": "Published devices that a DeviceTaintRule taints.",
    "draco_taint_rule_claims": "Claims that hold a device which a DeviceTaintRule taints.",
    "draco_taint_rule_pods": "Pods that use a claim which holds a device that a DeviceTaintRule taints.",
}


class Reach(msgspec.Struct, frozen=True):
    """What one rule hits."""

    rule: str
    effect: str
    devices: int
    claims: int
    pods: int


def reach(rule: DeviceTaintRule, view: ClusterView) -> Reach:
    """What the rule hits, by what is known now."""
    devices = _devices(rule.spec.device_selector, view)
    claims = view.claims_on(devices)
    pods: set[ObjectKey] = {pod.metadata.key for claim in claims for pod in view.pods_of(claim.metadata.key)}
    return Reach(rule.metadata.name, rule.spec.taint.effect, len(devices), len(claims), len(pods))


def register_reach(metrics: Metrics, view: ClusterView) -> None:
    """Export the reach of every rule."""

    def read() -> Iterable[Metric]:
        reached = [reach(rule, view) for rule in view.rule_store.values()]
        numbers: dict[str, Values] = {
            "draco_taint_rule_devices": {(r.rule, r.effect): float(r.devices) for r in reached},
            "draco_taint_rule_claims": {(r.rule, r.effect): float(r.claims) for r in reached},
            "draco_taint_rule_pods": {(r.rule, r.effect): float(r.pods) for r in reached},
        }
        return [gauge(name, help_, ["rule", "effect"], numbers[name]) for name, help_ in _METRICS.items()]

    metrics.registry.register(Reading(_METRICS, read))


def warn_of_wide_rules(view: ClusterView) -> None:
    """Log a warning when a rule appears whose selector is empty: it taints every device of the cluster."""

    def look(change: Change[DeviceTaintRule]) -> None:
        rule = change.after
        if change.before is None and rule is not None and rule.spec.device_selector == DeviceTaintSelector():
            log.warning(
                "taint_rule.hits_everything",
                rule=rule.metadata.name,
                taint=f"{rule.spec.taint.key}:{rule.spec.taint.effect}",
                remedy="name driver, pool or device in spec.deviceSelector, or delete the rule",
            )

    if view.rules:
        view.rules.subscribe(look)


def _devices(selector: DeviceTaintSelector | None, view: ClusterView) -> set[DeviceKey]:
    if selector is None:
        return set()
    slices: list[ResourceSlice]
    if selector.driver and selector.pool:
        slices = view.slices.store.by_index(BY_POOL, PoolKey(selector.driver, selector.pool))
    else:
        slices = view.slices.store.values()
    current = ((pool, part) for pool, parts in current_slices(slices).items() for part in parts)
    devices = (DeviceKey(*pool, device.name) for pool, part in current for device in part.spec.devices)
    return {device for device in devices if selector.matches(device)}
