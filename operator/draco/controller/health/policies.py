"""Writes the status of each HealthPolicy.

Owns what the status counts and when it is updated. Keys are UIDs. `own_status` does the writing.
"""

from collections.abc import Callable

import msgspec

from draco.controller.health.decisions import HealthDecisions
from draco.controller.health.remediation import RemediationReconciler
from draco.controller.loop_watch import CooperativeWork
from draco.controller.own_status import PolicyStatuses
from draco.controller.view import ClusterView
from draco.health.policy import PolicyShare
from draco.health.policy_status import PolicyTotals, status_of
from draco.health.requests import is_over, remediates
from draco.kube.connect.client import Client
from draco.resources.api.health import HealthPolicy, HealthPolicyStatus

_NOTHING = PolicyShare()


class HealthPolicyReconciler:
    """Reconciles one policy at a time."""

    def __init__(
        self, client: Client, view: ClusterView, decisions: HealthDecisions, remediation: RemediationReconciler
    ) -> None:
        self._view = view
        self._decisions = decisions
        self._remediation = remediation
        self._statuses = PolicyStatuses(client, view.health_policies, clock=view.clock)

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with the UID of every policy that a change may affect."""

        def wake_all(_: object = None) -> None:
            for uid in self.all_keys():
                wake(uid)

        self._remediation.on_notes.add(wake_all)
        self._view.health_policies.subscribe(wake_all)
        self._view.classes.subscribe(wake_all)
        self._view.nodes.subscribe(wake_all, reads=lambda node: node.metadata.labels)
        self._view.gpu_nodes.subscribe(wake_all, reads=lambda gpu_node: gpu_node.status.gpus)
        self._view.slices.subscribe(wake_all, reads=lambda item: item.spec)
        self._view.maintenances.subscribe_keys(wake, lambda request: {remediates(request)} - {""})

    def all_keys(self) -> set[str]:
        """Every policy."""
        return self._statuses.uids()

    async def reconcile(self, uid: str) -> float | None:
        """Update the policy's status."""
        return await self._statuses.bring(uid, self._status)

    async def _status(self, policy: HealthPolicy, work: CooperativeWork) -> HealthPolicyStatus | None:
        uid = policy.metadata.uid
        made = next((each for each in await self._decisions.policies() if each.uid == uid), None)
        if made is None:
            return None
        totals = PolicyTotals()
        for each in await self._decisions.all():
            totals.add(each.shares.get(uid, _NOTHING))
            await work.pause()
        requests = self._view.maintenances.store.values()
        remediating = sum(remediates(each) == uid and not is_over(each) for each in requests)
        # The cached policy may hold an older status.
        made = msgspec.structs.replace(made, policy=policy)
        return status_of(
            made, totals, self._remediation.notes(policy.metadata.name), remediating, self._view.clock.now()
        )
