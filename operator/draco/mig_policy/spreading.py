"""Which pools are filled evenly when Draco allocates: those with a GPU of a policy that says so.

Owns that reading of policies. Where the GPUs of one node belong to several policies, one that spreads is enough, as it is about
nodes and not about GPUs.
"""

from collections.abc import Iterable, Mapping

from draco.mig_policy.decide import NodeDecision, SeenNode, decide
from draco.mig_policy.matching import oldest_first, rules_of
from draco.resources.api.draco import MigPolicy, PlacementStrategy
from draco.resources.names import NVIDIA_DRIVER, PoolKey


def spread_pools(
    decisions: Iterable[NodeDecision], policies: Iterable[MigPolicy], drivers: Mapping[str, str]
) -> frozenset[PoolKey]:
    """The pools, each named after its node, on which claims are to be spread. `drivers` has the driver of each node."""
    spreading = {each.metadata.name for each in spreading_policies(policies)}
    return frozenset(
        PoolKey(drivers.get(each.node, NVIDIA_DRIVER), each.node)
        for each in decisions
        if any(gpu.policy in spreading for gpu in each.gpus)
    )


def spread_pools_of(nodes: Iterable[SeenNode], policies: Iterable[MigPolicy]) -> frozenset[PoolKey]:
    """The same of a cluster that was read once, where nothing is decided yet."""
    seen, known = list(nodes), oldest_first(policies)
    rules = [rules_of(each) for each in known]
    drivers = {each.gpu_node.metadata.name: each.gpu_node.status.driver for each in seen}
    return spread_pools((decide(each, rules, {}) for each in seen), known, drivers)


def spreading_policies(policies: Iterable[MigPolicy]) -> list[MigPolicy]:
    """Those that have claims spread."""
    return [each for each in policies if each.spec.placement is PlacementStrategy.SPREAD]
