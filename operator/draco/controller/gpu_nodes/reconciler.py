"""Reads, plans and writes the spec of one GpuNode at a time. Keys are node names.

Creates no GpuNode, and does not write a spec that is right. Everything is one write, so an agent never sees a new layout without
the devices that it must keep publishing and their taints. Owns these writes and their triggers; `plan` decides the contents.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec
import structlog

from draco.controller.gpu_nodes.plan import isolation_of, overrides_of, plan_spec, promised_devices, sorted_spec
from draco.controller.health.decisions import HealthDecisions
from draco.controller.mig.decisions import MigDecisions
from draco.controller.node_decisions import said_by
from draco.controller.own_status import SupersededVersions
from draco.controller.sharing.clearances import FormClearances
from draco.controller.sharing.decisions import SharingDecisions
from draco.controller.view import BY_POOL, ClusterView
from draco.health.requests import has_repaired, repaired_gpus
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.kube.listeners import Listeners
from draco.kube.watch.store import Change
from draco.maintenance.selecting.matching import has_begun, is_exact
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.draco import GpuNode, GpuNodeSpec, MigPolicy
from draco.resources.api.maintenance import CONDITION_READY_FOR_WORK, DeviceMaintenance
from draco.resources.api.meta import ObjectKey
from draco.resources.api.sharing import SharingPolicy
from draco.resources.kinds import DEVICE_MAINTENANCES, GPU_NODES, HEALTH_POLICIES
from draco.resources.names import FIELD_MANAGER_OPERATOR

log = structlog.get_logger(__name__)


class Handover(Protocol):
    """Which GPUs Draco allocates."""

    when_to_taint: Listeners[[str]]

    def to_taint(self, gpu_node: GpuNode) -> list[str] | None:
        """UUIDs of the node's GPUs that Draco allocates; None if not known yet."""


