"""Wires the parts of Draco's allocation together.

Owns only this wiring. The operator starts and stops the parts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from draco.controller.allocation.allocations import ClaimAllocations
from draco.controller.allocation.ownership.handover import HandoverReconciler
from draco.controller.allocation.ownership.register import OwnLeadership, RegisterStore
from draco.controller.allocation.preempting.evicting import PreemptionEvictions
from draco.controller.allocation.preempting.losses import PartialLosses
from draco.controller.allocation.reclaiming import leaks
from draco.controller.allocation.reclaiming.leaks import LeakedClaims
from draco.controller.allocation.writing.gates import SchedulingGates
from draco.controller.allocation.writing.holds import ScaleDownHolds
from draco.controller.deallocation_writes import Deallocations
from draco.controller.evictions import PodEvictions
from draco.controller.limits.enforcement import LimitGuard
from draco.controller.metrics import OperatorMetrics
from draco.controller.mig.decisions import MigDecisions
from draco.controller.settings import OperatorSettings
from draco.controller.view import ClusterView
from draco.controller.workers.pool import Workers
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.kube.events.notes import Notes
from draco.kube.events.shares import EventReason
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey


class AllocationParts:
    """`reconcilers` and `gates` run on the leader only, `handover.register` on every replica."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        decisions: MigDecisions,
        workers: Workers,
        *,
        guard: LimitGuard,
        events: EventRecorder,
        notes: Callable[[EventReason], Notes],
        evictions: PodEvictions,
        autoscaled: bool,
        settings: OperatorSettings,
        metrics: OperatorMetrics,
    ) -> None:
        self.handover = HandoverReconciler(
            client,
            view,
            decisions,
            RegisterStore(client),
            OwnLeadership(client, ObjectKey(settings.namespace, settings.lease_name), settings.identity),
            settle_s=settings.handover_settle_s,
        )
        self._allocations = ClaimAllocations(
            client,
            view,
            self.handover,
            workers,
            events,
            guard=guard,
            count=metrics.claims_allocated,
            count_late=metrics.late_decisions,
            overdue_s=settings.overdue_s,
            tell_after_s=settings.pending_after_s,
        )
        self._leaked = LeakedClaims(
            client,
            view,
            decisions,
            notes(leaks.KEPT_REASON),
            events,
            metrics=metrics,
            tell_after_s=settings.leak_after_s,
        )
        self._evicting = PreemptionEvictions(
            client,
            self._allocations.preemptions,
            evictions,
            events,
            Deallocations(client, view),
            count=metrics.preemptions,
        )
        self.gates = SchedulingGates(client, view, self._allocations.gangs.terms, autoscaled=autoscaled)
        self._losses = PartialLosses(
            client,
            view,
            decisions,
            self._allocations.gangs,
            self._allocations.preemptions,
            evictions=evictions,
            events=events,
            count=metrics.losses,
        )
        self.reconcilers: Mapping[str, Any] = {
            "scale-down-holds": ScaleDownHolds(client, view),
            "handover": self.handover,
            "allocation": self._allocations,
            "leaked-claims": self._leaked,
            "preemption": self._evicting,
            "partial-losses": self._losses,
        }

    def on_their_way(self) -> Sequence[ResourceClaim]:
        """Claims with allocations that are being written."""
        return self._allocations.writes.claims

    @property
    def troubles(self) -> list[str]:
        """Problems that an administrator should fix, one sentence each."""
        return [
            each
            for each in (
                self.handover.trouble,
                self._allocations.writes.trouble,
                self.gates.trouble,
                self._leaked.trouble,
                self._evicting.trouble,
                self._losses.trouble,
            )
            if each
        ]
