"""Which devices share hardware, according to NVIDIA's names and to counters; and that the relation is symmetric."""

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draco.agent.hardware.gpus import DriverInfo, GpuMigView
from draco.agent.publish import partitions
from draco.allocation.fleet.hardware import PoolHardware
from draco.mig.board import Board
from draco.mig.known_boards import BOARDS
from draco.resources.api.slices import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCounterConsumption,
    ResourceSlice,
)
from tests.builders import a_gpu, a_slice

H100 = BOARDS["H100-80GB"]
WHOLE = "gpu-0"


def published(*, gpus: int = 2, counters: bool = True, board: Board = H100, generation: int = 1) -> list[ResourceSlice]:
    """GPUs as an agent publishes them in mode Dynamic."""
    divisible = [
        partitions.Divisible(gpu=a_gpu(minor), mig=GpuMigView(gpu=a_gpu(minor).uuid, board=board), board=board)
        for minor in range(gpus)
    ]
    devices = partitions.devices(divisible, DriverInfo("580.1", "13.0", "13.580"), partitions.order(divisible))
    sets = partitions.counters(divisible)
    if not counters:
        return [a_slice("node-0", [without_counters(each) for each in devices], generation=generation)]
    return [
        a_slice("node-0", [], name="counters", of=2, shared_counters=sets, generation=generation),
        a_slice("node-0", devices, name="devices", of=2, generation=generation),
    ]


def without_counters(device: Device) -> Device:
    return Device(name=device.name, attributes=device.attributes)


def masks(board: Board) -> dict[str, int]:
    """The memory units of each partition of gpu-0."""
    return {partitions.partition_name(WHOLE, place): place.mask for place in board.placements}


def test_a_whole_gpu_overlaps_all_its_partitions_and_no_other() -> None:
    hardware = PoolHardware(published())
    assert hardware.overlapping(WHOLE) == set(masks(H100))
    assert hardware.parts(WHOLE) == set(masks(H100))
    assert all(name.startswith("gpu-1-mig-") for name in hardware.overlapping("gpu-1"))


def test_partitions_overlap_where_their_memory_does_and_where_they_want_the_same_engine() -> None:
    hardware, units = PoolHardware(published()), masks(H100)
    engines = {name for name in units if "-me-" in name}
    assert engines
    for name, mask in units.items():
        same_memory = {other for other, theirs in units.items() if other != name and mask & theirs}
        same_engine = engines - {name} if name in engines else set()
        assert hardware.overlapping(name) == same_memory | same_engine | {WHOLE}


def test_a_small_partition_is_a_part_of_a_large_one_in_the_same_place() -> None:
    hardware, units = PoolHardware(published()), masks(H100)
    (half,) = [name for name in units if "-3g40gb-" in name and units[name] == 0b1111]
    small = [name for name in units if "-1g10gb-19-" in name]
    assert {name for name in small if name in hardware.parts(half)} == {name for name in small if units[name] & 0b1111}
    assert half not in hardware.parts(small[0])


def test_without_counters_a_partition_belongs_to_the_gpu_that_its_parent_uuid_names() -> None:
    hardware = PoolHardware(published(counters=False))
    assert hardware.overlapping(WHOLE) == set(masks(H100))
    assert hardware.overlapping(next(iter(masks(H100)))) == {WHOLE}


def test_a_parent_uuid_outweighs_a_name() -> None:
    part = Device(name="gpu-0-mig-1g10gb-19-0", attributes={"parentUUID": DeviceAttribute(string="GPU-b")})
    wholes = [
        Device(name=f"gpu-{n}", attributes={"gpu.nvidia.com/uuid": DeviceAttribute(string=f"GPU-{uuid}")})
        for n, uuid in enumerate("ab")
    ]
    hardware = PoolHardware([a_slice("node-0", [*wholes, part])])
    assert hardware.overlapping("gpu-0") == set()
    assert hardware.overlapping("gpu-1") == {part.name}
    assert (hardware.board(part.name), hardware.board("gpu-0")) == ("GPU-b", "GPU-a")


def test_a_whole_gpu_that_is_not_published_is_implied_by_its_partitions() -> None:
    parts = [device for device in published(counters=False)[0].spec.devices if "-mig-" in device.name]
    hardware = PoolHardware([a_slice("node-0", parts)])
    assert hardware.implied == {"gpu-0", "gpu-1"}
    assert hardware.overlapping(WHOLE) == set(masks(H100))
    assert hardware.board(WHOLE) == a_gpu(0).uuid


