"""Partitions placed by what is published, compared with the planner's choice."""

import random

import pytest

from draco.allocation.fleet.fleet import Fleet
from draco.mig.board import Placement
from draco.mig.geometry import BoardPool, State, geometry
from draco.placing.groups.group import allocated
from draco.resources.names import PoolKey, read_partition_name
from tests.builders import a_node
from tests.doubles.placing import a_placer
from tests.mig_claims import H100, MIG_CLASS, a_mig_claim, a_mig_pool

SPACE = geometry(H100)
NODES, GPUS = 2, 2


def a_fleet() -> Fleet:
    names = [f"node-{number}" for number in range(NODES)]
    slices = [each for name in names for each in a_mig_pool(name, GPUS)]
    return Fleet.of(nodes=[a_node(name) for name in names], slices=slices, classes=[MIG_CLASS])


@pytest.mark.parametrize("seed", range(6))
def test_a_partition_goes_where_the_planner_would_put_it(seed: int) -> None:
    chance = random.Random(seed)
    fleet = a_fleet()
    placer = a_placer(fleet)
    states: list[State] = [SPACE.empty] * (NODES * GPUS)
    there = []
    for number in range(60):
        profile = chance.choice(H100.profiles)
        claim = a_mig_claim(f"claim-{number}", profile.name)
        wanted = BoardPool(SPACE, states).choose(profile)
        found = placer.best([claim], fleet.nodes)
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            part = read_partition_name(found.devices[0])
            assert part is not None
            gpu = int(found.node.removeprefix("node-")) * GPUS + int(part.parent.removeprefix("gpu-"))
            placement = Placement(profile, part.start)
            theirs = SPACE.best(states[wanted.gpu], profile)
            assert theirs is not None
            assert SPACE.rank(states[gpu], placement).cost == theirs.cost
            assert found.score.loss == theirs.loss
            placer.put(allocated(claim, found.results[0]))
            states[gpu] = SPACE.add(states[gpu], placement)
            there.append((claim, gpu, placement))
        if there and chance.random() < 0.4:
            claim, gpu, placement = there.pop(chance.randrange(len(there)))
            placer.put(claim)
            states[gpu] = SPACE.remove(states[gpu], placement)


def test_claims_are_spread_over_nodes_where_a_policy_says_so() -> None:
    fleet = a_fleet()
    spread = [PoolKey("gpu.nvidia.com", f"node-{number}") for number in range(NODES)]
    for pools, nodes in (([], ["node-0", "node-0"]), (spread, ["node-0", "node-1"])):
        found = []
        with a_placer(fleet).as_if(spread=pools) as placer:
            for claim in (a_mig_claim(f"claim-{number}", "7g.80gb") for number in range(2)):
                best = placer.best([claim], fleet.nodes)
                assert best is not None
                found.append(best.node)
                placer.put(allocated(claim, best.results[0]))
        assert found == nodes
