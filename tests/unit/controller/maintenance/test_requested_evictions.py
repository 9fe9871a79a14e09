"""EvictionRequests under paused budgets, before it is known which GPUs these budgets concern."""

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from draco.controller.maintenance.budgets import KEY, MaintenanceAdmission
from draco.controller.maintenance.eviction_requests import EvictionRequests
from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Forbidden
from draco.maintenance.draining.eviction_requests import eviction_request_for
from draco.resources.api.core import PodStatus
from draco.resources.api.evictions import EvictionRequest
from draco.resources.api.maintenance import (
    DeviceMaintenance,
    DrainPolicy,
    MaintenanceBudget,
    MaintenanceBudgetSpec,
    MaintenanceDrain,
    MaintenancePhase,
)
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.kinds import DEVICE_MAINTENANCES, EVICTION_REQUESTS, Kind
from tests.builders import MOMENT, a_claim, a_device_class, a_maintenance, a_node, a_pod, a_slice
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import forget, tell


class World:
    """A leader that has not counted budgets yet, and a pod with an EvictionRequest of the previous leader."""

    def __init__(self, *, paused: bool) -> None:
        self.withdrawn: list[ObjectKey] = []
        made = a_maintenance(phase=MaintenancePhase.DRAINING, pool="node-0", device="gpu-0", devices=["node-0/gpu-0"])
        spec = msgspec.structs.replace(made.spec, drain=MaintenanceDrain(policy=DrainPolicy.EVICT))
        status = msgspec.structs.replace(made.status, isolated_at=MOMENT, draining_at=MOMENT)
        self.maintenance = msgspec.structs.replace(made, spec=spec, status=status)
        client, clock = cast("Client", self), ManualClock(MOMENT)
        view = ClusterView(client, None, clock=clock)
        fleet = MaintenanceFleet(view)
        self.admission = admission = MaintenanceAdmission(client, view, fleet)
        self.requests = EvictionRequests(
            client,
            EVICTION_REQUESTS,
            view,
            paused=lambda devices: admission.paused(fleet.gpus(devices)),
            knows_what_is_paused=lambda: admission.knows_what_is_paused,
        )
        pod = a_pod("pod", node="node-0", claims=["claim"], status=PodStatus(phase="Running"))
        claim = a_claim("claim", on=["node-0/gpu-0"], reserved_for=["pod"])
        budget = MaintenanceBudgetSpec(device_class_name="h100", paused=paused)
        view.budgets.store.put(MaintenanceBudget(metadata=ObjectMeta(name="h100", uid="1"), spec=budget))
        tell(view, a_node("node-0"), self.maintenance, a_slice("node-0", ["gpu-0"]), a_device_class("h100"), claim, pod)
        stored = msgspec.json.decode(msgspec.json.encode(eviction_request_for(pod)), type=EvictionRequest)
        self.requests.informer.store.put(stored)
        self.key = stored.metadata.key
        self.view, self.pod = view, pod
        self.answer: ApiError | None = None
        self.when_asked: Callable[[], None] = lambda: None
        self.requests.subscribe(lambda _: None)

    async def get(self, *_: Any, **__: Any) -> MaintenanceBudget:
        return next(iter(self.admission._view.budgets.store.values()))

    apply = get

    async def list(self, kind: Kind[Any], **_: Any) -> list[DeviceMaintenance]:
        return [self.maintenance] if kind is DEVICE_MAINTENANCES else []

    async def delete(self, _: Kind[Any], key: ObjectKey, *, uid: str) -> None:
        assert uid is not None
        self.when_asked()
        self.withdrawn.append(key)

    async def create(self, *_: Any) -> None:
        self.when_asked()
        if self.answer is not None:
            raise self.answer


@pytest.mark.parametrize("paused", [True, False])
async def test_a_request_is_looked_at_again_until_it_is_known_what_a_paused_budget_is_about(paused: bool) -> None:
    """Nothing wakes the reconciler that withdraws requests when that becomes known."""
    world = World(paused=paused)
    assert await world.requests.reconcile(world.key) == (1.0 if paused else None)
    await world.admission.reconcile(KEY)
    assert await world.requests.reconcile(world.key) is None
    assert world.withdrawn == ([world.key] if paused else [])


@pytest.mark.parametrize("answer", [None, Forbidden(403, "Forbidden", "no right")])
async def test_of_a_pod_that_is_deleted_while_it_is_asked_for_nothing_is_kept(answer: ApiError | None) -> None:
    world = World(paused=False)
    world.answer, world.when_asked = answer, lambda: forget(world.view, world.pod)
    assert await world.requests.make(world.pod) is (answer is None)
    assert (world.requests._first_asked, world.requests._refused) == ({}, set())


async def test_of_a_pod_that_is_deleted_while_its_request_is_withdrawn_nothing_is_kept() -> None:
    world = World(paused=True)
    world.when_asked = lambda: forget(world.view, world.pod)
    await world.admission.reconcile(KEY)
    await world.requests.reconcile(world.key)
    assert (world.withdrawn, world.requests._withdrawn) == ([world.key], {})