def test_what_an_older_generation_says_counts_until_it_is_replaced() -> None:
    before, after = published(generation=1), published(generation=2)
    hardware = PoolHardware([*before, after[0]])
    assert hardware.published == set()
    assert hardware.overlapping(WHOLE) == set(masks(H100))


def with_uuids(name: str, uuid: str, parent: str = "") -> Device:
    said = {"uuid": uuid, "parentUUID": parent}
    return Device(name=name, attributes={key: DeviceAttribute(string=value) for key, value in said.items() if value})


@pytest.mark.parametrize("order", [1, -1])
def test_of_what_two_generations_say_of_a_device_the_newer_counts(order: int) -> None:
    slices = [
        a_slice(
            "node-0", [with_uuids(WHOLE, f"GPU-{generation}")], name=f"s{order * generation}", generation=generation
        )
        for generation in (1, 2)
    ]
    assert PoolHardware(slices[::order]).board(WHOLE) == "GPU-2"


def test_of_an_unpublished_gpu_whose_partitions_disagree_nobody_knows_which_it_is() -> None:
    parts = [with_uuids(f"gpu-0-mig-1g10gb-19-{start}", f"MIG-{start}", f"GPU-{start}") for start in (0, 1)]
    assert PoolHardware([a_slice("node-0", parts)]).board(WHOLE) == ""


def test_a_partition_is_nobodys_whole_though_its_driver_gives_it_the_gpus_uuid() -> None:
    parts = [with_uuids(f"gpu-0-mig-1g10gb-19-{start}", "GPU-0", "GPU-0") for start in (0, 1)]
    hardware = PoolHardware([a_slice("node-0", [with_uuids(WHOLE, "GPU-0"), *parts])])
    assert hardware.overlapping(parts[0].name) == {WHOLE}


def test_another_node_that_publishes_under_the_pools_name_does_not_say_what_is_whose() -> None:
    stolen = [drawing(name) for name in (WHOLE, *masks(H100))]
    intruder = a_slice("node-evil", stolen, pool="node-0", name="intruder", generation=10**9)
    hardware = PoolHardware([*published(), intruder])
    assert hardware.overlapping(WHOLE) == set(masks(H100))
    assert hardware.board(WHOLE) == a_gpu(0).uuid


@pytest.mark.parametrize(
    ("one", "other", "surely", "perhaps"),
    [
        ("gpu-0", "gpu-0-mig-9g99gb-99-0", True, True),
        ("gpu-0-mig-1g10gb-19-0", "gpu-0-mig-9g99gb-99-3", False, True),
        ("gpu-1-mig-1g10gb-19-0", "gpu-0-mig-9g99gb-99-3", False, False),
        ("gpu-1", "gpu-0-mig-9g99gb-99-3", False, False),
        ("gpu-10", "gpu-1-mig-9g99gb-99-3", False, False),
        ("gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-1", False, False),
    ],
)
def test_of_a_partition_that_is_published_no_more_its_name_says_whose_it_was(
    one: str, other: str, surely: bool, perhaps: bool
) -> None:
    hardware = PoolHardware(published())
    assert (hardware.overlap(one, other), hardware.may_overlap(one, other)) == (surely, perhaps)
    assert (hardware.overlap(other, one), hardware.may_overlap(other, one)) == (surely, perhaps)


def drawing(name: str, counter_set: str = "board", **counters: int) -> Device:
    consumed = {each: Counter(value=str(amount)) for each, amount in counters.items()}
    return Device(name=name, consumes_counters=[DeviceCounterConsumption(counter_set=counter_set, counters=consumed)])


def a_pool(devices: Iterable[Device], *others: ResourceSlice, **totals: int) -> PoolHardware:
    sets = [CounterSet(name="board", counters={name: Counter(value=str(total)) for name, total in totals.items()})]
    counters = a_slice("node-0", [], name="counters", of=2, shared_counters=sets)
    return PoolHardware([counters, a_slice("node-0", devices, name="d", of=2), *others])


