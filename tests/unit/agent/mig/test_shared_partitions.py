"""Several claims on one partition, on simulated NVML."""

from pathlib import Path

import pytest

from draco.agent.errors import PrepareError
from draco_local.simulator.accidents import by_hand
from draco_local.simulator.gpus import state
from tests.builders import a_claim, as_shares
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

ONE = a_mig_claim("one", *names([(9, 4)]))


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    build(tmp_path)
    return MigNode(tmp_path)


def test_claims_share_a_partition_that_goes_with_the_last_of_them(node: MigNode) -> None:
    one, two = (as_shares(a_mig_claim(name, *names([(9, 4)])), name, memory="10Gi") for name in ("first", "second"))
    [made] = node.prepare(one).devices
    [again] = node.prepare(two).devices
    assert again.partition == made.partition
    with pytest.raises(PrepareError, match="still prepared for claim default/"):
        node.prepare(ONE)
    node.unprepare(one)
    assert node.real() == [(9, 4, 1)]
    node.unprepare(two)
    assert node.real() == []


def test_shares_of_a_whole_gpu_and_its_partitions_exclude_each_other(node: MigNode) -> None:
    share = as_shares(a_claim("whole", on=["node-0/gpu-0"]), "s1", memory="10Gi")
    node.prepare(ONE)
    with pytest.raises(PrepareError, match="but gpu-0-mig-3g40gb-9-4 is still prepared"):
        node.prepare(share)


def test_a_gpu_that_somebody_divides_below_a_share_keeps_the_share_and_says_what_to_destroy(tmp_path: Path) -> None:
    path = build(tmp_path, mig=False)
    node = MigNode(tmp_path)
    one, two = (as_shares(a_claim(name, on=["node-0/gpu-0"]), name, memory="10Gi") for name in ("first", "second"))
    node.prepare(one)
    by_hand.set_mode(path, 0, 1)
    number = by_hand.create_instance(path, 0, "1g.10gb").gpu_instance
    with pytest.raises(
        PrepareError, match=f"GPU instance {number} .* was made by somebody else; destroy it with nvidia-smi"
    ):
        node.prepare(two)
    assert [str(each) for each in node.record.claims.values()] == ["default/first"]
    by_hand.destroy_instance(path, 0, number)
    node.prepare(two)
    assert [gpu.mig_current for gpu in state.load(path).gpus] == [0], "the mode goes with the next Prepare"
