"""Maintenance in a cluster without DeviceTaintRule: only the taints that agents publish isolate devices."""

from datetime import timedelta

import msgspec
import pytest

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.isolating.gpu_node_entries import isolated_gpus, not_heeded, not_reached
from draco.maintenance.plan import plan_maintenance
from draco.maintenance.plan_output import MaintenancePlan
from draco.maintenance.selecting.matching import isolated_boards, scope_of
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import GpuNode, GpuNodeSpec
from draco.resources.api.maintenance import (
    CONDITION_ISOLATED,
    Approval,
    DeviceMaintenance,
    DeviceMaintenanceStatus,
    MaintenancePhase,
    MaintenanceSelector,
    MaintenanceTaint,
)
from draco.resources.api.meta import Condition, ObjectMeta
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import NVIDIA_DRIVER, DeviceKey, PoolKey
from tests.builders import MOMENT, a_claim, a_gpu_node, a_maintenance, a_slice

POOL = PoolKey(NVIDIA_DRIVER, "node-1")
GPU_0 = DeviceKey(*POOL, "gpu-0")


class Cluster:
    """One node with an agent, one request for gpu-0, and an operator that plans and writes when the test says so."""

    def __init__(self) -> None:
        self.now = MOMENT
        self.boards = {"gpu-0": "GPU-a", "gpu-1": "GPU-b"}
        self.published = PoolHardware([])
        self.claims: list[ResourceClaim] = []
        made = a_maintenance("swap-fan", driver=POOL.driver, pool=POOL.pool, device="gpu-0")
        self.request = msgspec.structs.replace(made, status=type(made.status)())
        node = a_gpu_node("node-1")
        self.node: GpuNode | None = msgspec.structs.replace(
            node,
            metadata=ObjectMeta(name="node-1"),
            status=msgspec.structs.replace(node.status, isolates=True),
        )
        self.publish()

    def publish(self) -> None:
        """The agent reads its GpuNode and publishes."""
        isolated = {each.uuid: each.taint for each in self.node.spec.isolated} if self.node else {}
        devices = [
            Device(
                name=name,
                attributes={"uuid": DeviceAttribute(string=uuid)},
                taints=[isolated[uuid]] if uuid in isolated else [],
            )
            for name, uuid in self.boards.items()
        ]
        self.published = PoolHardware([a_slice("node-1", devices)] if devices else [])

    def write_node(self) -> None:
        """The operator writes the GpuNode."""
        assert self.node is not None
        there = isolated_gpus(self.request, POOL, self.published, [], self.node.spec.isolated)
        self.node = msgspec.structs.replace(self.node, spec=GpuNodeSpec(isolated=there))

    def reconcile(self) -> MaintenancePlan:
        """The operator plans and writes the status."""
        pools = {POOL: self.published}
        nodes = {POOL: self.node} if self.node else {}
        held = {device for claim in self.claims for device in claim.devices_held}
        scope = scope_of(self.request.spec.device_selector, pools, held, isolated_boards(self.request, []))
        informed = (
            ("node-1",) if self.node and any(each.request == "swap-fan" for each in self.node.spec.isolated) else ()
        )
        plan = plan_maintenance(
            self.request,
            MaintenanceSnapshot(
                now=self.now,
                scope=scope,
                claims=tuple(self.claims),
                rules_served=False,
                unheeded=tuple(not_heeded(self.request, scope, pools, nodes)),
                beyond=tuple(not_reached(self.request, scope, pools, nodes)),
                informed=informed,
            ),
        )
        if plan.status is not None:
            self.request = msgspec.structs.replace(self.request, status=plan.status)
        assert not plan.apply
        assert not plan.delete
        return plan

    def change(self, **fields: object) -> None:
        spec = msgspec.structs.replace(self.request.spec, **fields)
        self.request = msgspec.structs.replace(self.request, spec=spec)

    def settle(self) -> None:
        """Everybody does what is pending, and time passes."""
        for _ in range(3):
            self.write_node()
            self.publish()
            self.reconcile()
            self.now += timedelta(seconds=60)

    def is_in(self, phase: MaintenancePhase) -> bool:
        return self.request.status.phase is phase

    @property
    def isolated(self) -> Condition:
        return next(each for each in self.request.status.conditions if each.type == CONDITION_ISOLATED)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def at_work(cluster: Cluster) -> Cluster:
    cluster.settle()
    assert cluster.is_in(MaintenancePhase.IN_MAINTENANCE)
    return cluster


