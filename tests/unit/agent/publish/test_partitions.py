"""What is published for GPUs that can be divided, and in which order."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from draco.agent.hardware.gpus import DriverInfo, GpuMigView, HeldInstance, Instance, Use
from draco.agent.publish import partitions
from draco.agent.publish.partitions import Divisible
from draco.mig.board import Board, Placement
from draco.mig.geometry import BoardPool, geometry
from draco.mig.known_boards import BOARDS
from draco.resources.api.draco import MigState
from draco.resources.api.slices import Counter, CounterSet, Device, DeviceAttribute
from draco.resources.names import GpuUuid, read_partition_name
from draco.resources.quantity import Quantity
from tests.builders import a_gpu

DRIVER = DriverInfo("580.65.06", "13.0", "13.580.65.06")
H100 = BOARDS["H100-80GB"]


def placed(name: str, start: int, board: Board = H100) -> Placement:
    profile = board.profile(name)
    assert profile is not None
    return Placement(profile, start)


def held(gpu: str, placement: Placement, use: Use = Use.CLAIM) -> HeldInstance:
    profile = placement.profile
    instance = Instance(gpu=GpuUuid(gpu), gi=1, profile_id=profile.id, start=placement.start, size=profile.size)
    return HeldInstance(instance=instance, use=use)


def divisible(minor: int = 0, *there: tuple[Placement, Use], board: Board = H100, **fields: Any) -> Divisible:
    gpu = a_gpu(minor)
    state = fields.pop("state", MigState.READY)
    mig = GpuMigView(gpu=gpu.uuid, board=board, state=state, held=tuple(held(gpu.uuid, *one) for one in there))
    return Divisible(gpu=gpu, mig=mig, board=board, **fields)


def published(*gpus: Divisible) -> dict[str, Device]:
    return {one.name: one for one in partitions.devices(gpus, DRIVER, partitions.order(gpus))}


def test_a_partition_has_nvidias_names_attributes_and_capacities() -> None:
    gpu = divisible(3)
    one = published(gpu)["gpu-3-mig-3g40gb-9-4"]
    assert one.attributes["type"] == DeviceAttribute(string="mig")
    assert one.attributes["profile"] == DeviceAttribute(string="3g.40gb")
    assert one.attributes["parentUUID"] == DeviceAttribute(string=gpu.uuid)
    assert one.attributes["productName"] == DeviceAttribute(string="NVIDIA H100 80GB HBM3")
    assert "resource.kubernetes.io/pciBusID" in one.attributes
    assert "uuid" not in one.attributes
    assert {name: capacity.value for name, capacity in one.capacity.items()} == {
        "multiprocessors": "60", "copyEngines": "3", "decoders": "3", "encoders": "0", "jpegEngines": "3",
        "ofaEngines": "0", "memory": "40448Mi",
    }  # fmt: skip


def test_a_partition_draws_its_engines_its_memory_and_its_units_from_its_gpu() -> None:
    (drawn,) = published(divisible(3))["gpu-3-mig-1g20gb-15-6"].consumes_counters
    assert drawn.counter_set == "gpu-3-counter-set"
    assert drawn.counters == {
        "multiprocessors": Counter(value="26"), "copy-engines": Counter(value="1"), "decoders": Counter(value="1"),
        "encoders": Counter(value="0"), "jpeg-engines": Counter(value="1"), "ofa-engines": Counter(value="0"),
        "memory": Counter(value="20096Mi"), "memory-slice-6": Counter(value="1"), "memory-slice-7": Counter(value="1"),
    }  # fmt: skip


def test_the_whole_gpu_keeps_what_it_is_and_draws_everything() -> None:
    gpu = divisible(0)
    whole = published(gpu)["gpu-0"]
    assert whole.attributes["uuid"] == DeviceAttribute(string=gpu.uuid)
    assert whole.capacity["memory"].value == "81559Mi"
    assert whole.capacity["multiprocessors"].value == "132"
    (counters,) = partitions.counters([gpu])
    assert counters == CounterSet(name="gpu-0-counter-set", counters=whole.consumes_counters[0].counters)
    assert [name for name in counters.counters if name.startswith("memory-")] == [
        f"memory-slice-{unit}" for unit in range(8)
    ]


def amounts(counters: Mapping[str, Counter], names: Sequence[str]) -> tuple[int, ...]:
    return tuple(Quantity.parse(counters[name].value).nanos if name in counters else 0 for name in names)


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_counters_allow_exactly_what_the_board_allows(name: str) -> None:
    board = BOARDS[name]
    space, gpu = geometry(board), divisible(0, board=board)
    devices = published(gpu)
    (total,) = partitions.counters([gpu])
    names = sorted(total.counters)
    drawn = {
        placement: amounts(devices[partitions.partition_name("gpu-0", placement)].consumes_counters[0].counters, names)
        for placement in board.placements
    }
    start = (space.empty, amounts(total.counters, names))
    seen, todo = {start}, [start]
    while todo:
        state, left = todo.pop()
        fits = set(space.fits(state))
        for placement, draws in drawn.items():
            after = tuple(map(int.__sub__, left, draws))
            assert (min(after) >= 0) == (placement in fits), f"{placement} on {state}"
            if min(after) >= 0 and (step := (space.add(state, placement), after)) not in seen:
                seen.add(step)
                todo.append(step)
    assert len(seen) > 5


def test_every_name_is_read_back_and_no_two_are_alike() -> None:
    for name in BOARDS:
        board = BOARDS[name]
        names = [partitions.partition_name("gpu-11", placement) for placement in board.placements]
        assert len(set(names)) == len(names)
        for device, placement in zip(names, board.placements, strict=True):
            assert read_partition_name(device) == ("gpu-11", placement.profile.id, placement.start)
            assert device.replace("-", "").isalnum()


def first(profile: str, *gpus: Divisible) -> tuple[str, int]:
    place = next(place for place in partitions.order(gpus) if place.placement.profile.name == profile)
    return place.gpu, place.placement.start


def test_the_best_placement_of_each_profile_comes_first() -> None:
    empty = divisible(0)
    assert first("3g.40gb", empty) == (empty.uuid, 4)  # a 3g at 0 would prevent the 4g and the 7g
    assert first("1g.20gb", empty) == (empty.uuid, 6)  # the only pair with the unit that has no compute slice
    begun = divisible(1, (placed("1g.10gb", 6), Use.CLAIM))
    assert first("1g.10gb", empty, begun) == (begun.uuid, 5)
    assert first("7g.80gb", empty, begun) == (empty.uuid, 0)


@pytest.mark.parametrize("profiles", [frozenset(), frozenset({"1g.10gb", "2g.20gb", "4g.40gb"})])
def test_claims_that_come_one_after_the_other_go_where_the_planner_would_put_each(profiles: frozenset[str]) -> None:
    """The GPUs differ clearly: by capability loss, by number of instances, and by memory slices."""
    there = (
        (),
        ("1g.10gb@6",),
        ("3g.40gb@4",),
        ("1g.10gb@0", "1g.10gb@1", "3g.40gb@4"),
        ("2g.20gb@0", "3g.40gb@4"),
        ("1g.10gb@0", "1g.20gb@4", "1g.10gb@6"),
        ("2g.20gb@2", "2g.20gb@4"),
    )
    gpus = [
        divisible(
            minor,
            *((placed(name, int(start)), Use.CLAIM) for name, _, start in (one.partition("@") for one in on)),
            profiles=profiles,
        )
        for minor, on in enumerate(there)
    ]
    space = geometry(H100, profiles)
    for profile in space.wanted:
        states, expected = [gpu.state for gpu in gpus], []
        while (choice := BoardPool(space, states).choose(profile)) is not None:
            states[choice.gpu] = space.add(states[choice.gpu], choice.placement)
            expected.append((gpus[choice.gpu].uuid, choice.start))
        places = [(one.gpu, one.placement.start) for one in partitions.order(gpus) if one.placement.profile == profile]
        assert places[: len(expected)] == expected


def test_what_an_idle_instance_takes_is_free_and_comes_first_among_equals() -> None:
    warm = divisible(1, (placed("3g.40gb", 4), Use.WARM))
    assert first("3g.40gb", divisible(0), warm) == (warm.uuid, 4)
    assert first("7g.80gb", warm) == (warm.uuid, 0)


def test_small_profiles_come_first_for_claims_that_take_any() -> None:
    names = [place.placement.profile.size for place in partitions.order([divisible(0), divisible(1)])]
    assert names == sorted(names)


def test_an_order_matters_when_the_scheduler_would_choose_worse_by_it() -> None:
    idle = [divisible(0), divisible(1)]
    begun = [divisible(0), divisible(1, (placed("1g.10gb", 6), Use.CLAIM))]
    old = partitions.order(idle)
    assert partitions.better(old, idle) is None
    assert partitions.better(old, begun) is not None  # the next small one belongs beside the first
    assert partitions.better(partitions.order(begun), begun) is None


def test_other_partitions_always_matter() -> None:
    assert partitions.better(partitions.order([divisible(0)]), [divisible(0), divisible(1)]) is not None


def test_as_many_other_partitions_matter_too() -> None:
    before, after = (divisible(0, layout=(placed("3g.40gb", start),), whole=False) for start in (0, 4))
    assert partitions.better(partitions.order([before]), [after]) == partitions.order([after])


def test_a_partition_of_the_layout_that_a_claim_has_is_published_once() -> None:
    one = placed("3g.40gb", 4)
    gpu = divisible(0, (one, Use.CLAIM), layout=(one, placed("4g.40gb", 0)), beside=(one,), whole=False)
    assert len(partitions.order([gpu])) == 2


def test_counters_come_in_the_order_of_minor_numbers_and_with_the_most_that_a_profile_has() -> None:
    for name, board in BOARDS.items():
        sets = partitions.counters([divisible(1, board=board), divisible(0, board=board)])
        assert [each.name for each in sets] == ["gpu-0-counter-set", "gpu-1-counter-set"], name
        most = max(profile.memory_mib for profile in board.profiles)
        reversed_board = Board(board.profiles[::-1])
        for each in (*sets, *partitions.counters([divisible(0, board=reversed_board)])):
            assert Quantity.parse(each.counters["memory"].value).value() == most << 20


def test_a_stale_order_that_chooses_as_well_does_not_matter() -> None:
    full = [divisible(0, (placed("7g.80gb", 0), Use.CLAIM)), divisible(1)]
    assert partitions.better(partitions.order([divisible(1), divisible(0)]), full) is None


def test_only_allowed_profiles_and_only_the_places_of_a_layout_are_published() -> None:
    names = set(published(divisible(0, profiles=frozenset({"7g.80gb", "3g.40gb"}))))
    assert names == {"gpu-0", "gpu-0-mig-3g40gb-9-0", "gpu-0-mig-3g40gb-9-4", "gpu-0-mig-7g80gb-0-0"}
    layout = (placed("3g.40gb", 4), placed("4g.40gb", 0))
    assert set(published(divisible(0, layout=layout, whole=False))) == {"gpu-0-mig-3g40gb-9-4", "gpu-0-mig-4g40gb-5-0"}


def test_what_overlaps_a_foreign_instance_is_tainted_and_the_rest_is_not() -> None:
    devices = published(divisible(0, (placed("1g.10gb", 0), Use.FOREIGN)))
    tainted = {name for name, one in devices.items() if one.taints}
    assert {"gpu-0", "gpu-0-mig-7g80gb-0-0", "gpu-0-mig-4g40gb-5-0", "gpu-0-mig-1g10gb-19-0"} <= tainted
    assert not {"gpu-0-mig-3g40gb-9-4", "gpu-0-mig-1g10gb-19-1"} & tainted
    assert {taint.key for one in devices.values() for taint in one.taints} == {"draco.dev/foreign-instance"}


def test_each_of_several_foreign_instances_counts() -> None:
    there = ((placed("1g.10gb", start), Use.FOREIGN) for start in (0, 5))
    tainted = {name for name, one in published(divisible(0, *there)).items() if one.taints}
    assert {"gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-5"} <= tainted


def test_a_gpu_that_waits_for_a_reset_is_not_to_be_had() -> None:
    devices = published(divisible(0, state=MigState.NEEDS_RESET))
    assert all(one.taints for one in devices.values())


def test_a_gpu_whose_instances_are_not_certain_is_tainted_as_a_whole() -> None:
    devices = published(divisible(0, state=MigState.DIRTY), divisible(1))
    assert {name.split("-")[1] for name, one in devices.items() if one.taints} == {"0"}
    assert {(one.key, one.value) for one in devices["gpu-0"].taints} == {("draco.dev/unsettled", "Dirty")}
