"""Extends taint rules: a rule that names one device taints everything on the same hardware.

Owns the wake-ups and the writes of these extensions; it never writes any other rule. Keys are UIDs of the extended rules,
including deleted ones that left extensions.
"""

from collections.abc import Callable

import structlog

from draco.controller.view import BY_EXTENDED, BY_EXTENDED_POOL, BY_UID, ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import Conflict, NotFound
from draco.maintenance.taint_rules import ExtensionPlan, extended_device, extends, plan_extensions, plan_orphans
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import Kind
from draco.resources.names import FIELD_MANAGER_OPERATOR, PoolKey

log = structlog.get_logger(__name__)


class TaintExtensionReconciler:
    """Reconciles one rule at a time."""

    def __init__(self, client: Client, view: ClusterView) -> None:
        self._client = client
        self._view = view

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with the UID of every rule that a change may affect."""
        self._view.slices.subscribe_keys(wake, self._extended_in, reads=lambda item: item.spec)
        self._view.rules.subscribe_keys(wake, lambda rule: [extends(rule) or rule.metadata.uid])

    def all_keys(self) -> set[str]:
        """Every rule that names one device, and every deleted one that left an extension."""
        rules = self._view.rules.store.values()
        return {rule.metadata.uid for rule in rules if extended_device(rule)} | {extends(rule) for rule in rules} - {""}

    async def reconcile(self, uid: str) -> None:
        """Update the extensions of the rule with this UID."""
        kind = self._view.taint_rules
        if kind is None:
            return
        plan = self.plan(uid, kind)
        if not plan.empty:
            log.info("taint_rule.extended", rule=plan.rule, uid=uid, plan=str(plan))
        for rule in plan.apply:
            await self._client.apply(kind, rule.metadata.key, rule, manager=FIELD_MANAGER_OPERATOR)
        for rule in plan.delete:
            await delete_rule(self._client, kind, rule)

    def plan(self, uid: str, kind: Kind[DeviceTaintRule]) -> ExtensionPlan:
        """What the rule with this UID needs, by the current state."""
        in_place = self._view.rules.store.by_index(BY_EXTENDED, uid)
        original = next(iter(self._view.rules.store.by_index(BY_UID, uid)), None)
        if original is None:
            # All rules arrive on one watch, in order: an extension never arrives before its original.
            return plan_orphans(uid, in_place)
        named = extended_device(original)
        pool = named.pool_key if named else PoolKey("", "")
        return plan_extensions(original, in_place, self._view.hardware(pool), kind=kind)

    def _extended_in(self, item: ResourceSlice) -> list[str]:
        return [rule.metadata.uid for rule in self._view.rules.store.by_index(BY_EXTENDED_POOL, item.pool)]


async def delete_rule(client: Client, kind: Kind[DeviceTaintRule], rule: DeviceTaintRule) -> None:
    """Delete this rule (by UID) if it still exists. Raises ApiError."""
    try:
        await client.delete(kind, rule.metadata.key, uid=rule.metadata.uid)
    except NotFound:
        pass
    except Conflict:
        # Another rule has the name now; its arrival wakes the reconciler that wants it deleted.
        log.info("taint_rule.replaced", rule=rule.metadata.name)
