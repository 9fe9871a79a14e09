"""Placements allocated to claims whose pods have not started, on simulated NVML: kept free, waited for, and used."""

from pathlib import Path
from typing import Any

import pytest

from draco.agent.hardware.gpus import Use
from draco.agent.publish.partitions import partition_name
from draco.mig.board import Placement
from draco.mig.known_boards import BOARDS
from draco.resources.api.draco import MigMode, MigState, ProfileCount, PromisedDevice, WantedGpu, WantedInstance
from tests.builders import a_claim
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

H100 = BOARDS["H100-80GB"]
SOON = a_mig_claim("soon", *names([(19, 2)]))


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    build(tmp_path)
    return MigNode(tmp_path)


def promise(node: MigNode, text: str = "1g.10gb@2") -> PromisedDevice:
    name, _, start = text.partition("@")
    profile = H100.profile(name)
    assert profile is not None
    device = partition_name("gpu-0", Placement(profile, int(start)))
    return PromisedDevice(device=device, uuid=node.uuid, claim="default/soon")


def whole(node: MigNode) -> PromisedDevice:
    return PromisedDevice(device="gpu-0", uuid=node.uuid, claim="default/all")


def apply(node: MigNode, mode: MigMode | None, *layout: str, promised: Any = (), **fields: Any) -> str:
    """What remains to be done after applying a layout such as "3g.40gb@4"; a mode of None means no policy."""
    wanted = None
    if mode is not None:
        places = [each.split("@") for each in layout]
        instances = [WantedInstance(profile=profile, start=int(start)) for profile, start in places]
        wanted = WantedGpu(uuid=node.uuid, policy="pool", mode=mode, layout=instances, **fields)
    return node.layouts.apply(node.uuid, wanted, promised)


def state_of(node: MigNode) -> tuple[MigState, str]:
    division = node.mig.divisions[node.uuid]
    return division.state, division.message


def test_a_layout_leaves_a_promised_place_free_and_says_what_it_waits_for(node: MigNode) -> None:
    told = apply(node, MigMode.STATIC, "4g.40gb@0", "3g.40gb@4", promised=[promise(node)])
    assert told == (
        "The layout of policy pool is not complete: 4g.40gb at 0 waits for claim default/soon. The GPU keeps 1g.10gb at 2 for "
        "claim default/soon."
    )
    assert node.real() == [(9, 4, 1)]
    assert state_of(node) == (MigState.CHANGING, told)
    node.prepare(SOON)
    told = apply(node, MigMode.STATIC, "4g.40gb@0", "3g.40gb@4", promised=[promise(node)])
    assert (
        told == "The layout of policy pool is not complete: 4g.40gb at 0 waits for claim default/soon."
    )  # as for any neighbour
    assert set(node.uses()) == {(9, 4, Use.LAYOUT), (19, 2, Use.CLAIM)}
    node.unprepare(SOON)
    assert apply(node, MigMode.STATIC, "4g.40gb@0", "3g.40gb@4") == ""
    assert node.real() == [(9, 4, 1), (5, 0, 1)]


def test_a_promise_that_the_layout_has_is_made_with_it(node: MigNode) -> None:
    """Before Hopper, a layout is published only once MIG is on; the operator learns of it a moment later."""
    assert apply(node, MigMode.STATIC, "1g.10gb@2", promised=[promise(node)]) == ""
    assert node.uses() == [(19, 2, Use.LAYOUT)]


def test_a_layout_that_has_room_beside_a_promise_is_made_and_still_changing(node: MigNode) -> None:
    told = apply(node, MigMode.STATIC, "3g.40gb@4", promised=[promise(node)])
    assert (node.real(), told) == ([(9, 4, 1)], "The GPU keeps 1g.10gb at 2 for claim default/soon.")
    assert state_of(node) == (MigState.CHANGING, told)


def test_engines_of_a_promise_are_left_to_it(node: MigNode) -> None:
    told = apply(node, MigMode.STATIC, "1g.10gb+me@0", "1g.10gb@1", promised=[promise(node, "1g.10gb+me@3")])
    assert "1g.10gb+me at 0 waits for engines that other instances on the GPU use" in told
    assert node.real() == [(19, 1, 1)]


