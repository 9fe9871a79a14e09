"""Several claims on one partition, on simulated NVML."""

from pathlib import Path

import pytest

from draco.agent.errors import PrepareError
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
