"""Karpenter ignores device taints: if a pod lacks only tainted devices, it is told that no node may be added."""

import msgspec
import pytest

from draco.allocation.fleet.fleet import Fleet
from draco.explanation.explain import explain
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.names import LABEL_KARPENTERS
from tests.builders import a_claim, a_node, a_pod, a_rule
from tests.unit.explanation.clusters import GPU, a_fleet, asking


def a_cluster(*rules: DeviceTaintRule, held: tuple[ResourceClaim, ...] = (), karpenter: bool = True) -> Fleet:
    fleet = a_fleet(*held)
    for rule in rules:
        fleet.put_rule(rule)
    if karpenter:
        node = a_node("n9")
        labelled = msgspec.structs.replace(node.metadata, labels={**node.metadata.labels, LABEL_KARPENTERS: "gpus"})
        fleet.put_node(Node(metadata=labelled, spec=node.spec, status=node.status))
    return fleet


TAINTED = (a_rule("sick", pool="n1"), a_rule("serviced", pool="n2"))


def test_where_only_taints_are_in_the_way_karpenter_counts_on_the_node() -> None:
    told = explain(a_cluster(*TAINTED), [asking(count=2)])
    assert told.counted_on in {"n1", "n2"}
    assert str(told).endswith(
        f"Karpenter ignores device taints and treats {told.counted_on} as free; it may not add a node."
    )
    assert len(str(told)) <= 350


def test_taints_of_several_rules_on_one_device_count_as_one() -> None:
    """Removing a single rule would not help, so no fix suggests it."""
    both = [
        a_rule(f"{taint}-{node}", taint=f"example.com/{taint}", pool=node)
        for taint in ("sick", "serviced")
        for node in ("n1", "n2")
    ]
    told = explain(a_cluster(*both), [asking()])
    assert not told.fits
    assert told.counted_on


@pytest.mark.parametrize(
    ("fleet", "claim"),
    [
        pytest.param(a_cluster(*TAINTED, karpenter=False), asking(), id="there is no Karpenter"),
        pytest.param(a_cluster(TAINTED[0]), asking(), id="it fits"),
        pytest.param(a_cluster(*TAINTED), asking(count=3), id="no node has as many"),
        pytest.param(
            a_cluster(
                TAINTED[0], held=(a_claim("job", on=[f"{GPU}/n{n}/gpu-{g}" for n, g in ((1, 0), (2, 0), (2, 1))]),)
            ),
            asking(count=2),
            id="others are in use",
        ),
    ],
)
def test_otherwise_nothing_is_said_of_it(fleet: Fleet, claim: ResourceClaim) -> None:
    told = explain(fleet, [claim])
    assert told.counted_on == ""
    assert "Karpenter" not in str(told)


def test_a_pod_that_may_not_go_there_is_not_counted_there() -> None:
    pod = a_pod("p", claims=["c"])
    spec = msgspec.structs.replace(pod.spec, node_selector={"zone": "other"})
    elsewhere = msgspec.structs.replace(pod, spec=spec)
    assert explain(a_cluster(*TAINTED), [asking()], pod=elsewhere).counted_on == ""
