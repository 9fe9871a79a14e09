"""Maintenance beside other events: a paused budget under a new leader, a lost agent, a replaced board."""

from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter

from draco.controller.evictions import PodEvictions
from draco.controller.maintenance.budgets import KEY, MaintenanceAdmission
from draco.controller.maintenance.draining import PodDrains
from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.maintenance.jobs import MaintenanceJobs
from draco.controller.maintenance.reconciler import MaintenanceReconciler
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.kube.watch.watching import Removal
from draco.maintenance.budgets.admission import StartCandidate
from draco.maintenance.progress import JobsState, Purpose
from draco.maintenance.selecting.fleet import PhysicalGpu
from draco.maintenance.taint_rules import fence_for, rule_for
from draco.maintenance.working.jobs import JobTarget, job_name
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import PodStatus
from draco.resources.api.draco import GpuNode
from draco.resources.api.jobs import CronJob, CronJobSpec, Job
from draco.resources.api.maintenance import (
    DeviceMaintenance,
    DrainPolicy,
    MaintainedDevice,
    MaintenanceBudget,
    MaintenanceBudgetSpec,
    MaintenanceDrain,
    MaintenancePhase,
    MaintenanceVerification,
    MaintenanceWork,
    VerificationMode,
)
from draco.resources.api.meta import Condition, ObjectKey, ObjectMeta
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule, DeviceToleration
from draco.resources.kinds import CLAIMS, CRON_JOBS, DEVICE_MAINTENANCES, JOBS, TAINT_RULES, Kind
from draco.resources.names import ATTRIBUTE_ALLOCATOR, NVIDIA_DRIVER
from tests.builders import (
    MOMENT,
    a_claim,
    a_device_class,
    a_device_key,
    a_gpu_node,
    a_maintenance,
    a_node,
    a_pod,
    a_slice,
)
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import forget, tell

GPU, GPU_1 = a_device_key("node-0/gpu-0"), a_device_key("node-0/gpu-1")


def a_serving_node() -> GpuNode:
    """The GpuNode of an agent that publishes."""
    node = a_gpu_node("node-0")
    published = [Condition(type="Published", status="True")]
    return msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, driver_version="570", conditions=published)
    )


class Server:
    """An API server that returns the request as watched, and records how pods are made to leave."""

    def __init__(self, request: DeviceMaintenance) -> None:
        self.request = request
        self.made_to_leave: list[str] = []

    async def get(self, _: Any, __: ObjectKey) -> DeviceMaintenance:
        return self.request

    async def list(self, kind: Kind[Any], **_: Any) -> list[Any]:
        return [self.request] if kind is DEVICE_MAINTENANCES else []

    async def create_subresource(self, _: Any, key: ObjectKey, *__: Any, dry_run: bool) -> None:
        assert not dry_run
        self.made_to_leave.append(f"evicted {key}")

    async def apply(self, _: Any, __: ObjectKey, body: Any, **___: Any) -> Any:
        if isinstance(body, DeviceTaintRule) and body.spec.taint.effect == "NoExecute":
            self.made_to_leave.append("NoExecute")
        return self.request

    def record(self, *_: Any, **__: Any) -> None:
        """Record an Event."""


