"""The operator's view of the cluster: one collection per kind, with indexes.

Owns the watched collections, their indexes, what is sent to the fleet process, and device counts. Writes nothing and decides
nothing.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import chain
from typing import Any

from cachetools import LRUCache

from draco.allocation.fleet.hardware import PoolHardware
from draco.allocation.fleet.supply import SupplyCounts, count_supply
from draco.allocation.ownership.gangs import JOBSET_NAME, GangKey, gang_of, job_set_of
from draco.allocation.pod_claims import made_for, naming_made
from draco.controller.own_kinds import OwnKind
from draco.controller.waiting_times import WaitingTimes
from draco.controller.workers.fleet_feed import FollowedFleet
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.watch.collection import Collection
from draco.kube.watch.informer import Informer
from draco.maintenance.taint_rules import (
    extended_device,
    extended_from,
    extends,
    fence_name,
    is_draco_own,
    is_fence,
    maintenance_uid,
)
from draco.reservations.claims import reserved_by
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Node, Pod, PodDisruptionBudget
from draco.resources.api.draco import GpuNode, MigPolicy
from draco.resources.api.health import HealthPolicy
from draco.resources.api.jobs import Job
from draco.resources.api.limits import DeviceLimit, Namespace
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceBudget
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.reservations import DeviceReservation
from draco.resources.api.scheduling import PodGroup
from draco.resources.api.sharing import SharingPolicy
from draco.resources.api.slices import Device, ResourceSlice, current_slices
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule
from draco.resources.kinds import (
    CLAIMS,
    DEVICE_CLASSES,
    DEVICE_LIMITS,
    DEVICE_MAINTENANCES,
    DEVICE_RESERVATIONS,
    GPU_NODES,
    HEALTH_POLICIES,
    JOBS,
    MAINTENANCE_BUDGETS,
    MIG_POLICIES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    SHARING_POLICIES,
    SLICES,
    TAINT_RULES,
    Kind,
)
from draco.resources.names import LABEL_RESERVATION, DeviceKey, PoolKey
from draco.resources.written.sharing import Shared

BY_DEVICE = "device"
BY_MAINTENANCE = "maintenance"
BY_POOL = "pool"
BY_POOL_WATCHED = "pool watched"
"""Claims by the pools in which they have admin access."""
TOLERANT = "tolerant"
"""Unallocated claims with tolerations, all under one value."""
UNALLOCATED = "unallocated"
"""Unallocated claims that are not being deleted, all under one value."""
ALLOCATED_IN = "allocated in"
"""Allocated claims by namespace."""
BY_RESERVATION = "reservation"
"""Claims by the UID of the DeviceReservation that controls them."""
RESERVED_IN = "reserved in"
"""Claims of DeviceReservations by namespace."""
BY_NAMED = "named"
"""Pods, and claims of pods, by the reservation in their label."""
BY_TAKER = "taker"
"""Reservations by the UIDs of claims that take over, or have taken over, from them."""
TAKING_OVER = "taking over"
"""Reservations with devices in transfer to a pod's claim, all under one value."""
BY_CLAIM = "claim"
MADE_FOR = "made for"
"""Claims by the UID of the pod that they were created for from a template."""
BY_GANG = "gang"
"""Pods by the group that they start together with."""
BY_JOB_SET = "job set"
"""Jobs by their JobSet."""
BY_UID = "uid"
BY_EXTENDED = "extended"
"""Taint rules by the UID of the rule that they extend."""
BY_EXTENDED_DEVICE = "extended device"
"""Extension rules by the name of the device whose rule they extend."""
BY_EXTENDED_POOL = "extended pool"
"""Rules to extend, by the pool of the device that they name."""
FENCES = "fences"
"""Taint rules that fence nodes, all under one value."""
BY_TAINTED_POOL = "tainted pool"
"""Rules that are not Draco's own, by the one pool that they name, or else WIDE."""
BY_RULED_POOL = "ruled pool"
"""All taint rules, likewise."""
WIDE = "wide"
_REMEMBERED_POOLS = 512
BY_NAMESPACE = "namespace"
IDLE = "idle"
"""Allocated claims that are reserved for nobody, all under one value."""


