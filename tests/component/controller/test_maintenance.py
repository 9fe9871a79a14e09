"""DeviceMaintenance on a real API server, for an unknown vendor's driver."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from draco.controller.evictions import PodEvictions
from draco.controller.maintenance.budgets import MaintenanceAdmission
from draco.controller.maintenance.draining import PodDrains
from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.maintenance.jobs import MaintenanceJobs
from draco.controller.maintenance.reconciler import MaintenanceReconciler
from draco.controller.metrics import OperatorMetrics
from draco.controller.view import ClusterView
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import Conflict, NotFound
from draco.kube.events.events import CLUSTER_EVENTS_NAMESPACE, EventRecorder
from draco.maintenance.taint_rules import maintenance_uid, rule_for
from draco.resources.api.core import Event
from draco.resources.api.maintenance import DeviceMaintenance, MaintenancePhase
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, DEVICE_MAINTENANCES, EVENTS, SLICES, TAINT_RULES, Kind
from draco.resources.names import DeviceKey
from draco_local.cluster.controlplane import ControlPlane
from tests.builders import a_claim, a_maintenance, a_rule, a_slice
from tests.component.controller.replicas import an_operator, until

pytestmark = pytest.mark.usefixtures("crds")

RULES = next(kind for kind in TAINT_RULES if kind.version == "v1beta2")


class Lab:
    """A pool of eight devices of a foreign driver, and a test's operations on them.

    No other pool has the driver, so selecting by driver selects this pool, whatever else the API server stores.
    """

    def __init__(self, client: Client, namespace: str, *, rules: Kind[DeviceTaintRule] = RULES) -> None:
        self.client = client
        self._kind = rules
        self.namespace = namespace
        self.pool = f"node-{uuid.uuid4().hex[:8]}"
        self.driver = f"{self.pool}.example.com"
        self.requests: list[str] = []

    async def publish(self) -> None:
        await self.client.create(
            SLICES, a_slice(self.pool, [f"gpu-{i}" for i in range(8)], driver=self.driver, name=self.pool)
        )

    async def request(self, name: str = "swap-fan", **selector: str) -> ObjectKey:
        key = ObjectKey("", f"{name}-{self.pool}")
        selector = {"driver": self.driver, "pool": self.pool, **selector}
        await self.client.create(
            DEVICE_MAINTENANCES, {"metadata": {"name": key.name}, "spec": {"deviceSelector": selector}}
        )
        self.requests.append(key.name)
        return key

    async def finish(self, key: ObjectKey) -> None:
        await self.client.patch(DEVICE_MAINTENANCES, key, {"spec": {"finished": True}})

    async def phase(self, key: ObjectKey, phase: MaintenancePhase) -> DeviceMaintenance:
        async def look() -> DeviceMaintenance | None:
            request = await self.client.get(DEVICE_MAINTENANCES, key)
            return request if request.status.phase == phase else None

        return await until(look, what=f"{key} {phase}")

    async def rules(self) -> list[DeviceTaintRule]:
        rules = await self.client.list(self._kind)
        return [rule for rule in rules if rule.spec.device_selector and rule.spec.device_selector.pool == self.pool]

    async def no_rules(self, *, within_s: float = 60.0) -> None:
        async def look() -> bool:
            return not await self.rules()

        await until(look, within_s=within_s, what="the deletion of all rules")

    async def hold(self, name: str, *devices: str) -> ObjectKey:
        """Create a claim and allocate it as a scheduler would."""
        key = ObjectKey(self.namespace, name)
        held = a_claim(name, namespace=self.namespace, on=[f"{self.driver}/{self.pool}/{each}" for each in devices])
        await self.client.create(CLAIMS, {"metadata": {"name": name, "namespace": self.namespace}, "spec": held.spec})
        await self.client.patch(CLAIMS, key, {"status": as_json(held.status)}, subresource="status")
        return key

    async def let_go(self, key: ObjectKey) -> None:
        await self.client.patch(CLAIMS, key, {"status": {"allocation": None}}, subresource="status")

    async def clean(self) -> None:
        for name in self.requests:
            with suppress(NotFound):
                await self.client.delete(DEVICE_MAINTENANCES, ObjectKey("", name))
        for rule in await self.rules():
            with suppress(NotFound):
                await self.client.delete(self._kind, rule.metadata.key)
        with suppress(NotFound):
            await self.client.delete(SLICES, ObjectKey("", self.pool))


def name_of(event: Event) -> str:
    """Name of the Event's object."""
    return event.involved_object.name if event.involved_object else ""


