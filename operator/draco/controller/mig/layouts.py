"""Writes what MIG policies want of each node's GPUs into its GpuNode, which devices claims keep there, maintenance and health.

Owns the spec of GpuNodes and nothing else: a node without GpuNode gets none, and nothing is written that is there already. All
come in one write, so that an agent never hears that it is to offer something else without what it has to go on offering, nor
without the taints that it has to offer it with. `spec.decided` says which GPUs all this is about: as long as the agent has not
reported one, or it is not known which GPUs Draco allocates, the agent goes on by what was written last. Keys are names of nodes.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import structlog

from draco.controller.health.decisions import HealthDecisions, said_by
from draco.controller.mig.decisions import MigDecisions
from draco.controller.mig.handover import HandoverReconciler
from draco.controller.view import BY_POOL, ClusterView
from draco.health.policy import MOST_OVERRIDES, in_order
from draco.health.repaired import has_repaired, repaired_gpus
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.kube.watch.store import Change
from draco.maintenance.conditions import is_returning, says
from draco.maintenance.isolating.entries import isolated_gpus
from draco.maintenance.selecting.matching import has_begun, is_exact
from draco.mig_policy.decide import NodeDecision
from draco.mig_policy.promises import promises
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.draco import GpuNode, GpuNodeSpec, IsolatedGpu, MigPolicy, PromisedDevice
from draco.resources.api.health import FaultOverride
from draco.resources.api.maintenance import CONDITION_READY_FOR_WORK, DeviceMaintenance
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import ResourceSlice
from draco.resources.kinds import DEVICE_MAINTENANCES, GPU_NODES, HEALTH_POLICIES
from draco.resources.names import FIELD_MANAGER_OPERATOR

log = structlog.get_logger(__name__)

_MOST_ISOLATED = 1024
"""The schema takes no more. Requests beyond them are not ready for work."""


class MigLayoutReconciler:
    """One node at a time, from what is decided to what stands in its spec."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        decisions: MigDecisions,
        health: HealthDecisions,
        handover: HandoverReconciler | None = None,
    ) -> None:
        """`handover` says which GPUs Draco allocates; None: no one hands any over."""
        self._client = client
        self._view = view
        self._decisions = decisions
        self._health = health
        self._handover = handover
        self._superseded: dict[str, str] = {}  # by node: the version that our last write replaced

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Have `wake` called with the name of every node that a change may concern."""
        self._view.gpu_nodes.subscribe(lambda change: wake(change.key.name))
        self._view.nodes.subscribe(lambda change: wake(change.key.name), reads=lambda node: node.metadata.labels)
        self._view.slices.subscribe(lambda change: _wake_for_slice(change, wake), reads=lambda item: item.spec)
        self._view.claims.subscribe(
            lambda change: _wake_for_claim(change, wake), reads=lambda claim: claim.devices_held
        )
        self._view.mig_policies.subscribe(lambda change: self._wake_for_policy(change, wake))
        self._view.maintenances.subscribe(lambda change: self._wake_for_request(change, wake), reads=_concern)
        self._view.health_policies.subscribe(lambda _: self._wake_all(wake), reads=said_by)
        self._view.classes.subscribe(lambda change: self._wake_for_class(change, wake))
        self._decisions.when_ahead.add(wake)
        if self._handover:
            self._handover.when_to_taint.add(wake)

    def all_keys(self) -> set[str]:
        """Every node that has a GpuNode."""
        return {each.metadata.name for each in self._view.gpu_nodes.store.values()}

    async def reconcile(self, node: str) -> float | None:
        """Bring the node's spec to what is decided."""
        health = await self._health.of(node)
        gpu_node = self._view.gpu_nodes.store.get(ObjectKey("", node))
        decision = self._decisions.of(node)
        if gpu_node is None or decision is None or gpu_node.metadata.deletion_timestamp is not None:
            self._superseded.pop(node, None)
            return None
        meta = gpu_node.metadata
        if self._superseded.get(node) == meta.resource_version:
            return None  # our own write is still on its way to us; its arrival wakes us
        self._superseded.pop(node, None)
        isolated = await self._isolated(gpu_node)
        overrides = await self._overrides(gpu_node, health.overrides if health else ())
        wanted = GpuNodeSpec(
            gpus=decision.wanted,
            promised=self._promised(gpu_node, decision),
            isolated=isolated,
            health=overrides,
            repaired=repaired_gpus(self._view.maintenances.store.values(), gpu_node.status.gpus),
            operator_allocated=self._handover.to_taint(gpu_node) if self._handover else [],
            decided=self._decided(gpu_node),
        )
        if wanted != _in_order(gpu_node):
            kept = [f"{each.device} for claim {each.claim}" for each in wanted.promised]
            under = [f"{each.device or 'all'} for {each.request}" for each in wanted.isolated]
            overridden = [f"{each.fault} of {each.uuid} by {each.policy}" for each in wanted.health]
            log.info(
                "mig.wanted",
                node=node,
                decision=str(decision),
                promised=kept,
                isolated=under,
                overridden=overridden,
                repaired=[f"{each.uuid} for {each.request}" for each in wanted.repaired],
            )
            try:
                written = await self._write(gpu_node, wanted)
            except NotFound:
                return None
            if written.metadata.resource_version != meta.resource_version:
                self._superseded[node] = meta.resource_version
        return self._decisions.seconds_to_next_window() if decision.wanted else None

    def _decided(self, gpu_node: GpuNode) -> list[str]:
        """The GPUs about which everything is decided; as it stands, as long as something of it is not known."""
        if not gpu_node.status.driver or (self._handover is not None and not self._handover.is_known):
            return _in_order(gpu_node).decided
        return sorted({each.uuid for each in gpu_node.status.gpus if each.uuid})

    def _promised(self, gpu_node: GpuNode, decision: NodeDecision) -> list[PromisedDevice]:
        """What claims have of the node's devices, as far as nothing else would keep it published."""
        pool = gpu_node.pool
        allocated = {
            device.device: str(claim.metadata.key)
            for claim in self._view.claims.store.by_index(BY_POOL, pool)
            for device in claim.devices_held
            if device.pool_key == pool
        }
        return promises(gpu_node, decision.wanted, allocated)

    async def _isolated(self, gpu_node: GpuNode) -> list[IsolatedGpu]:
        """What maintenance requests have taken out of service. What stands there goes only once its request is over."""
        pool = gpu_node.pool
        requests = {each.metadata.name: each for each in self._view.maintenances.store.values()}
        for name in sorted({each.request for each in gpu_node.spec.isolated} - requests.keys()):
            # GpuNodes and requests arrive on different watches: only the API server knows that the request is really gone.
            with suppress(NotFound):
                requests[name] = await self._client.get(DEVICE_MAINTENANCES, ObjectKey("", name))
        found: list[IsolatedGpu] = []
        for request in requests.values():
            if request.spec.device_selector.may_match(pool):
                rules = self._view.rules_for(request.metadata.uid)
                found += isolated_gpus(request, pool, self._view.hardware(pool), rules, gpu_node.spec.isolated)
        return sorted(found, key=_place)[:_MOST_ISOLATED]

    async def _overrides(self, gpu_node: GpuNode, decided: Sequence[FaultOverride]) -> list[FaultOverride]:
        """What policies make of faults. What stands there by a policy that is not known here goes only once it is really gone."""
        if gpu_node.spec.health == list(decided):
            return gpu_node.spec.health
        known = {each.metadata.name for each in self._view.health_policies.store.values()}
        places = {(each.uuid, each.fault, each.instance) for each in decided}
        kept = list(decided)
        for name in sorted({each.policy for each in gpu_node.spec.health} - known):
            # GpuNodes and policies arrive on different watches: only the API server knows.
            with suppress(NotFound):
                policy = await self._client.get(HEALTH_POLICIES, ObjectKey("", name))
                if policy.metadata.deletion_timestamp is None and not policy.spec.dry_run:
                    kept += [
                        each
                        for each in gpu_node.spec.health
                        if each.policy == name and (each.uuid, each.fault, each.instance) not in places
                    ]
        return in_order(kept)[:MOST_OVERRIDES]

    async def _write(self, gpu_node: GpuNode, wanted: GpuNodeSpec) -> GpuNode:
        # Only on top of what was seen: a replica that lost the lease unknowingly must not win, and a node that is gone must not
        # come back.
        seen = gpu_node.metadata.as_seen
        key = gpu_node.metadata.key
        spec: dict[str, Any] = {"gpus": wanted.gpus}
        if wanted.promised:
            spec["promised"] = wanted.promised
        if wanted.isolated:
            spec["isolated"] = wanted.isolated
        if wanted.health:
            spec["health"] = wanted.health
        if wanted.repaired:
            spec["repaired"] = wanted.repaired
        if wanted.operator_allocated:
            spec["operatorAllocated"] = wanted.operator_allocated
        if wanted.decided:
            spec["decided"] = wanted.decided
        written = await self._client.apply(
            GPU_NODES, key, {"metadata": seen, "spec": spec}, manager=FIELD_MANAGER_OPERATOR
        )
        if _in_order(written) == wanted:
            return written
        # Applying leaves what others have written there, and the agent would take it for ours.
        log.warning(
            "mig.others_wrote", node=key.name, remedy="write MigPolicies; the spec of a GpuNode is the operator's"
        )
        seen["resourceVersion"] = written.metadata.resource_version
        spec |= {"promised": wanted.promised, "isolated": wanted.isolated, "health": wanted.health}
        spec |= {"operatorAllocated": wanted.operator_allocated, "decided": wanted.decided, "repaired": wanted.repaired}
        return await self._client.patch(GPU_NODES, key, {"metadata": seen, "spec": spec})

    def _wake_for_policy(self, change: Change[MigPolicy], wake: Callable[[str], None]) -> None:
        going = change.after is not None and change.after.metadata.deletion_timestamp is not None
        if going or change.differs(lambda policy: policy.spec):
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


