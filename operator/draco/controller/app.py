"""The operator process: what runs, in which order it starts, and how it ends.

Owns the life of one replica. Every replica watches the cluster, serves probes and exports metrics; the reconcilers run on the one
that holds the lease. Losing the lease ends the process, since another replica may already be leading.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final

import structlog

from draco.controller.kopf_thread import KopfThread
from draco.controller.loop_watch import LoopWatch
from draco.controller.metrics import OperatorMetrics
from draco.controller.reconcilers import Reconcilers
from draco.controller.self_report import SelfReport
from draco.controller.settings import OperatorSettings
from draco.controller.taints.reach import warn_of_wide_rules
from draco.controller.view import ClusterView
from draco.controller.webhook.claim_advice import ClaimAdvice
from draco.controller.webhook.own_kind_advice import OwnKindAdvice
from draco.controller.webhook.pod_gates import PodGates
from draco.controller.webhook.server import OWN_PATH, PATH, PODS_PATH, serving_webhook, webhook_app
from draco.endpoints import http_app, serving
from draco.kube.clock import Clock, SystemClock
from draco.kube.collector import freeze_for_good
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connect
from draco.kube.connect.retry import retry
from draco.kube.delegation import serving_metrics
from draco.kube.discovery import Features, differences, discover_for_operator, kubernetes_minor, until_changed
from draco.kube.election import LeaderElection, LeaseTerms
from draco.resources.api.meta import ObjectKey
from draco.resources.errors import DracoError
from draco.resources.names import ANNOTATION_TROUBLES, FIELD_MANAGER_OPERATOR

log = structlog.get_logger(__name__)

_LAST_EVENTS_S: Final = 5.0
"""How long an ending replica still posts Events, out of the pod's grace period of 30 s."""
_ADVICE_BY: Final = 0.75
"""Share of the API server's webhook timeout to use; the rest is for the network."""


class NoDynamicResourceAllocation(DracoError):
    """The cluster does not serve Dynamic Resource Allocation."""


class ClusterChanged(DracoError):
    """The cluster's features have changed since this process started: it must be replaced."""


async def run_operator(settings: OperatorSettings, *, connect: Connect, stop: asyncio.Event) -> None:
    """Run until `stop` is set.

    Raises, in a group, LeadershipLost when the lease is lost and ClusterChanged when the cluster's features change; ApiError when
    nothing can be read at the start; DracoError when the cluster or this machine lacks something.
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
    """One replica, constructed but not started. `minor` is that of Kubernetes 1, None if unknown."""

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
        self.view = ClusterView(
            client,
            features.taint_rules,
            clock=clock,
            supply_every_s=settings.supply_every_s,
            pod_groups=features.pod_groups,
            allocates=settings.allocate,
        )
        self.reconcilers = Reconcilers(settings, client, features, view=self.view, metrics=self.metrics, minor=minor)
        self.kopf = KopfThread(connect, self.view.own_kinds, identity=settings.identity)
        self.election = self._election()
        self.report = SelfReport(settings, self.view, self.reconcilers, self.metrics, election=self.election)
        self._loop_watch = LoopWatch(clock)
        warn_of_wide_rules(self.view)
        self.report.export(self._loop_watch)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        plain = None if self._settings.metrics else lambda: self.metrics.registry
        app = http_app(plain, alive=self.report.problems, ready=self.report.not_ready)
        log.info("operator.starting", identity=self.election.identity)
        self._say_what_is_missing()
        everywhere = {
            **{name: each.run for name, each in self.view.collections.items()},
            **self.reconcilers.everywhere,
            "loop-watch": self._loop_watch.run,
            "kopf": self._run_kopf,
            "rule reach": self._count_reach,
            "lead": self._lead_when_ready,
            "features": self._follow_features,
        }
        async with (
            serving(app, self._settings.http_host, self._settings.http_port),
            self._secure_metrics(),
            self._webhook(),
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task(run(), name=name) for name, run in everywhere.items()]
            await stop.wait()
            log.info("operator.stopping")
            for task in tasks:
                task.cancel()

    @asynccontextmanager
    async def _webhook(self) -> AsyncIterator[None]:
        settings = self._settings.webhook
        if settings is None:
            yield
            return
        admission = ClaimAdvice(
            self.view.followed,
            self.reconcilers.workers,
            mode=settings.mode,
            ready=self._knows_all,
            within_s=_ADVICE_BY * settings.timeout_s,
        )
        advice = OwnKindAdvice(lambda: self.view.classes_by_name, clock=self._clock)
        gates = PodGates(self._client, self.view, ready=self._knows_all, autoscaled=self._features.autoscaled)
        reviews = {PATH: admission.review, OWN_PATH: advice.review, PODS_PATH: gates.review}
        app = webhook_app(reviews, self.metrics.admission_reviews)
        async with serving_webhook(settings, app, certificates=self.metrics.certificates, clock=self._clock):
            yield

    def _knows_all(self) -> bool:
        return not self.view.unsynced

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
        """Watch for changed cluster features, which decide stores, versions and rights: a change restarts the process."""
        requests = self.reconcilers.eviction_requests
        now = await until_changed(
            lambda: discover_for_operator(self._client, allocates=self._settings.allocate),
            self._features,
            clock=self._clock,
            every_s=self._settings.rediscover_s,
            confirm_s=self._settings.confirm_s,
            # Without taint rules nothing can be isolated or restored: a restarted process with them can.
            hint=lambda: (
                self._features.taint_rules is None
                or any(each.unserved_s for each in self.view.collections.values())
                or bool(requests and requests.informer.unserved_s)
            ),
        )
        raise ClusterChanged("; ".join(differences(self._features, now)))

    async def _run_kopf(self) -> None:
        # Kopf discovers kinds once, so it must start after ours are served; and it must not delay readiness.
        await self._all_synced()
        await self.kopf.run()

    async def _count_reach(self) -> None:
        await self._all_synced()
        await self.reconcilers.reach.run()

    async def _lead_when_ready(self) -> None:
        await self._all_synced()
        if requests := self.reconcilers.eviction_requests:
            await requests.known(within_s=self._settings.unserved_after_s)
        log.info(
            "operator.synced",
            seconds=round(self._clock.monotonic() - self._started, 2),
            objects={name: len(each.store) for name, each in self.view.collections.items()},
        )
        # The data just read is long-lived: each full collection would traverse it, 18 ms for 8,000 devices.
        freeze_for_good()
        try:
            await self.election.run(self._lead)
        finally:  # the lease is released, so nobody waits for this
            await self.reconcilers.events.flush(_LAST_EVENTS_S)

    async def _all_synced(self) -> None:
        for each in self.view.collections.values():
            await each.synced.wait()

    async def _lead(self) -> None:
        self.metrics.leader.set(1)
        try:
            await self.reconcilers.lead()
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
            notes=lambda: {ANNOTATION_TROUBLES: "\n".join(self.report.troubles())},
        )

    def _say_what_is_missing(self) -> None:
        for feature in self._features.missing:
            self.metrics.missing_feature.labels(feature.name).set(1)
            log.warning("feature.missing", feature=feature.name, consequence=feature.consequence, remedy=feature.remedy)
