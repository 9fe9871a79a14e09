"""Carries out maintenance: reads what is known of a request, has the plan made, writes it.

Owns the wake-ups and the writes of DeviceMaintenance and of its taint rules, and nothing else: it touches no node, no claim and
no rule that is not its own. Keys are UIDs of requests, also of those that are gone and left rules behind.
"""

from collections.abc import Callable
from datetime import timedelta

import structlog

from draco.controller.view import BY_DEVICE, BY_POOL, ClusterView
from draco.kube.client import Client
from draco.kube.clock import Clock
from draco.kube.errors import Conflict, NotFound
from draco.kube.store import Change
from draco.maintenance import (
    MaintenancePlan,
    Seen,
    maintained_device,
    maintenance_uid,
    matching_devices,
    plan_abandoned,
    plan_maintenance,
)
from draco.resources.claims import ResourceClaim
from draco.resources.draco import DeviceMaintenance
from draco.resources.kinds import DEVICE_MAINTENANCES
from draco.resources.names import FIELD_MANAGER_OPERATOR, PoolKey
from draco.resources.slices import ResourceSlice
from draco.resources.taints import DeviceTaintRule

log = structlog.get_logger(__name__)

RULES_NOT_SERVED = (
    "This cluster does not serve DeviceTaintRule, so devices cannot be isolated: enable the feature gate DRADeviceTaintRules "
    "(and DRADeviceTaints) and the API resource.k8s.io/v1beta2 (v1alpha3 before Kubernetes 1.36), then restart Draco's operator."
)


class MaintenanceReconciler:
    """One request at a time, from what is known to what should be."""

    def __init__(self, client: Client, view: ClusterView, *, clock: Clock, settle_s: float) -> None:
        self._client = client
        self._view = view
        self._clock = clock
        self._settle = timedelta(seconds=settle_s)
        self._superseded: dict[str, str] = {}  # by UID: the version that our last write replaced

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Have `wake` called with the UID of every request that a change may concern."""
        self._view.maintenances.subscribe(lambda change: _wake_for_request(change, wake))
        self._view.slices.subscribe(lambda change: self._wake_for_slice(change, wake))
        self._view.claims.subscribe(lambda change: self._wake_for_claim(change, wake))
        if self._view.rules:
            self._view.rules.subscribe(lambda change: _wake_for_rule(change, wake))

    def all_keys(self) -> set[str]:
        """Every request there is, and every one that left a rule behind."""
        uids = {request.metadata.uid for request in self._view.maintenances.store.values()}
        uids |= {maintenance_uid(rule) for rule in self._view.rule_store.values()}
        return uids - {""}

    async def reconcile(self, uid: str) -> float | None:
        """Bring the request with this UID, and its rules, to what they should be."""
        request = self._view.request(uid)
        if request is None:
            self._superseded.pop(uid, None)
        elif self._superseded.get(uid) == request.metadata.resource_version:
            return None  # our own write is still on its way to us; its arrival wakes us
        plan = self.plan(request) if request else await self._plan_for_missing(uid)
        if not plan.empty:
            log.info("maintenance.planned", request=plan.request, uid=uid, plan=str(plan))
        await self._carry_out(plan, request)
        return plan.look_again.total_seconds() if plan.look_again else None

    def plan(self, request: DeviceMaintenance) -> MaintenancePlan:
        """What the request needs, by what is known now."""
        published = matching_devices(request.spec.device_selector, self._slices_for(request))
        rules = self._view.rules_for(request.metadata.uid)
        isolated = {device for rule in rules if (device := maintained_device(rule))}
        seen = Seen(
            now=self._clock.now(),
            published=published,
            rules=tuple(rules),
            claims=tuple(self._view.claims_on(published | isolated)),
            unavailable="" if self._view.taint_rules else RULES_NOT_SERVED,
            settle=self._settle,
        )
        return plan_maintenance(request, seen)

    async def _plan_for_missing(self, uid: str) -> MaintenancePlan:
        rules = self._view.rules_for(uid)
        if not rules:
            return MaintenancePlan(request=uid)
        # Rules and requests arrive on different watches: only the API server knows that the request is really gone.
        living = await self._client.list(DEVICE_MAINTENANCES)
        if any(request.metadata.uid == uid for request in living):
            return MaintenancePlan(request=uid)  # its arrival on the watch wakes us
        return plan_abandoned(uid, rules)

    async def _carry_out(self, plan: MaintenancePlan, request: DeviceMaintenance | None) -> None:
        kind = self._view.taint_rules
        for rule in plan.apply:
            if kind:
                await self._client.apply(kind, rule.metadata.key, rule, manager=FIELD_MANAGER_OPERATOR)
        for rule in plan.delete:
            if kind:
                await self._delete(rule)
        if plan.status is not None and request is not None:
            seen = request.metadata.resource_version
            try:
                written = await self._client.apply(
                    DEVICE_MAINTENANCES,
                    request.metadata.key,
                    {
                        # Only on top of what was seen: a replica that lost the lease unknowingly must not win.
                        "metadata": {"uid": request.metadata.uid, "resourceVersion": seen},
                        "status": plan.status,
                    },
                    manager=FIELD_MANAGER_OPERATOR,
                    subresource="status",
                )
            except NotFound:
                log.info("maintenance.gone", request=plan.request)
            else:
                if written.metadata.resource_version != seen:
                    self._superseded[request.metadata.uid] = seen

    async def _delete(self, rule: DeviceTaintRule) -> None:
        kind = self._view.taint_rules
        if kind is None:
            return
        try:
            await self._client.delete(kind, rule.metadata.key, uid=rule.metadata.uid)
        except NotFound:
            pass
        except Conflict:
            # Another rule has the name by now; its arrival on the watch wakes us.
            log.info("maintenance.rule_replaced", rule=rule.metadata.name)

    def _slices_for(self, request: DeviceMaintenance) -> list[ResourceSlice]:
        selector = request.spec.device_selector
        if selector.driver and selector.pool:
            return self._view.slices.store.by_index(BY_POOL, PoolKey(selector.driver, selector.pool))
        return self._view.slices.store.values()

    def _wake_for_slice(self, change: Change[ResourceSlice], wake: Callable[[str], None]) -> None:
        item = change.after or change.before
        if item is None or (change.before and change.after and change.before.spec == change.after.spec):
            return
        for request in self._view.maintenances.store.values():
            selector = request.spec.device_selector
            if selector.driver in {None, item.pool.driver} and selector.pool in {None, item.pool.pool}:
                wake(request.metadata.uid)

    def _wake_for_claim(self, change: Change[ResourceClaim], wake: Callable[[str], None]) -> None:
        devices = {device for claim in (change.before, change.after) if claim for device in claim.devices_held}
        for device in devices:
            for rule in self._view.rule_store.by_index(BY_DEVICE, device):
                wake(maintenance_uid(rule))


def _wake_for_request(change: Change[DeviceMaintenance], wake: Callable[[str], None]) -> None:
    for request in (change.before, change.after):
        if request:
            wake(request.metadata.uid)


def _wake_for_rule(change: Change[DeviceTaintRule], wake: Callable[[str], None]) -> None:
    for rule in (change.before, change.after):
        if rule and (uid := maintenance_uid(rule)):
            wake(uid)