def _concern(request: DeviceMaintenance) -> tuple[object, ...]:
    """What of a request says whether its devices are isolated, and repaired."""
    selector = request.spec.device_selector
    fixed = [] if is_exact(selector) else [(each.key, each.overlaps) for each in request.status.devices]
    states = has_begun(request), is_returning(request), says(request, CONDITION_READY_FOR_WORK)
    return request.spec, request.metadata.deletion_timestamp, states, has_repaired(request), fixed


def _pools(requests: Iterable[DeviceMaintenance]) -> set[str]:
    return {each.pool for request in requests for each in request.status.devices}


def _place(each: IsolatedGpu) -> tuple[str, str]:
    return each.request, each.uuid


def _in_order(gpu_node: GpuNode) -> GpuNodeSpec:
    spec = gpu_node.spec
    return GpuNodeSpec(
        gpus=sorted(spec.gpus, key=lambda each: each.uuid),
        promised=sorted(spec.promised, key=lambda each: each.device),
        isolated=sorted(spec.isolated, key=_place),
        health=in_order(spec.health),
        repaired=sorted(spec.repaired, key=lambda each: each.uuid),
        operator_allocated=sorted(spec.operator_allocated),
        decided=sorted(spec.decided),
    )


def _wake_for_claim(change: Change[ResourceClaim], wake: Callable[[str], None]) -> None:
    for pool in {device.pool for claim in change.versions for device in claim.devices_held}:
        wake(pool)


def _wake_for_slice(change: Change[ResourceSlice], wake: Callable[[str], None]) -> None:
    for item in change.versions:
        wake(item.spec.pool.name)
