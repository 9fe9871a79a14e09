"""A policy applied to a GPU, on simulated NVML: around instances in use, with its progress reported and no unrequested reset."""

from pathlib import Path
from typing import Any

import pynvml
import pytest
from prometheus_client import generate_latest

from draco.agent.hardware.gpus import Use
from draco.agent.metrics import AgentMetrics
from draco.mig.keeping import KeptInstances, keeping
from draco.resources.api.draco import MigMode, MigState, ProfileCount, WantedGpu, WantedInstance
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.gpus.gpu_state import GpuProcess
from tests.builders import a_claim
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

SMALL = a_mig_claim("small", *names([(19, 3)]))


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    build(tmp_path)
    return MigNode(tmp_path)


def apply(node: MigNode, mode: MigMode | None, *layout: str, warm: dict[str, int] | None = None, **fields: Any) -> str:
    """What remains to be done after applying a layout such as "3g.40gb@4"; a mode of None means no policy."""
    places = [one.partition("@") for one in layout]
    wanted = None
    if mode is not None:
        wanted = WantedGpu(
            uuid=node.uuid,
            policy="pool",
            mode=mode,
            layout=[WantedInstance(profile=profile, start=int(start)) for profile, _, start in places],
            warm=[ProfileCount(profile=profile, count=count) for profile, count in (warm or {}).items()],
            **fields,
        )
    return node.layouts.apply(node.uuid, wanted)


def state_of(node: MigNode) -> tuple[MigState, str]:
    division = node.mig.divisions[node.uuid]
    return division.state, division.message


def test_a_layout_is_made_where_it_says(node: MigNode) -> None:
    assert apply(node, MigMode.STATIC, "1g.10gb@6", "3g.40gb@0") == ""
    assert node.uses() == [(9, 0, Use.LAYOUT), (19, 6, Use.LAYOUT)]
    assert state_of(node) == (MigState.READY, "")


def test_applying_again_changes_nothing(node: MigNode) -> None:
    apply(node, MigMode.STATIC, "3g.40gb@0")
    before = node.hardware()
    apply(node, MigMode.STATIC, "3g.40gb@0")
    assert node.hardware() == before


def test_a_new_layout_takes_down_what_is_idle_and_keeps_what_stays(node: MigNode) -> None:
    apply(node, MigMode.STATIC, "3g.40gb@0", "3g.40gb@4")
    kept = next(one for one in node.hardware().instances if one.start == 4)
    assert apply(node, MigMode.STATIC, "2g.20gb@0", "2g.20gb@2", "3g.40gb@4") == ""
    assert node.real() == [(9, 4, 1), (14, 0, 1), (14, 2, 1)]
    assert kept in node.hardware().instances


def test_an_engine_that_a_claim_has_does_not_keep_the_rest_of_a_layout_from_being_made(node: MigNode) -> None:
    node.prepare(a_mig_claim("media", *names([(20, 3)])))
    told = apply(node, MigMode.STATIC, "1g.10gb+me@0", "1g.10gb@1")
    assert told == (
        "The layout of policy pool is not complete: 1g.10gb+me at 0 waits for engines that other instances on the GPU use."
    )
    assert node.uses() == [(19, 1, Use.LAYOUT), (20, 3, Use.CLAIM)]


def test_of_a_layout_that_wants_more_engines_than_there_are_what_can_be_is_made(node: MigNode) -> None:
    note = apply(node, MigMode.STATIC, "1g.10gb+me@0", "1g.10gb+me@1", "3g.40gb@4")
    assert "1g.10gb+me at 1 waits for engines that other instances on the GPU use" in note
    assert node.uses() == [(20, 0, Use.LAYOUT), (9, 4, Use.LAYOUT)]


def test_what_is_idle_on_another_gpu_is_let_be(tmp_path: Path) -> None:
    build(tmp_path, gpus=2)
    node = MigNode(tmp_path)
    apply(node, MigMode.STATIC, "3g.40gb@0")
    other = WantedGpu(uuid=node.gpus[1].uuid, policy="pool", mode=MigMode.STATIC)
    node.layouts.apply(node.gpus[1].uuid, other)
    assert (node.uses(0), node.uses(1)) == ([(9, 0, Use.LAYOUT)], [])
    assert not node.mig.divisions[node.uuid].dirty


