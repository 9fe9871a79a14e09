"""A policy's status: its columns in kubectl, and the details behind them."""

from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from draco.mig.board import Board
from draco.mig.known_boards import BOARDS
from draco.mig_policy.decide import NodeDecision, SeenNode, decide
from draco.mig_policy.gpu_counts import LISTED_NODES
from draco.mig_policy.matching import oldest_first, rules_of
from draco.mig_policy.summary import PolicyCounts, status_of, summary
from draco.resources.api.claims import CelSelector, DeviceSelector
from draco.resources.api.draco import (
    Allocator,
    GpuMig,
    GpuNode,
    MigMode,
    MigPolicy,
    MigPolicyConflict,
    MigPolicyStatus,
    MigReset,
    MigState,
    ResetPermit,
)
from draco.resources.api.meta import LabelSelector, TimeWindow
from draco.resources.api.slices import Device, DeviceAttribute
from tests.builders import MOMENT, a_gpu_uuid, a_mig_node, a_mig_policy, a_static_policy

LATER = MOMENT + timedelta(hours=1)
ON = GpuMig(capable=True, enabled=True)
H100 = BOARDS["H100-80GB"]
SELECTORS = [DeviceSelector(cel=CelSelector(expression='device.attributes["gpu.nvidia.com"].architecture == "Hopper"'))]


def applied(node: GpuNode, *policies: MigPolicy) -> NodeDecision:
    """The decision about the node after the spec has what was decided."""
    rules = [rules_of(each) for each in oldest_first(policies)]
    devices = {
        gpu.uuid: Device(name=gpu.device, attributes={"architecture": DeviceAttribute(string="Ampere")})
        for gpu in node.status.gpus
    }
    wanted = decide(SeenNode(gpu_node=node, devices=devices), rules, {}).wanted
    node = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, gpus=wanted))
    return decide(SeenNode(gpu_node=node, devices=devices), rules, {})


def status(policy: MigPolicy, nodes: Sequence[GpuNode] = (), *others: MigPolicy) -> MigPolicyStatus:
    decisions = [applied(node, policy, *others) for node in nodes]
    return summary(rules_of(policy), decisions, LATER)


def nodes(*gpus: GpuMig, count: int = 2, board: Board = H100) -> list[GpuNode]:
    return [a_mig_node(f"node-{index}", gpus=gpus or [ON, ON], board=board) for index in range(count)]


def conditions(found: MigPolicyStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in found.conditions}


def test_all_as_wanted() -> None:
    found = status(a_mig_policy(), nodes())
    assert (found.gpus, found.applied, found.changing, found.failed) == (4, 4, 0, 0)
    assert found.message == "4 GPUs set up as the policy asks."
    assert found.observed_generation == 1
    assert conditions(found) == {
        "Valid": ("True", "Understood"),
        "Applied": ("True", "AsWanted"),
        "Conflicting": ("False", "NoOther"),
    }
    assert [(each.name, each.gpus, each.applied, each.message) for each in found.nodes] == [
        ("node-0", 2, 2, ""),
        ("node-1", 2, 2, ""),
    ]


def test_gpus_that_only_another_mode_hands_over_are_told_of() -> None:
    found = status(a_mig_policy(allocator=Allocator.OPERATOR), nodes(ON, GpuMig(), count=1))
    assert found.message == (
        "1 GPU set up as the policy asks. 1 GPU left to kube-scheduler: without MIG, which a policy of mode Disabled hands over "
        "to Draco."
    )


def test_gpus_without_room_for_all_that_is_wanted_are_counted_and_told_of_by_node() -> None:
    busy = GpuMig(
        capable=True, enabled=True, message="There is no room for 1 of 2 warm 1g.10gb beside claim team/serve."
    )
    found = status(a_mig_policy(), nodes(ON, busy, count=1))
    assert found.message == "2 GPUs set up as the policy asks, 1 of them as far as there is room."
    assert found.applied == 2
    assert found.nodes[0].message == "gpu-1: There is no room for 1 of 2 warm 1g.10gb beside claim team/serve."


def test_what_failed_comes_before_what_is_not_done_yet() -> None:
    dirty = GpuMig(capable=True, enabled=True, state=MigState.DIRTY, message="GI 3 cannot be destroyed.")
    found = status(a_mig_policy(), nodes(ON, GpuMig(capable=True), dirty, count=1))
    assert (
        found.message == "1 of 3 GPUs cannot be set up as the policy asks: gpu-2 of node-0: GI 3 cannot be destroyed."
    )
    assert (found.applied, found.changing, found.failed) == (1, 1, 1)
    assert found.nodes[0].message == "gpu-2: GI 3 cannot be destroyed; gpu-1: MIG is still off."
    assert conditions(found)["Applied"] == ("False", "Failed")