class Lab:
    """A request that drains a GPU of class h100, and an operator that knows it but has not counted budgets yet."""

    def __init__(self, *, paused: bool) -> None:
        made = a_maintenance(
            phase=MaintenancePhase.DRAINING,
            driver=NVIDIA_DRIVER,
            pool="node-0",
            device="gpu-0",
            devices=["node-0/gpu-0"],
        )
        spec = msgspec.structs.replace(made.spec, drain=MaintenanceDrain(policy=DrainPolicy.NO_EXECUTE))
        begun = msgspec.structs.replace(made.status, isolated_at=MOMENT, draining_at=MOMENT)
        self.request = msgspec.structs.replace(made, spec=spec, status=begun)
        self.server = Server(self.request)
        clock = self.clock = ManualClock(MOMENT + timedelta(hours=1))
        client, events = cast("Client", self.server), cast("EventRecorder", self.server)
        view = ClusterView(client, TAINT_RULES[0], clock=clock)
        self.view = view
        fleet = MaintenanceFleet(view)
        self.admission = MaintenanceAdmission(client, view, fleet)
        self.reconciler = MaintenanceReconciler(
            client,
            view,
            settle_s=0.1,
            fleet=fleet,
            admission=self.admission,
            drains=PodDrains(
                view,
                events,
                evictions=PodEvictions(client, clock=clock),
                count=Counter("evicted", "Evicted.", ["outcome"], registry=CollectorRegistry()),
            ),
            jobs=MaintenanceJobs(client, view, fleet, namespace="draco-system", permitted=False),
            events=events,
        )
        claim = a_claim("claim", on=["node-0/gpu-0"], reserved_for=["pod"])
        pod = a_pod("pod", node="node-0", claims=["claim"], status=PodStatus(phase="Running"))
        self.limit("h100", paused=paused)
        view.rules.store.put(rule_for(self.request, GPU))
        tell(
            view,
            a_serving_node(),
            a_node("node-0"),
            self.request,
            a_slice("node-0", ["gpu-0"]),
            a_device_class("h100"),
            claim,
            pod,
        )

    def limit(self, device_class: str, *, paused: bool) -> None:
        """Set the spec of the only budget."""
        spec = MaintenanceBudgetSpec(device_class_name=device_class, paused=paused)
        self.view.budgets.store.put(MaintenanceBudget(metadata=ObjectMeta(name="limit", uid="1"), spec=spec))


@pytest.mark.parametrize("paused", [True, False])
async def test_nobody_is_made_to_leave_before_it_is_known_what_paused_budgets_are_about(paused: bool) -> None:
    lab = Lab(paused=paused)
    await lab.reconciler.reconcile(lab.request.metadata.uid)
    assert lab.server.made_to_leave == ([] if paused else ["NoExecute"])
    await lab.admission.reconcile(KEY)
    lab.server.made_to_leave.clear()
    await lab.reconciler.reconcile(lab.request.metadata.uid)
    assert lab.server.made_to_leave == ([] if paused else ["NoExecute"])


async def test_a_budget_that_is_paused_for_another_class_than_before_is_not_taken_for_what_it_was() -> None:
    lab = Lab(paused=False)
    lab.limit("none-has-it", paused=False)
    await lab.admission.reconcile(KEY)
    for device_class in ("h100", "none-has-it"):
        lab.limit(device_class, paused=True)
        await lab.reconciler.reconcile(lab.request.metadata.uid)
        assert lab.server.made_to_leave == []
        await lab.clock.advance(1.0)
        await lab.admission.reconcile(KEY)
        await lab.reconciler.reconcile(lab.request.metadata.uid)
        assert lab.server.made_to_leave == ([] if device_class == "h100" else ["NoExecute"])


@pytest.mark.parametrize("served", [True, False])
async def test_rules_that_are_served_no_more_count_where_a_status_names_them(served: bool) -> None:
    """The API server was restarted with other flags, and then the operator: the rules still exist."""
    over = a_maintenance("over", phase=MaintenancePhase.COMPLETED, pool="node-0", device="gpu-1")
    left = MaintainedDevice(**GPU_1._asdict(), rule="draco-maintenance-gpu-1")
    over = msgspec.structs.replace(over, status=msgspec.structs.replace(over.status, devices=[left]))
    clock, client = ManualClock(MOMENT), cast("Client", Server(over))
    view = ClusterView(client, TAINT_RULES[0] if served else None, clock=clock)
    admission = MaintenanceAdmission(client, view, MaintenanceFleet(view))
    spec = MaintenanceBudgetSpec(max_devices=1)
    view.budgets.store.put(MaintenanceBudget(metadata=ObjectMeta(name="one", uid="1"), spec=spec))
    tell(view, over, a_slice("node-0", ["gpu-0", "gpu-1"]))
    gpus = frozenset({PhysicalGpu(*GPU)})
    candidate = StartCandidate(uid="next", name="next", age=(False, 0.0, "next"), gpus=gpus)
    admission.ask(candidate)
    admission.looked_at("next")
    await admission.reconcile(KEY)
    waiting = admission.answer(candidate)
    assert (waiting and waiting.reason) == (None if served else "BudgetUsedUp")


