"""The operator's Prometheus metrics.

Owns the names and meanings of all metrics, and their registry. Metrics of the cluster are read from the view on each scrape, so
they are never stale and cost nothing otherwise.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from draco import __version__
from draco.certificates import CertificateMetrics
from draco.controller.view import ClusterView
from draco.controller.workers.pool import Workers

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class OperatorMetrics:
    """Counters and gauges that the operator's parts update. One per process; `registry` is scraped."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, buckets=_SECONDS, registry=registry)
        self.certificates = CertificateMetrics(registry)
        self.leader = Gauge("draco_leader", "1 on the replica that leads.", registry=registry)
        self.missing_feature = Gauge(
            "draco_missing_feature",
            "1 for each feature that the cluster does not offer.",
            ["feature"],
            registry=registry,
        )
        self.queue_wait_seconds = histogram(
            "draco_queue_wait_seconds", "How long a key waited for a worker.", ["reconciler"]
        )
        self.reconcile_seconds = histogram("draco_reconcile_seconds", "Duration of one reconciliation.", ["reconciler"])
        self.reconcile_errors = counter(
            "draco_reconcile_errors_total", "Reconciliations that failed and will be tried again.", ["reconciler"]
        )
        self.admission_reviews = counter(
            "draco_admission_reviews_total",
            "Objects sent to the webhook, by outcome: clean, warned, denied, gated (a pod that got Draco's scheduling gate), "
            "or unseen (allowed unchecked).",
            ["outcome"],
        )
        self.events_dropped = counter(
            "draco_events_dropped_total",
            "Events not posted, by reason: full (their namespace has its maximum), or refused by the API server.",
            ["why"],
        )
        self.claims_allocated = counter("draco_claims_allocated_total", "Claims that Draco allocated.")
        self.late_decisions = counter(
            "draco_allocation_late_decisions_total",
            "Times that the periodic check found something to allocate that no event had triggered: more than 0 means a bug in "
            "Draco (see its log).",
        )
        self.preemptions = counter(
            "draco_preemption_evictions_total",
            "Preemption evictions by outcome: evicted, or refused (and tried again later).",
            ["outcome"],
        )
        self.losses = counter(
            "draco_partial_loss_evictions_total",
            "Evictions from groups that lost a pod (spec.gangs.onPartialLoss): evicted, or refused (and tried again).",
            ["outcome"],
        )
        self.claims_released = counter(
            "draco_claims_released_total",
            "Idle claims whose allocation was taken back to make room for a pod, by the MigPolicy that permits it.",
            ["policy"],
        )
        self.leaks_released = counter(
            "draco_leaked_claims_released_total",
            "Claims released from PodGroups without a pod (spec.gangs.releaseLeakedAfter of MigPolicies).",
        )
        self.remediations_opened = counter(
            "draco_health_remediations_opened_total",
            "DeviceMaintenances that were opened because of a fault, by the HealthPolicy that says so.",
            ["policy"],
        )
        self.evictions = counter(
            "draco_pod_evictions_total",
            "Evictions of pods from devices in maintenance, by outcome: evicted, refused (and tried again later), or requested "
            "with an EvictionRequest.",
            ["outcome"],
        )
        self.unused_evictions = counter(
            "draco_unused_evictions_total",
            "Evictions of pods whose devices nobody used (spec.unused of DeviceLimits), by outcome: evicted, or refused (and "
            "tried again later).",
            ["outcome"],
        )
        Gauge("draco_build_info", "The version of Draco.", ["version"], registry=registry).labels(__version__).set(1)

    def on_scrape(self, name: str, help_: str, labels: Sequence[str], read: Callable[[], "Values | float"]) -> None:
        """Add a metric that is read on each scrape: a counter if its name ends in _total, else a gauge."""
        self.registry.register(ScrapedMetric(name, help_, labels, read))


Values = Mapping[str, float] | Mapping[tuple[str, str], float] | Mapping[tuple[str, str, str], float]


