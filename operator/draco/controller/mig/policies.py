"""Writes the status of each MigPolicy.

Owns what the status counts and when it is updated. Keys are UIDs. `own_status` does the writing.
"""

from collections.abc import Callable

import msgspec

from draco.controller.loop_watch import CooperativeWork
from draco.controller.mig.decisions import MigDecisions
from draco.controller.mig.repair import RepairReconciler
from draco.controller.own_status import PolicyStatuses
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.mig_policy.summary import PolicyCounts, status_of
from draco.resources.api.draco import MigPolicy, MigPolicyStatus


class MigPolicyReconciler:
    """Reconciles one policy at a time."""

    def __init__(
        self, client: Client, view: ClusterView, decisions: MigDecisions, *, adviser: RepairReconciler
    ) -> None:
        self._view = view
        self._decisions = decisions
        self._adviser = adviser
        self._statuses = PolicyStatuses(client, view.mig_policies, clock=view.clock)

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with the UID of every policy that a change may affect."""

        def wake_all(_: object = None) -> None:
            for uid in self.all_keys():
                wake(uid)

        self._adviser.on_advice.add(wake_all)
        self._decisions.when_told.add(wake_all)
        self._view.mig_policies.subscribe(wake_all)
        self._view.gpu_nodes.subscribe(wake_all)
        self._view.nodes.subscribe(wake_all, reads=lambda node: node.metadata.labels)
        self._view.slices.subscribe(wake_all)

    def all_keys(self) -> set[str]:
        """Every policy."""
        return self._statuses.uids()

    async def reconcile(self, uid: str) -> float | None:
        """Update the policy's status."""
        # Read before the decision, which uses the windows as of its start.
        next_window_s = self._decisions.seconds_to_next_window()
        again_s = await self._statuses.bring(uid, self._status)
        return next_window_s if again_s is None and uid in self.all_keys() else again_s

    async def _status(self, policy: MigPolicy, work: CooperativeWork) -> MigPolicyStatus | None:
        """If the policy changes meanwhile, the write ends in a conflict."""
        uid = policy.metadata.uid
        rules = next((each for each in self._decisions.rules if each.policy.metadata.uid == uid), None)
        if rules is None:
            return None
        counts = PolicyCounts(rules.name)
        for each in await self._decisions.all():
            counts.add(each)
            await work.pause()
        # The cached rules may hold an older status.
        rules = msgspec.structs.replace(rules, policy=policy)
        said = (self._adviser.advice(rules.name), self._decisions.ahead.said.get(rules.name, ""))
        return status_of(rules, counts, self._view.clock.now(), " ".join(filter(None, said)))
