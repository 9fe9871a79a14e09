"""Claims of partitions on simulated NVML: what is made for them, what is refused, what goes and what stays when they end."""

import json
from pathlib import Path
from typing import Any

import pytest

from draco.agent.errors import PrepareError
from draco.agent.holdings import Keeping
from draco.agent.instances import Use
from draco.resources.claims import ResourceClaim
from tests.builders import a_claim
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

ONE = a_mig_claim("one", *names([(9, 4)]))
TWO = a_mig_claim("two", *names([(9, 0), (19, 4)]))
WHOLE = a_claim("whole", on=["node-0/gpu-0"])


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    build(tmp_path)
    return MigNode(tmp_path)


def spec(node: MigNode, claim: ResourceClaim) -> Any:
    return json.loads(node.specs()[claim.metadata.uid])


# Preparing


def test_a_partition_is_made_where_it_was_allocated_and_given_with_the_nodes_that_open_it(node: MigNode) -> None:
    prepared = node.prepare(ONE)
    assert node.real() == [(9, 4, 1)]
    [made] = node.hardware().instances
    [device] = prepared.devices
    assert device.partition
    assert device.partition.uuid == made.compute[0].uuid
    [edits] = [one["containerEdits"] for one in spec(node, ONE)["devices"]]
    first = 3 + made.id * 9  # the driver's numbering: nine nodes for each GPU instance
    assert edits == {
        "env": [f"DRACO_DEVICE_GPU_0_MIG_3G40GB_9_4={made.compute[0].uuid}"],
        "deviceNodes": [
            {"path": "/dev/nvidia0"},
            {"path": f"/dev/nvidia-caps/nvidia-cap{first}"},
            {"path": f"/dev/nvidia-caps/nvidia-cap{first + 1}"},
        ],
    }


def test_the_largest_instance_of_a_claim_is_made_first(node: MigNode) -> None:
    node.prepare(a_mig_claim("mixed", *names([(19, 6), (14, 4), (9, 0)])))
    assert node.real() == [(9, 0, 1), (14, 4, 1), (19, 6, 1)]


def test_preparing_again_makes_nothing_more(node: MigNode) -> None:
    first = node.prepare(TWO)
    assert node.prepare(TWO) == first
    assert len(node.real()) == 2


def test_partitions_that_share_units_are_never_given_to_two_claims(node: MigNode) -> None:
    node.prepare(TWO)
    with pytest.raises(PrepareError, match="gpu-0-mig-1g10gb-19-4 is still prepared for claim default/two"):
        node.prepare(ONE)
    node.unprepare(TWO)
    node.prepare(ONE)
    assert node.real() == [(9, 4, 1)]


def test_partitions_beside_each_other_are(node: MigNode) -> None:
    node.prepare(ONE)
    node.prepare(a_mig_claim("left", *names([(9, 0)])))
    assert node.real() == [(9, 4, 1), (9, 0, 1)]


def test_a_whole_gpu_and_its_partitions_exclude_each_other(node: MigNode) -> None:
    node.prepare(ONE)
    with pytest.raises(PrepareError, match="gpu-0-mig-3g40gb-9-4 is still prepared for claim default/one"):
        node.prepare(WHOLE)
    node.unprepare(ONE)
    node.prepare(WHOLE)
    assert node.hardware().mig_current == 0
    with pytest.raises(PrepareError, match="gpu-0 is still prepared for claim default/whole"):
        node.prepare(ONE)


def test_mig_mode_is_turned_on_for_a_partition_where_that_needs_no_reset(tmp_path: Path) -> None:
    build(tmp_path, mig=False)
    node = MigNode(tmp_path)
    node.prepare(ONE)
    assert node.real() == [(9, 4, 1)]


def test_mig_mode_that_needs_a_reset_is_left_alone_and_the_reason_told(tmp_path: Path) -> None:
    build(tmp_path, board="A100-80GB", mig=False)
    node = MigNode(tmp_path)
    with pytest.raises(PrepareError, match="whose MIG mode is off and is turned on only with a reset"):
        node.prepare(a_mig_claim("one", *names([(9, 4)], gpu=node.gpus[0].minor)))
    assert (node.hardware().mig_current, node.hardware().mig_pending) == (0, 0)
    assert not node.record.claims


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("gpu-7-mig-3g40gb-9-4", "gpu-7-mig-3g40gb-9-4, which this node does not have"),
        ("gpu-0-mig-3g40gb-9-2", r"GPU gpu-0 \(NVIDIA H100 80GB HBM3\) cannot be divided so"),
        ("gpu-0-mig-9g-99-0", "cannot be divided so"),
    ],
)
def test_a_partition_that_cannot_exist_is_refused_with_a_reason(node: MigNode, device: str, sentence: str) -> None:
    with pytest.raises(PrepareError, match=sentence):
        node.prepare(a_mig_claim("c", device))
    assert not node.record.claims


# Giving up


def test_giving_up_destroys_the_instances_and_leaves_nothing(node: MigNode) -> None:
    node.prepare(TWO)
    node.unprepare(TWO)
    assert (node.real(), node.specs(), dict(node.record.claims), dict(node.record.instances)) == ([], {}, {}, {})


def test_a_warm_instance_is_kept_and_given_to_the_next_claim(node: MigNode) -> None:
    node.keep = Keeping(counts={9: 1})
    uuid = node.prepare(ONE).devices[0].partition
    node.unprepare(ONE)
    assert node.uses() == [(9, 4, Use.WARM)]
    assert node.prepare(a_mig_claim("next", *names([(9, 4)]))).devices[0].partition == uuid


def test_a_warm_instance_gives_way_to_another_partition(node: MigNode) -> None:
    node.keep = Keeping(counts={9: 1})
    node.prepare(ONE)
    node.unprepare(ONE)
    node.prepare(a_mig_claim("small", *names([(19, 5)])))
    assert node.real() == [(19, 5, 1)]


# Others


def by_hand(node: MigNode, *, compute: bool) -> None:
    """Somebody makes an instance of 3g, which the driver puts at 4."""
    made = node.nvml.call("nvmlDeviceCreateGpuInstance", node.nvml.handle(node.uuid), 9)
    if compute:
        spanning = node.nvml.call("nvmlGpuInstanceGetComputeInstanceProfileInfo", made, 2, 0)
        node.nvml.call("nvmlGpuInstanceCreateComputeInstance", made, spanning.id)


@pytest.mark.parametrize("compute", [True, False])
def test_an_instance_of_somebody_else_is_reported_refused_and_never_touched(node: MigNode, compute: bool) -> None:
    by_hand(node, compute=compute)
    with pytest.raises(PrepareError, match="was made by somebody else; destroy it with nvidia-smi"):
        node.prepare(ONE)
    node.prepare(a_mig_claim("left", *names([(9, 0)])))
    assert node.uses() == [(9, 0, Use.CLAIM), (9, 4, Use.FOREIGN)]
    node.unprepare(a_mig_claim("left", *names([(9, 0)])))
    assert node.real() == [(9, 4, int(compute))]
    assert MigNode(node.folder).uses() == [(9, 4, Use.FOREIGN)]