def test_a_reason_that_many_share_is_said_once_with_an_example() -> None:
    off = GpuMig(capable=True)
    found = status(a_mig_policy(), nodes(off, off))
    assert found.message == "4 of 4 GPUs not done yet: gpu-0 of node-0 and 3 more: MIG is still off."


def test_the_example_is_the_first_gpu_by_node_in_whichever_order_nodes_were_counted() -> None:
    policy, off = a_mig_policy(), GpuMig(capable=True)
    tally = PolicyCounts(policy.metadata.name)
    for node in reversed(nodes(off, off)):
        tally.add(applied(node, policy))
    message = "4 of 4 GPUs not done yet: gpu-0 of node-0 and 3 more: MIG is still off."
    assert status_of(rules_of(policy), tally, LATER).message == message


@pytest.mark.parametrize(
    ("other", "told"),
    [(["still hot"], "1 other reason in status.nodes."), (["still hot", "dusty"], "2 other reasons in status.nodes.")],
)
def test_other_reasons_are_counted_behind_the_commonest(other: list[str], told: str) -> None:
    messages = ["hot", "hot", *other]
    dirty = [GpuMig(capable=True, enabled=True, state=MigState.DIRTY, message=each) for each in messages]
    assert status(a_mig_policy(), nodes(*dirty, count=1)).message.endswith(f"gpu-0 of node-0 and 1 more: hot; {told}")


def test_a_layout_that_cannot_exist_is_told_in_the_table() -> None:
    found = status(a_static_policy("p", "2x4g.40gb"), nodes(count=1))
    assert found.failed == 2
    assert (
        "cannot be set up as the policy asks: gpu-0 of node-0 and 1 more: layout layout: 2 x 4g.40gb" in found.message
    )
    assert "nearest that can exist is 1 x 4g.40gb" in found.message


def test_the_younger_of_two_policies_names_the_older_one() -> None:
    old = a_mig_policy("old", exclude=[a_gpu_uuid("node-0", 1)])
    young = a_mig_policy("young", created=LATER)
    found = status(young, nodes(count=1), old)
    assert found.message == "1 GPU set up as the policy asks. 1 GPU that it selects belongs to the older policy old."
    assert found.conflicts == [MigPolicyConflict(policy="old", gpus=1)]
    assert conditions(found)["Conflicting"] == ("True", "OlderPolicy")
    assert status(old, nodes(count=1), young).conflicts == []


def test_a_policy_that_gets_nothing_beside_older_ones_says_so_once() -> None:
    old = a_mig_policy("old", exclude=[a_gpu_uuid("node-0", 1)])
    older = a_mig_policy("older", created=MOMENT - timedelta(hours=1), exclude=[a_gpu_uuid("node-0", 0)])
    found = status(a_mig_policy("young", created=LATER), nodes(count=1), old, older)
    assert found.message == "Has no GPU: 2 GPUs that it selects belong to older policies: old (1), older (1)."
    assert found.gpus == 0


@pytest.mark.parametrize(
    ("policy", "fleet", "message"),
    [
        (a_mig_policy(), [], "Matches nothing: no node has reported a GPU."),
        (
            a_mig_policy(node_selector=LabelSelector(match_labels={"a": "b"})),
            nodes(),
            "Matches nothing: spec.nodeSelector selects none of 2 nodes with GPUs.",
        ),
        (
            a_mig_policy(device_selectors=SELECTORS, exclude=[a_gpu_uuid("node-0", 0)]),
            nodes(count=1),
            (
                "Matches nothing: of 2 GPUs on the nodes it selects, 1 not selected by spec.deviceSelectors[0], "
                "1 named by spec.exclude."
            ),
        ),
        (
            a_mig_policy(),
            nodes(GpuMig(), count=1),
            "Matches nothing: of 1 GPU on the nodes it selects, 1 without MIG.",
        ),
        (
            a_mig_policy(allocator=Allocator.OPERATOR),
            nodes(GpuMig(), count=1),
            (
                "Matches nothing: of 1 GPU on the nodes it selects, 1 without MIG, which a policy of mode Disabled hands over "
                "to Draco."
            ),
        ),
    ],
)
def test_a_policy_that_matches_nothing_says_why(policy: MigPolicy, fleet: list[GpuNode], message: str) -> None:
    found = status(policy, fleet)
    assert found.message == message
    assert found.gpus == 0
    assert conditions(found)["Applied"] == ("False", "NothingMatches")


def test_unknown_profiles_are_named_with_those_the_fleet_has() -> None:
    found = status(a_mig_policy(profiles=["1g.10gb", "1g.11gb"]), nodes(board=BOARDS["H100-80GB"]))
    assert found.message.startswith(
        "No board of its GPUs has profile 1g.11gb; they have 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb"
    )
    assert conditions(found)["Valid"] == ("False", "UnknownProfile")
    assert found.applied == 4


