"""The rehearsal of a request: the effects of isolating and draining, counted before anything is done. Writes nothing.

Owns the counting, for the operator and for `draco maintain`, and the refusal of a request that selects nothing or more devices
than a status can hold; `fleet` refuses one that takes most of a class.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from draco.allocation.fleet.supply import Supply
from draco.maintenance.gate import SelectionProblem, schedule_problem
from draco.maintenance.selecting.fleet import ClassSupply, FleetPool, FreeGpus, PhysicalGpu, sick_devices, takes_most
from draco.maintenance.selecting.matching import MaintenanceScope, MaintenanceSelection, is_exact, scope_of
from draco.maintenance.selecting.selectors import (
    MOST_DEVICES,
    RequestTest,
    selector_fails,
    test_of,
    test_of_class,
    too_many,
)
from draco.maintenance.taint_impact import budget_impacts, impact_of
from draco.maintenance.wording import no_devices
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Node, Pod, PodDisruptionBudget
from draco.resources.api.draco import GpuNode
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceRehearsal, RehearsedClass
from draco.resources.api.slices import ResourceSlice, by_pool
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule
from draco.resources.names import DeviceKey, PoolKey

NAMED = 64
"""The most pods, budgets and classes that the status names."""


class Selected(msgspec.Struct, frozen=True):
    """The devices that a request selects, or why it selects none."""

    devices: frozenset[DeviceKey] = frozenset()
    problem: SelectionProblem | None = None


class PoolSelection:
    """Collects what a request selects, pool by pool. The caller may yield between pools."""

    def __init__(self, test: RequestTest) -> None:
        self._test = test
        self._found: set[DeviceKey] = set()
        self._problem = test.problem

    def add(self, pool: FleetPool) -> None:
        """Evaluate one pool."""
        if self._problem is not None or not self._test.selector.may_match(pool.key):
            return
        for each in pool.devices:
            key = DeviceKey(*pool.key, each.device.name)
            said = self._test.says(key, each.device, each.node)
            if isinstance(said, str):
                self._problem = selector_fails(key, said)
                return
            if said:
                self._found.add(key)

    def result(self) -> Selected:
        """The selection in all added pools."""
        if self._problem is None and not self._found:
            return Selected(problem=SelectionProblem("NoDevices", no_devices(self._test.selector)))
        if self._problem is None and len(self._found) > MOST_DEVICES:
            return Selected(problem=too_many(len(self._found)))
        return Selected(frozenset(self._found) if self._problem is None else frozenset(), self._problem)


def rehearsal_of(
    devices: Collection[DeviceKey],
    gpus: Collection[PhysicalGpu],
    *,
    claims: Iterable[ResourceClaim],
    pods: Iterable[Pod] | None,
    disruption_budgets: Iterable[PodDisruptionBudget] = (),
    classes: Iterable[ClassSupply] = (),
) -> MaintenanceRehearsal:
    """The effects of isolating and draining. A pod counts once; claims with administrative access do not count."""
    concerned = frozenset(devices)
    holding = [claim for claim in claims if not concerned.isdisjoint(claim.devices_held)]
    known = None if pods is None else list(pods)
    taint = DeviceTaint(key="draco.dev/maintenance", effect="NoExecute")
    impact = impact_of(taint, concerned.__contains__, devices=concerned, claims=holding, pods=known)
    using = frozenset(impact.pods)
    leaving = [pod for pod in known or () if pod.metadata.key in using]
    broken = [each for each in budget_impacts(disruption_budgets, leaving) if each.is_broken]
    taken = frozenset(gpus)
    return MaintenanceRehearsal(
        devices=len(concerned),
        claims=len(holding),
        pods=len(using),
        pod_names=[str(pod) for pod in sorted(using)[:NAMED]],
        blocking_budgets=[str(each.key) for each in sorted(broken)[:NAMED]],
        classes=[
            RehearsedClass(
                name=each.name, devices=len(each.gpus), free=len(each.free), free_after=len(each.free - taken)
            )
            for each in sorted(classes, key=lambda each: each.name)
            if not taken.isdisjoint(each.gpus)
        ][:NAMED],
    )


class RehearsedObjects(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of a cluster that concern a request.

    Without `pods`, the pods that claims are reserved for count. Without `nodes`, devices of unschedulable nodes count as free.
    """

    slices: Sequence[ResourceSlice]
    claims: Sequence[ResourceClaim] = ()
    classes: Sequence[DeviceClass] = ()
    pods: Sequence[Pod] | None = None
    disruption_budgets: Sequence[PodDisruptionBudget] = ()
    rules: Sequence[DeviceTaintRule] = ()
    nodes: Sequence[Node] | None = None
    gpu_nodes: Sequence[GpuNode] = ()


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of a request, or why it would not begin: `reason` is the condition's, `problem` the message."""

    devices: tuple[DeviceKey, ...] = ()
    gpus: frozenset[PhysicalGpu] = frozenset()
    reason: str = ""
    problem: str = ""
    summary: MaintenanceRehearsal = MaintenanceRehearsal(devices=0, claims=0, pods=0)


