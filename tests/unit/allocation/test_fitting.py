"""The first node that fits, found without asking every node: the same answer as asking every one in order."""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from draco.allocation.allocate import allocate
from draco.allocation.candidates import candidates
from draco.allocation.errors import AllocationError, NodeError, SearchTooLong
from draco.allocation.fitting import first_fitting
from draco.allocation.fleet import Fleet
from draco.resources.claims import ResourceClaim
from draco.resources.core import Node
from tests.unit.allocation.worlds import a_world, put, remove

MAX_STEPS = 3000


Answer = tuple[str, Any]


def asking_all(fleet: Fleet, claims: Sequence[ResourceClaim], nodes: Iterable[Node]) -> Answer:
    """What asking every node in order answers."""
    ids = map(str, itertools.count())
    for node in nodes:
        try:
            results = allocate(
                fleet.inventory, fleet.state, node, claims, fleet.classes, share_ids=ids, max_steps=MAX_STEPS
            )
        except NodeError:
            continue
        except SearchTooLong:
            return "given up", None
        except AllocationError as error:
            return type(error).__name__, str(error)
        if results is not None:
            return "fits", (node, results)
    return "nowhere", None


def asking_few(fleet: Fleet, claims: Sequence[ResourceClaim], nodes: Iterable[Node] | None) -> Answer:
    ids = map(str, itertools.count())
    try:
        found = first_fitting(fleet, claims, nodes, share_ids=ids, max_steps=MAX_STEPS)
    except AllocationError as error:
        return type(error).__name__, str(error)
    return ("nowhere", None) if found is None else ("fits", found)


@pytest.fixture(scope="module")
def tally() -> Iterable[Counter[str]]:
    answers: Counter[str] = Counter()
    yield answers
    assert min(answers[each] for each in ("fits", "nowhere", "AllocationError")) > 5
    assert answers["nodes that need not be asked"] > 50


@settings(max_examples=120, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(number=st.integers(0, (1 << 64) - 1))
def test_asking_few_nodes_answers_what_asking_every_node_does(tally: Counter[str], number: int) -> None:
    source = random.Random(number)
    objects, wanted = a_world(source)
    fleet = Fleet()
    claims = {str(each.metadata.key): each for raw in objects if isinstance(each := put(fleet, raw), ResourceClaim)}
    for _ in range(3):
        pod = [claims[name] for name in source.sample(wanted, source.randrange(1, len(wanted) + 1))]
        in_order = [fleet.nodes[name] for name in fleet.node_names]
        shuffled = [*source.sample(in_order, len(in_order)), Node()]
        for given_nodes, nodes in ((None, in_order), (shuffled, shuffled)):
            expected = asking_all(fleet, pod, nodes)
            tally[expected[0]] += 1
            if expected[0] != "given up":
                assert asking_few(fleet, pod, given_nodes) == expected
            if expected[0] in {"fits", "nowhere"} and (worth := candidates(fleet, pod)) is not None:
                tally["nodes that need not be asked"] += sum(node.metadata.name not in worth for node in nodes)
        for raw in source.sample(objects, min(3, len(objects))):  # and once more after some changes
            source.choice([put, remove])(fleet, raw)