def test_a_selector_that_does_not_compile_is_named() -> None:
    policy = a_mig_policy(
        device_selectors=[
            DeviceSelector(cel=CelSelector(expression="device.nothing ==")),
        ]
    )
    found = status(policy, nodes())
    assert found.message.startswith("spec.deviceSelectors[0] is invalid: ")
    assert found.message.endswith("The policy is invalid, so it applies to no GPU.")
    assert conditions(found)["Valid"] == ("False", "NotUnderstood")


def test_a_selector_that_fails_is_named_with_the_gpu_it_fails_on() -> None:
    policy = a_mig_policy(
        device_selectors=[DeviceSelector(cel=CelSelector(expression='device.attributes["x"].y == 1'))]
    )
    found = status(policy, nodes())
    assert found.message.startswith("spec.deviceSelectors[0] fails: ")
    assert "(on gpu-0 of node-0)." in found.message


def test_a_time_zone_that_does_not_exist_is_named() -> None:
    window = TimeWindow(start="22:00", duration="1h", time_zone="Europe/Atlantis")
    policy = a_mig_policy(reset=MigReset(permit=ResetPermit.IN_WINDOWS, windows=[window]))
    assert status(policy, nodes()).message.startswith(
        "spec.reset.windows: Europe/Atlantis is not a time zone; use a name such as UTC or Europe/Berlin."
    )


def test_a_condition_keeps_its_time_until_it_turns() -> None:
    policy = a_mig_policy()
    before = status(policy, nodes())
    policy = msgspec.structs.replace(policy, status=before)
    decisions = [applied(node, policy) for node in nodes()]
    again = summary(rules_of(policy), decisions, LATER + timedelta(hours=1))
    assert again == before
    turned = summary(rules_of(policy), [], LATER + timedelta(hours=1))
    assert next(each for each in turned.conditions if each.type == "Applied").last_transition_time == LATER + timedelta(
        hours=1
    )


def test_of_many_nodes_those_with_trouble_are_listed() -> None:
    dirty = GpuMig(capable=True, enabled=True, state=MigState.DIRTY)
    fleet = [a_mig_node(f"node-{index:03d}", gpus=[dirty if index == 299 else ON], board=H100) for index in range(300)]
    found = status(a_mig_policy(), fleet)
    assert len(found.nodes) == LISTED_NODES
    assert found.nodes[-1].name == "node-299"
    assert (found.gpus, found.failed) == (300, 1)
    busy = GpuMig(capable=True, enabled=True, state=MigState.CHANGING)
    fleet = [a_mig_node(f"node-{index:03d}", gpus=[busy if index == 299 else ON], board=H100) for index in range(300)]
    found = status(a_mig_policy(), fleet)
    assert (found.nodes[-1].name, found.changing) == ("node-299", 1)


def test_of_many_older_policies_as_many_are_listed_as_a_status_has_room_for() -> None:
    tally = PolicyCounts("young")
    tally.gpus.lost.update({f"old-{index:02d}": 1 for index in range(70)})
    found = status_of(rules_of(a_mig_policy("young")), tally, LATER)
    assert [each.policy for each in found.conflicts] == [f"old-{index:02d}" for index in range(64)]
    assert found.message.endswith("old-07 (1) and 62 more.")


def test_of_a_list_that_has_room_nothing_is_left_to_be_counted() -> None:
    tally = PolicyCounts("young")
    tally.gpus.lost.update({f"old-{index}": 1 for index in range(8)})
    found = status_of(rules_of(a_mig_policy("young")), tally, LATER)
    assert found.message.endswith("old-6 (1), old-7 (1).")


def test_profiles_are_not_called_unknown_before_any_board_is_known() -> None:
    found = status(a_mig_policy(profiles=["1g.10gb"]), [a_mig_node(gpus=[GpuMig(capable=True)])])
    assert conditions(found)["Valid"] == ("True", "Understood")


def test_nodes_without_gpus_are_no_nodes_with_gpus() -> None:
    found = status(a_mig_policy(), [a_mig_node(gpus=0, board=H100)])
    assert found.message == "Matches nothing: no node has reported a GPU."


def test_advice_is_passed_on() -> None:
    policy = a_mig_policy()
    tally = PolicyCounts(policy.metadata.name)
    for node in nodes():
        tally.add(applied(node, policy))
    found = status_of(rules_of(policy), tally, LATER, "Release claim a/b.")
    assert found.message.endswith("set up as the policy asks. Release claim a/b.")


def test_a_disabled_policy_does_not_speak_of_profiles() -> None:
    assert status(a_mig_policy(mode=MigMode.DISABLED, profiles=["9g"]), nodes(GpuMig(capable=True))).message == (
        "2 GPUs set up as the policy asks."
    )
