"""When the allocation of an idle claim may be released."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from draco.mig_policy.release_policy import IdleClaim, ReleaseDelays, ReleaseObstacle, obstacle, prepared_on, users
from draco.resources.api.claims import AllocatedDeviceStatus, ResourceClaim
from draco.resources.api.core import PodStatus
from draco.resources.api.draco import GpuMig, GpuNode, IdleClaims, InstanceUse
from draco.resources.api.meta import Condition, ObjectKey
from tests.builders import a_mig_instance, a_mig_node, a_pod
from tests.mig_claims import a_mig_claim

PATIENCE = ReleaseDelays(grace_s=60, rest_s=600)
CLAIM = a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0")


def an_idle_claim(**fields: Any) -> IdleClaim:
    known: dict[str, Any] = {"claim": CLAIM, "policy": "dynamic", "permit": IdleClaims.RELEASE, "idle_s": 60.0}
    return IdleClaim(**(known | fields))


def a_node_with(use: InstanceUse, claim: str = "", device: str = "") -> GpuNode:
    instance = a_mig_instance("1g.10gb@0", use=use, claim=claim, device=device)
    return a_mig_node(gpus=[None, GpuMig(instances=[instance])])


def reported(status: str) -> ResourceClaim:
    """The claim, with its driver's status of the device."""
    (held,) = CLAIM.devices_held
    ready = Condition(type="Ready", status=status, reason="Prepared", message="")
    device = AllocatedDeviceStatus(driver=held.driver, pool=held.pool, device=held.device, conditions=[ready])
    return msgspec.structs.replace(CLAIM, status=msgspec.structs.replace(CLAIM.status, devices=[device]))


def test_a_claim_that_has_been_idle_long_enough_may_go() -> None:
    assert obstacle(an_idle_claim(), PATIENCE) is None
    assert obstacle(an_idle_claim(released_s=600.0), PATIENCE) is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"permit": IdleClaims.KEEP}, ReleaseObstacle(text="MigPolicy dynamic keeps idle claims")),
        (
            {"claim": a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0", used=True)},
            ReleaseObstacle(text="it is not idle any more"),
        ),
        ({"claim": a_mig_claim("idle", "1g.10gb")}, ReleaseObstacle(text="it is not idle any more")),
        ({"prepared_on": "node-7"}, ReleaseObstacle(text="it is still prepared on node node-7")),
        ({"users": [ObjectKey("ml", "train")]}, ReleaseObstacle(text="pod ml/train is about to use it")),
        ({"released_s": 590.0}, ReleaseObstacle(text="it was released less than 10 min ago", again_s=10.0)),
        ({"idle_s": 45.0}, ReleaseObstacle(text="it has been idle for less than 60 s", again_s=15.0)),
    ],
)
def test_each_obstacle_is_said_with_the_time_after_which_it_may_be_over(
    fields: dict[str, Any], expected: ReleaseObstacle
) -> None:
    assert obstacle(an_idle_claim(**fields), PATIENCE) == expected


def test_a_claim_that_is_being_deleted_stays() -> None:
    meta = msgspec.structs.replace(CLAIM.metadata, deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    deleting = msgspec.structs.replace(CLAIM, metadata=meta)
    assert obstacle(an_idle_claim(claim=deleting), PATIENCE) == ReleaseObstacle(text="it is being deleted")


def test_pods_that_have_ended_use_nothing() -> None:
    pods = [a_pod("waits"), a_pod("runs", node="node-0"), a_pod("done", status=PodStatus(phase="Succeeded"))]
    pods.append(a_pod("failed", status=PodStatus(phase="Failed")))
    assert users(pods) == (ObjectKey("default", "runs"), ObjectKey("default", "waits"))


def test_a_claim_is_prepared_where_an_instance_is_there_for_it() -> None:
    assert prepared_on(CLAIM, [a_mig_node("other"), a_node_with(InstanceUse.CLAIM, "default/idle")]) == "node-0"
    assert prepared_on(CLAIM, [a_node_with(InstanceUse.WARM)]) == ""


def test_a_place_that_another_prepared_claim_has_is_no_place_to_give() -> None:
    (held,) = CLAIM.devices_held
    assert prepared_on(CLAIM, [a_node_with(InstanceUse.CLAIM, "default/former", held.device)]) == "node-0"
    assert prepared_on(CLAIM, [a_node_with(InstanceUse.WARM, device=held.device)]) == ""
    elsewhere = a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0", node="node-1")
    assert prepared_on(elsewhere, [a_node_with(InstanceUse.CLAIM, "default/former", held.device)]) == ""


def test_a_claim_is_prepared_as_long_as_its_driver_says_that_a_device_is_ready() -> None:
    assert prepared_on(reported("True"), []) == "node-0"
    assert prepared_on(reported("False"), []) == ""
