"""Which nodes a change of a claim or a request wakes: a fleet has many of both, and each concerns one node."""

from typing import cast

import msgspec

from draco.controller.gpu_nodes.reconciler import GpuNodeReconciler
from draco.controller.sharing.decisions import SharingDecisions
from draco.kube.connect.client import Client
from draco.resources.api.claims import ResourceClaim, ResourceClaimStatus
from draco.resources.api.maintenance import CONDITION_WORKED, DeviceMaintenance
from draco.resources.api.meta import Condition
from draco.resources.api.sharing import SharingPolicy, SharingPolicyStatus
from draco.resources.names import LABEL_REMEDIATES
from tests.builders import a_claim, a_maintenance, a_sharing_policy, as_shares
from tests.unit.controller.mig.test_mig_decisions import World, a_fleet


def woken(world: World, *states: ResourceClaim | DeviceMaintenance | SharingPolicy) -> list[str]:
    """The nodes that the changes of a claim or a request wake."""
    keys: list[str] = []
    GpuNodeReconciler(
        cast("Client", None), world.view, world.decisions, world.health, sharing=SharingDecisions(world.view)
    ).subscribe(keys.append)
    keys.clear()
    world.put(*states)
    return keys


def test_an_allocation_concerns_its_own_node_only() -> None:
    claim = a_claim(on=["node-1/gpu-0-mig-1g10gb-19-2"])
    pending = msgspec.structs.replace(claim, status=ResourceClaimStatus())
    assert woken(a_fleet(3), claim) == ["node-1"]
    assert woken(a_fleet(3), pending, claim, pending) == ["node-1", "node-1"]


def test_what_is_said_of_a_claim_that_keeps_its_devices_concerns_none() -> None:
    claim = a_claim(on=["node-1/gpu-0-mig-1g10gb-19-2"])
    reserved = a_claim(on=["node-1/gpu-0-mig-1g10gb-19-2"], reserved_for=["user"])
    assert woken(a_fleet(3), claim, reserved, claim) == ["node-1"]


def test_who_only_looks_at_a_device_concerns_none() -> None:
    assert woken(a_fleet(3), a_claim(on=["node-1/gpu-0-mig-1g10gb-19-2"], admin_access=True)) == []


def test_a_repair_concerns_its_node_from_the_moment_its_jobs_have_succeeded() -> None:
    made = a_maintenance("repair", pool="node-1", device="gpu-0")
    meta = msgspec.structs.replace(made.metadata, labels={LABEL_REMEDIATES: "policy-uid"})
    at_work = msgspec.structs.replace(made, metadata=meta)
    conditions = [Condition(type=CONDITION_WORKED, status="True")]
    worked = msgspec.structs.replace(at_work, status=msgspec.structs.replace(made.status, conditions=conditions))
    assert woken(a_fleet(3), at_work) == ["node-1"]
    assert woken(a_fleet(3), at_work, worked) == ["node-1", "node-1"]


def test_a_sharing_policy_concerns_every_node_until_only_its_status_changes() -> None:
    policy = a_sharing_policy()
    said = msgspec.structs.replace(policy, status=SharingPolicyStatus(message="Said."))
    assert sorted(woken(a_fleet(3), policy, said)) == ["node-0", "node-1", "node-2"]


def test_a_device_that_a_claim_has_as_a_share_now_concerns_its_node() -> None:
    """kube-scheduler may allocate the same device again, in another form, between two looks."""
    alone = a_claim(on=["node-1/gpu-0"])
    assert woken(a_fleet(3), alone, as_shares(alone, "s1")) == ["node-1", "node-1"]