def test_a_device_is_isolated_once_its_agent_publishes_it_with_the_taint(cluster: Cluster) -> None:
    cluster.reconcile()
    assert cluster.is_in(MaintenancePhase.REHEARSED)
    assert cluster.isolated.reason == "Isolating"
    assert "waiting for Draco's agent on node-1" in cluster.request.status.message
    cluster.write_node()
    cluster.reconcile()
    assert cluster.is_in(MaintenancePhase.REHEARSED)
    cluster.publish()
    assert cluster.reconcile().look_again == timedelta(seconds=2)
    assert cluster.is_in(MaintenancePhase.ISOLATED)
    cluster.now += timedelta(seconds=2)
    cluster.reconcile()
    assert cluster.is_in(MaintenancePhase.IN_MAINTENANCE)
    (device,) = cluster.request.status.devices
    assert (device.key, device.uuid, device.rule) == (GPU_0, "GPU-a", "")
    assert cluster.reconcile().empty


def test_a_request_begins_nothing_by_what_agents_were_told_of_another_one_of_its_name(at_work: Cluster) -> None:
    """`kubectl replace --force` makes such a request, before an operator has written the GpuNode."""
    meta = msgspec.structs.replace(at_work.request.metadata, uid="another")
    at_work.request = DeviceMaintenance(spec=at_work.request.spec, metadata=meta)
    at_work.change(approval=Approval.REQUIRED)
    plan = at_work.reconcile()
    assert (plan.empty, plan.look_again) == (True, timedelta(seconds=1))
    at_work.write_node()
    at_work.reconcile()
    assert at_work.is_in(MaintenancePhase.REHEARSED)
    assert at_work.isolated.reason == "NotApproved"
    at_work.change(approved=True)
    at_work.settle()
    assert at_work.is_in(MaintenancePhase.IN_MAINTENANCE)


def test_what_agents_were_told_outlasts_a_status_that_somebody_changed(at_work: Cluster) -> None:
    status = DeviceMaintenanceStatus(phase=MaintenancePhase.PENDING)
    at_work.request = msgspec.structs.replace(at_work.request, status=status)
    at_work.change(approval=Approval.REQUIRED)
    at_work.reconcile()
    assert at_work.request.status.isolated_at is not None


def test_work_waits_for_the_claims_that_hold_the_device(cluster: Cluster) -> None:
    cluster.claims = [a_claim("train", on=["node-1/gpu-0"])]
    cluster.settle()
    assert cluster.is_in(MaintenancePhase.ISOLATED)
    assert cluster.request.status.in_use == 1
    cluster.claims = []
    cluster.settle()
    assert cluster.is_in(MaintenancePhase.IN_MAINTENANCE)


def test_a_taint_that_goes_away_ends_the_promise_before_all_else(at_work: Cluster) -> None:
    assert at_work.node is not None
    at_work.node = msgspec.structs.replace(at_work.node, spec=GpuNodeSpec())
    at_work.publish()
    assert at_work.reconcile().status_first
    assert at_work.is_in(MaintenancePhase.REHEARSED)


def test_work_stops_while_a_node_has_no_gpunode_though_its_agent_keeps_the_taint(at_work: Cluster) -> None:
    gpu_node, at_work.node = at_work.node, None
    assert at_work.reconcile().status_first
    assert not at_work.is_in(MaintenancePhase.IN_MAINTENANCE)
    assert "waiting for Draco's agent on node-1 to publish the taint" in at_work.isolated.message
    at_work.node = gpu_node
    at_work.settle()
    assert at_work.is_in(MaintenancePhase.IN_MAINTENANCE)


def test_a_request_is_completed_once_no_agent_is_informed_of_it(at_work: Cluster) -> None:
    at_work.change(finished=True)
    plan = at_work.reconcile()
    assert plan.status_first
    assert at_work.is_in(MaintenancePhase.VERIFYING)
    assert "node-1" in at_work.request.status.message
    at_work.write_node()
    at_work.reconcile()
    assert at_work.is_in(MaintenancePhase.COMPLETED)
    at_work.publish()
    gpu = at_work.published.published_as("gpu-0")
    assert gpu is not None
    assert gpu.taints == []


