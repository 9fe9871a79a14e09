"""What `draco status` warns about: pods of a machine, or a board, that has been replaced."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from draco.overview.snapshot import Snapshot
from draco.overview.status import status_of
from draco.resources.api.claims import AllocatedDeviceStatus, ResourceClaim
from draco.resources.api.draco import GpuStatus
from draco.resources.api.health import FaultFamily, GpuFaultStatus
from draco.resources.api.meta import Condition
from tests.builders import MOMENT, a_claim, a_gpu_node, a_node


def prepared(claim: ResourceClaim, *boards: str, at: datetime = MOMENT) -> ResourceClaim:
    """The claim as its agent reported it when preparing it: with the board of each of its devices."""
    ready = Condition(type="Ready", status="True", last_transition_time=at)
    entries = [
        AllocatedDeviceStatus(driver=one.driver, pool=one.pool, device=one.device, conditions=[ready], data=data)
        for one, board in zip(claim.results, boards, strict=True)
        for data in [{"version": 1, "uuid": board} if board else None]
    ]
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, devices=entries))


def named_again(*, made: datetime, boards: Sequence[GpuStatus] = (), ready: str = "True") -> dict[str, Any]:
    """A node that was created at `made`, and its agent's report."""
    node, gpu_node = a_node("node-7"), a_gpu_node("node-7", gpus=0)
    metadata = msgspec.structs.replace(node.metadata, creation_timestamp=made)
    status = msgspec.structs.replace(
        gpu_node.status, conditions=[Condition(type="Ready", status=ready)], gpus=list(boards)
    )
    return {
        "nodes": [msgspec.structs.replace(node, metadata=metadata)],
        "gpu_nodes": [msgspec.structs.replace(gpu_node, status=status)],
    }


BEFORE, AFTER = MOMENT - timedelta(days=1), MOMENT + timedelta(hours=1)
OLD, NEW = GpuStatus(device="gpu-0", uuid="GPU-old"), GpuStatus(device="gpu-0", uuid="GPU-new")
LOST = msgspec.structs.replace(OLD, faults=[GpuFaultStatus(family=FaultFamily.LOST, name="Absent")])
HELD = prepared(a_claim("train", on=["node-7/gpu-0"], reserved_for=["worker"]), "GPU-old")
EARLIER = (
    "Pod default/worker got GPU GPU-old of an earlier machine called node-7; another one has that name now. Delete it, by force "
    "if it does not end: `kubectl delete pod -n default worker --force --grace-period=0`."
)


@pytest.mark.parametrize("boards", [[NEW], [], [LOST, msgspec.structs.replace(NEW, device="gpu-2")]])
def test_a_pod_of_an_earlier_machine_is_named_with_what_to_do(boards: list[GpuStatus]) -> None:
    """Whatever the new machine has: other boards, none, or the disk of the earlier one, which remembers its boards."""
    assert status_of(Snapshot(claims=[HELD], **named_again(made=AFTER, boards=boards))).warnings == [EARLIER]


def test_a_pod_on_a_board_that_was_exchanged_is_named_with_what_to_do() -> None:
    (said,) = status_of(Snapshot(claims=[HELD], **named_again(made=BEFORE, boards=[NEW]))).warnings
    assert said.startswith(
        "Pod default/worker got GPU GPU-old as gpu-0 of node-7, which is GPU GPU-new now. Delete it, by"
    )


def test_pods_that_share_a_claim_are_named_together_and_a_partition_means_its_gpu() -> None:
    part = a_claim("parts", on=["node-7/gpu-0-mig-1g10gb-19-3"], reserved_for=["b-10", "b-9"])
    claim = prepared(part, "MIG-1")
    [entry] = claim.status.devices
    entry = msgspec.structs.replace(entry, data={"uuid": "MIG-1", "parentUUID": "GPU-old"})
    claim = msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, devices=[entry]))
    (said,) = status_of(Snapshot(claims=[claim], **named_again(made=BEFORE, boards=[NEW]))).warnings
    assert said.startswith("Pods default/b-9, default/b-10 got GPU GPU-old as gpu-0 of node-7"), said
    assert "Delete them, by force if they do not end: `kubectl delete pod -n default b-9 b-10 --force" in said


@pytest.mark.parametrize(
    ("claim", "node"),
    [
        (HELD, named_again(made=AFTER, boards=[OLD])),  # only the Node object was recreated; the machine is the same
        (HELD, named_again(made=BEFORE, boards=[LOST])),  # its agent says what to do about a lost board
        (HELD, named_again(made=BEFORE)),
        (HELD, named_again(made=AFTER, boards=[NEW], ready="Unknown")),  # nobody knows which boards are present
        (HELD, {"nodes": [a_node("node-7")]}),
        (prepared(a_claim("train", on=["node-7/gpu-0"]), "GPU-old"), named_again(made=AFTER, boards=[NEW])),
        (
            prepared(a_claim("train", on=["node-7/gpu-0"], reserved_for=["worker"]), ""),
            named_again(made=AFTER, boards=[NEW]),
        ),
    ],
)
def test_no_pod_is_said_to_be_left_over_unless_that_is_known(claim: ResourceClaim, node: dict[str, Any]) -> None:
    said = status_of(Snapshot(claims=[claim], **node)).warnings
    assert not [each for each in said if "kubectl delete pod" in each]
