"""What is told of taint rules: how far each one reaches, and that one hits everything.

Owns the metrics and the warning. What is counted is `reach`'s; writes no rule.
"""

from collections.abc import Iterable

import structlog
from prometheus_client.core import Metric

from draco.controller.metrics import Metrics, Reading, Values, gauge
from draco.controller.taints.reach import RuleReach
from draco.controller.view import ClusterView
from draco.kube.watch.store import Change
from draco.resources.api.taints import DeviceTaintRule, DeviceTaintSelector

log = structlog.get_logger(__name__)

_METRICS = {
    "draco_taint_rule_devices": "Published devices that a DeviceTaintRule taints, extensions included. Of more than 100 rules "
    'all but the first by name, people\'s before those of maintenance, are summed as "(others)".',
    "draco_taint_rule_claims": "Claims that hold hardware which a DeviceTaintRule taints; sums as for devices.",
    "draco_taint_rule_pods": "Pods that use a claim which holds hardware that a DeviceTaintRule taints; sums as for devices.",
}


def register_reach(metrics: Metrics, reach: RuleReach) -> None:
    """Export the reach of rules: what is known when it is asked for."""

    def read() -> Iterable[Metric]:
        rows = reach.rows
        numbers: dict[str, Values] = {
            "draco_taint_rule_devices": {row: float(amounts.devices) for row, amounts in rows.items()},
            "draco_taint_rule_claims": {row: float(amounts.claims) for row, amounts in rows.items()},
            "draco_taint_rule_pods": {row: float(amounts.pods) for row, amounts in rows.items()},
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
