"""Hands GPUs over to Draco and back, step by step, as policies say.

Owns the reads and writes: what policies want, which devices are published with the taint, the register, and whether the watch has
delivered all earlier allocations. If the register is deleted, all GPUs go over again from the first step.
`allocation.ownership.handover` decides the steps. There is one register and so one key. The writer of GpuNode specs asks this
reconciler which GPUs agents must taint.

The register must name this operator before it allocates anything. A write has three steps in this order: read the register, check
the Lease, write the register on top of the version read. A new leader enters itself after it takes the Lease, so the register
always ends up naming the last one that took it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
import structlog

from draco.allocation.ownership.claims import is_for_operator
from draco.allocation.ownership.handover import GpuPlace, HandoverInput, Handovers
from draco.controller.allocation.ownership.register import (
    NOT_TOLD,
    OwnLeadership,
    Register,
    RegisterMissing,
    RegisterStore,
)
from draco.controller.loop_watch import CooperativeWork
from draco.controller.mig.decisions import MigDecisions
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.listeners import Listeners
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.mig_policy.decide import spread_pools
from draco.mig_policy.matching import preempting_policies
from draco.resources.api.allocation import AllocationRegister, RegisteredLeader
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import Allocator, GpuNode
from draco.resources.api.meta import ObjectKey, find_condition
from draco.resources.api.slices import Device, ResourceSlice
from draco.resources.kinds import ALLOCATION_REGISTERS, CLAIMS
from draco.resources.names import ALLOCATION_REGISTER, TAINT_OPERATOR_ALLOCATED, DeviceKey, PoolKey, gpu_name

log = structlog.get_logger(__name__)

KEY = ""
_WITH_THE_TAINT = "published as Draco's"
_MISSING_S = 30.0
"""Retry interval after the register could not be created."""
_SOONEST_S = 0.05
_BEHIND_S = 0.2
"""Retry interval while the watch has not delivered an earlier write."""
_NOT_LEADING_S = 2.0
"""Retry interval while the Lease is not ours; usually this process exits first."""
_NOT_KEPT = (
    "The AllocationRegister does not record the leader, so a former leader could still allocate: apply Draco's "
    "CustomResourceDefinitions (crds/), or set the chart's value crds.enabled to true."
)


class HandoverReconciler:
    """Hands over all GPUs under one key."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        decisions: MigDecisions,
        store: RegisterStore,
        leadership: OwnLeadership,
        *,
        settle_s: float,
    ) -> None:
        self._client = client
        self._view = view
        self._decisions = decisions
        self._store = store
        self._leadership = leadership
        self._handovers = Handovers(settle_s)
        self.register: Informer[AllocationRegister] = Informer(
            client, ALLOCATION_REGISTERS, field_selector=f"metadata.name={ALLOCATION_REGISTER}", clock=view.clock
        )
        """Only triggers reconciles: the contents are read from the API server."""
        self.owned: frozenset[GpuPlace] = frozenset()
        """The GPUs that Draco may allocate now."""
        self._tainted: frozenset[GpuPlace] = frozenset()
        """GPUs with devices published as Draco's, whatever policies and the register say."""
        self.withheld: frozenset[GpuPlace] = frozenset()
        """Those of them that must not be allocated, or not yet."""
        self._to_taint: frozenset[GpuPlace] | None = None
        self._register_uid = ""
        self._is_entered = False
        self._entered: RegisteredLeader | None = None
        """The leader in the register after this operator entered itself; None if the register keeps no leader."""
        self._unfenced = ""
        self.spread: frozenset[PoolKey] = frozenset()
        """Pools whose nodes are to be filled evenly."""
        self.preemptible: frozenset[GpuPlace] = frozenset()
        """GPUs from which pods may be evicted for pods of a higher priority."""
        self._trouble = ""
        view.slices.store.add_index(
            _WITH_THE_TAINT, lambda item: [True] if any(map(_is_tainted, item.spec.devices)) else []
        )
        self.when_owned = Listeners[[]]()
        """Called when `owned`, `withheld`, `preemptible` or `spread` changes."""
        self.when_to_taint = Listeners[[str]]()
        """Called with a node's name when the GPUs to taint on it change."""

    @property
    def trouble(self) -> str:
        """Why nothing is handed over, or why a former leader is not locked out; "" without a problem."""
        return self._trouble or self._unfenced

    def not_owned(self) -> list[DeviceKey]:
        """Devices published as Draco's that must not be allocated, yet or any longer."""
        pools = {place.pool_key for place in self.withheld}
        return [key for pool in pools for key, _ in self._devices(pool) if GpuPlace.of(key) in self.withheld]

    def gives_out(self, devices: Iterable[DeviceKey]) -> bool:
        """Whether Draco may still allocate all these devices: a GPU may have gone back during the decision."""
        return all(GpuPlace.of(each) in self.owned for each in devices)

    def to_taint(self, gpu_node: GpuNode) -> list[str] | None:
        """UUIDs of the node's GPUs to keep from kube-scheduler; None if not known yet."""
        if self._to_taint is None:
            return None
        uuids = [*gpu_node.spec.operator_allocated, *(each.uuid for each in gpu_node.status.gpus)]
        return sorted(
            uuid
            for uuid, name in self._names(gpu_node, uuids).items()
            if GpuPlace(*gpu_node.pool, name) in self._to_taint
        )

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` when something may have to be handed over."""

        def claim_changed(change: Change[ResourceClaim]) -> None:
            places = {GpuPlace.of(key) for each in change.versions for key in each.devices_held}
            if not places <= self.owned and is_for_operator(change.versions[-1], self._view.classes_by_name):
                wake(KEY)  # a GPU may have disappeared

        self.register.subscribe(lambda _: wake(KEY))
        self._view.claims.subscribe(claim_changed)
        self._view.gpu_nodes.subscribe(
            lambda _: wake(KEY), reads=lambda node: (node.spec.operator_allocated, _told(node))
        )
        self._view.mig_policies.subscribe(
            lambda _: wake(KEY), reads=lambda policy: (policy.spec, policy.metadata.deletion_timestamp)
        )
        self._view.slices.subscribe(lambda _: wake(KEY), reads=_with_the_taint)
        self._view.nodes.subscribe(lambda _: wake(KEY), reads=lambda node: node.metadata.labels)

    def all_keys(self) -> set[str]:
        """The one key."""
        return {KEY}

    async def reconcile(self, _: str) -> float | None:
        """Take the next step for each GPU. Raises ApiError."""
        register = await self._read()
        registered = register.places if register else frozenset()
        cooperative = CooperativeWork(self._view.clock)
        known = registered | (self._to_taint or frozenset())
        told = {node: _told(self._gpu_node(node)) for node in {each.pool for each in known}}
        wanted = await self._wanted(cooperative)
        unsaid = self._unsaid(known, told)
        places = wanted | registered | unsaid
        published = await self._published(places, cooperative)
        tainted = frozenset(place for place in places if published.get(place) == {True})
        wanted |= unsaid & tainted
        self._tainted = frozenset(place for place, taints in published.items() if True in taints)
        self._own(self.owned)
        left = self._left(places, registered, published)
        leads = register is not None and self._is_entered and register.leader == self._entered
        seen = HandoverInput(wanted=wanted, tainted=tainted, registered=registered, leads=leads, left=left)
        plan = self._handovers.plan(seen, self._view.clock.monotonic())
        # Stop allocating GPUs before anybody else may start.
        self._take_up(plan.owned & self.owned, plan.taint)
        if register is None:
            return _MISSING_S
        if plan.enter or plan.register != registered:
            if not await self._leadership.holds():
                return _NOT_LEADING_S
            register = await self._write(register, plan.register)
            seen = msgspec.structs.replace(seen, registered=register.places, leads=True)
            plan = self._handovers.plan(seen, self._view.clock.monotonic())
        if not await self._has_seen_all(plan.owned - self.owned):
            return _BEHIND_S
        self._take_up(plan.owned, plan.taint)
        return None if plan.look_again_s is None else max(plan.look_again_s, _SOONEST_S)

    async def _read(self) -> Register | None:
        """The register, created if missing; None if that is impossible."""
        try:
            register = await self._store.read()
        except RegisterMissing:
            # Without the register the API server lets others allocate, so stop allocating first.
            self._own(frozenset())
            try:
                register = await self._store.make()
            except RegisterMissing as error:
                self._say(str(error))
                return None
        self._say("")
        if register.uid != self._register_uid:
            self._own(frozenset())
            self._handovers.begin_again()
            self._is_entered = False
            self._register_uid = register.uid
        return register

    async def _write(self, seen: Register, places: frozenset[GpuPlace]) -> Register:
        """Make the register name these places and this leader, unless it does already."""
        entry = await self._leadership.entry()
        says_so = (seen.leader, seen.places) == (entry, places)
        written = seen if says_so else await self._store.write(seen, places, entry)
        if written.leader != seen.leader:
            leader = written.leader or RegisteredLeader()
            log.info("handover.entered", leader=leader.identity, pod_uid=leader.pod_uid)
        if places != seen.places:
            log.info("handover.registered", gpus=[f"{each.pool}/{each.gpu}" for each in sorted(places)])
        self._is_entered, self._entered = True, written.leader
        if written.leader is None:
            self._unfenced = NOT_TOLD if entry is None else _NOT_KEPT
        else:
            self._unfenced = ""
        return written

    def _take_up(self, owned: frozenset[GpuPlace], to_taint: frozenset[GpuPlace]) -> None:
        before, self._to_taint = self._to_taint, to_taint
        self._own(owned)
        every = {key.name for key in self._view.gpu_nodes.store}
        nodes = every if before is None else {each.pool for each in before ^ to_taint}
        for node in nodes:
            self.when_to_taint.tell(node)

    def _own(self, owned: frozenset[GpuPlace]) -> None:
        before = self.owned, self.withheld
        self.owned, self.withheld = owned, self._tainted - owned
        if owned != before[0]:
            log.info("handover.owned", gpus=[f"{each.pool}/{each.gpu}" for each in sorted(owned)])
        if before != (owned, self.withheld):
            self.when_owned.tell()

    async def _wanted(self, cooperative: CooperativeWork) -> frozenset[GpuPlace]:
        found, preemptible = set(), set()
        decisions = await self._decisions.all()
        permitting = preempting_policies(self._view.mig_policies.store.values())
        drivers = {each.metadata.name: each.status.driver for each in self._view.gpu_nodes.store.values()}
        spread = spread_pools(decisions, self._view.mig_policies.store.values(), drivers)
        for decision in decisions:
            uuids = {each.uuid for each in decision.gpus if each.allocator is Allocator.OPERATOR and each.policy}
            gpu_node = self._gpu_node(decision.node) if uuids else None
            if gpu_node is not None:
                names = self._names(gpu_node, uuids)
                driver = gpu_node.status.driver
                found |= {GpuPlace(driver, decision.node, names[uuid]) for uuid in uuids & names.keys()}
                preemptible |= {
                    GpuPlace(driver, decision.node, names[each.uuid])
                    for each in decision.gpus
                    if each.uuid in uuids & names.keys() and each.policy in permitting
                }
            await cooperative.pause()
        self._permit(frozenset(preemptible), spread)
        return frozenset(found)

    def _unsaid(self, places: Iterable[GpuPlace], told: Mapping[str, object]) -> frozenset[GpuPlace]:
        """GPUs of `places` whose agents have not reported them: whether a policy wants them is unknown.

        A deleted GpuNode, or the fresh one the agent then creates, hands no GPU back. Nor does one that has changed since the
        policies were read (`told`): their result may rest on either state, and the change triggers a reconcile.
        """
        nodes = {node: self._gpu_node(node) for node in told}
        changed = {node for node, gpu_node in nodes.items() if _told(gpu_node) != told[node]}
        return frozenset(
            place
            for place in places
            if (place.pool in changed or not _says(nodes[place.pool], place))
            and ObjectKey("", place.pool) in self._view.nodes.store
        )

    def _gpu_node(self, node: str) -> GpuNode | None:
        return self._view.gpu_nodes.store.get(ObjectKey("", node))

    def _permit(self, preemptible: frozenset[GpuPlace], spread: frozenset[PoolKey]) -> None:
        if (preemptible, spread) != (self.preemptible, self.spread):
            self.preemptible, self.spread = preemptible, spread
            self.when_owned.tell()

    def _names(self, gpu_node: GpuNode, uuids: Collection[str]) -> dict[str, str]:
        """Names of at least these GPUs of the node, as far as known: as reported, else as published."""
        reported = {each.uuid: each.device for each in gpu_node.status.gpus if each.device}
        if reported.keys() >= set(uuids):
            return reported
        hardware = self._view.hardware(gpu_node.pool)
        published = {board: gpu_name(name) for name in hardware.published if (board := hardware.board(name))}
        return published | reported

    async def _published(self, places: Collection[GpuPlace], cooperative: CooperativeWork) -> dict[GpuPlace, set[bool]]:
        """All published GPUs in the pools of `places` and in pools with tainted devices; per GPU, its devices' taint states."""
        by_gpu: dict[GpuPlace, set[bool]] = {}
        pools = {each.pool_key for each in places}
        pools |= {each.pool for each in self._view.slices.store.by_index(_WITH_THE_TAINT, True)}
        for pool in pools:
            for key, device in self._devices(pool):
                by_gpu.setdefault(GpuPlace.of(key), set()).add(_is_tainted(device))
            await cooperative.pause()
        return by_gpu

    def _left(
        self, places: Collection[GpuPlace], registered: Collection[GpuPlace], published: Collection[GpuPlace]
    ) -> frozenset[GpuPlace]:
        """GPUs in the pools of `places` that are not published though one of Draco's claims holds devices of them.

        For a pool with missing slices, only those in the register: a GPU that came to Draco because its agent republished it
        would go back as soon as it is published, and be republished for that.
        """
        pools = {each.pool_key for each in places if each not in published}
        classes = self._view.classes_by_name if pools else {}
        own = [claim for pool in pools for claim in self._view.claims_in(pool) if is_for_operator(claim, classes)]
        held = {GpuPlace.of(key) for claim in own for key in claim.devices_held}
        gone = [each for each in held if each not in published and each.pool_key in pools]
        return frozenset(each for each in gone if each in registered or self._view.hardware(each.pool_key).complete)

    def _devices(self, pool: PoolKey) -> Iterable[tuple[DeviceKey, Device]]:
        for device in self._view.devices_of(pool):
            yield DeviceKey(pool.driver, pool.pool, device.name), device

    async def _has_seen_all(self, places: Collection[GpuPlace]) -> bool:
        """Whether the watch has delivered all allocations made while others could still allocate these GPUs."""
        if not places:
            return True
        for claim in await self._client.list(CLAIMS):
            if any(GpuPlace.of(each) in places for each in claim.devices_held):
                known = self._view.claims.store.get(claim.metadata.key)
                if known is None or known.devices_held != claim.devices_held:
                    return False
        return True

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("handover.impossible", error=trouble)
        self._trouble = trouble


def _told(gpu_node: GpuNode | None) -> object:
    if gpu_node is None:
        return None
    return gpu_node.metadata.uid, gpu_node.status.driver, gpu_node.status.gpus, _can_read(gpu_node)


def _says(gpu_node: GpuNode | None, place: GpuPlace) -> bool:
    """Whether the agent's report tells if the node has this GPU: it can read its GPUs, or lists this one."""
    if gpu_node is None or not gpu_node.status.driver:
        return False
    return _can_read(gpu_node) or place.gpu in {one.device for one in gpu_node.status.gpus}


def _can_read(gpu_node: GpuNode) -> bool:
    readable = find_condition(gpu_node.status.conditions, "Readable")
    return readable is None or readable.status == "True"


def _is_tainted(device: Device) -> bool:
    return any(each.key == TAINT_OPERATOR_ALLOCATED for each in device.taints)


def _with_the_taint(item: ResourceSlice) -> object:
    return item.pool, item.spec.pool.generation, [(each.name, _is_tainted(each)) for each in item.spec.devices]