def rehearse(request: DeviceMaintenance, objects: RehearsedObjects) -> Rehearsal:
    """Rehearse a request against a cluster's objects; the request need not exist."""
    pools = pools_of(objects.slices)
    selector = request.spec.device_selector
    selection = MaintenanceSelection(selector=selector)
    if not is_exact(selector):
        asked = PoolSelection(test_of(selector, {each.metadata.name: each for each in objects.classes}))
        for pool in pools.values():
            asked.add(pool)
        found = asked.result()
        if found.problem is not None:
            return Rehearsal(reason=found.problem.reason, problem=found.problem.message)
        selection = MaintenanceSelection(selector=selector, devices=found.devices)
    held = {device for claim in objects.claims for device in claim.devices_held}
    scope = scope_of(selection, {key: pool.hardware for key, pool in pools.items() if selection.may_match(key)}, held)
    devices = scope_devices(scope)
    gpus = physical(pools, devices)
    classes = _supplies(objects, pools, gpus)
    problem = problem_of(request, devices) or takes_most(request, gpus, classes)
    return Rehearsal(
        devices=devices,
        gpus=gpus,
        reason=problem.reason if problem else "",
        problem=problem.message if problem else "",
        summary=rehearsal_of(
            devices,
            gpus,
            claims=objects.claims,
            pods=objects.pods,
            disruption_budgets=objects.disruption_budgets,
            classes=classes,
        ),
    )


def _supplies(
    objects: RehearsedObjects, pools: Mapping[PoolKey, FleetPool], gpus: frozenset[PhysicalGpu]
) -> list[ClassSupply]:
    nodes = None if objects.nodes is None else {each.metadata.name: each for each in objects.nodes}
    sick = sick_devices(objects.gpu_nodes)
    free = FreeGpus(Supply(rules=objects.rules, claims=objects.claims, nodes=nodes, sick=sick))
    for pool in pools.values():
        free.add(pool)
    found = []
    for device_class in objects.classes:
        test = test_of_class(device_class)
        if not isinstance(test, str):
            members = frozenset(gpu for pool in pools.values() for gpu in pool.of_class(test))
            if not members.isdisjoint(gpus):
                found.append(ClassSupply(device_class.metadata.name, members, free.of(members, device_class)))
    return found


def physical(pools: Mapping[PoolKey, FleetPool], devices: Iterable[DeviceKey]) -> frozenset[PhysicalGpu]:
    """The GPUs of which these devices of the pools are parts."""
    return frozenset(pools[pool].gpu(device.device) for device in devices if (pool := device.pool_key) in pools)


def problem_of(request: DeviceMaintenance, devices: Collection[DeviceKey]) -> SelectionProblem | None:
    """Why a request that selects these devices is invalid, whatever the fleet has; None if it is valid."""
    if not devices:
        return SelectionProblem("NoDevices", no_devices(request.spec.device_selector))
    said = schedule_problem(request)
    return SelectionProblem("InvalidSchedule", said) if said else None


def scope_devices(scope: MaintenanceScope) -> tuple[DeviceKey, ...]:
    """All devices that a request concerns: named ones, and others of the same hardware."""
    return tuple(sorted({*scope.named, *scope.overlapping}))


def pools_of(slices: Iterable[ResourceSlice]) -> Mapping[PoolKey, FleetPool]:
    """The pools of a cluster."""
    return {key: FleetPool(key, items) for key, items in sorted(by_pool(slices).items())}
