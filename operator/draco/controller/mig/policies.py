"""Writes the status of each MIG policy.

Owns the status of MigPolicies and nothing else. Keys are their UIDs. A change anywhere in the fleet may concern every policy, so
each is looked at only so often, and less often the longer that takes and the more policies there are.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog

from draco.controller.loop_watch import CooperativeWork
from draco.controller.mig.decisions import MigDecisions
from draco.controller.view import BY_UID, ClusterView
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.kube.watch.store import Change
from draco.mig_policy.summary import PolicyCounts, status_of
from draco.resources.api.core import Node
from draco.resources.api.draco import MigPolicy, MigPolicyStatus
from draco.resources.kinds import MIG_POLICIES
from draco.resources.names import FIELD_MANAGER_OPERATOR

log = structlog.get_logger(__name__)

_REST = 30.0
"""How much longer than it takes to count for all policies each is then let be. To ask for what is decided takes half as long
again, so a twentieth of the time is spent on both. Deciding is not counted: it is done once for each change, for all callers."""
_LONGEST_REST_S = 10.0
"""People wait for what a status says, and no longer than this however large the fleet is."""


class StatusAdviser(Protocol):
    """Who has something to say in the status of policies."""

    def advice(self, policy: str) -> str:
        """A sentence for the policy with this name, or ""."""
        ...

    def on_advice(self, call: Callable[[], None]) -> None:
        """Have `call` called when what is advised has changed."""
        ...


class MigPolicyReconciler:
    """One policy at a time."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        decisions: MigDecisions,
        *,
        clock: Clock,
        adviser: StatusAdviser,
        pace_s: float = 0.5,
    ) -> None:
        self._client = client
        self._view = view
        self._decisions = decisions
        self._clock = clock
        self._adviser = adviser
        self._pace_s = pace_s
        self._due_s: dict[str, float] = {}
        self._superseded: dict[str, str] = {}  # by UID: the version that our last write replaced

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Have `wake` called with the UID of every policy that a change may concern."""

        def wake_all() -> None:
            for uid in self.all_keys():
                wake(uid)

        def on_node(change: Change[Node]) -> None:
            before, after = change.before, change.after
            if before is None or after is None or before.metadata.labels != after.metadata.labels:
                wake_all()

        self._adviser.on_advice(wake_all)
        self._view.mig_policies.subscribe(lambda _: wake_all())
        self._view.gpu_nodes.subscribe(lambda _: wake_all())
        self._view.nodes.subscribe(on_node)
        self._view.slices.subscribe(lambda _: wake_all())

    def all_keys(self) -> set[str]:
        """Every policy there is."""
        return {policy.metadata.uid for policy in self._view.mig_policies.store.values()}

    async def reconcile(self, uid: str) -> float | None:
        """Bring the policy's status to what is so."""
        policy = next(iter(self._view.mig_policies.store.by_index(BY_UID, uid)), None)
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
        # Asked for before the look, since windows are taken as they are when it begins.
        next_window_s = self._decisions.seconds_to_next_window()
        status = await self._status(policy)
        if status is not None and status != policy.status and await self._view.mig_policies.is_current(policy):
            await self._write(policy, status)
        return next_window_s

    async def _status(self, policy: MigPolicy) -> MigPolicyStatus | None:
        """The status that the policy should have. If the policy changes meanwhile, writing this ends in a conflict."""
        uid = policy.metadata.uid
        rules = next((each for each in self._decisions.rules if each.policy.metadata.uid == uid), None)
        if rules is None:
            return None
        decisions = await self._decisions.all()
        counts = PolicyCounts(rules.name)
        cooperative = CooperativeWork(self._clock)
        for each in decisions:
            counts.add(each)
            await cooperative.pause()
        # What is remembered of the rules may hold an older status.
        rules = msgspec.structs.replace(rules, policy=policy)
        status = status_of(rules, counts, self._clock.now(), self._adviser.advice(rules.name))
        rest_s = min(_LONGEST_REST_S, _REST * cooperative.work_s * len(self.all_keys()))
        self._due_s[uid] = self._clock.monotonic() + max(self._pace_s, rest_s)
        return status

    async def _write(self, policy: MigPolicy, status: MigPolicyStatus) -> None:
        meta = policy.metadata
        if status.message != policy.status.message:
            log.info("mig.policy_stands", policy=meta.name, message=status.message)
        try:
            written = await self._client.apply(
                MIG_POLICIES,
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
            log.info("mig.policy_gone", policy=meta.name)
        else:
            if written.metadata.resource_version != meta.resource_version:
                self._superseded[meta.uid] = meta.resource_version