def test_a_busy_neighbour_is_waited_for_and_named(node: MigNode) -> None:
    node.prepare(SMALL)
    busy = node.hardware().instances[0]
    note = apply(node, MigMode.STATIC, "4g.40gb@0", "3g.40gb@4")
    assert note == "The layout of policy pool is not complete: 4g.40gb at 0 waits for claim default/small."
    assert state_of(node) == (MigState.CHANGING, note)
    assert busy in node.hardware().instances
    node.unprepare(SMALL)
    assert apply(node, MigMode.STATIC, "4g.40gb@0", "3g.40gb@4") == ""
    assert node.real() == [(9, 4, 1), (5, 0, 1)]


def test_an_instance_of_somebody_else_in_a_layout_is_waited_for_too(node: MigNode) -> None:
    by_hand.create_instance(node.path, 0, "1g.10gb", start=5)
    note = apply(node, MigMode.STATIC, "3g.40gb@4", "3g.40gb@0")
    assert "3g.40gb at 4 waits for GPU instance 12 that somebody else made" in note
    assert node.real() == [(19, 5, 1), (9, 0, 1)]


def test_what_a_claim_has_lost_is_told_also_where_all_else_is_as_wanted(node: MigNode) -> None:
    node.prepare(SMALL)
    by_hand.destroy_instance(node.path, 0, node.hardware().instances[0].id)
    by_hand.create_instance(node.path, 0, "1g.10gb", start=3)
    for mode, layout in ((MigMode.STATIC, ["3g.40gb@4"]), (MigMode.DYNAMIC, []), (None, [])):
        assert "1g.10gb at 3, which a claim needs, is gone and cannot be made again" in apply(node, mode, *layout)


def test_a_place_that_the_board_does_not_have_is_told_with_those_it_has(node: MigNode) -> None:
    note = apply(node, MigMode.STATIC, "3g.40gb@2", "9g.90gb@0", "1g.10gb@0")
    assert "the board has no 3g.40gb at 2 (it has 1g.10gb at 0, 1, 2, 3, 4, 5, 6; 2g.20gb at" in note.replace(
        ", 2g", "; 2g"
    )
    assert "no 9g.90gb at 0" in note
    assert node.real() == [(19, 0, 1)]


def test_a_claim_of_the_layout_gets_an_instance_that_is_there_and_leaves_it_there(node: MigNode) -> None:
    apply(node, MigMode.STATIC, "1g.10gb@3")
    made = node.hardware().instances
    node.keep = node_keep(node)
    node.prepare(SMALL)
    assert node.uses() == [(19, 3, Use.CLAIM)]
    node.unprepare(SMALL)
    assert node.hardware().instances == made
    assert node.uses() == [(19, 3, Use.LAYOUT)]


def node_keep(node: MigNode) -> KeptInstances:
    layout = [WantedInstance(profile="1g.10gb", start=3)]
    wanted = WantedGpu(uuid=node.uuid, policy="pool", mode=MigMode.STATIC, layout=layout)
    return keeping(wanted, node.mig.divisions[node.uuid].board)


def test_warm_instances_stand_where_they_cost_least(node: MigNode) -> None:
    assert apply(node, MigMode.DYNAMIC, warm={"1g.10gb": 2, "3g.40gb": 1}) == ""
    assert node.uses() == [(19, 2, Use.WARM), (19, 3, Use.WARM), (9, 4, Use.WARM)]


def test_an_instance_that_is_going_and_in_use_is_no_warm_one(node: MigNode) -> None:
    apply(node, MigMode.DYNAMIC, warm={"3g.40gb": 1})
    [warm] = node.hardware().instances
    faults.hold(node.path, 0, GpuProcess(pid=4711, gpu_instance=warm.id, listed=False))
    apply(node, MigMode.DYNAMIC)
    assert node.uses() == [(9, 4, Use.ORPHAN)]
    apply(node, MigMode.DYNAMIC, warm={"3g.40gb": 1})
    assert node.uses() == [(9, 0, Use.WARM), (9, 4, Use.ORPHAN)]


def test_warm_instances_without_room_are_told_and_others_are_made(node: MigNode) -> None:
    note = apply(node, MigMode.DYNAMIC, warm={"3g.40gb": 3})
    assert note == "There is no room for 1 of 3 warm 3g.40gb."
    assert node.real() == [(9, 4, 1), (9, 0, 1)]


