"""Opens DeviceMaintenances for faults where a HealthPolicy says so, and deletes those that ended long ago.

Owns the requests with `LABEL_REMEDIATES`, except for their status, and the Events on policies about them. Keys are node names,
and "" for the cleanup. Before opening one it lists all from the API server: the view may lag, and a GPU must not get two.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import structlog
from prometheus_client import Counter

from draco.controller.health.decisions import HealthDecisions
from draco.controller.node_decisions import said_by
from draco.controller.own_status import SupersededVersions
from draco.controller.view import BY_UID, ClusterView
from draco.health.policy import NodeHealth, RuleMatch
from draco.health.remediation import (
    RemediationPlan,
    RemedyNote,
    RequestChange,
    SeenRemedies,
    left_behind,
    plan_remediation,
)
from draco.health.requests import expired, is_over, places_of, remediates
from draco.kube.connect.client import Client
from draco.kube.errors import AlreadyExists, Conflict, NotFound
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.kube.listeners import Listeners
from draco.kube.watch.store import Change
from draco.resources.api.draco import GpuNode
from draco.resources.api.health import HealthPolicy
from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.api.meta import ObjectKey, is_true
from draco.resources.kinds import DEVICE_MAINTENANCES, HEALTH_POLICIES
from draco.resources.names import ANNOTATION_OUTCOME

log = structlog.get_logger(__name__)

OPENED_REASON = EventReason("RemediationOpened", "Remediating")
GIVEN_UP_REASON = EventReason("RemediationGivenUp", "Remediating", "Warning")
LEFT_REASON = EventReason("RemediationLeft", "Remediating", "Warning")
_CLEARING = ""
_CLEAR_EVERY_S = 600.0
BY_PLACE = "place"


class RemediationReconciler:
    """Reconciles one node at a time."""

    def __init__(
        self, client: Client, view: ClusterView, decisions: HealthDecisions, events: EventRecorder, *, opened: Counter
    ) -> None:
        self._client = client
        self._view = view
        self._decisions = decisions
        self._events = events
        self._opened = opened
        self._notes: dict[str, tuple[RemedyNote, ...]] = {}  # of nodes that have any
        self.on_notes = Listeners[[]]()
        """Called when the notes on policies change."""
        self._superseded = SupersededVersions(view.maintenances)
        # A driver that is broken everywhere causes as many requests as there are GPUs.
        view.maintenances.store.add_index(BY_PLACE, places_of)

    def notes(self, policy: str) -> Sequence[RemedyNote]:
        """The notes on a policy."""
        return [note for notes in self._notes.values() for note in notes if note.policy == policy]

    @property
    def given_up(self) -> dict[str, float]:
        """Number of GPUs that need a person, by policy."""
        counts = {policy.metadata.name: 0.0 for policy in self._view.health_policies.store.values()}
        for note in (note for notes in self._notes.values() for note in notes if note.given_up):
            counts[note.policy] = counts.get(note.policy, 0.0) + 1
        return counts

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with every node name that a change may affect."""

        def on_policy(change: Change[HealthPolicy]) -> None:
            if change.after is None and change.before is not None:
                self._leave(change.before)
            for node in self.all_keys():
                wake(node)

        def on_request(change: Change[DeviceMaintenance]) -> None:
            pools = {request.spec.device_selector.pool for request in change.versions}
            for node in {pool for pool in pools if pool} | self._notes.keys():
                wake(node)
            if change.after is not None and remediates(change.after) and is_over(change.after):
                wake(_CLEARING)

        self._view.gpu_nodes.subscribe(
            lambda change: wake(change.key.name), reads=lambda node: (node.status.gpus, node.status.conditions)
        )
        self._view.health_policies.subscribe(on_policy, reads=said_by)
        self._view.classes.subscribe_keys(wake, lambda _: self.all_keys() if self._view.health_policies.store else ())
        self._view.nodes.subscribe(lambda change: wake(change.key.name), reads=lambda node: node.metadata.labels)
        self._view.slices.subscribe_keys(wake, lambda item: [item.spec.pool.name], reads=lambda item: item.spec)
        self._view.maintenances.subscribe(on_request)

    def all_keys(self) -> set[str]:
        """Every node with a GpuNode or a request, and the cleanup key."""
        ours = (each for each in self._view.maintenances.store.values() if remediates(each) and not is_over(each))
        pools = {each.spec.device_selector.pool or "" for each in ours}
        return {_CLEARING, *pools, *(each.metadata.name for each in self._view.gpu_nodes.store.values())}

    async def reconcile(self, node: str) -> float | None:
        """Handle the faults of one node, or clean up."""
        if node == _CLEARING:
            return await self._clear()
        health = await self._decisions.of(node)
        gpu_node = self._view.gpu_nodes.store.get(ObjectKey("", node))
        if health is None or gpu_node is None:
            self._note(node, ())
            policies = self._view.health_policies.store.values()
            for change in left_behind(self._about({node}), {each.metadata.uid for each in policies}, node):
                log.info("health.remediation_planned", node=node, plan=str(change))
                await self._change(change)
            return None
        places = {"", node, *(gpu.uuid for gpu in gpu_node.status.gpus)}
        plan = self._plan(gpu_node, health, self._about(places))
        if plan.create:
            # Our own writes and a former leader's may not have arrived yet.
            every = await self._client.list(DEVICE_MAINTENANCES)
            plan = self._plan(gpu_node, health, [each for each in every if not places.isdisjoint(places_of(each))])
        if plan.create or plan.change:
            log.info("health.remediation_planned", node=node, plan=str(plan))
        for change in plan.change:
            await self._change(change)
        for request in plan.create:
            await self._open(request)
        self._note(node, plan.notes)
        return plan.look_again.total_seconds() if plan.look_again else None

    def _about(self, places: Iterable[str]) -> list[DeviceMaintenance]:
        found = (each for place in places for each in self._view.maintenances.store.by_index(BY_PLACE, place))
        return list({each.metadata.uid: each for each in found}.values())

    def _plan(self, gpu_node: GpuNode, health: NodeHealth, requests: Sequence[DeviceMaintenance]) -> RemediationPlan:
        policies = {each.metadata.uid: each for each in self._view.health_policies.store.values()}
        matches: list[RuleMatch] = []
        for uid, share in health.shares.items():
            policy = policies.get(uid)
            if policy is not None and not policy.spec.dry_run:
                matches += share.matches
        concerned = requests if matches else [each for each in requests if remediates(each)]
        return plan_remediation(
            SeenRemedies(
                now=self._view.clock.now(),
                pool=gpu_node.pool,
                gpus=gpu_node.status.gpus,
                published=self._decisions.whole_gpus(gpu_node).keys() if matches or concerned else (),
                readable=is_true(gpu_node.status.conditions, "Readable"),
                matches=matches,
                policies=policies,
                requests=concerned,
            )
        )

    async def _open(self, request: DeviceMaintenance) -> None:
        with suppress(AlreadyExists):
            made = await self._client.create(DEVICE_MAINTENANCES, request)
            log.info("health.remediation_opened", request=made.metadata.name, reason=made.spec.reason)
            policy = self._policy(remediates(request))
            if policy is not None:
                self._opened.labels(policy.metadata.name).inc()
                note = f"Opened DeviceMaintenance {made.metadata.name} for {_device(request)}: {request.spec.reason}."
                self._events.record(HEALTH_POLICIES.reference(policy.metadata), OPENED_REASON, note)

    async def _change(self, change: RequestChange) -> None:
        meta = change.request.metadata
        if change.request in self._superseded:
            return
        # Write only on top of the version seen: a request that a person has just changed is evaluated again first.
        seen = meta.as_seen
        if change.outcome:
            seen["annotations"] = {ANNOTATION_OUTCOME: change.outcome}  # type: ignore[assignment] # a patch of many types
        spec = {"cancelled": True} if change.outcome else {"finished": True}
        with suppress(NotFound):
            written = await self._client.patch(DEVICE_MAINTENANCES, meta.key, {"metadata": seen, "spec": spec})
            self._superseded.add(change.request, written)

    async def _clear(self) -> float:
        requests = self._view.maintenances.store.values()
        for request in expired(requests, self._view.clock.now()):
            log.info("health.remediation_cleared", request=request.metadata.name)
            with suppress(NotFound, Conflict):
                await self._client.delete(DEVICE_MAINTENANCES, request.metadata.key, uid=request.metadata.uid)
        return _CLEAR_EVERY_S

    def _note(self, node: str, notes: tuple[RemedyNote, ...]) -> None:
        before = self._notes.get(node, ())
        if notes == before:
            return
        self._notes[node] = notes
        if not notes:
            del self._notes[node]
        for note in notes:
            if note.given_up and note not in before:
                log.warning("health.remediation_given_up", node=node, policy=note.policy, message=note.text)
                policy = self._view.health_policies.store.get(ObjectKey("", note.policy))
                if policy is not None:
                    self._events.record(HEALTH_POLICIES.reference(policy.metadata), GIVEN_UP_REASON, note.text)
        self.on_notes.tell()

    def _leave(self, policy: HealthPolicy) -> None:
        """Handle a deleted policy: its requests go on, and an Event says that people must now see to them."""
        for request in self._view.maintenances.store.values():
            if remediates(request) == policy.metadata.uid and not is_over(request):
                meta = request.metadata
                log.warning("health.remediation_left", request=meta.name, policy=policy.metadata.name)
                note = (
                    f"HealthPolicy {policy.metadata.name}, which opened this, was deleted. It continues; finish, cancel or "
                    "delete it yourself."
                )
                self._events.record(DEVICE_MAINTENANCES.reference(meta), LEFT_REASON, note)

    def _policy(self, uid: str) -> HealthPolicy | None:
        return next(iter(self._view.health_policies.store.by_index(BY_UID, uid)), None)


def _device(request: DeviceMaintenance) -> str:
    selector = request.spec.device_selector
    return f"{selector.device} of {selector.pool}"