def test_counters_of_any_driver_decide_not_names() -> None:
    devices = [drawing("die", core=2), drawing("half-a", core=1), drawing("half-b", core=1), drawing("dsp", dsp=1)]
    hardware = a_pool(devices, core=2, dsp=1)
    assert hardware.overlapping("die") == {"half-a", "half-b"}
    assert hardware.overlapping("half-a") == {"die"}
    assert hardware.parts("half-a") == set()
    assert hardware.overlapping("dsp") == set()


def test_a_counter_without_a_published_total_pays_for_nobody_twice() -> None:
    devices = [drawing("a", core=1), drawing("b", core=1)]
    assert PoolHardware([a_slice("node-0", devices, of=2)]).overlapping("a") == {"b"}


def test_a_device_is_short_if_those_in_use_together_leave_too_little() -> None:
    devices = [drawing("a", core=1), drawing("b", core=1), drawing("c", core=2), drawing("dsp", dsp=1)]
    hardware = a_pool(devices, core=3, dsp=1)
    assert hardware.overlapping("c") == set()
    assert hardware.short(["a"]) == set()
    assert hardware.short(["a", "b", "gone"]) == {"c"}
    assert hardware.short(["c"]) == set()


def test_another_node_that_publishes_under_a_devices_name_does_not_say_what_it_draws() -> None:
    greedy = [drawing("a", core=2), drawing("b", core=2)]
    intruder = a_slice("node-evil", greedy, pool="node-0", name="intruder", generation=10**9)
    assert a_pool([drawing("a", core=1), drawing("b", core=1)], intruder, core=2).short(["a"]) == set()


NAMES = ["gpu-0", "gpu-1", "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-1", "gpu-1-mig-3g40gb-9-0", "nic-0"]
AMOUNTS = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3))
UUIDS = st.sampled_from(["", "GPU-a", "GPU-b"])


@given(
    devices=st.dictionaries(st.sampled_from(NAMES), st.tuples(AMOUNTS, UUIDS, UUIDS)),
    totals=st.dictionaries(st.sampled_from("xyz"), st.integers(0, 4)),
)
def test_overlapping_is_mutual_and_whole_whatever_is_published(
    devices: Mapping[str, tuple[Mapping[str, int], str, str]], totals: Mapping[str, int]
) -> None:
    made = []
    for name, (amounts, uuid, parent) in devices.items():
        texts = {"uuid": uuid, "parentUUID": parent}
        attributes = {key: DeviceAttribute(string=text) for key, text in texts.items() if text}
        consumed = drawing(name, "board", **amounts).consumes_counters if amounts else []
        made.append(Device(name=name, attributes=attributes, consumes_counters=consumed))
    hardware = a_pool(made, **totals)
    for one in NAMES:
        for other in NAMES:
            assert hardware.overlap(one, other) == hardware.overlap(other, one)
            assert hardware.may_overlap(one, other) or not hardware.overlap(one, other)
            if one != other and {one, other} <= devices.keys():
                # What it says about one device is what it would say about each pair.
                assert (other in hardware.overlapping(one)) == hardware.overlap(one, other)
        assert hardware.parts(one) <= hardware.overlapping(one)
        assert one not in hardware.overlapping(one)


def test_parts_are_what_has_nothing_else() -> None:
    devices = [drawing("-".join(each), "board", **dict.fromkeys(each, 1)) for each in ("a", "ab", "bc", "abc")]
    twin = drawing("twin", a=1, b=1)
    counters = CounterSet(name="board", counters={name: Counter(value="1") for name in "abc"})
    hardware = PoolHardware([a_slice("node-0", [*devices, twin], shared_counters=[counters])])
    assert hardware.overlapping("a-b") == {"a", "b-c", "a-b-c", "twin"}
    assert hardware.parts("a-b") == {"a"}, (
        "neither what has only some in common, nor what is the same, nor what has more"
    )
    assert hardware.parts("a-b-c") == {"a", "a-b", "b-c", "twin"}
    assert hardware.parts("a") == set()


def test_only_a_gpu_that_is_not_published_is_implied_by_its_partitions() -> None:
    assert PoolHardware(published()).implied == set()
    [counters, devices] = published()
    parts = [each for each in devices.spec.devices if each.name != WHOLE]
    assert PoolHardware([counters, a_slice("node-0", parts, name="devices", of=2)]).implied == {WHOLE}
