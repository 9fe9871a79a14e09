"""Which pools claims are spread over."""

from draco.mig_policy.decide import GpuDecision, NodeDecision
from draco.mig_policy.spreading import spread_pools
from draco.resources.api.draco import PlacementStrategy
from draco.resources.names import PoolKey
from tests.builders import a_mig_policy


def test_pools_are_spread_over_if_a_policy_with_one_of_their_gpus_says_so() -> None:
    policies = [a_mig_policy("packs"), a_mig_policy("spreads", placement=PlacementStrategy.SPREAD)]
    decisions = [
        NodeDecision(node=node, gpus=tuple(GpuDecision(uuid=name, device="gpu-0", policy=name) for name in owners))
        for node, owners in {"a": ["packs"], "b": ["packs", "spreads"], "c": [""]}.items()
    ]
    assert spread_pools(decisions, policies, {"b": "example.com"}) == {PoolKey("example.com", "b")}