def test_rules_that_are_served_no_more_may_still_be_there(at_work: Cluster) -> None:
    """An API server may run with other flags for a while: its rules must not be taken for deleted."""
    status = at_work.request.status
    named = [msgspec.structs.replace(each, rule="draco-maintenance-gpu-0") for each in status.devices]
    at_work.request = msgspec.structs.replace(at_work.request, status=msgspec.structs.replace(status, devices=named))
    at_work.settle()
    assert [each.rule for each in at_work.request.status.devices] == ["draco-maintenance-gpu-0"]
    at_work.change(finished=True)
    at_work.settle()
    assert at_work.is_in(MaintenancePhase.VERIFYING)
    assert at_work.request.status.message == (
        "Returning 1 device to service: 1 taint rule may be left, and the API server does not serve DeviceTaintRule now. "
        "Have it served again, or delete this request."
    )


def test_work_goes_on_while_the_node_reboots_and_publishes_nothing(at_work: Cluster) -> None:
    boards, at_work.boards = at_work.boards, {}
    at_work.settle()
    assert at_work.is_in(MaintenancePhase.IN_MAINTENANCE)
    assert [each.key for each in at_work.request.status.devices] == [GPU_0]
    at_work.boards = boards
    at_work.publish()
    at_work.reconcile()
    assert at_work.is_in(MaintenancePhase.IN_MAINTENANCE)


def test_another_board_under_the_name_is_isolated_too_and_said(at_work: Cluster) -> None:
    at_work.boards["gpu-0"] = "GPU-c"
    at_work.settle()
    assert at_work.node is not None
    assert {each.uuid for each in at_work.node.spec.isolated} == {"GPU-a", "GPU-c"}
    assert at_work.is_in(MaintenancePhase.ISOLATED)
    assert "was GPU-a when it was isolated and is GPU-c now" in at_work.request.status.message
    at_work.boards["gpu-0"] = "GPU-a"
    at_work.settle()
    assert at_work.is_in(MaintenancePhase.IN_MAINTENANCE)


def test_a_request_that_is_completed_on_another_board_says_so(at_work: Cluster) -> None:
    at_work.boards["gpu-0"] = "GPU-c"
    at_work.change(finished=True)
    at_work.settle()
    assert at_work.is_in(MaintenancePhase.COMPLETED)
    assert at_work.request.status.message.endswith(
        "returned to service. gpu-0 of node-1 is another board now: it was GPU-a when it was isolated and is GPU-c."
    )
    said = at_work.request.status.message
    at_work.settle()
    assert at_work.request.status.message == said


@pytest.mark.parametrize("agent", ["old", "none"])
def test_a_device_that_no_agent_would_taint_is_named_with_what_to_do(cluster: Cluster, agent: str) -> None:
    assert cluster.node is not None
    status = msgspec.structs.replace(cluster.node.status, isolates=False)
    cluster.node = msgspec.structs.replace(cluster.node, status=status) if agent == "old" else None
    cluster.reconcile()
    assert cluster.is_in(MaintenancePhase.PENDING)
    assert cluster.isolated.reason == "DeviceTaintRuleNotServed"
    assert cluster.request.status.message.startswith("No agent of Draco publishes gpu-0 of node-1")
    assert "enable the feature gate DRADeviceTaintRules" in cluster.request.status.message


def test_a_selector_that_moves_on_gives_the_first_device_back(at_work: Cluster) -> None:
    at_work.change(device_selector=MaintenanceSelector(driver=POOL.driver, pool=POOL.pool, device="gpu-1"))
    at_work.settle()
    assert at_work.is_in(MaintenancePhase.IN_MAINTENANCE)
    assert [each.device for each in at_work.request.status.devices] == ["gpu-1"]
    assert [each.taints for each in (at_work.published.published_as(name) for name in ("gpu-0", "gpu-1")) if each] == [
        [],
        [DeviceTaint(key="draco.dev/maintenance", effect="NoSchedule")],
    ]


def test_an_effect_that_keeps_nobody_off_isolates_nothing(cluster: Cluster) -> None:
    cluster.change(taint=MaintenanceTaint(effect="None"))
    cluster.settle()
    assert cluster.is_in(MaintenancePhase.PENDING)
    assert cluster.isolated.reason == "EffectNone"


def test_a_request_that_is_deleted_needs_nothing_but_its_nodes_written(at_work: Cluster) -> None:
    deleted = msgspec.structs.replace(at_work.request.metadata, deletion_timestamp=MOMENT)
    at_work.request = DeviceMaintenance(spec=at_work.request.spec, metadata=deleted, status=at_work.request.status)
    assert at_work.reconcile().empty
    at_work.write_node()
    assert at_work.node is not None
    assert at_work.node.spec.isolated == []
