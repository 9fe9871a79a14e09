"""What a child of the fleet process does before it is asked."""

import pytest

from draco.controller.workers.answering import warm_up
from draco.explanation.findings.placement import PodRules, nodes_for
from draco.resources.api.core import Node, Pod, PodSpec, Toleration
from draco.resources.api.meta import ObjectMeta
from tests.unit.explanation.clusters import a_fleet


def test_where_a_pod_may_go_that_asks_nothing_is_known_before_anybody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, looked_at = a_fleet(), []
    warm_up(fleet)

    def counted(_: PodRules, node: Node) -> tuple[()]:
        looked_at.append(node)
        return ()

    monkeypatch.setattr(PodRules, "obstacles", counted)
    given = [
        Toleration(key="node.kubernetes.io/not-ready", operator="Exists", effect="NoExecute"),
        Toleration(key="node.kubernetes.io/unreachable", operator="Exists", effect="NoExecute"),
    ]
    pod = Pod(metadata=ObjectMeta(name="pod", namespace="default"), spec=PodSpec(tolerations=given))
    assert list(nodes_for(fleet, pod).open) == ["n1", "n2"]
    assert not looked_at