def as_json(struct: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(struct))


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[Lab]:
    made = Lab(client, namespace)
    await made.publish()
    yield made
    await made.clean()


async def test_one_device_of_eight_is_isolated_worked_on_and_given_back(served: ControlPlane, lab: Lab) -> None:
    busy = await lab.hold("train", "gpu-3")
    other = await lab.hold("serve", "gpu-4")
    async with an_operator(served):
        key = await lab.request(device="gpu-3")
        isolated = await lab.phase(key, MaintenancePhase.ISOLATED)
        assert [(each.device, each.claims) for each in isolated.status.devices] == [
            ("gpu-3", [f"{lab.namespace}/train"])
        ]
        (rule,) = await lab.rules()
        selector = rule.spec.device_selector
        assert selector is not None
        assert (selector.driver, selector.pool, selector.device) == (lab.driver, lab.pool, "gpu-3")
        assert (rule.spec.taint.key, rule.spec.taint.effect) == ("draco.dev/maintenance", "NoSchedule")
        await lab.let_go(busy)
        ready = await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        assert ready.status.in_use == 0
        await lab.finish(key)
        done = await lab.phase(key, MaintenancePhase.COMPLETED)
        assert done.status.completed_at is not None
        assert await lab.rules() == []
    assert (await lab.client.get(CLAIMS, other)).status.allocation is not None


async def test_deleting_the_request_gives_the_device_back_without_garbage_collection(
    served: ControlPlane, lab: Lab
) -> None:
    async with an_operator(served):
        key = await lab.request(device="gpu-3")
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await lab.client.delete(DEVICE_MAINTENANCES, key)
        await lab.no_rules()


async def test_a_request_deleted_while_no_operator_ran_leaves_no_rule(served: ControlPlane, lab: Lab) -> None:
    async with an_operator(served):
        key = await lab.request(device="gpu-3")
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
    await lab.client.delete(DEVICE_MAINTENANCES, key)
    assert len(await lab.rules()) == 1
    async with an_operator(served):
        await lab.no_rules()


async def test_a_rule_is_not_swept_while_its_request_lives(served: ControlPlane, lab: Lab) -> None:
    """The rule is seen before the request: only a fresh read counts, not the order of two watches."""
    async with an_operator(served) as (operator, _):
        key = await lab.request(device="gpu-3")
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        uid = (await lab.client.get(DEVICE_MAINTENANCES, key)).metadata.uid
        (rule,) = await lab.rules()
        operator.view.maintenances.store.remove(key)  # as if its watch lagged behind
        operator.reconcilers["maintenance"].queue.add(uid)

        async def idle() -> bool:
            queue = operator.reconcilers["maintenance"].queue
            return not (queue.depth or queue.longest_running_s)

        await until(idle)
        assert [each.metadata.uid for each in await lab.rules()] == [rule.metadata.uid]


@pytest.mark.parametrize("finishes", [True, False])
async def test_of_two_requests_for_a_device_one_waits_for_the_other(
    served: ControlPlane, lab: Lab, finishes: bool
) -> None:
    async with an_operator(served):
        one = await lab.request("one", device="gpu-3")
        await lab.phase(one, MaintenancePhase.IN_MAINTENANCE)
        other = await lab.request("other", device="gpu-3")
        waits = await lab.phase(other, MaintenancePhase.ISOLATED)
        assert f"in maintenance for {one.name}" in waits.status.message
        assert len(await lab.rules()) == 2
        if finishes:
            await lab.finish(one)
        else:
            await lab.client.delete(DEVICE_MAINTENANCES, one)
        await lab.phase(other, MaintenancePhase.IN_MAINTENANCE)

        async def one_rule() -> bool:
            return len(await lab.rules()) == 1

        await until(one_rule, what="the rule of the first to go")
        (left,) = await lab.rules()
        assert maintenance_uid(left) == (await lab.client.get(DEVICE_MAINTENANCES, other)).metadata.uid