def test_what_waits_and_names_no_pool_is_not_looked_at_for_every_claim_of_the_fleet() -> None:
    """Each look goes through the whole fleet, which takes a second if it is large. A look from time to time is enough."""
    lab, woken = Lab(paused=False), list[str]()
    wide = a_maintenance("wide", phase=MaintenancePhase.REHEARSED, device="gpu-0")
    narrow = a_maintenance("narrow", phase=MaintenancePhase.REHEARSED, pool="node-0", device="gpu-0")
    tell(lab.view, wide, narrow)
    lab.reconciler.subscribe(woken.append)
    woken.clear()
    tell(lab.view, a_claim("another", on=["node-0/gpu-0"]))
    assert sorted(woken) == sorted([narrow.metadata.uid, lab.request.metadata.uid])
    woken.clear()
    tell(lab.view, a_claim("tolerant", tolerations=[DeviceToleration(operator="Exists")]))
    assert woken == [lab.request.metadata.uid]
    woken.clear()
    tell(lab.view, a_slice("node-1", ["gpu-0"]))
    assert woken == [wide.metadata.uid]


def said_by_agents(lab: Lab) -> tuple[str, ...]:
    """The nodes whose agents' reports are not trusted."""
    agents = lab.reconciler._snapshots.read(lab.request, None).agents
    assert agents is not None
    return agents.silent


async def test_a_lost_agent_is_not_believed_until_it_is_back() -> None:
    """Its last report is from before it was lost, and maybe from before the work."""
    lab, woken = Lab(paused=False), list[str]()
    lab.reconciler.subscribe(woken.append)
    assert said_by_agents(lab) == ()
    fence = fence_for(a_gpu_node("node-0"), GPU.pool_key)
    tell(lab.view, fence)
    assert said_by_agents(lab) == ("node-0",)
    woken.clear()
    lab.view.rules.apply(Removal(fence.metadata.key))
    assert woken == [lab.request.metadata.uid]
    assert said_by_agents(lab) == ()


@pytest.mark.parametrize(
    ("published", "verified"),
    [
        ({"gpu-0": "GPU-old"}, "GPU-old"),
        ({"gpu-0": "GPU-new"}, "GPU-new"),
        ({"gpu-0": "GPU-new", "gpu-1": "GPU-old"}, "GPU-old"),
        ({}, "GPU-old"),
    ],
)
def test_of_a_board_that_was_replaced_the_new_one_is_verified(published: dict[str, str], verified: str) -> None:
    """No claim would ever get the old one. Drivers of other vendors give the new board the same name."""
    lab = JobLab()
    lab.publish(published)
    for purpose, uuid in ((Purpose.VERIFICATION, verified), (Purpose.WORK, "GPU-old")):
        assert lab.look(purpose).missing == (job_name(lab.request, purpose, JobTarget(GPU, uuid)),)


async def test_a_board_that_is_replaced_while_its_job_is_about_to_be_made_gets_none_under_the_old_ones_name() -> None:
    lab = JobLab()
    lab.publish({"gpu-0": "GPU-old"})
    seen = lab.look(Purpose.VERIFICATION)
    lab.publish({"gpu-0": "GPU-new"})
    await lab.jobs.make(lab.request, Purpose.VERIFICATION, seen)
    assert lab.made == []
    await lab.jobs.make(lab.request, Purpose.VERIFICATION, lab.look(Purpose.VERIFICATION))
    new = job_name(lab.request, Purpose.VERIFICATION, JobTarget(GPU, "GPU-new"))
    assert [(kind, body["metadata"]["name"]) for kind, body in lab.made] == [(CLAIMS, new), (JOBS, new)]


