"""Over which pools claims are spread."""

import msgspec

from draco.mig_policy.decide import GpuDecision, NodeDecision, SeenNode, spread_pools, spread_pools_of
from draco.resources.api.core import Node
from draco.resources.api.draco import Allocator, GpuMig, GpuNode, MigMode, MigPolicy, PlacementStrategy
from draco.resources.api.meta import LabelSelector, ObjectMeta
from draco.resources.names import NVIDIA_DRIVER, PoolKey
from tests.builders import a_gpu_node, a_mig_policy


def test_pools_are_spread_over_if_a_policy_with_one_of_their_gpus_says_so() -> None:
    policies = [a_mig_policy("packs"), a_mig_policy("spreads", placement=PlacementStrategy.SPREAD)]
    decisions = [
        NodeDecision(node=node, gpus=tuple(GpuDecision(uuid=name, device="gpu-0", policy=name) for name in owners))
        for node, owners in {"a": ["packs"], "b": ["packs", "spreads"], "c": [""]}.items()
    ]
    assert spread_pools(decisions, policies, {"b": "example.com"}) == {PoolKey("example.com", "b")}


def test_without_decisions_the_oldest_policy_that_selects_a_nodes_gpus_says_whether_its_pool_is_spread_over() -> None:
    spreads, packs = PlacementStrategy.SPREAD, PlacementStrategy.PACK
    policies = [a_policy("b", "x", spreads), a_policy("a", "y", packs), a_policy("c", "y", spreads)]
    labels = {"n": {"pool": "x"}, "m": {"pool": "y"}}
    nodes = [
        SeenNode.of(a_reporting_node(name), Node(metadata=ObjectMeta(name=name, labels=own)), [])
        for name, own in labels.items()
    ]
    assert spread_pools_of(nodes, policies) == {PoolKey(NVIDIA_DRIVER, "n")}


def a_policy(name: str, pool: str, placement: PlacementStrategy) -> MigPolicy:
    selector = LabelSelector(match_labels={"pool": pool})
    return a_mig_policy(
        name, mode=MigMode.DISABLED, allocator=Allocator.OPERATOR, node_selector=selector, placement=placement
    )


def a_reporting_node(name: str) -> GpuNode:
    node = a_gpu_node(name)
    gpus = [msgspec.structs.replace(each, mig=GpuMig(capable=True)) for each in node.status.gpus]
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, gpus=gpus))
