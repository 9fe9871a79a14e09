"""Reads the snapshot from which a maintenance request is planned.

Owns that reading, and which classes devices may belong to. Plans and writes nothing, not even budgets or eviction records.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta

from draco.allocation.fleet.hardware import PoolHardware
from draco.controller.maintenance.budgets import MaintenanceAdmission
from draco.controller.maintenance.draining import PodDrains
from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.maintenance.jobs import MaintenanceJobs
from draco.controller.maintenance.rehearsals import Rehearsed
from draco.controller.view import ClusterView
from draco.maintenance.budgets.admission import StartCandidate
from draco.maintenance.draining.drain import DrainInput
from draco.maintenance.isolating.gpu_node_entries import not_heeded, not_reached
from draco.maintenance.progress import Purpose
from draco.maintenance.readiness import age_of
from draco.maintenance.selecting.matching import (
    MaintenanceScope,
    MaintenanceSelection,
    fixed_selection,
    has_begun,
    incomplete_pools,
    isolated_boards,
    scope_of,
    vanished,
)
from draco.maintenance.selecting.rehearsal import scope_devices
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.maintenance.working.verification import AgentVerdict, agents_say
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import GpuNode
from draco.resources.api.maintenance import OVER, DeviceMaintenance
from draco.resources.api.meta import ObjectKey, is_true
from draco.resources.api.slices import Device
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule
from draco.resources.names import DeviceKey, PoolKey

_MOST_ASKED = 64
"""With more devices than this, every class is assumed to match."""


class SnapshotReader:
    """Reads one request at a time."""

    def __init__(
        self,
        view: ClusterView,
        *,
        settle_s: float,
        fleet: MaintenanceFleet,
        admission: MaintenanceAdmission,
        drains: PodDrains,
        jobs: MaintenanceJobs,
    ) -> None:
        self._view = view
        self._settle = timedelta(seconds=settle_s)
        self._fleet = fleet
        self._admission = admission
        self._drains = drains
        self._jobs = jobs

    def read(self, request: DeviceMaintenance, rehearsed: Rehearsed | None) -> MaintenanceSnapshot:
        """What is known of the request now. `rehearsed` is the effect of isolating, for a request that may still begin."""
        now = self._view.clock.now()
        rules = self._view.rules_for(request.metadata.uid)
        isolated = isolated_boards(request, rules)
        selection = (rehearsed.selection if rehearsed else fixed_selection(request, rules)) or MaintenanceSelection(
            selector=request.spec.device_selector, devices=frozenset()
        )
        pools = self._pools_for(selection, isolated)
        claims = {claim.metadata.key: claim for pool in pools for claim in self._view.claims_in(pool)}
        held = {device for claim in claims.values() for device in claim.devices_held}
        scope = scope_of(selection, pools, held, isolated)
        taint = request.spec.taint
        tolerant = self._view.tolerant_claims(DeviceTaint(key=taint.key, value=taint.value, effect=taint.effect))
        concerned = {*scope.named, *scope.overlapping, *isolated}
        may_fit = self._classes_for(concerned, pools, {name for classes in tolerant.values() for name in classes})
        nodes = {
            pool: node
            for pool in pools
            if (node := self._view.gpu_nodes.store.get(ObjectKey("", pool.pool))) and node.status.driver == pool.driver
        }
        served = self._view.taint_rules is not None
        idle = self._idle(nodes)
        own = self._jobs.own_claims(request)
        unheeded = tuple(not_heeded(request, scope, pools, nodes, idle))
        untold = {device.pool_key for device in unheeded if device.pool_key not in nodes}
        candidate = self._candidate(request, scope) if rehearsed else None
        harmless = own | self._jobs.never_take(tolerant, concerned)
        return MaintenanceSnapshot(
            now=now,
            scope=scope,
            selection=selection,
            problem=rehearsed.problem if rehearsed else None,
            incomplete=tuple(incomplete_pools(selection, pools, held)) if rehearsed else (),
            rehearsal=rehearsed.summary if rehearsed else None,
            candidate=candidate,
            admission=self._admission.answer(candidate) if candidate else None,
            knows_paused=self._admission.knows_what_is_paused,
            rules=tuple(rules),
            others=tuple(
                each
                for each in self._view.maintenances.store.values()
                if each.status.phase not in OVER and each.metadata.uid != request.metadata.uid
            ),
            claims=tuple(claims.values()),
            own_claims=own,
            tolerant=tuple(
                sorted(key for key, classes in tolerant.items() if classes & may_fit and key not in harmless)
            ),
            rules_served=served,
            unheeded=unheeded,
            vanished=tuple(vanished(isolated, pools)),
            beyond=() if served else tuple(not_reached(request, scope, pools, nodes)),
            informed=()
            if served
            else tuple(
                pool.pool
                for pool, node in nodes.items()
                if any(each.request == request.metadata.name for each in node.spec.isolated)
            ),
            settle=self._settle,
            drain=self._draining(request, scope, claims.values(), rules, own=own) if has_begun(request) else None,
            work=self._jobs.look(request, Purpose.WORK),
            verification=self._jobs.look(request, Purpose.VERIFICATION),
            # The last report of a lost agent may be from before the work.
            agents=_agents_say(scope, isolated, nodes, idle | untold | set(filter(self._view.is_fenced, nodes))),
        )

    def _candidate(self, request: DeviceMaintenance, scope: MaintenanceScope) -> StartCandidate:
        gpus = self._fleet.gpus(scope_devices(scope))
        return StartCandidate(uid=request.metadata.uid, name=request.metadata.name, age=age_of(request), gpus=gpus)

    def _draining(
        self,
        request: DeviceMaintenance,
        scope: MaintenanceScope,
        claims: Iterable[ResourceClaim],
        rules: Sequence[DeviceTaintRule],
        *,
        own: Collection[ObjectKey],
    ) -> DrainInput | None:
        devices = {*scope.named, *scope.overlapping, *scope.doubtful}
        holding = [
            claim for claim in claims if claim.metadata.key not in own and not devices.isdisjoint(claim.devices_held)
        ]
        paused = self._admission.paused(self._fleet.gpus(devices))
        return self._drains.read(request, devices, holding, rules, now=self._view.clock.now(), paused=paused)

    def _idle(self, gpu_nodes: Mapping[PoolKey, GpuNode]) -> set[PoolKey]:
        """The pools whose agents publish nothing now.

        Nothing new is placed on a node that is not ready, and its agent may be gone for long; an agent that cannot read the GPUs,
        or yields to another plugin, publishes nothing. Work on such nodes is a purpose of maintenance.
        """
        nodes = {pool: self._view.nodes.store.get(ObjectKey("", pool.pool)) for pool in gpu_nodes}
        return {
            pool
            for pool, gpu_node in gpu_nodes.items()
            if not ((node := nodes[pool]) and node.ready and publishes(gpu_node))
        }

    def _classes_for(
        self, devices: Iterable[DeviceKey], pools: Mapping[PoolKey, PoolHardware], names: Iterable[str]
    ) -> set[str]:
        """The classes among `names` that some of the devices may belong to.

        Only the selectors of classes are evaluated, which administrators write; a claim's own could select anything. A device
        that is not published now, for example during a reboot, may reappear at any moment: only its driver is known.
        """
        if not names:
            return set()
        asked = [
            (key.driver, pools[pool].published_as(key.device) or Device(name=key.device))
            for key in sorted(devices)
            if (pool := key.pool_key) in pools
        ]
        may_fit = set()
        for name in names:
            if ObjectKey("", name) not in self._view.classes.store:
                continue  # nothing is allocated for a missing class; its creation wakes us
            test = self._fleet.test(name)
            # If its selectors fail, the class may match.
            if len(asked) > _MOST_ASKED or (
                bool(asked) if isinstance(test, str) else any(test.says(*each) is not False for each in asked)
            ):
                may_fit.add(name)
        return may_fit

    def _pools_for(
        self, selection: MaintenanceSelection, isolated: Iterable[DeviceKey]
    ) -> Mapping[PoolKey, PoolHardware]:
        """The pools that may contain selected devices, including those without slices now."""
        selector = selection.selector
        if selection.devices is not None:
            keys = {device.pool_key for device in (*selection.devices, *isolated)}
        elif selector.driver and selector.pool:
            keys = {PoolKey(selector.driver, selector.pool)}
        else:
            held = (device for claim in self._view.claims.store.values() for device in claim.devices_held)
            keys = {item.pool for item in self._view.slices.store.values()}
            keys |= {device.pool_key for device in (*held, *isolated)}
        return {key: self._fleet.pool(key).hardware for key in sorted(keys) if selection.may_match(key)}


def _agents_say(
    scope: MaintenanceScope,
    isolated: Mapping[DeviceKey, str],
    nodes: Mapping[PoolKey, GpuNode],
    idle: Collection[PoolKey],
) -> AgentVerdict | None:
    asked = {*scope.named, *(device for device in isolated if device not in scope.overlapping)}
    found = [(device, isolated.get(device, ""), scope.boards.get(device, "")) for device in sorted(asked)]
    return agents_say(found, nodes, idle)


def publishes(gpu_node: GpuNode) -> bool:
    """Whether the agent has devices to publish, and does."""
    published = is_true(gpu_node.status.conditions, "Published")
    return published and bool(gpu_node.status.driver_version)