def test_an_idle_instance_in_a_promised_place_stays_until_the_claim_is_gone(node: MigNode) -> None:
    apply(node, MigMode.STATIC, "1g.10gb@2", "3g.40gb@4")
    told = apply(node, None, promised=[promise(node)])
    assert (node.real(), told) == ([(19, 2, 1)], "The GPU keeps 1g.10gb at 2 for claim default/soon.")
    assert state_of(node) == (MigState.READY, told)
    assert apply(node, None) == ""
    assert node.real() == []


def test_an_idle_instance_of_a_promise_is_not_said_to_be_going(node: MigNode) -> None:
    apply(node, MigMode.STATIC, "1g.10gb@2")
    told = apply(node, MigMode.STATIC, "4g.40gb@0", promised=[promise(node)])
    assert "4g.40gb at 0 waits for claim default/soon." in told
    assert "MIG mode stays on until claim default/soon is gone." in apply(
        node, MigMode.DISABLED, promised=[promise(node)]
    )


def test_warm_instances_are_made_where_nothing_is_promised(node: MigNode) -> None:
    warm = [ProfileCount(profile="3g.40gb", count=2)]
    told = apply(node, MigMode.DYNAMIC, profiles=["3g.40gb"], warm=warm, promised=[promise(node)])
    assert node.real() == [(9, 4, 1)]
    assert told == (
        "There is no room for 1 of 2 warm 3g.40gb beside claim default/soon. The GPU keeps 1g.10gb at 2 for claim default/soon."
    )
    assert state_of(node) == (MigState.READY, told)


def test_an_idle_instance_of_a_promise_is_not_counted_as_warm(node: MigNode) -> None:
    apply(node, MigMode.STATIC, "1g.10gb@2")
    warm = [ProfileCount(profile="1g.10gb", count=1)]
    apply(node, MigMode.DYNAMIC, profiles=["3g.40gb"], warm=warm, promised=[promise(node)])
    assert [(profile, start == 2) for profile, start, _ in node.real()] == [(19, True), (19, False)]


def test_mig_mode_stays_on_for_a_promise_and_the_claim_is_served(node: MigNode) -> None:
    told = apply(node, MigMode.DISABLED, promised=[promise(node)])
    assert told == (
        "MIG mode stays on until claim default/soon is gone. The GPU keeps 1g.10gb at 2 for claim default/soon."
    )
    assert (node.hardware().mig_current, state_of(node)[0]) == (1, MigState.CHANGING)
    node.prepare(SOON)
    assert node.uses() == [(19, 2, Use.CLAIM)]
    node.unprepare(SOON)
    assert apply(node, MigMode.DISABLED) == ""
    assert node.hardware().mig_current == 0


def test_where_mig_mode_is_off_already_a_promise_is_told_and_served(tmp_path: Path) -> None:
    build(tmp_path, mig=False)
    node = MigNode(tmp_path)
    told = apply(node, MigMode.DISABLED, promised=[promise(node)])
    assert (state_of(node), node.hardware().mig_current) == ((MigState.CHANGING, told), 0)
    node.prepare(SOON)
    assert node.uses() == [(19, 2, Use.CLAIM)]


def test_a_layout_waits_for_a_claim_that_was_allocated_the_whole_gpu(tmp_path: Path) -> None:
    build(tmp_path, mig=False)
    node = MigNode(tmp_path)
    told = apply(node, MigMode.STATIC, "3g.40gb@0", promised=[whole(node)])
    assert told == "MIG mode waits for claim default/all, which has the whole GPU."
    assert (node.real(), node.hardware().mig_current) == ([], 0)
    node.prepare(a_claim("all", on=["node-0/gpu-0"]))
    assert apply(node, MigMode.STATIC, "3g.40gb@0", promised=[whole(node)]) == told


def test_nothing_is_made_on_a_divided_gpu_that_was_allocated_whole(node: MigNode) -> None:
    told = apply(node, MigMode.STATIC, "3g.40gb@0", promised=[whole(node)])
    assert told == "The layout of policy pool waits for claim default/all, which has the whole GPU."
    warm = [ProfileCount(profile="1g.10gb")]
    apply(node, MigMode.DYNAMIC, warm=warm, promised=[whole(node)])
    assert node.real() == []
    node.prepare(a_claim("all", on=["node-0/gpu-0"]))
    assert node.hardware().mig_current == 0