class ScrapedMetric(Collector):
    """A metric read on each scrape; a scrape for other names (`?name[]=`) does not pay for it."""

    def __init__(self, name: str, help_: str, labels: Sequence[str], read: Callable[[], Values | float]) -> None:
        self._family = partial(
            CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily, name, help_, labels=labels
        )
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """The name without values."""
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        """The current values."""
        family, values = self._family(), self._read()
        numbers: Mapping[Any, float] = values if isinstance(values, Mapping) else {(): values}
        for key, value in sorted(numbers.items()):
            family.add_metric([key] if isinstance(key, str) else list(key), value)
        yield family


def register_workers(metrics: OperatorMetrics, workers: Workers) -> None:
    """Add the metrics of the workers."""
    counts = workers.counts
    metrics.on_scrape(
        "draco_worker_questions_total",
        "Questions about claims to workers, by outcome: answered, too costly, remembered (was too costly or failed, so not "
        "asked again), failed, or refused (too many questions of the namespace are waiting).",
        ["outcome"],
        lambda: {
            "answered": counts.answered,
            "too-costly": counts.too_costly,
            "remembered": counts.remembered,
            "failed": counts.failed,
            "refused": counts.refused,
        },
    )
    metrics.on_scrape("draco_worker_cpu_seconds_total", "CPU time spent on answers.", [], lambda: counts.cpu_s)
    metrics.on_scrape(
        "draco_worker_killed_total",
        "Workers that died, or were killed, before they answered.",
        [],
        lambda: counts.killed,
    )
    metrics.on_scrape(
        "draco_worker_restarts_total",
        "Times the process that holds the fleet was replaced.",
        [],
        lambda: counts.restarts,
    )
    metrics.on_scrape("draco_worker_waiting", "Questions that wait for their turn.", [], lambda: workers.waiting)


def register_view(metrics: OperatorMetrics, view: ClusterView) -> None:
    """Add the metrics of the cluster."""
    collections = view.collections
    metrics.on_scrape("draco_claims", "Claims by state.", ["state"], view.claim_states)
    metrics.on_scrape(
        "draco_devices",
        "Published devices by what keeps them from being allocated.",
        ["driver", "state"],
        lambda: {(driver, str(state)): n for (driver, state), n in view.supply().items()},
    )
    metrics.on_scrape(
        "draco_maintenance_requests",
        "DeviceMaintenance requests by phase.",
        ["phase"],
        view.maintenance_phases,
    )
    metrics.on_scrape(
        "draco_health_policy_faulty_gpus",
        "GPUs with a fault that a rule of the HealthPolicy is about, as its status says.",
        ["policy"],
        lambda: {policy.metadata.name: policy.status.faulty or 0 for policy in view.health_policies.store.values()},
    )
    metrics.on_scrape(
        "draco_kopf_watch_restarts_total",
        "Times Kopf's watch of a kind ended and was started again with a list, by kind.",
        ["kind"],
        lambda: {kind.kind: own.restarts for kind, own in view.own_kinds.items()},
    )
    metrics.on_scrape(
        "draco_kopf_unwatched_seconds",
        "Seconds for which Kopf has not watched a kind that people write; it is listed every two seconds meanwhile.",
        ["kind"],
        lambda: {kind.kind: own.unwatched_s for kind, own in view.own_kinds.items()},
    )
    metrics.on_scrape(
        "draco_informer_objects",
        "Objects known, by kind.",
        ["kind"],
        lambda: {name: len(each.store) for name, each in collections.items()},
    )
    metrics.on_scrape(
        "draco_informer_relists",
        "Times a collection was listed again, by kind.",
        ["kind"],
        lambda: {name: max(0, each.counts.lists - 1) for name, each in collections.items()},
    )
    metrics.on_scrape(
        "draco_informer_silent_seconds",
        "Seconds since the last sign of life, by kind.",
        ["kind"],
        lambda: {name: each.silent_s for name, each in collections.items()},
    )
    metrics.on_scrape(
        "draco_informer_synced",
        "1 when the collection is known.",
        ["kind"],
        lambda: {name: each.synced.is_set() for name, each in collections.items()},
    )
