"""The tables of the boards: rules that every real board obeys."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draco.mig.board import Board, Placement, Profile
from draco_local.simulator.gpus.boards import BOARDS, Architecture, SimulatedBoard, board_named
from draco_local.simulator.gpus.mig_profiles import by_kind, ci_profiles, free_starts, kind_of, room_for

ALL = [pytest.param(board, id=key) for key, board in BOARDS.items()]
PARTITIONABLE = [(board, board.mig) for board in BOARDS.values() if board.mig is not None]
PROFILES = [
    pytest.param(board, table, profile, id=f"{board.key}-{profile.name}")
    for board, table in PARTITIONABLE
    for profile in table.profiles
]
TABLES = [pytest.param(board, table, id=board.key) for board, table in PARTITIONABLE]
SEVEN_SLICES = [pytest.param(board, table, id=board.key) for board, table in PARTITIONABLE if table.units == 8]
RESOURCES = ("multiprocessors", "copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")


def _most_side_by_side(profile: Profile) -> int:
    taken: set[int] = set()
    for start in profile.starts:
        units = set(range(start, start + profile.size))
        if not units & taken:
            taken |= units
    return len(taken) // profile.size


def test_the_boards_that_were_promised_are_there() -> None:
    assert set(BOARDS) == {
        "A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200", "A30", "RTX-PRO-6000", "L40S", "T4", "P4",
    }  # fmt: skip


@pytest.mark.parametrize("board", ALL)
def test_slots_are_in_pci_order_behind_their_roots(board: SimulatedBoard) -> None:
    buses = [slot.bus for slot in board.slots]
    assert buses == sorted(set(buses))
    assert all(slot.root_bus < slot.bus for slot in board.slots)
    assert [slot.numa_node for slot in board.slots] == sorted(slot.numa_node for slot in board.slots)


@pytest.mark.parametrize("board", ALL)
def test_only_boards_with_nvlink_have_switches_and_a_fabric(board: SimulatedBoard) -> None:
    assert bool(board.nvlinks) == bool(board.nvswitch_buses)
    assert bool(board.nvlinks or board.bridge_links) == bool(board.nvlink_version)
    assert not (board.nvlinks and board.bridge_links)
    assert board.fabric == (bool(board.nvlinks) and board.architecture >= Architecture.HOPPER)


@pytest.mark.parametrize("board", ALL)
def test_every_board_is_nvidias_and_no_two_share_an_id(board: SimulatedBoard) -> None:
    assert board.pci_device_id & 0xFFFF == board.pci_subsystem_id & 0xFFFF == 0x10DE
    assert sum(other.pci_device_id == board.pci_device_id for other in BOARDS.values()) == 1


def test_memory_units_are_what_each_family_has() -> None:
    assert {board.key: table.units for board, table in PARTITIONABLE} == {
        "A100-40GB": 8, "A100-80GB": 8, "H100-80GB": 8, "H200-141GB": 8, "B200": 8, "A30": 4, "RTX-PRO-6000": 12,
    }  # fmt: skip
    assert not board_named("L40S").mig_capable
    assert not board_named("T4").mig_capable


@pytest.mark.parametrize(("board", "table"), TABLES)
def test_no_two_profiles_of_a_board_share_an_enum_an_id_or_a_name(board: SimulatedBoard, table: Board) -> None:
    for identity in ("id", "name"):
        assert len({getattr(profile, identity) for profile in table.profiles}) == len(table.profiles)
    assert all(by_kind(table, kind_of(profile, table)) == profile for profile in table.profiles)


@pytest.mark.parametrize(("board", "table"), TABLES)
def test_one_profile_takes_the_whole_board(board: SimulatedBoard, table: Board) -> None:
    whole = table.whole
    assert (whole.size, whole.starts, whole.max_instances) == (table.units, (0,), 1)


@pytest.mark.parametrize(("board", "table", "profile"), PROFILES)
def test_placements_lie_within_the_units_of_the_board(board: SimulatedBoard, table: Board, profile: Profile) -> None:
    assert list(profile.starts) == sorted(set(profile.starts))
    assert all(0 <= start <= table.units - profile.size for start in profile.starts)


@pytest.mark.parametrize(("board", "table", "profile"), PROFILES)
def test_as_many_instances_fit_as_units_and_engines_allow(
    board: SimulatedBoard, table: Board, profile: Profile
) -> None:
    whole = table.whole
    limits = [getattr(whole, name) // getattr(profile, name) for name in RESOURCES if getattr(profile, name)]
    assert profile.max_instances == min([_most_side_by_side(profile), *limits])


@pytest.mark.parametrize(("board", "table", "profile"), PROFILES)
def test_all_instances_of_a_profile_fit_into_the_memory(board: SimulatedBoard, table: Board, profile: Profile) -> None:
    assert profile.max_instances * profile.memory_mib <= table.whole.memory_mib <= board.memory_mib


@pytest.mark.parametrize(("board", "table", "profile"), PROFILES)
def test_a_profile_is_named_after_its_slices_and_about_its_memory(
    board: SimulatedBoard, table: Board, profile: Profile
) -> None:
    match = re.fullmatch(r"(\d)g\.(\d+)gb(\+me|\+gfx|\+me\.all|-me)?", profile.name)
    assert match is not None
    assert int(match[1]) == profile.slices
    assert profile.memory_mib / 1024 == pytest.approx(int(match[2]), rel=0.12)
    assert (match[3] in {"+me", "+me.all"}) <= (profile.ofa_engines == 1)
    assert (match[3] == "-me") <= (
        profile.decoders + profile.encoders + profile.jpeg_engines + profile.ofa_engines == 0
    )


@pytest.mark.parametrize(("board", "table", "profile"), PROFILES)
def test_compute_instances_never_outgrow_their_gpu_instance(
    board: SimulatedBoard, table: Board, profile: Profile
) -> None:
    for ci in ci_profiles(profile):
        assert ci.slices * ci.max_instances <= profile.slices
        assert ci.multiprocessors * ci.max_instances <= profile.multiprocessors
    assert ci_profiles(profile)[-1].slices == profile.slices


def _layouts(table: Board, profiles: list[Profile]) -> set[frozenset[Placement]]:
    """Every set of instances that can exist together, including the empty one."""
    reached: set[frozenset[Placement]] = {frozenset()}
    frontier = [frozenset[Placement]()]
    while frontier:
        layout = frontier.pop()
        for profile in profiles:
            for start in free_starts(table, profile, layout):
                larger = layout | {Placement(profile, start)}
                if larger not in reached:
                    reached.add(larger)
                    frontier.append(larger)
    return reached


def _maximal(table: Board, profiles: list[Profile]) -> int:
    layouts = _layouts(table, profiles)
    return sum(not any(free_starts(table, profile, layout) for profile in profiles) for layout in layouts)


@pytest.mark.parametrize(("board", "table"), SEVEN_SLICES)
def test_seven_slice_boards_have_the_layouts_that_nvidia_publishes(board: SimulatedBoard, table: Board) -> None:
    plain = [profile for profile in table.profiles if not profile.name.endswith("+me")]
    single = [profile for profile in plain if profile.id != 15]  # without the 1g with double memory
    assert _maximal(table, single) == 19  # the number in the user guide's diagram
    assert len(_layouts(table, plain)) == 723
    assert (
        len({frozenset(unit for placed in layout for unit in placed.units) for layout in _layouts(table, plain)}) == 192
    )


@pytest.mark.parametrize(("board", "table"), TABLES)
@given(data=st.data())
@settings(deadline=None)  # another program may use the processor meanwhile
def test_filling_a_gpu_never_takes_more_than_it_has(board: SimulatedBoard, table: Board, data: st.DataObject) -> None:
    existing: list[Placement] = []
    while choices := [Placement(p, start) for p in table.profiles for start in free_starts(table, p, existing)]:
        existing.append(data.draw(st.sampled_from(choices)))
    units = [unit for placed in existing for unit in placed.units]
    assert len(units) == len(set(units)) <= table.units
    assert sum(placed.profile.memory_mib for placed in existing) <= board.memory_mib
    for name in RESOURCES:
        assert sum(getattr(placed.profile, name) for placed in existing) <= getattr(table.whole, name)
    for profile in table.profiles:
        assert sum(placed.profile == profile for placed in existing) <= profile.max_instances
        assert room_for(table, profile, existing) == 0


def test_only_profiles_without_engines_fit_beside_the_one_that_takes_them_all() -> None:
    table = board_named("RTX-PRO-6000").mig
    assert table is not None
    taker = next(profile for profile in table.profiles if profile.name == "1g.24gb+me.all")
    beside = {profile.name for profile in table.profiles if free_starts(table, profile, [Placement(taker, 0)])}
    assert beside == {"1g.24gb-me", "2g.48gb-me"}
