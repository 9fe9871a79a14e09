"""What is cached from one explanation to the next changes no explanation."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draco.allocation.fleet.fleet import MAX_OF_NODES, Fleet
from draco.explanation.explain import explain
from draco.explanation.findings.node_rules import PodRules, nodes_for
from draco.resources.api.core import Node, NodeSpec, NodeTaint, Pod, PodSpec, Toleration
from draco.resources.api.meta import ObjectMeta
from tests.builders import a_node, a_slice
from tests.unit.explanation.clusters import a_fleet, asking
from tests.unit.explanation.test_truth import PUT, QUICK, TYPES, many_nodes


def test_nodes_are_looked_at_once_for_all_pods_that_ask_the_same_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = count_nodes_looked_at(monkeypatch)
    fleet, claim = a_fleet(), asking("false")
    for name in ("one", "two", "three"):
        explain(fleet, [claim], pod=a_pod(name, node_selector={"zone": "a"}))
    assert sorted(looked_at) == ["n1", "n2"]
    explain(fleet, [claim], pod=a_pod("one", node_selector={"zone": "b"}))
    assert sorted(looked_at) == ["n1", "n1", "n2", "n2"]


def count_nodes_looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of nodes checked against a pod's rules, once per check; checks for nearest misses do not count."""
    names: list[str] = []
    plain = PodRules.obstacles

    def counted(rules: PodRules, node: Node) -> Any:
        names.append(node.metadata.name)
        return plain(rules, node)

    monkeypatch.setattr(PodRules, "obstacles", counted)
    return names


def in_zone_a(name: str) -> Node:
    return Node(metadata=ObjectMeta(name=name, labels={"zone": "a"}))


@pytest.mark.parametrize(
    "changed",
    [
        in_zone_a("n1"),
        Node(metadata=ObjectMeta(name="n1"), spec=NodeSpec(unschedulable=True)),
        in_zone_a("n3"),
        None,
    ],
)
def test_where_a_pod_may_go_is_worked_out_again_when_a_node_changes(changed: Node | None) -> None:
    fleet, pod = a_fleet(), a_pod("pod", node_selector={"zone": "a"})
    before = nodes_for(fleet, pod)
    assert nodes_for(fleet, pod) is before
    if changed is None:
        fleet.remove_node("n1")
    else:
        fleet.put_node(changed)
    now = nodes_for(fleet, pod)
    assert now == nodes_for(Fleet.of(nodes=fleet.nodes.values()), pod)
    assert now != before


def test_many_pods_that_each_ask_something_else_of_their_nodes_fill_no_memory() -> None:
    fleet = a_fleet()
    for number in range(3 * MAX_OF_NODES):
        nodes_for(fleet, a_pod("pod", node_selector={"zone": str(number)}))
    assert len(fleet.of_nodes) == MAX_OF_NODES


def test_what_is_published_for_no_node_is_known_after_each_change() -> None:
    fleet = a_fleet()
    assert fleet.nodeless == []
    fleet.remove_node("n2")
    assert fleet.nodeless == ["n2"]
    fleet.put_slice(a_slice("n0", ["gpu-0"]))
    assert fleet.nodeless == ["n0", "n2"]
    fleet.put_node(a_node("n2"))
    assert fleet.nodeless == ["n0"]
    fleet.remove_slice(a_slice("n0", ["gpu-0"]).metadata.name)
    assert fleet.nodeless == []


def a_pod(name: str, **asks: Any) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=PodSpec(**asks))


PODS: Sequence[Pod | None] = (
    None,
    a_pod("plain"),
    a_pod("in-a", node_selector={"zone": "a"}),
    a_pod("in-b", node_selector={"zone": "b"}),
    a_pod("tolerant", tolerations=[Toleration(operator="Exists")]),
    a_pod("tolerant-in-a", tolerations=[Toleration(operator="Exists")], node_selector={"zone": "a"}),
)


@pytest.mark.exhaustive
@settings(QUICK, max_examples=25)
@given(st.randoms(use_true_random=False))
def test_a_fleet_that_was_asked_before_each_change_answers_as_one_that_nobody_asked(source: random.Random) -> None:
    objects: list[Any] = [msgspec.convert(raw, TYPES[raw["kind"]]) for raw in many_nodes(source)["objects"]]
    asked = Fleet()
    there: dict[tuple[type, str], Any] = {}
    for step in range(8):
        for each in objects if not step else [changed(source, source.choice(objects))]:
            put(asked, each)
            there[type(each), each.metadata.name] = each
        removable = [each for each in there.values() if type(each) in REMOVE]
        if removable and not source.randrange(3):
            gone = source.choice(removable)
            REMOVE[type(gone)](asked, gone)
            del there[type(gone), gone.metadata.name]
        claims = [claim for claim in asked.claims.values() if claim.metadata.name == "wait"]
        for pod in source.sample(PODS, 2):
            unasked = Fleet()
            for each in there.values():
                put(unasked, each)
            assert str(explain(asked, claims, pod=pod)) == str(explain(unasked, claims, pod=pod))


def put(fleet: Fleet, each: Any) -> None:
    PUT[type(each).__name__](fleet, each)  # type: ignore[operator]


REMOVE: dict[type, Any] = {
    Node: lambda fleet, each: fleet.remove_node(each.metadata.name),
    TYPES["ResourceSlice"]: lambda fleet, each: fleet.remove_slice(each.metadata.name),
}


def changed(source: random.Random, each: Any) -> Any:
    """A node as it may change or come back; other objects unchanged."""
    if not isinstance(each, Node):
        return each
    taints = source.choice([[], [NodeTaint(key="a", effect="NoSchedule")]])
    spec = NodeSpec(unschedulable=source.choice([True, False, False]), taints=taints)
    labels = {"zone": source.choice("ab")}
    return msgspec.structs.replace(each, metadata=ObjectMeta(name=each.metadata.name, labels=labels), spec=spec)