class GpuNodeReconciler:
    """Keeps `GpuNode.spec` as planned."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        decisions: MigDecisions,
        health: HealthDecisions,
        *,
        sharing: SharingDecisions,
        handover: Handover | None = None,
        on_their_way: Callable[[], Sequence[ResourceClaim]] = tuple,
    ) -> None:
        """`handover` is None where Draco allocates nothing. `on_their_way`: claims with allocations that are being written."""
        self._client = client
        self._view = view
        self._decisions = decisions
        self._health = health
        self._sharing = sharing
        self._handover = handover
        self._clearances = FormClearances(client, view, sharing, on_their_way)
        self._superseded = SupersededVersions(view.gpu_nodes)

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with every node name that a change may affect."""
        view = self._view
        view.gpu_nodes.subscribe(lambda change: wake(change.key.name))
        view.nodes.subscribe(lambda change: wake(change.key.name), reads=lambda node: node.metadata.labels)
        view.slices.subscribe_keys(wake, lambda item: [item.spec.pool.name], reads=lambda item: item.spec)
        view.claims.subscribe_keys(wake, _pools_of, reads=lambda claim: claim.results)
        view.mig_policies.subscribe(lambda change: self._wake_for_policy(change, wake))
        view.sharing_policies.subscribe(lambda change: self._wake_for_policy(change, wake))
        view.maintenances.subscribe(lambda change: self._wake_for_request(change, wake), reads=_concern)
        view.health_policies.subscribe(lambda _: self._wake_all(wake), reads=said_by)
        view.classes.subscribe(lambda change: self._wake_for_class(change, wake))
        self._decisions.when_ahead.add(wake)
        if self._handover:
            self._handover.when_to_taint.add(wake)

    def all_keys(self) -> set[str]:
        """Every node that has a GpuNode."""
        return {each.metadata.name for each in self._view.gpu_nodes.store.values()}

    async def reconcile(self, node: str) -> float | None:
        """Read the inputs of the node's spec, plan it, and write it if it differs."""
        health = await self._health.of(node)
        clearances = await self._clearances.of(node)
        gpu_node = self._view.gpu_nodes.store.get(ObjectKey("", node))
        decision, forms = self._decisions.of(node), self._sharing.of(node)
        if gpu_node is None or decision is None or forms is None or gpu_node.metadata.deletion_timestamp is not None:
            return None
        if gpu_node in self._superseded:
            return None
        decided = health.overrides if health else ()
        requests = await self._requests(gpu_node)
        unseen = await self._unseen_policies(gpu_node)
        pool = gpu_node.pool
        planned = plan_spec(
            gpu_node,
            layout=decision.wanted,
            promised=promised_devices(gpu_node, decision.wanted, self._view.claims.store.by_index(BY_POOL, pool)),
            forms=forms,
            isolation=isolation_of(
                gpu_node,
                [(each, self._view.rules_for(each.metadata.uid)) for each in requests],
                self._view.hardware(pool),
            ),
            overrides=overrides_of(gpu_node, decided, unseen),
            repaired=repaired_gpus(self._view.maintenances.store.values(), gpu_node.status.gpus),
            handover=self._handover.to_taint(gpu_node) if self._handover else [],
            cleared=clearances.of(forms),
        )
        if planned != sorted_spec(gpu_node.spec):
            log.info("gpunode.planned", node=node, decision=str(decision), **_as_logged(planned))
            try:
                self._superseded.add(gpu_node, await self._write(gpu_node, planned))
            except NotFound:
                return None
        window_s = self._decisions.seconds_to_next_window() if decision.wanted else None
        return min((each for each in (window_s, clearances.again_s) if each is not None), default=None)

    async def _requests(self, gpu_node: GpuNode) -> list[DeviceMaintenance]:
        """Requests that may concern the node's GPUs, including those in its spec until they are really gone."""
        requests = {each.metadata.name: each for each in self._view.maintenances.store.values()}
        for name in sorted({each.request for each in gpu_node.spec.isolated} - requests.keys()):
            # GpuNodes and requests arrive on different watches: only the API server knows that a request is really gone.
            with suppress(NotFound):
                requests[name] = await self._client.get(DEVICE_MAINTENANCES, ObjectKey("", name))
        return [each for each in requests.values() if each.spec.device_selector.may_match(gpu_node.pool)]

    async def _unseen_policies(self, gpu_node: GpuNode) -> set[str]:
        """HealthPolicies that the node's spec names and that exist, but have not arrived on our watch."""
        seen = {each.metadata.name for each in self._view.health_policies.store.values()}
        unseen = set()
        for name in sorted({each.policy for each in gpu_node.spec.health} - seen):
            with suppress(NotFound):
                policy = await self._client.get(HEALTH_POLICIES, ObjectKey("", name))
                if policy.metadata.deletion_timestamp is None and not policy.spec.dry_run:
                    unseen.add(name)
        return unseen

    async def _write(self, gpu_node: GpuNode, planned: GpuNodeSpec) -> GpuNode:
        # Write only on top of the version seen: a replica that lost the lease unknowingly must not win, and a deleted node must
        # not reappear.
        seen = gpu_node.metadata.as_seen
        key = gpu_node.metadata.key
        whole = {each.encode_name: getattr(planned, each.name) for each in msgspec.structs.fields(planned)}
        applied = {name: value for name, value in whole.items() if value or name == "gpus"}
        written = await self._client.apply(
            GPU_NODES, key, {"metadata": seen, "spec": applied}, manager=FIELD_MANAGER_OPERATOR
        )
        if sorted_spec(written.spec) == planned:
            return written
        # Server-side apply keeps fields of other writers, and the agent would take them for ours.
        log.warning(
            "gpunode.others_wrote", node=key.name, remedy="write MigPolicies; the spec of a GpuNode is the operator's"
        )
        seen["resourceVersion"] = written.metadata.resource_version
        return await self._client.patch(GPU_NODES, key, {"metadata": seen, "spec": whole})

    def _wake_for_policy(self, change: Change[MigPolicy] | Change[SharingPolicy], wake: Callable[[str], None]) -> None:
        going = change.after is not None and change.after.metadata.deletion_timestamp is not None
        if going or change.differs(_spec_of):
            self._wake_all(wake)

    def _wake_for_class(self, change: Change[DeviceClass], wake: Callable[[str], None]) -> None:
        policies = self._view.health_policies.store.values()
        if any(policy.spec.device_class_name == change.key.name for policy in policies):
            self._wake_all(wake)

    def _wake_for_request(self, change: Change[DeviceMaintenance], wake: Callable[[str], None]) -> None:
        last = change.versions[-1]
        pool = last.spec.device_selector.pool
        pools = {pool} if pool else set() if is_exact(last.spec.device_selector) else _pools(change.versions)
        for node in pools or self.all_keys():
            wake(node)

    def _wake_all(self, wake: Callable[[str], None]) -> None:
        for node in self.all_keys():
            wake(node)


def _spec_of(policy: MigPolicy | SharingPolicy) -> object:
    return policy.spec


def _concern(request: DeviceMaintenance) -> tuple[object, ...]:
    """The fields that decide whether devices are isolated and repaired."""
    selector = request.spec.device_selector
    fixed = [] if is_exact(selector) else [(each.key, each.overlaps) for each in request.status.devices]
    states = has_begun(request), request.is_returning, request.says(CONDITION_READY_FOR_WORK)
    return request.spec, request.metadata.deletion_timestamp, states, has_repaired(request), fixed


def _pools(requests: Iterable[DeviceMaintenance]) -> set[str]:
    return {each.pool for request in requests for each in request.status.devices}


def _as_logged(spec: GpuNodeSpec) -> dict[str, list[str]]:
    return {
        "promised": [f"{each.device} for claim {each.claim}" for each in spec.promised],
        "shared": [f"{each.uuid} by {each.policy}" for each in spec.shared],
        "changing": spec.changing,
        "cleared": [each.uuid for each in spec.cleared],
        "isolated": [f"{each.device or 'all'} for {each.request}" for each in spec.isolated],
        "overridden": [f"{each.fault} of {each.uuid} by {each.policy}" for each in spec.health],
        "repaired": [f"{each.uuid} for {each.request}" for each in spec.repaired],
    }


def _pools_of(claim: ResourceClaim) -> set[str]:
    return {device.pool for device in claim.devices_held}
