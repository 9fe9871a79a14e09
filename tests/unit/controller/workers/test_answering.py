"""What a child of the fleet process does before it is asked, and what it hands on."""

import pytest

from draco.controller.workers import messages
from draco.controller.workers.answering import answer, warm_up
from draco.explanation.findings.placement import PodRules, nodes_for
from draco.placing.search.as_if import PlacedFleet
from draco.resources.api.core import Node, Pod, PodSpec, Toleration
from draco.resources.api.meta import ObjectMeta
from tests.unit.explanation.clusters import ATTRIBUTES, GPU, a_fleet, asking


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


@pytest.mark.parametrize(
    ("said", "told"), [("NVIDIA H200", "NVIDIA H200"), ("anything a tenant may write 1", ""), ("another 2", "")]
)
def test_only_names_that_draco_or_the_cluster_knows_are_handed_on_to_be_counted(said: str, told: str) -> None:
    claim = asking(f'{ATTRIBUTES}.productName == "{said}" && {ATTRIBUTES}.profile == "{said}"')
    pod = Pod(metadata=ObjectMeta(name="pod", namespace="default"))
    answered = answer(PlacedFleet(a_fleet()), messages.ExplainPending(pod, [claim], "", None))
    assert isinstance(answered, messages.PendingAnswer)
    assert answered.unmet == [messages.UnmetDevices(0, GPU, told, "", 1)]