async def test_the_claim_by_which_a_board_was_verified_is_the_requests_own_after_others_took_its_name() -> None:
    """It belongs to nobody else, so the devices do not count as in use, and it is deleted with the Jobs."""
    lab = JobLab()
    lab.publish({"gpu-0": "GPU-first"})
    await lab.jobs.make(lab.request, Purpose.VERIFICATION, lab.look(Purpose.VERIFICATION))
    claim = msgspec.convert(lab.made[0][1], ResourceClaim)
    stranger = msgspec.structs.replace(claim.metadata, name="strange", namespace="default")
    tell(lab.view, claim, msgspec.structs.replace(claim, metadata=stranger))
    lab.publish({"gpu-0": "GPU-second"})
    assert lab.jobs.own_claims(lab.request) == {claim.metadata.key}
    await lab.jobs.stop(lab.request)
    assert lab.deleted == [claim.metadata.key]


async def test_a_claim_that_waits_is_made_again_when_its_gpu_is_handed_over_to_draco_meanwhile() -> None:
    """With a class that only kube-scheduler allocates, it would wait forever."""
    lab = JobLab()
    lab.publish({"gpu-0": "GPU-old"})
    first = await lab.made_for_verification()
    assert [each.exactly and each.exactly.device_class_name for each in first.spec.devices.requests] == ["gpus"]
    assert lab.look(Purpose.VERIFICATION).claimless == ()
    lab.publish({"gpu-0": "GPU-old"}, handed_over=True)
    assert lab.look(Purpose.VERIFICATION).claimless == (first.metadata.name,)
    await lab.jobs.make(lab.request, Purpose.VERIFICATION, lab.look(Purpose.VERIFICATION))
    assert (lab.deleted, len(lab.made)) == ([first.metadata.key], 2), "its name is taken until it is gone"
    forget(lab.view, first)
    assert lab.look(Purpose.VERIFICATION).claimless == (first.metadata.name,)
    await lab.jobs.make(lab.request, Purpose.VERIFICATION, lab.look(Purpose.VERIFICATION))
    kind, body = lab.made[-1]
    assert (kind, body["metadata"]["name"]) == (CLAIMS, first.metadata.name)
    assert body["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "gpu.draco.dev"
    assert [kind for kind, _ in lab.made] == [CLAIMS, JOBS, CLAIMS], "the Job is the same"


async def test_a_claim_that_has_its_gpu_stays_when_that_is_handed_over() -> None:
    lab = JobLab()
    lab.publish({"gpu-0": "GPU-old"})
    first = await lab.made_for_verification()
    allocated = a_claim("any", on=["node-0/gpu-0"]).status
    tell(lab.view, msgspec.structs.replace(first, status=allocated))
    lab.publish({"gpu-0": "GPU-old"}, handed_over=True)
    assert lab.look(Purpose.VERIFICATION).claimless == ()


async def test_a_gpu_that_a_person_tainted_waits_for_that_person_and_says_so() -> None:
    lab = JobLab()
    lab.publish({"gpu-0": "GPU-old"}, taint="example.com/by-hand")
    await lab.jobs.make(lab.request, Purpose.VERIFICATION, lab.look(Purpose.VERIFICATION))
    assert lab.made == []
    assert "has the taint example.com/by-hand:NoSchedule" in lab.look(Purpose.VERIFICATION).trouble
    lab.publish({"gpu-0": "GPU-old"})
    await lab.made_for_verification()
    lab.publish({"gpu-0": "GPU-old"}, taint="example.com/by-hand")
    waits = lab.look(Purpose.VERIFICATION)
    assert (waits.claimless, "example.com/by-hand" in waits.trouble) == ((), True)


async def test_a_waiting_claim_of_a_job_holds_up_no_request_for_other_hardware() -> None:
    """It tolerates the maintenance taint, and asks for one GPU by its UUID."""
    lab = JobLab()
    lab.publish({"gpu-0": "GPU-old"})
    claim = await lab.made_for_verification()
    other = a_device_key("node-0/gpu-1")
    assert lab.jobs.never_take([claim.metadata.key], {other}) == {claim.metadata.key}
    assert lab.jobs.never_take([claim.metadata.key], {GPU, other}) == frozenset()
    stranger = msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, namespace="tenant"))
    tell(lab.view, stranger)
    assert lab.jobs.never_take([stranger.metadata.key], {other}) == frozenset()