async def test_devices_that_vanish_keep_their_rule_and_new_ones_get_one(served: ControlPlane, lab: Lab) -> None:
    async with an_operator(served):
        key = await lab.request()
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await lab.client.delete(SLICES, ObjectKey("", lab.pool))
        await lab.client.create(SLICES, a_slice(lab.pool, ["gpu-8"], driver=lab.driver, name=lab.pool, generation=2))

        async def nine() -> bool:
            return len(await lab.rules()) == 9

        await until(nine)


async def test_objects_of_others_are_never_written(served: ControlPlane, lab: Lab) -> None:
    held = await lab.hold("train", "gpu-3")
    foreign = ObjectKey("", f"foreign-{lab.pool}")
    device_class = ObjectKey("", f"class-{lab.pool}")
    rule = a_rule(foreign.name, driver=lab.driver, pool=lab.pool, device="gpu-3")
    await lab.client.create(RULES, {"metadata": {"name": foreign.name}, "spec": as_json(rule.spec)})
    await lab.client.create(DEVICE_CLASSES, {"metadata": {"name": device_class.name}, "spec": {}})
    watched: list[tuple[Kind[Any], ObjectKey]] = [
        (CLAIMS, held),
        (RULES, foreign),
        (DEVICE_CLASSES, device_class),
        (SLICES, ObjectKey("", lab.pool)),
    ]
    before = [(await lab.client.get(kind, key)).metadata.resource_version for kind, key in watched]
    async with an_operator(served):
        key = await lab.request(device="gpu-3")
        await lab.phase(key, MaintenancePhase.ISOLATED)
        await lab.finish(key)
        await lab.phase(key, MaintenancePhase.COMPLETED)
    after = [(await lab.client.get(kind, key)).metadata.resource_version for kind, key in watched]
    assert before == after


async def was_current_a_moment_ago(_: Any) -> bool:
    """As if the object changed between read and write."""
    return True


def a_reconciler(client: Client, view: ClusterView) -> MaintenanceReconciler:
    clock = SystemClock()
    fleet = MaintenanceFleet(view)
    events = EventRecorder(client, controller="draco", instance="test", clock=clock)
    evictions, count = PodEvictions(client, clock=clock), OperatorMetrics().evictions
    return MaintenanceReconciler(
        client,
        view,
        settle_s=0.1,
        fleet=fleet,
        admission=MaintenanceAdmission(client, view, fleet),
        drains=PodDrains(view, events, evictions=evictions, count=count),
        jobs=MaintenanceJobs(client, view, fleet, namespace="draco-system", permitted=False),
        events=events,
    )


