"""What a child of the fleet process does before its first question, and what it passes on."""

import time
from uuid import UUID

import msgspec
import pytest

from draco.controller.workers import answering, messages
from draco.controller.workers.answering import FleetFeed, answer, warm_up
from draco.explanation.findings.node_rules import PodRules, nodes_for
from draco.placing.groups.group import ClaimGroup, GroupMember
from draco.resources.api.core import Node, Pod, PodSpec, Toleration
from draco.resources.api.meta import ObjectMeta
from tests.builders import a_claim, a_device_class, a_node, a_slice
from tests.doubles.placing import a_placer
from tests.unit.explanation.clusters import ATTRIBUTES, GPU, a_fleet, asking
from tests.unit.placing.test_place import ours


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
    answered = answer(a_placer(a_fleet()), messages.ExplainPending(pod, [claim], "", None))
    assert isinstance(answered, messages.PendingAnswer)
    assert answered.unmet == [messages.UnmetDevices(0, GPU, told, "", 1)]


def test_each_share_of_a_device_has_an_identifier_of_its_own() -> None:
    feed = FleetFeed(lambda _: None)
    feed.fleet.put_node(a_node("node-0"))
    feed.fleet.put_class(a_device_class())
    device = msgspec.structs.replace(ours("gpu-0"), allow_multiple_allocations=True)
    feed.fleet.put_slice(a_slice("node-0", [device]))
    groups = [ClaimGroup([GroupMember([a_claim(name)])]) for name in "ab"]
    answered = answer(feed.placer, messages.PlaceClaims(groups, []))
    assert isinstance(answered, messages.PlacementAnswer)
    results = [result for each in answered.placements for result in each.results[0]]
    shares = [UUID(each.share_id) for result in results for each in result.devices.results]
    assert len(set(shares)) == 2


@pytest.mark.parametrize(
    ("takes_s", "reached"),
    [((0.125, 0.25, 1.0), 3), ((0.25, 0.375, 0.0), 2), ((0.5, 0.0, 0.0), 1), ((0.0, 0.0, 0.0), 3)],
)
def test_of_a_row_no_further_question_is_begun_once_it_has_taken_the_budget_of_one(
    takes_s: tuple[float, ...], reached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent, takes = [7.0], iter(takes_s)

    def answered(*_: object, **__: object) -> messages.Answer:
        spent[0] += next(takes)
        return messages.ClaimProblems([])

    monkeypatch.setattr(answering, "answer_within", answered)
    monkeypatch.setattr(time, "process_time", lambda: spent[0])
    row: list[tuple[int, messages.Question]] = [(number, messages.CheckClaim(a_claim())) for number in range(3)]
    replies = list(
        answering._answers(FleetFeed(lambda _: None), messages.AskQuestions(row, 0, 0.5, 5.0, is_last=False))
    )
    assert [reply.number for reply in replies] == [0, 1, 2]
    kinds = [type(reply.answer) for reply in replies]
    assert kinds == [messages.ClaimProblems] * reached + [messages.NotReached] * (3 - reached)
    assert [reply.cpu_s for reply in replies] == pytest.approx([*takes_s[:reached], *[0.0] * (3 - reached)])