class JobLab:
    """A request that verifies, with a Job, a GPU whose board was GPU-old when it was isolated."""

    def __init__(self) -> None:
        client, clock = cast("Client", self), ManualClock()
        self.made: list[tuple[Kind[Any], dict[str, Any]]] = []
        self.deleted: list[ObjectKey] = []
        self.view = ClusterView(client, None, clock=clock)
        fleet = MaintenanceFleet(self.view)
        self.jobs = MaintenanceJobs(client, self.view, fleet, namespace="draco-system", permitted=True)
        for each in (self.jobs._jobs, self.jobs._pods):
            each.synced.set()
        made = a_maintenance(phase=MaintenancePhase.VERIFYING, devices=["node-0/gpu-0"], pool="node-0", device="gpu-0")
        device = msgspec.structs.replace(made.status.devices[0], uuid="GPU-old")
        by_job = MaintenanceVerification(mode=VerificationMode.JOB, from_cron_job="probe")
        self.request = msgspec.structs.replace(
            made,
            spec=msgspec.structs.replace(made.spec, verification=by_job, work=MaintenanceWork(from_cron_job="reset")),
            status=msgspec.structs.replace(made.status, devices=[device]),
        )
        operators = a_device_class("gpu.draco.dev")
        operators.metadata.labels["draco.dev/allocator"] = "operator"
        tell(self.view, self.request, a_node("node-0"), a_device_class("gpus"), operators)

    def publish(self, boards: dict[str, str], *, handed_over: bool = False, taint: str = "") -> None:
        devices = [a_gpu(name, uuid) for name, uuid in boards.items()]
        for each in devices:
            if handed_over:
                each.attributes[ATTRIBUTE_ALLOCATOR] = DeviceAttribute(string="operator")
            each.taints.extend(DeviceTaint(key=key, effect="NoSchedule") for key in [taint] if key)
        tell(self.view, a_slice("node-0", devices))

    async def made_for_verification(self) -> ResourceClaim:
        """Create the claim and its Job; returns the claim."""
        await self.jobs.make(self.request, Purpose.VERIFICATION, self.look(Purpose.VERIFICATION))
        (_, claim), (_, job) = self.made
        found = msgspec.convert(claim, ResourceClaim)
        tell(self.view, found)
        self.jobs._jobs.store.put(msgspec.convert(job, Job, strict=False))
        return found

    def look(self, purpose: Purpose) -> JobsState:
        state = self.jobs.look(self.request, purpose)
        assert state is not None
        return state

    async def get(self, kind: Kind[Any], key: ObjectKey) -> Any:
        if kind is not CRON_JOBS:
            return self.request
        meta = ObjectMeta(name=key.name, namespace=key.namespace, annotations={"draco.dev/device-class": "gpus"})
        return CronJob(metadata=meta, spec=CronJobSpec(suspend=True))

    async def create(self, kind: Kind[Any], body: dict[str, Any]) -> None:
        self.made.append((kind, body))

    async def delete(self, _: Kind[Any], key: ObjectKey, **__: Any) -> None:
        self.deleted.append(key)


def a_gpu(name: str, uuid: str) -> Device:
    return Device(name=name, attributes={"uuid": DeviceAttribute(string=uuid)})