async def test_a_replica_that_lives_in_the_past_does_not_overwrite_a_newer_status(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a leader was suspended, lost its lease, and has not noticed yet."""
    key = await lab.request(device="gpu-3")
    view = ClusterView(lab.client, RULES, clock=SystemClock())
    reconciler = a_reconciler(lab.client, view)
    past = await lab.client.get(DEVICE_MAINTENANCES, key)
    view.maintenances.store.put(past)
    newer = {"status": {"phase": "InMaintenance", "message": "said by the new leader"}}
    await lab.client.patch(DEVICE_MAINTENANCES, key, newer, subresource="status")
    await reconciler.reconcile(past.metadata.uid)
    assert (await lab.client.get(DEVICE_MAINTENANCES, key)).status.message == "said by the new leader"
    found = view.maintenances.store.get(key)
    assert found is not None
    assert found.status.message == "said by the new leader"
    view.maintenances.store.put(past)
    monkeypatch.setattr(view.maintenances, "is_current", was_current_a_moment_ago)
    with pytest.raises(Conflict):
        await reconciler.reconcile(past.metadata.uid)
    assert (await lab.client.get(DEVICE_MAINTENANCES, key)).status.message == "said by the new leader"


async def test_a_rule_made_anew_under_its_name_is_not_deleted_for_the_one_before(lab: Lab) -> None:
    view = ClusterView(lab.client, RULES, clock=SystemClock())
    made = await lab.client.create(RULES, rule_for(a_maintenance(), DeviceKey(lab.driver, lab.pool, "gpu-3")))
    past = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, uid="an-earlier-one"))
    view.rules.store.put(past)
    try:
        await a_reconciler(lab.client, view).reconcile(maintenance_uid(past))
        assert (await lab.client.get(RULES, made.metadata.key)).metadata.uid == made.metadata.uid
    finally:
        await lab.client.delete(RULES, made.metadata.key)


async def test_without_the_api_the_request_says_what_to_do(served: ControlPlane, lab: Lab) -> None:
    async with an_operator(served, without_taint_rules=True) as (operator, _):
        key = await lab.request(device="gpu-3")
        pending = await lab.phase(key, MaintenancePhase.PENDING)
        assert operator.metrics.registry.get_sample_value("draco_missing_feature", {"feature": "DeviceTaintRule"}) == 1
    isolated = next(each for each in pending.status.conditions if each.type == "Isolated")
    assert (isolated.status, isolated.reason) == ("False", "DeviceTaintRuleNotServed")
    assert "enable the feature gate DRADeviceTaintRules" in pending.status.message
    assert await lab.rules() == []


ISOLATING = [(MaintenancePhase.IN_MAINTENANCE, n) for n in range(1, 9)]  # two rules, three statuses of two requests
RETURNING = [(MaintenancePhase.COMPLETED, n) for n in range(1, 7)]  # two rules, two statuses of two requests


@pytest.mark.parametrize(("dies_before", "writes"), ISOLATING + RETURNING)
async def test_an_operator_that_dies_after_any_write_leaves_nothing_undone(
    served: ControlPlane, lab: Lab, dies_before: MaintenancePhase, writes: int
) -> None:
    one, other = await lab.request("one", device="gpu-3"), await lab.request("other", device="gpu-5")
    for phase, rules in ((MaintenancePhase.IN_MAINTENANCE, 2), (MaintenancePhase.COMPLETED, 0)):
        if phase is MaintenancePhase.COMPLETED:
            await lab.finish(one)
            await lab.finish(other)
        if phase is dies_before:
            async with an_operator(served, dies_after_writes=writes) as (_, operating):
                await asyncio.wait({operating}, timeout=60)
                assert operating.done(), f"there are less than {writes} writes on the way to {phase}"
        async with an_operator(served):
            await both(lab, one, other, phase)
        assert len(await lab.rules()) == rules


async def both(lab: Lab, one: ObjectKey, other: ObjectKey, phase: MaintenancePhase) -> None:
    await lab.phase(one, phase)
    await lab.phase(other, phase)


async def test_the_device_comes_back_through_garbage_collection_when_no_operator_runs(
    control_plane: ControlPlane, lab: Lab
) -> None:
    async with an_operator(control_plane):
        key = await lab.request(device="gpu-3")
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
    assert len(await lab.rules()) == 1
    await lab.client.delete(DEVICE_MAINTENANCES, key)
    await lab.no_rules(within_s=90)  # the garbage collector discovers new kinds, as Draco's may be, only every 30 s


async def test_each_change_of_the_phase_is_one_event_also_over_a_restart(served: ControlPlane, lab: Lab) -> None:
    async def said(key: ObjectKey, *reasons: str) -> None:
        async def look() -> bool:
            events = await lab.client.list(EVENTS, namespace=CLUSTER_EVENTS_NAMESPACE)
            found = [(each.reason, each.type, each.series) for each in events if name_of(each) == key.name]
            assert len(found) <= len(reasons)
            return sorted(found) == sorted((reason, "Normal", None) for reason in reasons)

        await until(look, what=f"Events {reasons}")

    busy = await lab.hold("train", "gpu-3")
    async with an_operator(served):
        key = await lab.request(device="gpu-3")
        await lab.phase(key, MaintenancePhase.ISOLATED)
        await said(key, "Rehearsed", "Isolated")
    async with an_operator(served):
        await lab.let_go(busy)
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await lab.finish(key)
        await lab.phase(key, MaintenancePhase.COMPLETED)
        await said(key, "Rehearsed", "Isolated", "InMaintenance", "Verifying", "Completed")
