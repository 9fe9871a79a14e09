"""Writes the status of each HealthPolicy.

Owns the status of HealthPolicies and nothing else. Keys are their UIDs. A change anywhere in the fleet may concern every policy,
so each is looked at only so often, and less often the longer that takes.
"""

from collections.abc import Callable

import msgspec
import structlog

from draco.controller.health.decisions import HealthDecisions
from draco.controller.health.remediation import RemediationReconciler
from draco.controller.loop_watch import CooperativeWork
from draco.controller.view import BY_UID, ClusterView
from draco.health.policy import PolicyShare
from draco.health.policy_status import PolicyTotals, status_of
from draco.health.remediation import is_over, remediates
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.kube.watch.store import Change
from draco.resources.api.core import Node
from draco.resources.api.draco import GpuNode
from draco.resources.api.health import HealthPolicy, HealthPolicyStatus
from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.api.slices import ResourceSlice
from draco.resources.kinds import HEALTH_POLICIES
from draco.resources.names import FIELD_MANAGER_OPERATOR

log = structlog.get_logger(__name__)

_REST = 30.0
"""How much longer than it takes to count for all policies each is then let be."""
_LONGEST_REST_S = 10.0
_NOTHING = PolicyShare()


class HealthPolicyReconciler:
    """One policy at a time."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        decisions: HealthDecisions,
        remediation: RemediationReconciler,
        *,
        clock: Clock,
        pace_s: float = 0.5,
    ) -> None:
        self._client = client
        self._view = view
        self._decisions = decisions
        self._remediation = remediation
        self._clock = clock
        self._pace_s = pace_s
        self._due_s: dict[str, float] = {}
        self._superseded: dict[str, str] = {}  # by UID: the version that our last write replaced

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Have `wake` called with the UID of every policy that a change may concern."""

        def wake_all() -> None:
            for uid in self.all_keys():
                wake(uid)

        def on_node(change: Change[Node]) -> None:
            if change.differs(lambda node: node.metadata.labels):
                wake_all()

        def on_gpu_node(change: Change[GpuNode]) -> None:
            if change.differs(lambda gpu_node: gpu_node.status.gpus):
                wake_all()

        def on_slice(change: Change[ResourceSlice]) -> None:
            if change.differs(lambda item: item.spec):
                wake_all()

        def on_request(change: Change[DeviceMaintenance]) -> None:
            for uid in {remediates(request) for request in change.versions} - {""}:
                wake(uid)

        self._remediation.on_notes(wake_all)
        self._view.health_policies.subscribe(lambda _: wake_all())
        self._view.classes.subscribe(lambda _: wake_all())
        self._view.nodes.subscribe(on_node)
        self._view.gpu_nodes.subscribe(on_gpu_node)
        self._view.slices.subscribe(on_slice)
        self._view.maintenances.subscribe(on_request)

    def all_keys(self) -> set[str]:
        """Every policy there is."""
        return {policy.metadata.uid for policy in self._view.health_policies.store.values()}

    async def reconcile(self, uid: str) -> float | None:
        """Bring the policy's status to what is so."""
        policy = next(iter(self._view.health_policies.store.by_index(BY_UID, uid)), None)
        if policy is None or policy.metadata.deletion_timestamp is not None:
            self._due_s.pop(uid, None)
            self._superseded.pop(uid, None)
            return None
        if self._superseded.get(uid) == policy.metadata.resource_version:
            return None  # our own write is still on its way to us; its arrival wakes us
        now_s = self._clock.monotonic()
        wait_s = self._due_s.get(uid, now_s) - now_s
        if wait_s > 0 and policy.status.observed_generation == policy.metadata.generation:
            return wait_s
        status = await self._status(policy)
        if status is not None and status != policy.status and await self._view.health_policies.is_current(policy):
            await self._write(policy, status)
        return None

    async def _status(self, policy: HealthPolicy) -> HealthPolicyStatus | None:
        uid = policy.metadata.uid
        made = next((each for each in await self._decisions.policies() if each.uid == uid), None)
        if made is None:
            return None
        decisions = await self._decisions.all()
        totals = PolicyTotals()
        cooperative = CooperativeWork(self._clock)
        for each in decisions:
            totals.add(each.shares.get(uid, _NOTHING))
            await cooperative.pause()
        requests = self._view.maintenances.store.values()
        remediating = sum(remediates(each) == uid and not is_over(each) for each in requests)
        rest_s = min(_LONGEST_REST_S, _REST * cooperative.work_s * len(self.all_keys()))
        self._due_s[uid] = self._clock.monotonic() + max(self._pace_s, rest_s)
        # What is remembered of the policy may hold an older status.
        made = msgspec.structs.replace(made, policy=policy)
        return status_of(made, totals, self._remediation.notes(policy.metadata.name), remediating, self._clock.now())

    async def _write(self, policy: HealthPolicy, status: HealthPolicyStatus) -> None:
        meta = policy.metadata
        if status.message != policy.status.message:
            log.info("health.policy_stands", policy=meta.name, message=status.message)
        try:
            written = await self._client.apply(
                HEALTH_POLICIES,
                meta.key,
                {
                    # Only on top of what was seen: a replica that lost the lease unknowingly must not win.
                    "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
                    "status": status,
                },
                manager=FIELD_MANAGER_OPERATOR,
                subresource="status",
            )
        except NotFound:
            log.info("health.policy_gone", policy=meta.name)
        else:
            if written.metadata.resource_version != meta.resource_version:
                self._superseded[meta.uid] = meta.resource_version
