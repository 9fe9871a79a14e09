"""A board unlike any known one: what NVML reports of it is published, accounted for, created and destroyed."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from draco.agent.errors import PrepareError
from draco.agent.hardware.gpus import DriverInfo
from draco.agent.publish import partitions
from draco.agent.publish.offering import Offering
from draco.mig.board import Board, Placement, Profile
from draco.resources.api.draco import MigMode, WantedGpu, WantedInstance
from draco.resources.api.slices import Device
from draco.resources.names import read_partition_name
from draco_local.simulator.gpus import boards
from draco_local.simulator.nvml import session as nvml_session
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build

DRIVER = DriverInfo("580.65.06", "13.0", "13.580.65.06")


def a_profile(
    profile_id: int, name: str, slices: int, most: int, decoders: int, starts: Iterable[int], size: int
) -> Profile:
    return Profile(
        id=profile_id,
        name=name,
        slices=slices,
        max_instances=most,
        memory_mib=size * 9216,
        multiprocessors=slices * 10,
        copy_engines=slices,
        decoders=decoders,
        jpeg_engines=int(slices == 7),
        ofa_engines=int(slices == 7),
        starts=tuple(starts),
        size=size,
    )


TABLE = Board(
    (
        a_profile(11, "1g.9gb", 1, 7, 0, range(10), 1),
        a_profile(22, "2g.27gb", 2, 3, 1, (0, 4, 7), 3),
        a_profile(33, "3g.36gb", 3, 2, 1, (0, 3, 6), 4),
        a_profile(77, "7g.92gb", 7, 1, 3, (0,), 10),
    )
)
"""Ten memory units, irregular starts, and more units than slices."""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:
    strange = msgspec.structs.replace(boards.BOARDS["H100-80GB"], mig=TABLE)
    monkeypatch.setattr(nvml_session, "BOARDS", {strange.key: strange})
    build(tmp_path)
    return MigNode(tmp_path)


def published(node: MigNode, offering: Offering) -> list[Device]:
    """The devices that the node now publishes for its GPU in mode Dynamic."""
    wanted = {node.uuid: WantedGpu(uuid=node.uuid, policy="pool", mode=MigMode.DYNAMIC)}
    offered = offering.offer(node.scan(), DRIVER, migs=node.mig.divisions, wanted=wanted, now_s=0.0)
    [counters] = offered.counters
    assert sorted(name for name in counters.counters if "slice" in name) == sorted(
        f"memory-slice-{unit}" for unit in range(TABLE.units)
    )
    return offered.devices


def test_every_place_of_its_table_is_published_beside_the_whole(node: MigNode) -> None:
    names = [device.name for device in published(node, Offering())]
    assert names[0] == "gpu-0"
    assert sorted(names[1:]) == sorted(
        f"gpu-0-mig-{one.name.replace('.', '')}-{one.id}-{start}" for one in TABLE.profiles for start in one.starts
    )


def taken(node: MigNode) -> int:
    """The memory units of its instances."""
    return sum(one.mask for one in node.mig.divisions[node.uuid].instances)


def test_the_first_that_fits_in_the_published_order_leaves_room_for_the_largest_that_can_still_be(
    node: MigNode,
) -> None:
    board = node.mig.divisions[node.uuid].board
    assert board is not None
    offering = Offering(pace_s=0.0)
    for turn, wanted in enumerate([11, 33, 33]):
        offered = [name for device in published(node, offering)[1:] if (name := read_partition_name(device.name))]
        places = [Placement(profile, one.start) for one in offered if (profile := board.by_id(one.profile_id))]
        place = next(one for one in places if one.profile.id == wanted and not one.mask & taken(node))
        node.prepare(a_mig_claim(f"claim-{turn}", partitions.partition_name("gpu-0", place)))
    assert sorted(profile for profile, *_ in node.real()) == [11, 33, 33]


def test_its_instances_are_made_refused_where_they_overlap_and_given_back(node: MigNode) -> None:
    middle, end = a_mig_claim("middle", "gpu-0-mig-3g36gb-33-3"), a_mig_claim("end", "gpu-0-mig-2g27gb-22-7")
    node.prepare(middle)
    node.prepare(end)
    assert node.real() == [(33, 3, 1), (22, 7, 1)]
    with pytest.raises(PrepareError, match="still prepared for claim default/middle"):
        node.prepare(a_mig_claim("over", "gpu-0-mig-3g36gb-33-6"))
    node.unprepare(middle)
    node.unprepare(end)
    assert node.real() == []


def test_a_layout_is_made_on_it_and_one_that_it_lacks_is_told_with_what_it_has(node: MigNode) -> None:
    layout = [WantedInstance(profile="2g.27gb", start=4), WantedInstance(profile="3g.36gb", start=0)]
    wanted = WantedGpu(uuid=node.uuid, policy="pool", mode=MigMode.STATIC, layout=layout)
    assert node.layouts.apply(node.uuid, wanted) == ""
    assert sorted(node.real()) == [(22, 4, 1), (33, 0, 1)]
    off_grid = msgspec.structs.replace(wanted, layout=[WantedInstance(profile="2g.27gb", start=2)])
    assert "no 2g.27gb at 2 (it has 1g.9gb at 0, 1" in node.layouts.apply(node.uuid, off_grid)


def test_the_planner_has_its_table_from_nvml_alone(node: MigNode) -> None:
    board = node.mig.divisions[node.uuid].board
    assert board is not None
    assert board.units == TABLE.units
    assert set(board.placements) == {
        Placement(profile, start) for profile in board.profiles for start in profile.starts
    }
    assert {(one.id, one.name, one.starts) for one in board.profiles} == {
        (one.id, one.name, one.starts) for one in TABLE.profiles
    }
