"""Which nodes a pod cannot go to: kube-scheduler's rules, one by one."""

from typing import Any

import msgspec
import pytest

from draco.allocation.fleet.fleet import Fleet
from draco.explanation.explain import explain
from draco.explanation.findings.node_rules import PodRules, nodes_for, selector_text, tolerates
from draco.explanation.model import NodeReason
from draco.resources.api.core import Affinity, Node, NodeAffinity, NodeTaint, Pod, Toleration
from draco.resources.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from tests.builders import a_node, a_pod
from tests.unit.explanation.clusters import a_fleet, asking

NOT_READY = NodeTaint(key="node.kubernetes.io/not-ready", effect="NoSchedule")


def a_labelled_node(name: str = "node-0", *taints: NodeTaint, cordoned: bool = False, **labels: str) -> Node:
    node = a_node(name, unschedulable=cordoned)
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, labels=labels),
        spec=msgspec.structs.replace(node.spec, taints=list(taints)),
    )


def a_pod_that_asks(**spec: Any) -> Pod:
    pod = a_pod()
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **spec))


def requiring(*terms: NodeSelectorTerm) -> Affinity:
    selector = NodeSelector(node_selector_terms=list(terms))
    return Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=selector))


def a_term(key: str, operator: str, *values: str) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        match_expressions=[NodeSelectorRequirement(key=key, operator=operator, values=list(values))]
    )


def why(node: Node, pod: Pod | None = None) -> list[tuple[NodeReason, str]]:
    return [(each.reason, each.what) for each in PodRules(pod).obstacles(node)]


def test_a_pod_that_asks_nothing_may_go_to_a_plain_node() -> None:
    assert why(a_labelled_node(), a_pod()) == []


def test_a_node_that_is_not_ready_but_not_tainted_is_not_refused_as_kube_scheduler_looks_at_taints() -> None:
    assert why(a_node(ready=False), a_pod()) == []


def test_a_cordoned_node_is_refused_once_though_it_has_a_taint_too() -> None:
    node = a_labelled_node("a", NodeTaint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"), cordoned=True)
    assert why(node, a_pod()) == [(NodeReason.UNSCHEDULABLE, "")]


def test_a_pod_that_tolerates_the_taint_of_cordoning_may_go_to_a_cordoned_node() -> None:
    tolerant = a_pod_that_asks(
        tolerations=[Toleration(key="node.kubernetes.io/unschedulable", operator="Exists", effect="NoSchedule")]
    )
    assert why(a_labelled_node(cordoned=True), tolerant) == []


def test_a_pod_that_names_its_node_can_go_to_no_other() -> None:
    pod = a_pod(node="a")
    assert why(a_labelled_node("a"), pod) == []
    assert why(a_labelled_node("b"), pod) == [(NodeReason.NODE_NAME, "a")]


def test_every_taint_that_is_not_tolerated_is_told_and_preferences_are_not() -> None:
    node = a_labelled_node(
        "a",
        NodeTaint(key="soft", effect="PreferNoSchedule"),
        NodeTaint(key="gpu", value="only", effect="NoSchedule"),
        NodeTaint(key="drain", effect="NoExecute"),
    )
    assert why(node) == [(NodeReason.TAINTED, "gpu=only:NoSchedule"), (NodeReason.TAINTED, "drain:NoExecute")]
    tolerant = a_pod_that_asks(tolerations=[Toleration(key="gpu", value="only")])
    assert why(node, tolerant) == [(NodeReason.TAINTED, "drain:NoExecute")]


def test_a_taint_that_kubernetes_puts_on_nodes_in_bad_condition_is_told_as_the_condition() -> None:
    [obstacle] = PodRules(None).obstacles(a_labelled_node("a", NOT_READY))
    assert obstacle.reason is NodeReason.NOT_READY
    assert str(obstacle) == "not ready (taint node.kubernetes.io/not-ready:NoSchedule)"


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration(key="k", value="5"), True),
        (Toleration(key="k", value="6"), False),
        (Toleration(key="k", operator="", value="5"), True),
        (Toleration(key="k", operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(key="other", operator="Exists"), False),
        (Toleration(key="k", operator="Exists", effect="NoExecute"), False),
        (Toleration(key="k", operator="Exists", effect="NoSchedule"), True),
        (Toleration(key="k", operator="Gt", value="4"), True),
        (Toleration(key="k", operator="Gt", value="5"), False),
        (Toleration(key="k", operator="Lt", value="6"), True),
        (Toleration(key="k", operator="Lt", value="05"), False),
        (Toleration(key="k", operator="Like", value="5"), False),
    ],
)
def test_a_toleration_covers_a_taint_as_in_kubernetes(toleration: Toleration, covers: bool) -> None:
    assert tolerates(toleration, NodeTaint(key="k", value="5", effect="NoSchedule")) is covers