def test_a_busy_gpu_without_room_for_warm_instances_is_ready_says_so_and_makes_them_later(node: MigNode) -> None:
    claims = [a_mig_claim(f"claim-{start}", *names([(9, start)])) for start in (0, 4)]
    for claim in claims:
        node.prepare(claim)
    told = (
        "There is no room for 1 of 1 warm 3g.40gb and 2 of 2 warm 1g.10gb beside claim default/claim-0 and claim "
        "default/claim-4."
    )
    for _ in range(2):
        assert apply(node, MigMode.DYNAMIC, warm={"1g.10gb": 2, "3g.40gb": 1}) == told
        assert state_of(node) == (MigState.READY, told), "a busy GPU is nothing that changes"
    node.unprepare(claims[1])
    assert (
        apply(node, MigMode.DYNAMIC, warm={"1g.10gb": 2, "3g.40gb": 1})
        == "There is no room for 2 of 2 warm 1g.10gb beside claim default/claim-0."
    )
    node.unprepare(claims[0])
    assert apply(node, MigMode.DYNAMIC, warm={"1g.10gb": 2, "3g.40gb": 1}) == ""
    assert state_of(node) == (MigState.READY, "")


def test_of_many_who_leave_no_room_few_are_named(node: MigNode) -> None:
    for start in range(7):
        node.prepare(a_mig_claim(f"claim-{start}", *names([(19, start)])))
    told = apply(node, MigMode.DYNAMIC, warm={"1g.10gb": 1})
    assert told == (
        "There is no room for 1 of 1 warm 1g.10gb beside claim default/claim-0, claim default/claim-1, "
        "claim default/claim-2 and 4 more."
    )


def test_what_others_made_is_named_where_it_leaves_no_room_for_warm_instances(node: MigNode) -> None:
    by_hand.create_instance(node.path, 0, "7g.80gb", start=0)
    node.scan()
    assert apply(node, MigMode.DYNAMIC, warm={"1g.10gb": 1}) == (
        "There is no room for 1 of 1 warm 1g.10gb beside GPU instance 0 that somebody else made."
    )


def test_what_a_policy_waits_for_comes_before_what_it_has_no_room_for(node: MigNode) -> None:
    node.mig.note(node.uuid, "It waits.", lacks="There is no room.")
    assert state_of(node) == (MigState.CHANGING, "It waits. There is no room.")
    node.mig.note(node.uuid, "")
    assert state_of(node) == (MigState.READY, "")


def test_without_a_policy_idle_instances_of_ours_go_and_others_stay(node: MigNode) -> None:
    apply(node, MigMode.DYNAMIC, warm={"1g.10gb": 1})
    node.prepare(SMALL)
    by_hand.create_instance(node.path, 0, "1g.10gb", start=0)
    assert len(node.real()) == 3
    assert apply(node, None) == ""
    assert node.uses() == [(19, 0, Use.FOREIGN), (19, 3, Use.CLAIM)]


def test_a_layout_survives_a_reload_of_the_driver(node: MigNode) -> None:
    apply(node, MigMode.STATIC, "3g.40gb@0")
    faults.reload_driver(node.path)
    again = MigNode(node.folder)
    assert again.real() == []
    apply(again, MigMode.STATIC, "3g.40gb@0")
    assert again.uses() == [(9, 0, Use.LAYOUT)]


def test_a_failure_in_a_layout_is_told_and_nothing_of_it_is_left(node: MigNode) -> None:
    faults.fail(node.path, "nvmlGpuInstanceCreateComputeInstance", pynvml.NVML_ERROR_UNKNOWN, times=1)
    assert "look for NVRM" in apply(node, MigMode.STATIC, "3g.40gb@0")
    assert node.real() == []
    assert apply(node, MigMode.STATIC, "3g.40gb@0") == ""


# MIG mode


def test_the_mode_goes_off_when_the_last_instance_is_gone(node: MigNode) -> None:
    node.prepare(SMALL)
    assert apply(node, MigMode.DISABLED) == "MIG mode stays on until claim default/small is gone."
    node.unprepare(SMALL)
    assert apply(node, MigMode.DISABLED) == ""
    assert node.hardware().mig_current == 0


def test_the_mode_goes_off_together_with_what_nobody_has(node: MigNode) -> None:
    apply(node, MigMode.STATIC, "3g.40gb@0")
    assert apply(node, MigMode.DISABLED) == ""
    assert node.hardware().mig_current == 0


def test_without_a_policy_the_mode_stays_until_a_claim_takes_the_whole_gpu(node: MigNode) -> None:
    apply(node, MigMode.DYNAMIC, warm={"1g.10gb": 1})
    assert apply(node, None) == ""
    assert (node.real(), node.hardware().mig_current) == ([], 1)
    node.prepare(a_claim("whole", on=["node-0/gpu-0"]))
    assert node.hardware().mig_current == 0


