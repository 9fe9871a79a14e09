"""What a collection tells its subscribers."""

from typing import Any

import pytest

from draco.kube.watch.collection import Collection
from draco.kube.watch.store import Change
from draco.kube.watch.watching import Removal, Upsert
from draco.resources.api.core import Node
from draco.resources.kinds import NODES
from tests.builders import a_node
from tests.doubles.clock import ManualClock


@pytest.fixture
def nodes() -> Collection[Node]:
    return Collection(NODES, clock=ManualClock())


def test_who_reads_a_part_of_an_object_is_told_when_that_part_is_new_other_or_gone(nodes: Collection[Node]) -> None:
    there, ready, cordoned = a_node("a", ready=False), a_node("a"), a_node("a", unschedulable=True)
    nodes.apply(Upsert(there))
    told: list[Change[Any]] = []
    end = nodes.subscribe(told.append, reads=lambda node: node.ready)
    assert told == [Change(there.metadata.key, None, there)]
    nodes.apply(Upsert(ready))
    assert told[1:] == [Change(there.metadata.key, there, ready)]
    nodes.apply(Upsert(cordoned))
    assert len(told) == 2
    nodes.apply(Removal(there.metadata.key))
    assert told[2:] == [Change(there.metadata.key, cordoned, None)]
    end()
    nodes.apply(Upsert(there))
    assert len(told) == 3
