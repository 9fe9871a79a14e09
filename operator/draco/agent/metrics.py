"""Names and help texts of the agent's metrics, in their own registry: many agents can run in one process."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from draco.agent.hardware.gpus import GpuMigView, Use, device_name
from draco.agent.hardware.monitor import HardwareView
from draco.agent.plugin.health_service import reports
from draco.agent.state.facts import NodeFacts
from draco.certificates import CertificateMetrics
from draco.health.table import HealthState, metric_name


class AgentMetrics:
    """The metrics of one agent."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.certificates = CertificateMetrics(self.registry)
        self._prepare_seconds = Histogram(
            "draco_agent_prepare_seconds",
            "Time to prepare one claim for kubelet.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 45),
            registry=self.registry,
        )
        self._prepares = Counter(
            "draco_agent_prepares_total", "Claims that kubelet asked to prepare.", ["result"], registry=self.registry
        )
        self._unprepares = Counter(
            "draco_agent_unprepares_total", "Claims that kubelet unprepared.", ["result"], registry=self.registry
        )
        self._events_dropped = Counter(
            "draco_agent_events_dropped_total",
            "Events not posted, by reason: full (their namespace has its maximum), or refused by the API server.",
            ["why"],
            registry=self.registry,
        )
        self._gpus = Gauge("draco_agent_gpus", "GPUs of this node by health.", ["health"], registry=self.registry)
        self._faults = Gauge(
            "draco_gpu_fault",
            "1 while a GPU has a fault, by GPU, family, name and what is done about it.",
            ["gpu", "family", "name", "effect"],
            registry=self.registry,
        )
        self._instances = Gauge(
            "draco_agent_gpu_instances", "GPU instances of this node by use.", ["use"], registry=self.registry
        )
        self._unsettled = Gauge(
            "draco_agent_unsettled_gpus",
            "GPUs on which nothing new is placed: a change of their instances was not finished, or they cannot be listed.",
            registry=self.registry,
        )
        self._mps_trouble = Gauge(
            "draco_agent_mps_trouble_gpus",
            "GPUs whose MPS is not as their claim asks: its daemon is dead, hangs, has a fault or is of another driver.",
            registry=self.registry,
        )
        self._claims = Gauge("draco_agent_prepared_claims", "Claims prepared on this node.", registry=self.registry)
        self._generation = Gauge(
            "draco_agent_pool_generation", "Generation of the published pool, 0 for none.", registry=self.registry
        )
        self._reading_age = Gauge(
            "draco_agent_nvml_reading_age_seconds",
            "Seconds since the GPUs were last read; it grows while NVML hangs or there is no driver.",
            registry=self.registry,
        )
        self._mismatch = Gauge(
            "draco_agent_driver_mismatch",
            "1 while the NVIDIA driver's files are of another version than its loaded modules: nothing can be prepared.",
            registry=self.registry,
        )
        self._registered = Gauge(
            "draco_agent_registered", "1 when kubelet has accepted this driver.", registry=self.registry
        )

    def prepared(self, took_s: float, *, failed: bool) -> None:
        """Count one Prepare, which took `took_s`."""
        self._prepare_seconds.observe(took_s)
        self._prepares.labels("error" if failed else "ok").inc()

    def unprepared(self, *, failed: bool) -> None:
        """Count one Unprepare."""
        self._unprepares.labels("error" if failed else "ok").inc()

    def event_dropped(self, why: str) -> None:
        """Count an Event that is not posted."""
        self._events_dropped.labels(why).inc()

    def hardware(self, view: HardwareView) -> None:
        """Set the metrics of a reading of the GPUs."""
        self._mismatch.set(bool(view.mismatch))
        states = [one.state for one in reports(view)]
        for state in HealthState:
            self._gpus.labels(state.value).set(states.count(state))
        self._faults.clear()
        for gpu in view.gpus:
            for one in reversed(gpu.faults):  # the worst last: of faults with one name it counts
                said = one.status
                labels = (device_name(gpu), said.family.value, metric_name(said.name))
                self._faults.labels(*labels, said.effect.value).set(1)

    def mps(self, facts: NodeFacts) -> None:
        """Set the metrics of MPS."""
        self._mps_trouble.set(sum(bool(one.problem) for one in facts.mps.values()))

    def divisions(self, divisions: Iterable[GpuMigView]) -> None:
        """Set the metrics of MIG division."""
        known = [one for one in divisions if one.capable]
        uses = [part.use for one in known for part in one.held]
        for use in Use:
            self._instances.labels(use.value).set(uses.count(use))
        self._unsettled.set(sum(one.dirty for one in known))

    def state(self, *, claims: int, generation: int, registered: bool, reading_age_s: float) -> None:
        """Set the metrics of the agent's state."""
        self._claims.set(claims)
        self._generation.set(generation)
        self._registered.set(registered)
        self._reading_age.set(reading_age_s)
