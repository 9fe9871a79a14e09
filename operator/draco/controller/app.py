"""The operator as a whole: what runs, in which order it starts, and how it ends.

Owns the wiring only. Every replica watches the cluster, answers probes and exports metrics; the reconcilers run on the one that
holds the lease. Losing the lease ends the process, since another replica may be leading by then.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import structlog

from draco.controller.allocation.gates import GATES_AT_ONCE
from draco.controller.allocation.parts import AllocationParts
from draco.controller.claims import repair
from draco.controller.claims.admission import Admission
from draco.controller.claims.pending_claims import EVENT_ACTION, EVENT_REASON, PendingClaims, PendingSubject
from draco.controller.claims.release import ClaimReleases
from draco.controller.claims.repair import RepairReconciler
from draco.controller.claims.webhook import serving_webhook, webhook_app
from draco.controller.evictions import PodEvictions
from draco.controller.fencing.fences import FencingReconciler, register_fencing
from draco.controller.fencing.signs import AgentLeases
from draco.controller.health.decisions import HealthDecisions
from draco.controller.health.policies import HealthPolicyReconciler
from draco.controller.health.remediation import RemediationReconciler
from draco.controller.kopf_thread import KopfThread
from draco.controller.limits.guard import LimitGuard
from draco.controller.limits.held import HeldDevices
from draco.controller.limits.statuses import DeviceLimitReconciler, register_limits
from draco.controller.loop_watch import LoopWatch, register_loop
from draco.controller.maintenance.budgets import MaintenanceAdmission
from draco.controller.maintenance.draining import PodDrains
from draco.controller.maintenance.eviction_requests import EvictionRequests
from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.maintenance.jobs import MaintenanceJobs
from draco.controller.maintenance.nodes import NodeConditionReconciler
from draco.controller.maintenance.reconciler import MaintenanceReconciler
from draco.controller.metrics import OperatorMetrics, register_view, register_workers
from draco.controller.mig.decisions import MigDecisions, register_mig
from draco.controller.mig.layouts import MigLayoutReconciler
from draco.controller.mig.movable_claims import MovableClaims
from draco.controller.mig.policies import MigPolicyReconciler
from draco.controller.mig.warm_ahead import WarmAheadReconciler
from draco.controller.own_advice import OwnAdvice
from draco.controller.reconciling import Reconciling
from draco.controller.reservations.reconciler import ReservationReconciler
from draco.controller.reservations.waiting import WaitingReasons
from draco.controller.settings import OperatorSettings
from draco.controller.taints import reports
from draco.controller.taints.extensions import TaintExtensionReconciler
from draco.controller.taints.reach import RuleReach, register_reach, warn_of_wide_rules
from draco.controller.taints.reports import TaintRuleReports
from draco.controller.view import ClusterView
from draco.controller.workers.pool import Workers
from draco.endpoints import http_app, serving
from draco.health.fencing import FencingTerms
from draco.kube.clock import Clock, SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connect
from draco.kube.connect.retry import retry
from draco.kube.discovery import Features, discover_for_operator, kubernetes_minor
from draco.kube.election import LeaderElection, LeaseTerms
from draco.kube.events.events import EventRecorder
from draco.kube.events.notes import Notes
from draco.kube.rediscovery import differences, until_changed
from draco.kube.secure_metrics import serving_metrics
from draco.mig_policy.release_policy import ReleaseDelays
from draco.resources.api.meta import ObjectKey
from draco.resources.errors import DracoError
from draco.resources.kinds import OWN_KINDS
from draco.resources.names import ANNOTATION_TROUBLES, FIELD_MANAGER_OPERATOR, DeviceKey
from draco.resources.texts import listed

log = structlog.get_logger(__name__)

_ADVICE_BY = 0.75
"""Of the time that the API server waits for advice, the rest is for the way."""
_LAST_EVENTS_S = 1.0
"""So long a leader that is to end posts what it has to say yet; others wait to lead."""


_OWN_KINDS = {kind.kind for kind in OWN_KINDS}


class NoDynamicResourceAllocation(DracoError):
    """The cluster does not serve what everything here is about."""


class ClusterChanged(DracoError):
    """The cluster can do something else than when this process was made for it: another one has to be."""


async def run_operator(settings: OperatorSettings, *, connect: Connect, stop: asyncio.Event) -> None:
    """Run until `stop` is set.

    Raises LeadershipLost (in a group) when the lease is lost, ClusterChanged (in a group) when the cluster can do something else
    than at the start, ApiError when nothing can be read at the start, DracoError when
    the cluster or this machine lacks something.
    """
    clock = SystemClock()
    async with await connect() as connection:
        client = Client(connection, manager=FIELD_MANAGER_OPERATOR)
        features = await retry(lambda: discover_for_operator(client, allocates=settings.allocate), clock=clock)
        if not features.dra:
            (without,) = features.missing
            raise NoDynamicResourceAllocation(f"{without.consequence} {without.remedy}")
        minor = await kubernetes_minor(client)
        operator = Operator(settings, client, features, minor=minor, connect=connect, clock=clock)
        await operator.run(stop)


class Operator:
    """The parts of one replica, made but not started. `minor` is that of Kubernetes 1, None where it is not known."""

    def __init__(
        self,
        settings: OperatorSettings,
        client: Client,
        features: Features,
        *,
        minor: int | None,
        connect: Connect,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._started = clock.monotonic()
        self._client = client
        self._features = features
        self.metrics = OperatorMetrics()
        self._loop_watch = LoopWatch(clock)
        self.view = ClusterView(
            client,
            features.taint_rules,
            clock=clock,
            supply_every_s=settings.supply_every_s,
            pod_groups=features.pod_groups,
        )

        self._happenings = EventRecorder(
            client, controller=FIELD_MANAGER_OPERATOR, instance=settings.identity, clock=clock
        )
        self._jobs = MaintenanceJobs(
            client, self.view, namespace=settings.namespace, permitted=settings.run_jobs, clock=clock
        )
        fleet = MaintenanceFleet(self.view, clock)
        admission = MaintenanceAdmission(client, self.view, fleet, clock=clock)
        self._evictions, self._eviction_requests = (
            PodEvictions(client, clock=clock),
            _eviction_requests(
                client, self.view, features, clock=clock, paused=lambda devices: admission.paused(fleet.gpus(devices))
            ),
        )
        maintenance = MaintenanceReconciler(
            client,
            self.view,
            clock=clock,
            settle_s=settings.settle_s,
            fleet=fleet,
            admission=admission,
            drains=PodDrains(
                client,
                self.view,
                self._happenings,
                evictions=self._evictions,
                clock=clock,
                count=self.metrics.evictions,
                requests=self._eviction_requests,
            ),
            jobs=self._jobs,
            events=self._happenings,
        )
        self._decisions = decisions = MigDecisions(self.view, clock=clock)
        health = HealthDecisions(self.view, clock=clock)
        self.reach = RuleReach(self.view, clock=clock)
        self._reports = TaintRuleReports(
            client, self.view, self.reach, self._notes(reports.EVENT_REASON, reports.EVENT_ACTION), clock=clock
        )
        self._remediation = remediation = RemediationReconciler(
            client,
            self.view,
            health,
            self._happenings,
            clock=clock,
            opened=self.metrics.remediations_opened,
        )
        releases = ClaimReleases(
            client,
            self.view,
            self._happenings,
            clock=clock,
            count=self.metrics.claims_released,
            patience=ReleaseDelays(grace_s=settings.idle_grace_s),
        )
        self.agent_leases = AgentLeases(client, self.view, namespace=settings.namespace, clock=clock)
        self._fences = FencingReconciler(
            client,
            self.view,
            self.agent_leases,
            self._happenings,
            terms=FencingTerms(share=settings.mass_outage_percent / 100),
        )
        self.workers = Workers(self.view.followed, clock=clock, settings=settings.worker)
        repairs = RepairReconciler(
            self.view,
            MovableClaims(self.view, decisions),
            self._notes(repair.EVENT_REASON, repair.EVENT_ACTION),
            releases,
            self.workers,
            clock=clock,
        )
        self._pending_claims = PendingClaims(
            self.view,
            self._notes(EVENT_REASON, EVENT_ACTION),
            clock=clock,
            pending_after_s=settings.pending_after_s,
            minor=minor,
            workers=self.workers,
            refused=self._limiting(),
        )

        self.reconcilers: list[Reconciling[Any]] = []

        def working(name: str, reconciler: Any, workers: int = settings.workers) -> Reconciling[Any]:
            made: Reconciling[Any] = Reconciling(name, reconciler, workers=workers, metrics=self.metrics, clock=clock)
            self.reconcilers.append(made)
            return made

        self.maintenance: Reconciling[str] = working("maintenance", maintenance)
        if self._eviction_requests:
            working("eviction-requests", self._eviction_requests)
        self.node_conditions: Reconciling[str] = working(
            "node-conditions", NodeConditionReconciler(client, self.view, clock=clock)
        )
        self.admission: Reconciling[str] = working("maintenance-budgets", admission)
        self.extensions: Reconciling[str] = working("taint-extensions", TaintExtensionReconciler(client, self.view))
        self.taint_reports: Reconciling[str] = working("taint-reports", self._reports)
        self.fencing: Reconciling[str] = working("fencing", self._fences)
        self.pending: Reconciling[PendingSubject] = working("pending-claims", self._pending_claims)
        self._allocation = self._allocating(working, decisions)
        self._dividing(working, repairs, health)
        self.repairs: Reconciling[str] = working("mig-repair", repairs)
        self.remediation: Reconciling[str] = working("health-remediation", remediation)
        self.health_policies: Reconciling[str] = working(
            "health-policies", HealthPolicyReconciler(client, self.view, health, remediation, clock=clock)
        )
        self._waiting_reasons = self._reserving(working, minor)
        self.kopf = KopfThread(connect, self.view.own_kinds, identity=settings.identity)
        self.election = self._election()
        warn_of_wide_rules(self.view)
        self._export()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        plain = None if self._settings.metrics else lambda: self.metrics.registry
        app = http_app(plain, alive=self.problems, ready=self.not_ready)
        log.info("operator.starting", identity=self.election.identity)
        self._say_what_is_missing(self._features)
        gc.freeze()  # what is loaded by now stays: collections during the first lists would walk it, a fifth of their time
        async with (
            serving(app, self._settings.http_host, self._settings.http_port),
            self._secure_metrics(),
            self._webhook(),
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task(each.run(), name=name) for name, each in self.view.collections.items()]
            tasks.append(group.create_task(self.agent_leases.informer.run(), name="agent leases"))
            if self._eviction_requests:
                tasks.append(group.create_task(self._eviction_requests.informer.run(), name="eviction requests"))
            if self._allocation:
                register = self._allocation.handover.register
                tasks.append(group.create_task(register.run(), name="allocation register"))
            tasks.append(group.create_task(self.workers.run(), name="workers"))
            tasks.append(group.create_task(self._loop_watch.run(), name="loop-watch"))
            tasks.append(group.create_task(self._run_kopf(), name="kopf"))
            tasks.append(group.create_task(self._jobs.run(), name="maintenance jobs"))
            tasks.append(group.create_task(self._count_reach(), name="rule reach"))
            tasks.append(group.create_task(self._lead_when_ready(), name="lead"))
            tasks.append(group.create_task(self._follow_features(), name="features"))
            await stop.wait()
            log.info("operator.stopping")
            for task in tasks:
                task.cancel()

    def problems(self) -> list[str]:
        """Why this process should be restarted; empty when it need not."""
        found = [problem for each in self.reconcilers for problem in each.stalled(self._settings.stalled_after_s)]
        if self.election.leading and self.election.since_renewal_s > self._settings.stalled_after_s:
            found.append(f"lease: not renewed for {self.election.since_renewal_s:.0f} s")
        return found

    def troubles(self) -> list[str]:
        """What somebody should see to, though the work goes on: sentences for `draco check` and `draco status`."""
        unwatched = [
            kind.kind for kind, own in self.view.own_kinds.items() if own.unwatched_s > self._settings.unserved_after_s
        ]
        found = [*self.metrics.certificates.troubles.values(), *self._fences.troubles()]
        found += self._allocation.troubles if self._allocation else []
        if (
            not self.agent_leases.informer.synced.is_set()
            and self._clock.monotonic() - self._started > self._settings.unserved_after_s
        ):
            found.append(
                f"The agents' leases in namespace {self._settings.namespace} cannot be read, so the GPUs of a lost agent are not "
                "fenced. See informer.interrupted in the operator's log; its Role must let it get, list and watch leases there."
            )
        if unwatched:
            found.append(
                f"Kopf does not run: {listed(unwatched)} objects are listed every few seconds instead of watched. See kopf.ended "
                "in the operator's log, and restart the operator when that is repaired."
            )
        return found

    def not_ready(self) -> list[str]:
        """What is not known, and why; empty when all is."""
        unserved = {
            name: each.unserved_s
            for name, each in self.view.collections.items()
            if each.unserved_s > self._settings.unserved_after_s
        }
        sentences = [
            f"{name}: the cluster has not served this kind for {for_s:.0f} s"
            + (": apply Draco's CustomResourceDefinitions (crds/)" if name in _OWN_KINDS else "")
            for name, for_s in unserved.items()
        ]
        return sentences + [f"{kind}: not listed yet" for kind in self.view.unsynced if kind not in unserved]

    @asynccontextmanager
    async def _webhook(self) -> AsyncIterator[None]:
        settings = self._settings.webhook
        if settings is None:
            yield
            return
        admission = Admission(
            self.view.followed,
            self.workers,
            mode=settings.mode,
            ready=lambda: not self.view.unsynced,
            within_s=_ADVICE_BY * settings.timeout_s,
        )
        advice = OwnAdvice(lambda: self.view.classes_by_name, clock=self._clock)
        app = webhook_app(admission, advice, self.metrics.admission_reviews)
        async with serving_webhook(settings, app, certificates=self.metrics.certificates, clock=self._clock):
            yield

    def _secure_metrics(self) -> AbstractAsyncContextManager[object]:
        settings = self._settings.metrics
        if settings is None:
            return nullcontext()
        return serving_metrics(
            settings,
            lambda: self.metrics.registry,
            certificates=self.metrics.certificates,
            client=self._client,
            clock=self._clock,
        )

    async def _follow_features(self) -> None:
        """Stores, versions and rights are chosen by what the cluster can do: when that changes, so must the whole process."""
        now = await until_changed(
            lambda: discover_for_operator(self._client, allocates=self._settings.allocate),
            self._features,
            clock=self._clock,
            every_s=self._settings.rediscover_s,
            confirm_s=self._settings.confirm_s,
            # Without rules nothing can be isolated or given back: the next process that has them does it.
            hint=lambda: (
                self._features.taint_rules is None
                or any(each.unserved_s for each in self.view.collections.values())
                or bool(self._eviction_requests and self._eviction_requests.informer.unserved_s)
            ),
        )
        raise ClusterChanged("; ".join(differences(self._features, now)))

    async def _run_kopf(self) -> None:
        # Kopf looks once at what is served, so it must not start before our kinds are; and it must not delay readiness.
        await self._all_synced()
        await self.kopf.run()

    async def _count_reach(self) -> None:
        await self._all_synced()
        await self.reach.run()

    async def _lead_when_ready(self) -> None:
        await self._all_synced()
        if self._eviction_requests:
            await self._eviction_requests.known(within_s=self._settings.unserved_after_s)
        log.info(
            "operator.synced",
            seconds=round(self._clock.monotonic() - self._started, 2),
            objects={name: len(each.store) for name, each in self.view.collections.items()},
        )
        # What was just read lives for long: a full collection would walk it each time, 18 ms for 8,000 devices.
        gc.collect()
        gc.freeze()
        await self.election.run(self._lead)

    async def _all_synced(self) -> None:
        for each in self.view.collections.values():
            await each.synced.wait()

    async def _lead(self) -> None:
        self.metrics.leader.set(1)
        try:
            async with asyncio.TaskGroup() as group:
                for each in self.reconcilers:
                    group.create_task(each.run(), name=each.name)
                following = self._pending_claims.follow(self.pending.wake, lambda: self.pending.queue.depth)
                group.create_task(following, name="explaining")
                group.create_task(self._reports.adopt(self.taint_reports.wake), name="adopting taint reports")
                group.create_task(self._happenings.run(), name="events")
                group.create_task(self._waiting_reasons.run(), name="explaining reservations")
        except asyncio.CancelledError:
            await self._happenings.flush(_LAST_EVENTS_S)
            raise
        finally:
            self.metrics.leader.set(0)

    def _election(self) -> LeaderElection:
        settings = self._settings
        return LeaderElection(
            self._client,
            ObjectKey(settings.namespace, settings.lease_name),
            identity=settings.identity,
            clock=self._clock,
            terms=LeaseTerms(
                duration_s=settings.lease_duration_s,
                renew_deadline_s=settings.renew_deadline_s,
                retry_s=settings.retry_period_s,
            ),
            notes=lambda: {ANNOTATION_TROUBLES: "\n".join(self.troubles())},
        )

    def _notes(self, reason: str, action: str) -> Notes:
        return Notes(
            self._client,
            controller=FIELD_MANAGER_OPERATOR,
            instance=self._settings.identity,
            clock=self._clock,
            reason=reason,
            action=action,
        )

    def _limiting(self) -> LimitGuard | None:
        """What counts against DeviceLimits, and, where Draco allocates, what keeps that within them."""
        held = HeldDevices(self.view)
        self._guard = LimitGuard(self.view, held, self._happenings) if self._settings.allocate else None
        self._limits = DeviceLimitReconciler(self._client, self.view, held, self._guard, clock=self._clock)
        return self._guard

    def _dividing(
        self, working: Callable[[str, Any], Reconciling[str]], repairs: RepairReconciler, health: HealthDecisions
    ) -> None:
        """What has GPUs divided as MigPolicies ask."""
        client, view, decisions, clock = self._client, self.view, self._decisions, self._clock
        handover = self._allocation.handover if self._allocation else None
        self.layouts = working("mig-layouts", MigLayoutReconciler(client, view, decisions, health, handover))
        policies = MigPolicyReconciler(client, view, decisions, clock=clock, adviser=repairs)
        self.policies = working("mig-policies", policies)
        self.warm_ahead = working("mig-warm", WarmAheadReconciler(view, decisions, clock=clock))

    def _allocating(self, working: Callable[..., object], decisions: MigDecisions) -> AllocationParts | None:
        """What makes Draco the allocator of the GPUs that policies hand over to it; None where it is not to be."""
        working("device-limits", self._limits)
        if self._guard is None:
            return None
        parts = AllocationParts(
            self._client,
            self.view,
            decisions,
            self.workers,
            guard=self._guard,
            events=self._happenings,
            notes=self._notes,
            evictions=self._evictions,
            settings=self._settings,
            metrics=self.metrics,
            clock=self._clock,
        )
        for name, reconciler in parts.reconcilers.items():
            working(name, reconciler)
        working("scheduling-gates", parts.gates, workers=GATES_AT_ONCE)
        return parts

    def _reserving(self, working: Callable[[str, Any], object], minor: int | None) -> WaitingReasons:
        """What makes the claims of reservations. Where Draco does not allocate, it says so on each."""
        reasons = WaitingReasons(self.workers, clock=self._clock, minor=minor)
        permitted = self._settings.allocate
        working(
            "reservations",
            ReservationReconciler(self._client, self.view, reasons, permitted=permitted, clock=self._clock),
        )
        return reasons

    def _export(self) -> None:
        register_view(self.metrics, self.view)
        register_workers(self.metrics, self.workers)
        register_loop(self.metrics, self._loop_watch)
        self.metrics.on_scrape(
            "draco_lease_age_seconds",
            "Seconds since the lease was last renewed. 0 where this replica does not lead.",
            [],
            lambda: self.election.since_renewal_s if self.election.leading else 0.0,
        )
        register_reach(self.metrics, self.reach)
        register_mig(self.metrics, self._decisions)
        register_fencing(self.metrics, self._fences)
        register_limits(self.metrics, self._limits)
        self.metrics.on_scrape(
            "draco_health_given_up",
            "GPUs that a person has to look at, by HealthPolicy: remediation failed too often. On the leader only.",
            ["policy"],
            lambda: self._remediation.given_up,
        )
        self.metrics.on_scrape(
            "draco_queue_depth",
            "Keys that wait for a worker.",
            ["reconciler"],
            lambda: {each.name: each.queue.depth for each in self.reconcilers},
        )
        self.metrics.on_scrape(
            "draco_claim_pending",
            "Claims that a pod has been waiting for, by main cause. On the leader only.",
            ["reason"],
            self._pending_claims.reasons,
        )
        self.metrics.on_scrape(
            "draco_claim_unmet_devices",
            "Devices that waiting claims want and no node could give even if nobody used it: what to add. On the leader only.",
            ["class", "product", "profile"],
            self._pending_claims.unmet,
        )
        self.metrics.on_scrape(
            "draco_claim_unmet_devices_on_one_node",
            "The most of these devices that one claim wants on one node. On the leader only.",
            ["class", "product", "profile"],
            self._pending_claims.most_unmet,
        )

    def _say_what_is_missing(self, features: Features) -> None:
        for feature in features.missing:
            self.metrics.missing_feature.labels(feature.name).set(1)
            log.warning("feature.missing", feature=feature.name, consequence=feature.consequence, remedy=feature.remedy)


def _eviction_requests(
    client: Client,
    view: ClusterView,
    features: Features,
    *,
    clock: Clock,
    paused: Callable[[Collection[DeviceKey]], str],
) -> EvictionRequests | None:
    """What asks the cluster to make pods leave, where the cluster takes such requests."""
    kind = features.eviction_requests
    return EvictionRequests(client, kind, view, clock=clock, paused=paused) if kind else None