def test_the_mode_of_a_gpu_that_is_used_as_a_whole_is_left_alone(node: MigNode) -> None:
    node.prepare(a_claim("whole", on=["node-0/gpu-0"]))
    assert (
        apply(node, MigMode.STATIC, "3g.40gb@0") == "MIG mode waits for claim default/whole, which has the whole GPU."
    )
    for warm, told in (
        ({}, "Claim default/whole has the whole GPU."),
        (
            {"1g.10gb": 1, "3g.40gb": 2},
            "Claim default/whole has the whole GPU, so there is no room for 2 of 2 warm 3g.40gb and 1 of 1 warm 1g.10gb.",
        ),
    ):
        assert apply(node, MigMode.DYNAMIC, warm=warm) == told
        assert state_of(node) == (MigState.READY, told)
    assert node.hardware().mig_current == 0


def test_who_only_watches_a_gpu_or_has_another_one_keeps_no_mode_from_being_changed(tmp_path: Path) -> None:
    build(tmp_path, gpus=2, mig=False)
    node = MigNode(tmp_path)
    node.prepare(a_claim("watch", on=["node-0/gpu-0"], admin_access=True))
    node.prepare(a_claim("whole", on=["node-0/gpu-1"]))
    assert apply(node, MigMode.STATIC, "3g.40gb@0") == ""
    assert node.uses() == [(9, 0, Use.LAYOUT)]


def test_the_holder_of_a_gpu_whose_mode_cannot_be_changed_is_named(tmp_path: Path) -> None:
    path = build(tmp_path, mig=False)
    faults.hold(path, 0, GpuProcess(pid=4711, name="nv-hostengine", listed=False))
    node = MigNode(tmp_path, holder="process 4711 (nv-hostengine)")
    note = apply(node, MigMode.DYNAMIC)
    assert note == "MIG mode cannot be turned on: the GPU is in use by process 4711 (nv-hostengine)."


def test_a_mode_that_needs_a_reset_is_changed_with_a_permit_only_and_then_waits_for_it(tmp_path: Path) -> None:
    path = build(tmp_path, board="A100-80GB", mig=False)
    node = MigNode(tmp_path)
    assert "needs a reset of this GPU, which policy pool does not permit now" in apply(node, MigMode.DYNAMIC)
    assert (node.hardware().mig_current, node.hardware().mig_pending) == (0, 0)
    assert apply(node, MigMode.DYNAMIC, reset_permitted=True) == ""
    assert (node.hardware().mig_current, node.hardware().mig_pending) == (0, 1)
    state, message = state_of(node)
    assert state is MigState.NEEDS_RESET
    assert "will be on after a reset" in message
    assert apply(node, MigMode.DYNAMIC) == "", "it was permitted when it was asked for"
    faults.reset(path, 0)
    assert apply(node, MigMode.DYNAMIC) == ""
    assert state_of(node) == (MigState.READY, "")


def test_a_gpu_that_cannot_be_divided_says_so(tmp_path: Path) -> None:
    build(tmp_path, board="L40S", mig=False)
    node = MigNode(tmp_path)
    assert "it does not support MIG; exclude it from the policy" in apply(node, MigMode.DYNAMIC)
    assert apply(node, MigMode.DISABLED) == ""


def test_metrics_count_instances_by_use_and_gpus_that_are_unsettled(node: MigNode) -> None:
    apply(node, MigMode.STATIC, "3g.40gb@4")
    node.prepare(SMALL)
    by_hand.create_instance(node.path, 0, "1g.10gb", start=0)
    node.scan()
    metrics = AgentMetrics()
    metrics.divisions(node.mig.divisions.values())
    lines = generate_latest(metrics.registry).decode().splitlines()
    assert [line.partition("{")[2] for line in lines if line.startswith("draco_agent_gpu_instances{")] == [
        'use="Claim"} 1.0',
        'use="Warm"} 0.0',
        'use="Layout"} 1.0',
        'use="Foreign"} 1.0',
        'use="Orphan"} 0.0',
    ]
    assert "draco_agent_unsettled_gpus 0.0" in lines
    faults.lose(node.path, 0)
    node.scan()
    metrics.divisions(node.mig.divisions.values())
    assert "draco_agent_unsettled_gpus 1.0" in generate_latest(metrics.registry).decode().splitlines()