def test_each_label_that_the_node_selector_asks_for_in_vain_is_told() -> None:
    pod = a_pod_that_asks(node_selector={"zone": "a", "tier": "gold"})
    assert why(a_labelled_node(zone="a", tier="gold"), pod) == []
    assert why(a_labelled_node(zone="b"), pod) == [
        (NodeReason.NODE_SELECTOR, "tier=gold"),
        (NodeReason.NODE_SELECTOR, "zone=a"),
    ]


@pytest.mark.parametrize(
    ("term", "allowed"),
    [
        (a_term("gpus", "In", "4", "8"), True),
        (a_term("gpus", "In", "4"), False),
        (a_term("gpus", "NotIn", "4"), True),
        (a_term("nosuch", "NotIn", "4"), True),
        (a_term("gpus", "Exists"), True),
        (a_term("gpus", "DoesNotExist"), False),
        (a_term("gpus", "Gt", "7"), True),
        (a_term("gpus", "Gt", "8"), False),
        (a_term("gpus", "Lt", "9"), True),
        (a_term("zone", "Lt", "9"), False),
        (a_term("gpus", "Likes", "8"), False),
        (a_term("gpus", "In"), False),
        (NodeSelectorTerm(), False),
        (
            NodeSelectorTerm(
                match_fields=[NodeSelectorRequirement(key="metadata.name", operator="In", values=["node-0"])]
            ),
            True,
        ),
        (
            NodeSelectorTerm(
                match_fields=[NodeSelectorRequirement(key="metadata.name", operator="NotIn", values=["node-0"])]
            ),
            False,
        ),
    ],
)
def test_required_node_affinity_decides_as_in_kubernetes(term: NodeSelectorTerm, allowed: bool) -> None:
    pod = a_pod_that_asks(affinity=requiring(term))
    reasons = [reason for reason, _ in why(a_labelled_node(gpus="8", zone="a"), pod)]
    assert reasons == ([] if allowed else [NodeReason.NODE_AFFINITY])


def test_one_term_of_an_affinity_is_enough_even_beside_one_that_is_not_valid() -> None:
    pod = a_pod_that_asks(affinity=requiring(a_term("zone", "Likes", "b"), a_term("zone", "In", "a")))
    assert why(a_labelled_node(zone="a"), pod) == []


def test_an_affinity_without_terms_matches_no_node() -> None:
    assert [reason for reason, _ in why(a_node(), a_pod_that_asks(affinity=requiring()))] == [NodeReason.NODE_AFFINITY]


def test_like_nodes_share_one_cause_that_counts_them_and_names_the_first() -> None:
    nodes = [a_labelled_node(f"n{index}", zone="b") for index in range(9, 0, -1)]
    fleet = Fleet.of(nodes=[*nodes, a_labelled_node("good", zone="a")])
    found = nodes_for(fleet, a_pod_that_asks(node_selector={"zone": "a"}))
    assert found.open.keys() == {"good"}
    [cause] = found.causes
    assert (cause.nodes, cause.names) == (9, ["n1", "n2", "n3", "n4", "n5"])
    assert cause.text == "without the label zone=a, which the pod's nodeSelector asks for"


def test_the_cause_of_a_node_is_the_first_that_kube_scheduler_meets() -> None:
    node = a_labelled_node("a", NodeTaint(key="gpu", effect="NoSchedule"), cordoned=True, zone="b")
    [cause] = nodes_for(Fleet.of(nodes=[node]), a_pod_that_asks(node_selector={"zone": "a"})).causes
    assert cause.reason is NodeReason.UNSCHEDULABLE


def test_a_node_selector_reads_as_one_line() -> None:
    selector = NodeSelector(
        node_selector_terms=[
            NodeSelectorTerm(
                match_expressions=[
                    NodeSelectorRequirement(key="zone", operator="In", values=["a", "b"]),
                    NodeSelectorRequirement(key="gpus", operator="Gt", values=["4"]),
                ]
            ),
            a_term("spare", "Exists"),
        ]
    )
    assert selector_text(selector) == "zone in (a, b) and gpus > 4 or spare exists"


def test_a_pod_that_names_its_node_is_told_the_node_s_label_where_that_is_of_no_other() -> None:
    """A node's name may be longer than a label, and differ from it."""
    fleet = a_fleet()
    name = "n3.a-long-subdomain.example.com"
    fleet.put_node(a_node(name, hostname="n3"))
    assert "nodeSelector: {kubernetes.io/hostname: n3}" in str(explain(fleet, [asking()], pod=a_pod(node=name)))
    fleet.put_node(a_node("another", hostname="n3"))
    assert "matchFields metadata.name" in str(explain(fleet, [asking()], pod=a_pod(node=name)))
