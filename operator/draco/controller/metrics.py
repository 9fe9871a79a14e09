"""The operator's numbers, in Prometheus' form.

Owns the names and meanings of all metrics and their own registry. Numbers about the cluster are read from the view when someone
scrapes, so they cost nothing otherwise and are never stale.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from draco import __version__
from draco.certificates import CertificateMetrics
from draco.controller.view import ClusterView
from draco.controller.workers.pool import Workers

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class OperatorMetrics:
    """Counters and gauges that the operator's parts set as they work. One per process; `registry` is what is scraped."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.certificates = CertificateMetrics(self.registry)
        self.leader = Gauge("draco_leader", "1 on the replica that leads.", registry=self.registry)
        self.missing_feature = Gauge(
            "draco_missing_feature",
            "1 for each feature that the cluster does not offer.",
            ["feature"],
            registry=self.registry,
        )
        self.queue_wait_seconds = Histogram(
            "draco_queue_wait_seconds",
            "How long a key waited for a worker.",
            ["reconciler"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "draco_reconcile_seconds",
            "Duration of one reconciliation.",
            ["reconciler"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.reconcile_errors = Counter(
            "draco_reconcile_errors_total",
            "Reconciliations that failed and will be tried again.",
            ["reconciler"],
            registry=self.registry,
        )
        self.admission_reviews = Counter(
            "draco_admission_reviews_total",
            "Claims and templates that the webhook was asked about: clean, warned, denied, or unseen (allowed without a look).",
            ["outcome"],
            registry=self.registry,
        )
        self.claims_released = Counter(
            "draco_claims_released_total",
            "Idle claims whose allocation was taken back to make room for a pod, by the MigPolicy that permits it.",
            ["policy"],
            registry=self.registry,
        )
        info = Gauge("draco_build_info", "The version of Draco.", ["version"], registry=self.registry)
        info.labels(__version__).set(1)


class ScrapedMetrics(Collector):
    """Metrics that are read when scraped. `names` lets a scrape for some names (`?name[]=`) skip the others' cost."""

    def __init__(self, names: Iterable[str], read: Callable[[], Iterable[Metric]]) -> None:
        self._names = tuple(names)
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """The names alone."""
        return [Metric(name, "", "gauge") for name in self._names]

    def collect(self) -> Iterator[Metric]:
        """The numbers, now."""
        yield from self._read()


Values = Mapping[tuple[str, ...], float]
"""Numbers by label values."""


def gauge(name: str, help_: str, labels: Iterable[str], values: Values) -> GaugeMetricFamily:
    """One metric from its values by label values."""
    family = GaugeMetricFamily(name, help_, labels=list(labels))
    for key, value in sorted(values.items()):
        family.add_metric(list(key), value)
    return family


def register_workers(metrics: OperatorMetrics, workers: Workers) -> None:
    """Add the numbers about the workers."""

    def read() -> list[Metric]:
        counts = workers.counts
        outcomes = {
            ("answered",): counts.answered,
            ("too-costly",): counts.too_costly,
            ("remembered",): counts.remembered,
            ("failed",): counts.failed,
        }
        questions = CounterMetricFamily(
            "draco_worker_questions",
            "Questions about claims that workers were asked: answered, too costly, remembered as too costly (or failed) "
            "without being asked again, or failed.",
            labels=["outcome"],
        )
        for labels, count in outcomes.items():
            questions.add_metric(list(labels), count)
        seconds = CounterMetricFamily("draco_worker_cpu_seconds", "CPU time spent on answers.")
        seconds.add_metric([], counts.cpu_s)
        killed = CounterMetricFamily("draco_worker_killed", "Workers that died, or were killed, before they answered.")
        killed.add_metric([], counts.killed)
        restarts = CounterMetricFamily("draco_worker_restarts", "Times the process that holds the fleet was replaced.")
        restarts.add_metric([], counts.restarts)
        waiting = gauge("draco_worker_waiting", "Questions that wait for their turn.", [], {(): float(workers.waiting)})
        return [questions, seconds, killed, restarts, waiting]

    names = (
        "draco_worker_questions_total",
        "draco_worker_cpu_seconds_total",
        "draco_worker_killed_total",
        "draco_worker_restarts_total",
        "draco_worker_waiting",
    )
    metrics.registry.register(ScrapedMetrics(names, read))


def register_view(metrics: OperatorMetrics, view: ClusterView) -> None:
    """Add the numbers about the cluster."""
    metrics.registry.register(
        ScrapedMetrics(
            ["draco_claims"],
            lambda: [gauge("draco_claims", "Claims by state.", ["state"], _one_label(view.claim_states()))],
        )
    )
    metrics.registry.register(
        ScrapedMetrics(
            ["draco_devices"],
            lambda: [
                gauge(
                    "draco_devices",
                    "Published devices by what keeps them from being allocated.",
                    ["driver", "state"],
                    {(driver, str(state)): float(n) for (driver, state), n in view.supply().items()},
                )
            ],
        )
    )
    metrics.registry.register(
        ScrapedMetrics(
            ["draco_maintenance_requests"],
            lambda: [
                gauge(
                    "draco_maintenance_requests",
                    "DeviceMaintenance requests by phase.",
                    ["phase"],
                    _one_label(view.maintenance_phases()),
                )
            ],
        )
    )
    metrics.registry.register(
        ScrapedMetrics(
            [
                "draco_kopf_watch_restarts_total",
                "draco_kopf_unwatched_seconds",
                "draco_informer_objects",
                "draco_informer_relists",
                "draco_informer_silent_seconds",
                "draco_informer_synced",
            ],
            lambda: _informers(view),
        )
    )


def _informers(view: ClusterView) -> list[Metric]:
    collections = view.collections.items()
    objects = {name: len(each.store) for name, each in collections}
    relists = {name: max(0, each.counts.lists - 1) for name, each in collections}
    silent = {name: each.silent_s for name, each in collections}
    synced = {name: int(each.synced.is_set()) for name, each in collections}
    restarts = CounterMetricFamily(
        "draco_kopf_watch_restarts",
        "Times Kopf's watch of a kind ended and was started again with a list, by kind.",
        labels=["kind"],
    )
    for kind, own in view.own_kinds.items():
        restarts.add_metric([kind.kind], own.restarts)
    return [
        restarts,
        gauge(
            "draco_kopf_unwatched_seconds",
            "Seconds for which Kopf has not watched a kind that people write; it is listed every two seconds meanwhile.",
            ["kind"],
            {(kind.kind,): own.unwatched_s for kind, own in view.own_kinds.items()},
        ),
        gauge("draco_informer_objects", "Objects known, by kind.", ["kind"], _one_label(objects)),
        gauge("draco_informer_relists", "Times a collection was listed again, by kind.", ["kind"], _one_label(relists)),
        gauge(
            "draco_informer_silent_seconds",
            "Seconds since the last sign of life, by kind.",
            ["kind"],
            _one_label(silent),
        ),
        gauge("draco_informer_synced", "1 when the collection is known.", ["kind"], _one_label(synced)),
    ]


def _one_label(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(label,): float(value) for label, value in values.items()}
