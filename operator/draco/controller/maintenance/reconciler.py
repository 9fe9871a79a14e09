"""Carries out maintenance: reads the state of a request, plans, and writes.

Owns the wake-ups and the writes of DeviceMaintenances and their taint rules, and nothing else: no node, no claim and no foreign
rule. `draining` evicts pods and `jobs` creates Jobs on its behalf. Keys are UIDs, also of deleted requests that left rules.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import structlog

from draco.controller.maintenance.budgets import MaintenanceAdmission
from draco.controller.maintenance.draining import PodDrains
from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.maintenance.jobs import MaintenanceJobs
from draco.controller.maintenance.rehearsals import Rehearsals, Rehearsed
from draco.controller.maintenance.snapshots import SnapshotReader, publishes
from draco.controller.own_status import OwnStatus
from draco.controller.taints.extensions import delete_rule
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason, EventType
from draco.kube.watch.store import Change
from draco.maintenance.draining.drain import plan_drain
from draco.maintenance.plan import plan_abandoned, plan_maintenance
from draco.maintenance.plan_output import AdmissionWish, MaintenancePlan
from draco.maintenance.progress import DrainPlan, Purpose
from draco.maintenance.selecting.matching import fixed_selection, has_begun
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.maintenance.taint_rules import is_fence, maintenance_uid
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.draco import GpuNode
from draco.resources.api.maintenance import (
    CONDITION_READY_FOR_WORK,
    OVER,
    DeviceMaintenance,
    DeviceMaintenanceStatus,
    MaintenancePhase,
)
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaintRule
from draco.resources.kinds import DEVICE_MAINTENANCES
from draco.resources.names import FIELD_MANAGER_OPERATOR, PoolKey

log = structlog.get_logger(__name__)

EVENT_ACTION = "Maintaining"

_REHEARSED_EVERY_S = 30.0
"""How often the effect of isolating is computed again while a request waits."""


class MaintenanceReconciler:
    """Reconciles one request at a time."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        *,
        settle_s: float,
        fleet: MaintenanceFleet,
        admission: MaintenanceAdmission,
        drains: PodDrains,
        jobs: MaintenanceJobs,
        events: EventRecorder,
    ) -> None:
        self._client = client
        self._view = view
        self._fleet = fleet
        self._admission = admission
        self._rehearsals = Rehearsals(view, fleet)
        self._drains = drains
        self._jobs = jobs
        self._snapshots = SnapshotReader(
            view, settle_s=settle_s, fleet=fleet, admission=admission, drains=drains, jobs=jobs
        )
        self._events = events
        self._statuses = OwnStatus(client, view.maintenances)

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with the UID of every request that a change may affect."""

        def claim_changed(change: Change[ResourceClaim]) -> None:
            for uid in self._of_claims(change.versions):
                wake(uid)

        self._view.maintenances.subscribe(lambda change: self._wake_for_request(change, wake))
        self._view.slices.subscribe_keys(wake, lambda item: self._in_pools({item.pool}), reads=lambda item: item.spec)
        self._view.claims.subscribe(claim_changed)
        self._view.classes.subscribe_keys(wake, lambda _: _uids(self._at_work()))
        self._view.gpu_nodes.subscribe_keys(wake, lambda item: self._in_pools({item.pool}), reads=_of_gpu_node)
        self._view.nodes.subscribe_keys(wake, self._of_node, reads=lambda node: node.ready)
        self._view.rules.subscribe_keys(wake, self._of_rule)
        self._view.budgets.subscribe_keys(wake, lambda _: _uids(self._at_work()), reads=lambda budget: budget.spec)
        self._admission.listeners.add(wake)
        self._drains.subscribe(wake)
        self._jobs.subscribe(wake)

    def all_keys(self) -> set[str]:
        """Every request, and every deleted one that left a rule."""
        uids = {request.metadata.uid for request in self._view.maintenances.store.values()}
        uids |= {maintenance_uid(rule) for rule in self._view.rules.store.values()}
        return uids - {""}

    async def reconcile(self, uid: str) -> float | None:
        """Bring the request with this UID, and its rules, to the planned state."""
        request = self._view.request(uid)
        if request is None:
            await self._clean_up_after(uid)
            return None
        if request in self._statuses.superseded:
            return None
        try:
            rehearsed = await self._rehearse(request)
        finally:
            self._admission.looked_at(uid)
        snapshot = self._snapshots.read(request, rehearsed)
        drain = self._plan_drain(request, snapshot)
        plan = plan_maintenance(request, snapshot, drain)
        self._ask_budgets(plan, snapshot, uid)
        if not plan.empty:
            if not await self._view.maintenances.is_current(request):
                return None  # the store has a newer version, and its event wakes us
            log.info("maintenance.planned", request=plan.request, uid=uid, plan=str(plan))
        await self._carry_out(plan, request)
        again_s = plan.look_again.total_seconds() if plan.look_again else None
        if rehearsed is not None:
            again_s = _sooner(again_s, _REHEARSED_EVERY_S)
        if plan.status is None:
            return _sooner(again_s, await self._work(request, plan, snapshot, drain))
        return again_s

    async def _clean_up_after(self, uid: str) -> None:
        self._drains.forget(uid)
        self._jobs.forget(uid)
        await self._carry_out(await self._plan_for_missing(uid), None)
        self._admission.withdraw(uid)  # only now: a rule being written still counts

    async def _rehearse(self, request: DeviceMaintenance) -> Rehearsed | None:
        """The effect of isolating, for a request that has not begun."""
        over = request.status.phase in OVER or request.spec.cancelled or request.spec.finished
        if has_begun(request) or over or request.metadata.deletion_timestamp is not None:
            return None
        rules = self._view.rules_for(request.metadata.uid)
        if any(rule.spec.taint.effect in BLOCKING_EFFECTS for rule in rules):
            return None  # an older operator has begun it
        return await self._rehearsals.of(request)

    def _plan_drain(self, request: DeviceMaintenance, snapshot: MaintenanceSnapshot) -> DrainPlan | None:
        if snapshot.drain is None:
            return None
        self._drains.concerns(request, snapshot.drain.pods)
        return plan_drain(request, snapshot.drain)

    def _ask_budgets(self, plan: MaintenancePlan, snapshot: MaintenanceSnapshot, uid: str) -> None:
        """Pass the plan's wishes to the budgets. Their answer wakes the request."""
        if plan.admission is AdmissionWish.ASK and snapshot.candidate is not None:
            self._admission.ask(snapshot.candidate)
        elif plan.admission is not AdmissionWish.KEEP:
            self._admission.withdraw(uid)

    async def _work(
        self,
        request: DeviceMaintenance,
        plan: MaintenancePlan,
        snapshot: MaintenanceSnapshot,
        drain: DrainPlan | None,
    ) -> float | None:
        """Do the work that the current status implies: evict pods, create Jobs."""
        if plan.drain and drain:
            return await self._drains.carry_out(request, drain)
        if plan.work and snapshot.work:
            await self._jobs.make(request, Purpose.WORK, snapshot.work)
        if plan.verify and snapshot.verification:
            await self._jobs.make(request, Purpose.VERIFICATION, snapshot.verification)
        return None

    async def _plan_for_missing(self, uid: str) -> MaintenancePlan:
        rules = self._view.rules_for(uid)
        if not rules:
            return MaintenancePlan(request=uid)
        # Rules and requests arrive on different watches: only the API server knows that the request is really gone.
        living = await self._client.list(DEVICE_MAINTENANCES)
        if any(request.metadata.uid == uid for request in living):
            return MaintenancePlan(request=uid)  # its watch event wakes us
        return plan_abandoned(uid, rules)

    async def _carry_out(self, plan: MaintenancePlan, request: DeviceMaintenance | None) -> None:
        kind = self._view.taint_rules
        if plan.status_first and not await self._write_status(plan, request):
            return
        for rule in plan.apply:
            if kind:
                await self._client.apply(kind, rule.metadata.key, rule, manager=FIELD_MANAGER_OPERATOR)
        if plan.stop_jobs and request:
            await self._jobs.stop(request)
        for rule in plan.delete:
            if kind:
                await delete_rule(self._client, kind, rule)
        if not plan.status_first:
            await self._write_status(plan, request)

    async def _write_status(self, plan: MaintenancePlan, request: DeviceMaintenance | None) -> bool:
        """Write the plan's status of the request. Return whether the request still exists."""
        if plan.status is None or request is None:
            return True
        written = await self._statuses.write(request, plan.status)
        if written is None:
            log.info("maintenance.gone", request=plan.request)
            return False
        is_new = written.metadata.resource_version != request.metadata.resource_version
        if is_new and plan.status.phase != request.status.phase:
            self._announce(request, plan.status)
        return True

    def _announce(self, request: DeviceMaintenance, status: DeviceMaintenanceStatus) -> None:
        """Report a change of phase once, after writing it."""
        if status.phase is None:
            return
        type_: EventType = "Warning" if status.phase is MaintenancePhase.FAILED else "Normal"
        reason = EventReason(status.phase.value, EVENT_ACTION, type_)
        self._events.record(DEVICE_MAINTENANCES.reference(request.metadata), reason, status.message)

    def _wake_for_request(self, change: Change[DeviceMaintenance], wake: Callable[[str], None]) -> None:
        for request in change.versions:
            wake(request.metadata.uid)
        if change.differs(_claimed):
            devices = {each.key for request in change.versions for each in request.status.devices}
            for other in self._at_work():  # a request may wait for another
                if not devices.isdisjoint(each.key for each in other.status.devices):
                    wake(other.metadata.uid)

    def _of_node(self, node: Node) -> Iterable[str]:
        gpu_node = self._view.gpu_nodes.store.get(node.metadata.key)
        return self._in_pools({gpu_node.pool}) if gpu_node is not None else ()

    def _of_claims(self, claims: Sequence[ResourceClaim]) -> Iterator[str]:
        # A waiting claim that tolerates taints may concern any request that has begun.
        if any(claim.waits_tolerantly for claim in claims):
            yield from _uids(filter(has_begun, self._at_work()))
        pools = {result.key.pool_key for claim in claims for result in claim.results}
        # Requests that select from the whole fleet would be woken by every claim: they are checked periodically.
        yield from self._in_pools(pools, wide=False)

    def _in_pools(self, pools: Collection[PoolKey], *, wide: bool = True) -> Iterator[str]:
        """The UIDs of requests that devices of these pools may concern."""
        for request in self._at_work() if pools else ():
            # A request without a fixed selection that does not only use names may select anything; without a pool, in any pool.
            selection = fixed_selection(request, self._view.rules_for(request.metadata.uid))
            if selection is None or not (has_begun(request) or request.spec.device_selector.pool):
                concerned = wide
            else:
                concerned = any(map(selection.may_match, pools))
            if concerned:
                yield request.metadata.uid

    def _of_rule(self, rule: DeviceTaintRule) -> Iterator[str]:
        if uid := maintenance_uid(rule):
            yield uid
        selector = rule.spec.device_selector
        if selector is None:
            return
        for request in self._at_work():
            # A taint that comes or goes decides whether a verification Job's claim can be allocated.
            if request.status.phase is MaintenancePhase.VERIFYING and any(
                selector.matches(each.key) for each in request.status.devices
            ):
                yield request.metadata.uid
        if is_fence(rule):
            yield from self._in_pools({PoolKey(selector.driver or "", selector.pool or "")})

    def _at_work(self) -> Iterable[DeviceMaintenance]:
        every = self._view.maintenances.store.values()
        return (request for request in every if request.status.phase not in OVER)


def _uids(requests: Iterable[DeviceMaintenance]) -> Iterator[str]:
    return (request.metadata.uid for request in requests)


def _sooner(one_s: float | None, other_s: float | None) -> float | None:
    return min((each for each in (one_s, other_s) if each is not None), default=None)


def _claimed(request: DeviceMaintenance) -> tuple[object, ...]:
    """The fields that other requests for the same devices wait for."""
    devices = [(each.key, each.overlaps) for each in request.status.devices]
    return request.spec.finished, request.says(CONDITION_READY_FOR_WORK), devices


def _of_gpu_node(gpu_node: GpuNode) -> tuple[object, ...]:
    """The fields of a report that tell whether GPUs are isolated, published and healthy."""
    health = [(gpu.uuid, gpu.health, gpu.message, gpu.faults) for gpu in gpu_node.status.gpus]
    return gpu_node.spec.isolated, gpu_node.status.isolates, publishes(gpu_node), health
