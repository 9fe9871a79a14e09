"""The operator's reconcilers and what they share, constructed for one cluster and not started.

Owns the wiring: the list, their names, and their inputs. Of reconcilers woken by one change, the one constructed first runs
first: that is allocation, the only one that pods wait for.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from draco.controller.claims import pending_claims
from draco.controller.claims.pending_claims import PendingClaims
from draco.controller.claims.usage_notices import UsageNoticeReconciler
from draco.controller.evictions import PodEvictions
from draco.controller.fencing.fences import FencingReconciler
from draco.controller.fencing.observed_leases import AgentLeases
from draco.controller.gpu_nodes.reconciler import GpuNodeReconciler
from draco.controller.health.decisions import HealthDecisions
from draco.controller.health.fault_notices import FaultNoticeReconciler
from draco.controller.health.policies import HealthPolicyReconciler
from draco.controller.health.remediation import RemediationReconciler
from draco.controller.limits.enforcement import LimitGuard
from draco.controller.limits.holdings_cache import HeldDevices
from draco.controller.limits.statuses import DeviceLimitReconciler
from draco.controller.limits.unused_claims import UnusedClaimReconciler
from draco.controller.maintenance.budgets import MaintenanceAdmission
from draco.controller.maintenance.draining import PodDrains
from draco.controller.maintenance.eviction_requests import EvictionRequests
from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.maintenance.jobs import MaintenanceJobs
from draco.controller.maintenance.nodes import NodeConditionReconciler
from draco.controller.maintenance.reconciler import MaintenanceReconciler
from draco.controller.metrics import OperatorMetrics
from draco.controller.mig import repair
from draco.controller.mig.decisions import MigDecisions
from draco.controller.mig.policies import MigPolicyReconciler
from draco.controller.mig.release import ClaimReleases, MovableClaims
from draco.controller.mig.repair import RepairReconciler
from draco.controller.mig.warm_ahead import WarmAheadReconciler
from draco.controller.reconciling import Reconciling
from draco.controller.reservations.reconciler import ReservationReconciler
from draco.controller.reservations.waiting import WaitingReasons
from draco.controller.settings import OperatorSettings
from draco.controller.sharing.decisions import SharingDecisions
from draco.controller.sharing.policies import SharingPolicyReconciler
from draco.controller.taints import reports
from draco.controller.taints.extensions import TaintExtensionReconciler
from draco.controller.taints.reach import RuleReach
from draco.controller.taints.reports import TaintRuleReports
from draco.controller.view import ClusterView
from draco.controller.workers.pool import Workers
from draco.health.fencing import FencingTerms
from draco.kube.connect.client import Client
from draco.kube.discovery import Features
from draco.kube.events.events import EventRecorder
from draco.kube.events.notes import Notes
from draco.kube.events.shares import EventReason
from draco.mig_policy.release_policy import ReleaseDelays
from draco.resources.names import FIELD_MANAGER_OPERATOR

if TYPE_CHECKING:
    from draco.controller.allocation.parts import AllocationParts

Run = Callable[[], Coroutine[Any, Any, None]]


class Reconcilers:
    """All reconcilers by name. `minor` is that of Kubernetes 1, None if unknown."""

    def __init__(
        self,
        settings: OperatorSettings,
        client: Client,
        features: Features,
        *,
        view: ClusterView,
        metrics: OperatorMetrics,
        minor: int | None,
    ) -> None:
        self._settings, self._client, self._features = settings, client, features
        self._view, self._metrics, self._minor = view, metrics, minor
        self._by_name: dict[str, Reconciling[Any]] = {}
        self.events = EventRecorder(
            client,
            controller=FIELD_MANAGER_OPERATOR,
            instance=settings.identity,
            clock=view.clock,
            dropped=lambda why: metrics.events_dropped.labels(why).inc(),
        )
        self.workers = Workers(view.followed, clock=view.clock, settings=settings.worker)
        self.decisions = MigDecisions(view)
        self._sharing = SharingDecisions(view)
        self._evictions = PodEvictions(client, clock=view.clock)
        held = HeldDevices(view)
        self._guard = LimitGuard(view, held, self.events) if settings.allocate else None
        self.allocation = self._allocating(self._guard) if self._guard else None
        self.pending = self._explaining()
        unused = UnusedClaimReconciler(client, view, self._evictions, self.events, count=metrics.unused_evictions)
        self.limits = DeviceLimitReconciler(client, view, held, self._guard, unused)
        self._add("device-limits", self.limits)
        self._add("unused-claims", unused)
        self._maintaining()
        self._tainting()
        self._healing()
        self._reserving()

    def __getitem__(self, name: str) -> Reconciling[Any]:
        return self._by_name[name]

    @property
    def all(self) -> Collection[Reconciling[Any]]:
        """All reconcilers with their queues."""
        return self._by_name.values()

    async def lead(self) -> None:
        """Run them until cancelled; on one replica at a time."""
        async with asyncio.TaskGroup() as group:
            for each in self.all:
                group.create_task(each.run(), name=each.name)
            pending, tainting = self["pending-claims"], self["taint-reports"]
            following = self.pending.follow(pending.wake, lambda: pending.queue.depth)
            group.create_task(following, name="explaining")
            group.create_task(self._reports.adopt(tainting.wake), name="adopting taint reports")
            group.create_task(self.events.run(), name="events")
            group.create_task(self._reasons.run(), name="explaining reservations")

    @property
    def everywhere(self) -> Mapping[str, Run]:
        """What every replica runs, whether it leads or not."""
        found: dict[str, Run] = {"agent leases": self.agent_leases.informer.run}
        if self.eviction_requests:
            found["eviction requests"] = self.eviction_requests.informer.run
        if self.allocation:
            found["allocation register"] = self.allocation.handover.register.run
        return {**found, "workers": self.workers.run, "maintenance jobs": self._jobs.run}

    def _add(self, name: str, reconciler: Any, workers: int = 0) -> None:
        workers = workers or self._settings.workers
        made = Reconciling(name, reconciler, workers=workers, metrics=self._metrics, clock=self._view.clock)
        self._by_name[name] = made

    def _notes(self, reason: EventReason) -> Notes:
        return Notes(
            self._client,
            controller=FIELD_MANAGER_OPERATOR,
            instance=self._settings.identity,
            clock=self._view.clock,
            reason=reason,
        )

    def _allocating(self, guard: LimitGuard) -> "AllocationParts":
        from draco.controller.allocation.parts import AllocationParts  # noqa: PLC0415 - not loaded without allocation
        from draco.controller.allocation.writing.gates import GATES_AT_ONCE  # noqa: PLC0415 - the same

        parts = AllocationParts(
            self._client,
            self._view,
            self.decisions,
            self.workers,
            guard=guard,
            events=self.events,
            notes=self._notes,
            evictions=self._evictions,
            autoscaled=self._features.autoscaled,
            settings=self._settings,
            metrics=self._metrics,
        )
        for name, reconciler in parts.reconcilers.items():
            self._add(name, reconciler)
        self._add("scheduling-gates", parts.gates, workers=GATES_AT_ONCE)
        return parts

    def _explaining(self) -> PendingClaims:
        pending = PendingClaims(
            self._view,
            self._notes(pending_claims.EVENT_REASON),
            pending_after_s=self._settings.pending_after_s,
            minor=self._minor,
            workers=self.workers,
            refused=self._guard,
        )
        self._add("pending-claims", pending)
        self._add("usage-notices", UsageNoticeReconciler(self._view, self.events))
        return pending

    def _maintaining(self) -> None:
        client, view = self._client, self._view
        fleet = MaintenanceFleet(view)
        self._jobs = MaintenanceJobs(
            client, view, fleet, namespace=self._settings.job_namespace, permitted=self._settings.run_jobs
        )
        admission = MaintenanceAdmission(client, view, fleet)
        self.eviction_requests = self._eviction_requests(fleet, admission)
        drains = PodDrains(
            view,
            self.events,
            evictions=self._evictions,
            count=self._metrics.evictions,
            requests=self.eviction_requests,
        )
        maintenance = MaintenanceReconciler(
            client,
            view,
            settle_s=self._settings.settle_s,
            fleet=fleet,
            admission=admission,
            drains=drains,
            jobs=self._jobs,
            events=self.events,
        )
        self._add("maintenance", maintenance)
        if self.eviction_requests:
            self._add("eviction-requests", self.eviction_requests)
        self._add("node-conditions", NodeConditionReconciler(client, view))
        self._add("maintenance-budgets", admission)

    def _eviction_requests(self, fleet: MaintenanceFleet, admission: MaintenanceAdmission) -> EvictionRequests | None:
        kind = self._features.eviction_requests
        if kind is None:
            return None
        return EvictionRequests(
            self._client,
            kind,
            self._view,
            paused=lambda devices: admission.paused(fleet.gpus(devices)),
            knows_what_is_paused=lambda: admission.knows_what_is_paused,
        )

    def _tainting(self) -> None:
        client, view = self._client, self._view
        self.reach = RuleReach(view)
        self._reports = TaintRuleReports(view, self.reach, self._notes(reports.EVENT_REASON))
        self.agent_leases = AgentLeases(client, view, namespace=self._settings.namespace)
        share = self._settings.mass_outage_percent / 100
        self.fences = FencingReconciler(client, view, self.agent_leases, self.events, terms=FencingTerms(share=share))
        self._add("taint-extensions", TaintExtensionReconciler(client, view))
        self._add("taint-reports", self._reports)
        self._add("fencing", self.fences)

    def _healing(self) -> None:
        client, view, decisions = self._client, self._view, self.decisions
        health = HealthDecisions(view)
        releases = ClaimReleases(
            client,
            view,
            self.events,
            count=self._metrics.claims_released,
            patience=ReleaseDelays(grace_s=self._settings.idle_grace_s),
        )
        repairs = RepairReconciler(
            view,
            MovableClaims(view, decisions),
            self._notes(repair.EVENT_REASON),
            releases,
            self.workers,
        )
        self.remediation = RemediationReconciler(
            client, view, health, self.events, opened=self._metrics.remediations_opened
        )
        allocation = self.allocation
        self._add(
            "gpu-nodes",
            GpuNodeReconciler(
                client,
                view,
                decisions,
                health,
                sharing=self._sharing,
                handover=allocation.handover if allocation else None,
                on_their_way=allocation.on_their_way if allocation else tuple,
            ),
        )
        self._add("sharing-policies", SharingPolicyReconciler(client, view, self._sharing))
        self._add("mig-policies", MigPolicyReconciler(client, view, decisions, adviser=repairs))
        self._add("mig-warm", WarmAheadReconciler(view, decisions))
        self._add("mig-repair", repairs)
        self._add("health-remediation", self.remediation)
        self._add("fault-notices", FaultNoticeReconciler(view, self.events))
        self._add("health-policies", HealthPolicyReconciler(client, view, health, self.remediation))

    def _reserving(self) -> None:
        """Without allocation each reservation reports that."""
        self._reasons = WaitingReasons(self.workers, clock=self._view.clock, minor=self._minor)
        permitted = self._settings.allocate
        self._add(
            "reservations",
            ReservationReconciler(
                self._client, self._view, self._reasons, self.decisions, self.events, permitted=permitted
            ),
        )
