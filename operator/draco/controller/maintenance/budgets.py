"""Decides which maintenance requests may begin, for all together, and reports on each MaintenanceBudget.

Owns the list of candidates and their answers: an admitted request counts as out of service until its own status says that it has
begun, or it is withdrawn. There is one key, so two decisions never run in parallel. Writes only the status of budgets.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import structlog

from draco.controller.loop_watch import CooperativeWork
from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.own_status import OwnStatus
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.listeners import Listeners
from draco.kube.watch.store import Change
from draco.maintenance.budgets.admission import (
    BudgetLimit,
    FailedRequest,
    StartCandidate,
    StartDecision,
    admit,
    paused_by,
)
from draco.maintenance.budgets.status import budget_status
from draco.maintenance.gate import COUNTING, Waiting
from draco.maintenance.readiness import age_of
from draco.maintenance.selecting.fleet import CLIQUE_LABEL, PhysicalGpu, PublishedDevice, nvlink_domain, place
from draco.maintenance.selecting.matching import has_begun, unseen_rules
from draco.maintenance.taint_rules import isolated_board, maintained_device, maintenance_uid
from draco.resources.api.maintenance import (
    OVER,
    BudgetScope,
    DeviceMaintenance,
    MaintainedDevice,
    MaintenanceBudget,
    MaintenancePhase,
)
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaintRule
from draco.resources.kinds import DEVICE_MAINTENANCES
from draco.resources.names import PoolKey

log = structlog.get_logger(__name__)

KEY = "all"
_CATCH_UP_S = 0.2
_DECIDE_EVERY_S = 0.05


class MaintenanceAdmission:
    """Makes one decision at a time, for all requests."""

    def __init__(self, client: Client, view: ClusterView, fleet: MaintenanceFleet) -> None:
        self._client = client
        self._statuses = OwnStatus(client, view.budgets)
        self._view = view
        self._fleet = fleet
        self._candidates: dict[str, StartCandidate] = {}
        self._admitted: dict[str, frozenset[PhysicalGpu]] = {}
        self._waiting: Mapping[str, Waiting] = {}
        self._looked_at: set[str] = set()
        self._limits: dict[str, _Remembered] = {}
        self._caught_up = False
        self._next_at = float("-inf")
        self._when_asked = Listeners[[str]]()
        self.listeners = Listeners[[str]]()
        """Called with the UID of every request whose answer changes."""

    # -- for the reconciler of requests

    def answer(self, candidate: StartCandidate) -> Waiting | None:
        """What a request waits for; None if it may begin now, COUNTING if nothing was decided since it asked."""
        if not len(self._view.budgets.store):
            return None
        if paused := self.paused(candidate.gpus):
            return Waiting(reason="Paused", message=paused_by(paused))
        return None if self._has_admitted(candidate) else self._waiting.get(candidate.uid, COUNTING)

    def ask(self, candidate: StartCandidate) -> None:
        """Register a candidate for the decision. An admitted one stays admitted unless a budget has been paused."""
        is_paused = bool(self.paused(candidate.gpus))
        if len(self._view.budgets.store) and (is_paused or not self._has_admitted(candidate)):
            self._put(candidate)

    def looked_at(self, uid: str) -> None:
        """Note that it is known whether the request would begin: younger requests need not wait for that."""
        if uid not in self._looked_at:
            self._looked_at.add(uid)
            if self._candidates:
                self._when_asked.tell(KEY)

    def withdraw(self, uid: str) -> None:
        """Remove a request that has begun, or would no longer begin."""
        gone = self._candidates.pop(uid, None), self._admitted.pop(uid, None)
        if any(each is not None for each in gone):
            self._when_asked.tell(KEY)

    def paused(self, gpus: Collection[PhysicalGpu] = ()) -> str:
        """The name of the paused budget that forbids taking these GPUs out of service; "" if none."""
        for budget in self._view.budgets.store.values():
            known = self._counted(budget)
            if budget.spec.paused and (not budget.spec.device_class_name or (known and known.concerns(gpus))):
                return budget.metadata.name
        return ""

    @property
    def knows_what_is_paused(self) -> bool:
        """Whether the GPUs of every paused budget are known: a new leader has to count them first."""
        paused = (each for each in self._view.budgets.store.values() if each.spec.paused)
        return all(not each.spec.device_class_name or self._counted(each) for each in paused)

    def _counted(self, budget: MaintenanceBudget) -> BudgetLimit | None:
        """The last count of the budget; None without one, or if its class has changed."""
        known = self._limits.get(budget.metadata.name)
        return known.limit if known and known.limit.spec.device_class_name == budget.spec.device_class_name else None

    def _has_admitted(self, candidate: StartCandidate) -> bool:
        admitted = self._admitted.get(candidate.uid)
        return admitted is not None and candidate.gpus <= admitted

    def _put(self, candidate: StartCandidate) -> None:
        admitted = self._admitted.get(candidate.uid)
        if self._candidates.get(candidate.uid) != candidate or (admitted and not candidate.gpus <= admitted):
            self._admitted.pop(candidate.uid, None)
            self._candidates[candidate.uid] = candidate
            self._when_asked.tell(KEY)

    # -- the decision

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` when a new decision is needed."""
        self._when_asked.add(wake)
        self._view.maintenances.subscribe(lambda _: wake(KEY), reads=_of_request)
        self._view.budgets.subscribe(lambda _: wake(KEY), reads=lambda item: item.spec)
        self._view.classes.subscribe(lambda _: wake(KEY))
        self._view.slices.subscribe(lambda _: wake(KEY), reads=lambda item: item.spec)
        self._view.nodes.subscribe(lambda _: wake(KEY), reads=lambda node: node.metadata.labels)
        self._view.rules.subscribe(lambda change: _rule_changed(change, wake))

    def all_keys(self) -> set[str]:
        """The one key."""
        return {KEY}

    async def reconcile(self, _: str) -> float | None:
        """Decide about all candidates, and report on the budgets. Changes within a short interval share one decision."""
        if (left_s := self._next_at - self._view.clock.monotonic()) > 0:
            return left_s
        self._next_at = self._view.clock.monotonic() + _DECIDE_EVERY_S
        if not self._caught_up:
            # The former leader may have admitted requests that no watch has delivered yet.
            for request in await self._client.list(DEVICE_MAINTENANCES):
                known = self._view.request(request.metadata.uid)
                if known is None or known.metadata.resource_version != request.metadata.resource_version:
                    return _CATCH_UP_S
            self._caught_up = True
        budgets = list(self._view.budgets.store.values())
        for gone in self._limits.keys() - {budget.metadata.name for budget in budgets}:
            del self._limits[gone]
        limits = [await self._limit(budget) for budget in budgets]
        # No await from here on: the decision uses one consistent state.
        requests = list(self._view.maintenances.store.values())
        out, kept = self._out(requests)
        failed = [
            FailedRequest(request.metadata.name, self._fleet.gpus(request.status.devices))
            for request in requests
            if request.status.phase is MaintenancePhase.FAILED
        ]
        self._looked_at &= {request.metadata.uid for request in requests}
        unknown = [age_of(each) for each in requests if not self._is_known(each)]
        decided = admit(
            (
                each
                for uid, each in self._candidates.items()
                if uid in self._admitted or not any(age < each.age for age in unknown)
            ),
            out,
            limits,
            failed,
            returning=out - kept,
            before=self._admitted.keys(),
        )
        self._tell(decided)
        for limit in limits:
            await self._say(limit, out, decided)
        return None

    def _is_known(self, request: DeviceMaintenance) -> bool:
        """Whether it is known if the request would begin."""
        status = request.status
        return status.phase in OVER or has_begun(request) or request.metadata.uid in self._looked_at

    def _tell(self, decided: StartDecision) -> None:
        changed = [uid for uid, why in decided.waiting.items() if self._waiting.get(uid) != why]
        fresh = decided.admitted.keys() - self._admitted.keys()
        self._admitted = dict(decided.admitted)
        self._waiting = decided.waiting
        if fresh:
            log.info("maintenance.admitted", requests=len(fresh), waiting=len(decided.waiting))
        for uid in (*fresh, *changed):
            self.listeners.tell(uid)

    def _out(self, requests: Iterable[DeviceMaintenance]) -> tuple[frozenset[PhysicalGpu], frozenset[PhysicalGpu]]:
        """The GPUs out of service, and those of them that requests keep out.

        A request keeps out what it has begun with, and what its rules taint or may taint. A request that is gone or finished
        keeps nothing out.
        """
        found: set[PhysicalGpu] = set()
        kept: set[PhysicalGpu] = set()
        for request in requests:
            if self._view.taint_rules is None and unseen_rules(request):
                found |= self._fleet.gpus(request.status.devices)
            if has_begun(request):
                gpus = self._fleet.gpus(request.status.devices)
                found |= gpus
                if not request.is_returning:
                    kept |= gpus
        for rule in self._view.rules.store.values():
            device = maintained_device(rule) if maintenance_uid(rule) else None
            if device is not None and rule.spec.taint.effect in BLOCKING_EFFECTS:
                found |= self._fleet.gpus([MaintainedDevice(**device._asdict(), uuid=isolated_board(rule))])
        return frozenset(found), frozenset(kept)

    async def _limit(self, budget: MaintenanceBudget) -> BudgetLimit:
        spec, name = budget.spec, budget.metadata.name
        members = await self._fleet.of_class(spec.device_class_name) if spec.device_class_name else None
        labels = self._fleet.node_labels() if spec.per is BudgetScope.NVLINK_DOMAIN else {}
        pools = await self._fleet.pools()
        made_of = (spec, members, labels, pools)
        known = self._limits.get(name)
        if known is None or known.made_of != made_of:
            work = CooperativeWork(self._view.clock)
            places: dict[PhysicalGpu, str] = {}
            elsewhere: set[PhysicalGpu] = set()
            without: set[PoolKey] = set()
            pool_places = {node: each[CLIQUE_LABEL] for node, each in labels.items() if CLIQUE_LABEL in each}
            for pool in pools:
                for gpu, published in pool.gpus.items():
                    if members is None or gpu in members:
                        places[gpu] = pool_places[pool.key.pool] = _counted_in(spec.per, published, labels)
                    else:
                        elsewhere.add(gpu)
                if pool.gpus and elsewhere.issuperset(pool.gpus):
                    without.add(pool.key)
                await work.pause()
            limit = BudgetLimit(
                name=name,
                spec=spec,
                places=places,
                totals=Counter(places.values()),
                elsewhere=elsewhere,
                without=without,
                pool_places=pool_places,
            )
            known = self._limits[name] = _Remembered(limit, made_of)
        return known.limit

    async def _say(self, limit: BudgetLimit, out: frozenset[PhysicalGpu], decided: StartDecision) -> None:
        budget = self._view.budgets.store.get(ObjectKey("", limit.name))
        if budget is None or budget.spec != limit.spec:
            return
        known = not limit.spec.device_class_name or self._view.classes.store.get(
            ObjectKey("", limit.spec.device_class_name)
        )
        status = budget_status(
            budget,
            limit,
            out,
            waiting=decided.waiting_for.get(limit.name, 0),
            now=self._view.clock.now(),
            has_class=bool(known),
        )
        if status == budget.status or not await self._view.budgets.is_current(budget):
            return
        if await self._statuses.write(budget, status) is None:
            log.info("maintenance.budget_gone", budget=limit.name)


def _of_request(request: DeviceMaintenance) -> tuple[object, ...]:
    return has_begun(request), request.status.phase, request.status.devices


class _Remembered(NamedTuple):
    """A budget's last result, and its inputs."""

    limit: BudgetLimit
    made_of: tuple[object, ...]


def _counted_in(per: BudgetScope, published: PublishedDevice, node_labels: Mapping[str, Mapping[str, str]]) -> str:
    if per is BudgetScope.CLUSTER:
        return ""
    if per is BudgetScope.NODE:
        return place(published)
    return nvlink_domain(published, node_labels.get(published.node, {}))


def _rule_changed(change: Change[DeviceTaintRule], wake: Callable[[str], None]) -> None:
    if any(maintenance_uid(rule) for rule in change.versions):
        wake(KEY)