class ClusterView:
    """Collections, their stores and derived data. `taint_rules` is the served version, None without one."""

    def __init__(
        self,
        client: Client,
        taint_rules: Kind[DeviceTaintRule] | None,
        *,
        clock: Clock,
        supply_every_s: float = 1.0,
        pod_groups: Kind[PodGroup] | None = None,
        allocates: bool = False,
    ) -> None:
        self.clock = clock
        shared = Shared()

        self.collections: dict[str, Collection[Any]] = {}
        self.own_kinds: dict[Kind[Any], OwnKind[Any]] = {}
        """Kinds that people write: Kopf watches these, informers the others."""

        def follow(kind: Kind[Any], labels: str = "", *, optional: bool = False) -> Informer[Any]:
            informer = Informer(client, kind, label_selector=labels, clock=clock, keep=shared.of, optional=optional)
            self.collections[kind.kind] = informer
            return informer

        def own(kind: Kind[Any]) -> OwnKind[Any]:
            found: OwnKind[Any] = OwnKind(client, kind, clock=clock, keep=shared.of)
            self.collections[kind.kind] = self.own_kinds[kind] = found
            return found

        self.taint_rules = taint_rules
        self.claims: Informer[ResourceClaim] = follow(CLAIMS)
        self.slices: Informer[ResourceSlice] = follow(SLICES)
        self.pods: Informer[Pod] = follow(PODS)
        self.nodes: Informer[Node] = follow(NODES)
        self.classes: Informer[DeviceClass] = follow(DEVICE_CLASSES)
        self.gpu_nodes: Informer[GpuNode] = follow(GPU_NODES)
        self.namespaces: Informer[Namespace] = follow(NAMESPACES)
        self.disruption_budgets: Informer[PodDisruptionBudget] = follow(POD_DISRUPTION_BUDGETS, optional=True)
        """An older chart grants no right to watch them."""
        self.maintenances: OwnKind[DeviceMaintenance] = own(DEVICE_MAINTENANCES)
        self.budgets: OwnKind[MaintenanceBudget] = own(MAINTENANCE_BUDGETS)
        self.health_policies: OwnKind[HealthPolicy] = own(HEALTH_POLICIES)
        self.mig_policies: OwnKind[MigPolicy] = own(MIG_POLICIES)
        self.reservations: OwnKind[DeviceReservation] = own(DEVICE_RESERVATIONS)
        self.limits: OwnKind[DeviceLimit] = own(DEVICE_LIMITS)
        self.sharing_policies: OwnKind[SharingPolicy] = own(SHARING_POLICIES)
        self.rules: Collection[DeviceTaintRule] = (
            follow(taint_rules) if taint_rules else Collection(TAINT_RULES[0], clock=clock)
        )
        """Always empty if the cluster does not serve them."""
        self.pod_groups: Collection[PodGroup] = (
            follow(pod_groups) if pod_groups else Collection(POD_GROUPS[0], clock=clock)
        )
        """Watched if Draco allocates and the cluster serves them; otherwise always empty."""
        self.reads_pod_groups = pod_groups is not None
        self.jobs: Collection[Job] = (
            follow(JOBS, JOBSET_NAME, optional=True) if allocates else Collection(JOBS, clock=clock)
        )
        """Those of JobSets, if Draco allocates; otherwise always empty. An older chart grants no right to watch them."""

        self._add_indexes()

        self.followed = FollowedFleet()
        """Subscribes first, so that a question caused by a change is answered with that change."""
        self.followed.follow(
            slices=self.slices, rules=self.rules, nodes=self.nodes, classes=self.classes, claims=self.claims
        )

        self.waiting_times = WaitingTimes(self.pods, self.claims, clock=clock)

        self._hardware: LRUCache[PoolKey, tuple[list[ResourceSlice], PoolHardware]] = LRUCache(_REMEMBERED_POOLS)

        self._supply_every_s = supply_every_s
        self._supply: SupplyCounts | None = None
        self._supply_at = float("-inf")
        self._outdated = True
        counted: list[Collection[Any]] = [self.claims, self.slices, self.nodes, self.rules]
        for each in counted:
            each.subscribe(self._outdate)

    def _add_indexes(self) -> None:
        self.claims.store.add_index(BY_DEVICE, lambda claim: claim.devices_held)
        self.claims.store.add_index(
            IDLE, lambda claim: [True] if claim.status.allocation and not claim.status.reserved_for else []
        )
        self.claims.store.add_index(BY_POOL, lambda claim: dict.fromkeys(held.pool_key for held in claim.devices_held))
        self.claims.store.add_index(
            BY_POOL_WATCHED,
            lambda claim: dict.fromkeys(each.pool_key for each in claim.devices_watched),
        )
        self.claims.store.add_index(TOLERANT, lambda claim: [True] if claim.waits_tolerantly else [])
        self.claims.store.add_index(UNALLOCATED, lambda claim: [True] if claim.waits else [])
        self.claims.store.add_index(
            ALLOCATED_IN, lambda claim: [claim.metadata.namespace] if claim.status.allocation else []
        )
        self.claims.store.add_index(MADE_FOR, lambda claim: [pod.uid] if (pod := made_for(claim)) else [])
        self.claims.store.add_index(BY_RESERVATION, lambda claim: [uid] if (uid := reserved_by(claim)) else [])
        self.claims.store.add_index(RESERVED_IN, lambda claim: [claim.metadata.namespace] if reserved_by(claim) else [])
        self.claims.store.add_index(BY_NAMED, lambda claim: [] if reserved_by(claim) else named(claim.metadata))
        self.pods.store.add_index(BY_NAMED, lambda pod: named(pod.metadata))
        self.reservations.store.add_index(BY_TAKER, lambda each: [one.uid for one in each.status.takeovers])
        self.reservations.store.add_index(
            TAKING_OVER, lambda each: [True] if any(one.allocation for one in each.status.takeovers) else []
        )
        self.slices.store.add_index(BY_POOL, lambda item: [item.pool])
        self.disruption_budgets.store.add_index(BY_NAMESPACE, lambda budget: [budget.metadata.namespace])
        self.pods.store.add_index(BY_CLAIM, lambda pod: pod.claims)
        self.pods.store.add_index(BY_GANG, lambda pod: [gang] if (gang := gang_of(pod)) else [])
        self.jobs.store.add_index(BY_JOB_SET, lambda job: [job_set_of(job)])
        for each in (*self.own_kinds.values(), self.rules):
            each.store.add_index(BY_UID, lambda item: [item.metadata.uid])
        self.rules.store.add_index(BY_MAINTENANCE, lambda rule: [uid] if (uid := maintenance_uid(rule)) else [])
        self.rules.store.add_index(BY_EXTENDED, lambda rule: [uid] if (uid := extends(rule)) else [])
        self.rules.store.add_index(BY_EXTENDED_DEVICE, lambda rule: [name] if (name := extended_from(rule)) else [])
        self.rules.store.add_index(
            BY_EXTENDED_POOL,
            lambda rule: [device.pool_key] if (device := extended_device(rule)) else [],
        )
        self.rules.store.add_index(FENCES, lambda rule: [True] if is_fence(rule) else [])
        self.rules.store.add_index(BY_TAINTED_POOL, lambda rule: [] if is_draco_own(rule) else _pool_of(rule))
        self.rules.store.add_index(BY_RULED_POOL, _pool_of)

    @property
    def idle_claims(self) -> list[ObjectKey]:
        """Allocated claims that are reserved for nobody."""
        return [claim.metadata.key for claim in self.claims.store.by_index(IDLE, True)]

    def published(self, device: DeviceKey) -> tuple[Device, str] | None:
        """A device as its pool publishes it now, and its node ("" if it is not for one node)."""
        for item in self.current_slices_of(device.pool_key):
            for each in item.spec.devices:
                if each.name == device.device:
                    return each, item.spec.node_name or each.node_name or ""
        return None

    @property
    def unsynced(self) -> list[str]:
        """Kinds that have not been listed yet."""
        return [name for name, each in self.collections.items() if not each.synced.is_set()]

    def supply(self) -> SupplyCounts:
        """All devices by driver and state, at most `supply_every_s` behind the stores."""
        now = self.clock.monotonic()
        if self._supply is None or (self._outdated and now - self._supply_at >= self._supply_every_s):
            nodes = {node.metadata.name: node for node in self.nodes.store.values()}
            self._supply = count_supply(
                self.slices.store.values(), self.rules.store.values(), self.claims.store.values(), nodes
            )
            self._supply_at = now
            self._outdated = False
        return self._supply

    def hardware(self, pool: PoolKey) -> PoolHardware:
        """Which of the pool's devices are the same hardware. Cached for the pools last asked about, until they change."""
        slices = self.slices.store.by_index(BY_POOL, pool)
        remembered = self._hardware.get(pool)
        if remembered is None or list(map(id, remembered[0])) != list(map(id, slices)):
            remembered = self._hardware[pool] = (slices, PoolHardware(slices))
        return remembered[1]

    def extended_to(self, device: DeviceKey) -> frozenset[DeviceKey]:
        """The devices with extensions of rules that name this one."""
        selectors = (rule.spec.device_selector for rule in self.rules.store.by_index(BY_EXTENDED_DEVICE, str(device)))
        return frozenset(named for each in selectors if each is not None and (named := each.named))

    def slices_of(self, pool: PoolKey) -> list[ResourceSlice]:
        """All slices of the pool, of any generation."""
        return self.slices.store.by_index(BY_POOL, pool)

    def current_slices_of(self, pool: PoolKey) -> list[ResourceSlice]:
        """The pool's slices of the current generation, complete or not."""
        return current_slices(self.slices_of(pool)).get(pool, [])

    def devices_of(self, pool: PoolKey) -> list[Device]:
        """What the pool publishes. Slices not replaced yet count as before: nobody allocates from them meanwhile."""
        if len({each.spec.pool.generation for each in self.slices_of(pool)}) > 1:
            hardware = self.hardware(pool)
            return [device for name in hardware.expected if (device := hardware.published_as(name)) is not None]
        return [device for each in self.current_slices_of(pool) for device in each.spec.devices]

    def request(self, uid: str) -> DeviceMaintenance | None:
        """The maintenance request with this UID."""
        return next(iter(self.maintenances.store.by_index(BY_UID, uid)), None)

    def rules_for(self, uid: str) -> list[DeviceTaintRule]:
        """The taint rules that serve the maintenance request with this UID, by name."""
        return sorted(self.rules.store.by_index(BY_MAINTENANCE, uid), key=lambda rule: rule.metadata.name)

    def is_fenced(self, pool: PoolKey) -> bool:
        """Whether a rule fences the pool because its agent is lost."""
        return (rule := self.rules.store.get(ObjectKey("", fence_name(pool)))) is not None and is_fence(rule)

    def rule_taints(self, device: DeviceKey) -> list[DeviceTaint]:
        """The taints that rules put on a device."""
        rules = chain.from_iterable(self.rules.store.by_index(BY_RULED_POOL, each) for each in (device.pool_key, WIDE))
        return [each.spec.taint for each in rules if (by := each.spec.device_selector) and by.matches(device)]

    @property
    def classes_by_name(self) -> dict[str, DeviceClass]:
        """The current DeviceClasses by name."""
        return {each.metadata.name: each for each in self.classes.store.values()}

    def claims_in(self, pool: PoolKey) -> list[ResourceClaim]:
        """Claims that hold or watch a device of the pool."""
        found = [*self.claims.store.by_index(BY_POOL, pool), *self.claims.store.by_index(BY_POOL_WATCHED, pool)]
        return list({claim.metadata.key: claim for claim in found}.values())

    def devices_held(self, claims: Iterable[ObjectKey]) -> frozenset[DeviceKey]:
        """The devices that these claims hold, as far as known."""
        known = filter(None, map(self.claims.store.get, claims))
        return frozenset(device for claim in known for device in claim.devices_held)

    def tolerant_claims(self, taint: DeviceTaint) -> dict[ObjectKey, set[str]]:
        """Waiting claims that may get devices in spite of the taint, with the classes of these devices."""
        claims = self.claims.store.by_index(TOLERANT, True)
        return {claim.metadata.key: classes for claim in claims if (classes := claim.classes_in_spite_of(taint))}

    def pods_of(self, claim: ObjectKey) -> list[Pod]:
        """Pods that use the claim, or the one it was created for if that pod's status does not show it yet."""
        found = self.pods.store.by_index(BY_CLAIM, claim)
        if found or (made := self.claims.store.get(claim)) is None:
            return found
        pod = self.pod_made_for(made)
        return [pod] if pod is not None and claim in self.claims_of(pod) else []

    def claims_of(self, pod: Pod) -> list[ObjectKey]:
        """The claims that a pod uses, including those created for it that its status does not show yet."""
        return naming_made(pod, self.claims.store.by_index(MADE_FOR, pod.metadata.uid)).claims

    def pod_made_for(self, claim: ResourceClaim) -> Pod | None:
        """The existing pod that the claim was created for from a template, whether or not it uses it."""
        owner = made_for(claim)
        pod = self.pods.store.get(ObjectKey(claim.metadata.namespace, owner.name)) if owner is not None else None
        return pod if owner is not None and pod is not None and pod.metadata.uid == owner.uid else None

    def pods_of_gang(self, gang: GangKey) -> list[Pod]:
        """Pods of the group."""
        return self.pods.store.by_index(BY_GANG, gang)

    def budgets_in(self, namespaces: Iterable[str]) -> list[PodDisruptionBudget]:
        """The PodDisruptionBudgets of these namespaces; none if they may not be watched."""
        store = self.disruption_budgets.store
        known = () if self.disruption_budgets.forbidden else sorted(set(namespaces))
        return [each for name in known for each in store.by_index(BY_NAMESPACE, name)]

    def pending_pods(self, claim: ObjectKey) -> list[Pod]:
        """Pods that use the claim and have not started."""
        return [pod for pod in self.pods_of(claim) if pod.pending]

    def claim_states(self) -> dict[str, int]:
        """Claims by state. Pending: not allocated; Allocated: not reserved by a consumer; Reserved; Deleting."""
        counts = Counter({"Pending": 0, "Allocated": 0, "Reserved": 0, "Deleting": 0})
        for claim in self.claims.store.values():
            if claim.metadata.deletion_timestamp is not None:
                counts["Deleting"] += 1
            elif claim.status.allocation is None:
                counts["Pending"] += 1
            else:
                counts["Reserved" if claim.status.reserved_for else "Allocated"] += 1
        return counts

    def maintenance_phases(self) -> dict[str, int]:
        """Maintenance requests by phase."""
        return Counter(str(request.status.phase or "Pending") for request in self.maintenances.store.values())

    def _outdate(self, _: object) -> None:
        self._outdated = True


def named(meta: ObjectMeta) -> list[ObjectKey]:
    """The reservation in the label of a pod or claim."""
    name = meta.labels.get(LABEL_RESERVATION)
    return [ObjectKey(meta.namespace, name)] if name else []


def _pool_of(rule: DeviceTaintRule) -> Iterable[Hashable]:
    selector = rule.spec.device_selector
    if selector is None:
        return []
    return [PoolKey(selector.driver, selector.pool) if selector.driver and selector.pool else WIDE]
