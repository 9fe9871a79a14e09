"""Writes the status of each SharingPolicy.

Owns what the status counts and when it is updated. Keys are UIDs. `own_status` does the writing.
"""

from collections.abc import Callable

import msgspec

from draco.controller.loop_watch import CooperativeWork
from draco.controller.own_status import PolicyStatuses
from draco.controller.sharing.decisions import SharingDecisions
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.resources.api.sharing import SharingPolicy, SharingPolicyStatus
from draco.sharing.summary import counts_of, status_of


class SharingPolicyReconciler:
    """Reconciles one policy at a time."""

    def __init__(self, client: Client, view: ClusterView, decisions: SharingDecisions) -> None:
        self._view = view
        self._decisions = decisions
        self._statuses = PolicyStatuses(client, view.sharing_policies, clock=view.clock)

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with the UID of every policy that a change may affect."""

        def wake_all(_: object = None) -> None:
            for uid in self.all_keys():
                wake(uid)

        self._view.sharing_policies.subscribe(wake_all)
        self._view.gpu_nodes.subscribe(wake_all)
        self._view.nodes.subscribe(wake_all, reads=lambda node: node.metadata.labels)
        self._view.slices.subscribe(wake_all, reads=lambda item: item.spec)
        self._view.claims.subscribe(wake_all, reads=lambda claim: claim.results)

    def all_keys(self) -> set[str]:
        """Every policy."""
        return self._statuses.uids()

    async def reconcile(self, uid: str) -> float | None:
        """Update the policy's status."""
        return await self._statuses.bring(uid, self._status)

    async def _status(self, policy: SharingPolicy, work: CooperativeWork) -> SharingPolicyStatus | None:
        """If the policy changes meanwhile, the write ends in a conflict."""
        uid = policy.metadata.uid
        rules = next((each for each in self._decisions.rules if each.policy.metadata.uid == uid), None)
        if rules is None:
            return None
        counts = counts_of(rules)
        for each in await self._decisions.all():
            counts.add(each.node, each.gpus)
            await work.pause()
        # The cached rules may hold an older status.
        return status_of(msgspec.structs.replace(rules, policy=policy), counts, self._view.clock.now())
