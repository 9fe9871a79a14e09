"""What an operator replica reports about itself: to probes, to `draco check` and `draco status`, and to Prometheus.

Owns the sentences, and the metrics that are computed on request. Changes nothing.
"""

from draco.controller.fencing.fences import register_fencing
from draco.controller.limits.statuses import register_limits
from draco.controller.loop_watch import LoopWatch, register_loop
from draco.controller.metrics import OperatorMetrics, register_view, register_workers
from draco.controller.mig.decisions import register_mig
from draco.controller.reconcilers import Reconcilers
from draco.controller.settings import OperatorSettings
from draco.controller.taints.reach import register_reach
from draco.controller.view import ClusterView
from draco.kube.election import LeaderElection
from draco.resources.kinds import OWN_KINDS
from draco.resources.names import ANNOTATION_GROUP_SIZE
from draco.resources.texts import listed

_OWN_KINDS = {kind.kind for kind in OWN_KINDS}


class SelfReport:
    """Reads the state on request. `made` is the operator that runs, started when this was made."""

    def __init__(
        self,
        settings: OperatorSettings,
        view: ClusterView,
        made: Reconcilers,
        metrics: OperatorMetrics,
        *,
        election: LeaderElection,
    ) -> None:
        self._settings = settings
        self._view = view
        self._made = made
        self._metrics = metrics
        self._election = election
        self._started = view.clock.monotonic()

    def problems(self) -> list[str]:
        """Why this process should be restarted; empty if healthy."""
        after_s = self._settings.stalled_after_s
        found = [problem for each in self._made.all for problem in each.stalled(after_s)]
        if self._election.leading and self._election.since_renewal_s > after_s:
            found.append(f"lease: not renewed for {self._election.since_renewal_s:.0f} s")
        return found

    def troubles(self) -> list[str]:
        """Problems that an administrator should fix while the operator goes on: for `draco check` and `draco status`."""
        after_s, allocation = self._settings.unserved_after_s, self._made.allocation
        unwatched = [kind.kind for kind, own in self._view.own_kinds.items() if own.unwatched_s > after_s]
        found = [*self._metrics.certificates.troubles.values(), *self._made.fences.troubles()]
        found += allocation.troubles if allocation else []
        is_late = self._view.clock.monotonic() - self._started > after_s
        if is_late and not self._made.agent_leases.informer.synced.is_set():
            found.append(
                f"The agents' leases in namespace {self._settings.namespace} cannot be read, so the GPUs of a lost agent are not "
                "fenced. See informer.interrupted in the operator's log; its Role must let it get, list and watch leases there."
            )
        if self._view.disruption_budgets.forbidden:
            found.append(
                "PodDisruptionBudgets cannot be watched, so Draco evicts no pod for others, and does not show which budgets are "
                "violated. Draco's ClusterRole must let the operator list and watch poddisruptionbudgets: upgrade the chart."
            )
        if self._view.jobs.forbidden:
            found.append(
                "Jobs cannot be watched, so Draco allocates late to pods of JobSets, or, if it cannot list Jobs either, only to "
                f"those with the annotation {ANNOTATION_GROUP_SIZE}. Draco's ClusterRole must let the operator list and watch "
                "jobs: upgrade the chart."
            )
        if unwatched:
            found.append(
                f"Kopf does not run: {listed(unwatched)} objects are listed every few seconds instead of watched. See kopf.ended "
                "in the operator's log, and restart the operator when that is repaired."
            )
        return found

    def not_ready(self) -> list[str]:
        """What is not known yet, and why; empty when ready."""
        unserved = {
            name: each.unserved_s
            for name, each in self._view.collections.items()
            if each.unserved_s > self._settings.unserved_after_s
        }
        sentences = [
            f"{name}: the cluster has not served this kind for {for_s:.0f} s"
            + (": apply Draco's CustomResourceDefinitions (crds/)" if name in _OWN_KINDS else "")
            for name, for_s in unserved.items()
        ]
        return sentences + [f"{kind}: not listed yet" for kind in self._view.unsynced if kind not in unserved]

    def export(self, loop_watch: LoopWatch) -> None:
        """Add metrics that are computed on each scrape."""
        metrics, made = self._metrics, self._made
        register_view(metrics, self._view)
        register_workers(metrics, made.workers)
        register_loop(metrics, loop_watch)
        metrics.on_scrape(
            "draco_lease_age_seconds",
            "Seconds since the lease was last renewed. 0 where this replica does not lead.",
            [],
            lambda: self._election.since_renewal_s if self._election.leading else 0.0,
        )
        register_reach(metrics, made.reach)
        register_mig(metrics, made.decisions)
        register_fencing(metrics, made.fences)
        register_limits(metrics, made.limits)
        metrics.on_scrape(
            "draco_health_given_up",
            "GPUs that a person has to look at, by HealthPolicy: remediation failed too often. On the leader only.",
            ["policy"],
            lambda: made.remediation.given_up,
        )
        metrics.on_scrape(
            "draco_queue_depth",
            "Keys that wait for a worker.",
            ["reconciler"],
            lambda: {each.name: each.queue.depth for each in made.all},
        )
        metrics.on_scrape(
            "draco_claim_pending",
            "Claims that a pod has been waiting for, by main cause. On the leader only.",
            ["reason"],
            made.pending.reasons,
        )
        metrics.on_scrape(
            "draco_claim_unmet_devices",
            "Devices that waiting claims need and no node could provide even if unused: what to add. On the leader only.",
            ["class", "product", "profile"],
            made.pending.unmet,
        )
        metrics.on_scrape(
            "draco_claim_unmet_devices_on_one_node",
            "The most of these devices that one claim wants on one node. On the leader only.",
            ["class", "product", "profile"],
            made.pending.most_unmet,
        )
