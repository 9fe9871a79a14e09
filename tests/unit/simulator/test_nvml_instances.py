"""GPU instances and compute instances through simulated NVML: created, found and destroyed."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.state import GpuInstance, GpuProcess, create, load
from draco_local.simulator.nvml.handles import ProcessKilled
from draco_local.simulator.nvml.instances import instance_id
from tests.unit.simulator.conftest import Mig, StateFile, opened

ANY = pynvml.NVML_GPU_INSTANCE_ID_ANY


def test_an_instance_is_made_where_it_was_planned(mig: Mig) -> None:
    info = mig.nvml.nvmlGpuInstanceGetInfo(mig.make(9, 4))
    assert (info.id, info.profileId, info.placement.start, info.placement.size) == (2, 9, 4, 4)
    assert mig.nvml.nvmlDeviceGetIndex(info.device) == 0
    assert mig.placements() == {2: (9, 4, 4)}


def test_every_process_sees_what_one_of_them_made(mig: Mig, path: Path) -> None:
    mig.made(9, 4)
    other = opened(path)
    handle = other.nvmlDeviceGetGpuInstanceById(other.nvmlDeviceGetHandleByIndex(0), 2)
    assert other.nvmlGpuInstanceGetInfo(handle).placement.start == 4
    assert (
        other.nvmlDeviceGetUUID(other.nvmlDeviceGetMigDeviceHandleByIndex(other.nvmlDeviceGetHandleByIndex(0), 0))
        == (mig.devices()[0])
    )


def test_ids_follow_from_the_place_and_come_back_with_it(mig: Mig) -> None:
    handles = [mig.make(profile, start) for profile, start in ((19, 0), (19, 6), (14, 2), (15, 4))]
    assert mig.placements() == {7: (19, 0, 1), 13: (19, 6, 1), 4: (14, 2, 2), 5: (15, 4, 2)}
    mig.nvml.nvmlGpuInstanceDestroy(handles[1])
    assert mig.nvml.nvmlGpuInstanceGetInfo(mig.make(20, 6)).id == 13


@pytest.mark.parametrize(("units", "sizes"), [(8, (1, 2, 4, 8)), (4, (1, 2, 4)), (12, (3, 6, 12))])
def test_no_two_instances_that_fit_side_by_side_share_an_id(units: int, sizes: tuple[int, ...]) -> None:
    places = [(size, start) for size in sizes for start in range(0, units, size)]
    assert len({instance_id(units, size, start) for size, start in places}) == len(places)


def test_occupied_units_and_used_up_engines_are_refused_alike(mig: Mig) -> None:
    mig.make(20, 0)
    before = mig.placements()
    for profile, start in ((9, 0), (19, 0), (0, 0), (20, 3)):  # the last: there is one media extension
        with pytest.raises(pynvml.NVMLError_InsufficientResources):
            mig.make(profile, start)
    assert mig.placements() == before


def test_a_placement_that_the_profile_does_not_have_is_an_invalid_argument(mig: Mig) -> None:
    for profile, start, size in ((9, 2, 4), (9, 0, 3), (19, 7, 1)):
        placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            mig.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(mig.device, profile, ctypes.byref(placement))


def test_a_placement_passed_by_value_kills_the_process_whatever_is_caught(mig: Mig) -> None:
    assert not issubclass(ProcessKilled, Exception)
    with pytest.raises(ProcessKilled, match="passed by value"):
        mig.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(mig.device, 9, pynvml.c_nvmlGpuInstancePlacement_t(0, 4))
    with pytest.raises(ProcessKilled):
        mig.nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(
            mig.make(9, 0), 2, pynvml.c_nvmlComputeInstancePlacement_t(0, 3)
        )
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        mig.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(mig.device, 9, None)


def test_pointers_of_every_kind_are_followed_and_null_is_an_invalid_argument(mig: Mig) -> None:
    placement = pynvml.c_nvmlGpuInstancePlacement_t(0, 4)
    pointer = ctypes.pointer(placement)
    instance = mig.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(mig.device, 9, pointer)
    assert mig.nvml.nvmlGpuInstanceGetInfo(instance).placement.start == 0
    for null in (None, type(pointer)()):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            mig.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(mig.device, 9, null)
    with pytest.raises(ctypes.ArgumentError):
        mig.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(mig.device, 9, [0, 4])


def test_an_array_without_room_for_all_instances_kills_the_process(mig: Mig) -> None:
    for start in (0, 1):
        mig.make(19, start)
    count = ctypes.c_uint(2)
    mig.nvml.nvmlDeviceGetGpuInstances(mig.device, 19, (pynvml.c_nvmlGpuInstance_t * 2)(), ctypes.byref(count))
    assert count.value == 2
    with pytest.raises(ProcessKilled, match="1 handles was passed for 2"):
        mig.nvml.nvmlDeviceGetGpuInstances(mig.device, 19, (pynvml.c_nvmlGpuInstance_t * 1)(), ctypes.byref(count))


def test_the_driver_chooses_as_seen_on_hardware(mig: Mig) -> None:
    def choose(*profiles: int) -> list[int]:
        made = [mig.nvml.nvmlDeviceCreateGpuInstance(mig.device, profile) for profile in profiles]
        starts = [mig.nvml.nvmlGpuInstanceGetInfo(handle).placement.start for handle in made]
        for handle in made:
            mig.nvml.nvmlGpuInstanceDestroy(handle)
        return starts

    assert choose(9, 9) == [4, 0]
    assert choose(14, 14, 14) == [4, 0, 2]
    assert choose(19, 19, 19, 19, 19, 19, 19) == [6, 0, 1, 2, 3, 4, 5]
    assert choose(9, 5) == [4, 0]
    assert choose(14, 19) == [4, 6]
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        choose(19, 19, 14, 9)  # fits by counts, but the driver's choice of placements makes it impossible


def test_where_all_places_are_as_good_the_driver_begins_at_the_end(a_state_file: StateFile) -> None:
    mig = Mig(a_state_file("A30"))
    smallest = mig.nvml.nvmlDeviceGetGpuInstanceProfileInfo(mig.device, pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE).id
    made = mig.nvml.nvmlDeviceCreateGpuInstance(mig.device, smallest)
    assert mig.nvml.nvmlGpuInstanceGetInfo(made).placement.start == 3


def test_nothing_is_made_while_mig_is_off(path: Path) -> None:
    nvml = opened(path)
    device = nvml.nvmlDeviceGetHandleByIndex(1)
    placement = ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(0, 4))
    for call in (
        lambda: nvml.nvmlDeviceCreateGpuInstance(device, 9),
        lambda: nvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, 9, placement),
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call()
    with pytest.raises(pynvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetGpuInstanceById(device, 1)


def test_an_instance_without_compute_instance_takes_its_place_and_only_the_list_of_instances_shows_it(mig: Mig) -> None:
    mig.make(9, 4)
    assert mig.devices() == {}
    assert mig.placements() == {2: (9, 4, 4)}
    assert mig.nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(mig.device, 9) == 1
    assert mig.nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(mig.device, 0) == 0


def test_a_gpu_instance_goes_after_its_compute_instances(mig: Mig) -> None:
    instance, compute = mig.made(9, 4)
    with pytest.raises(pynvml.NVMLError_InUse):
        mig.nvml.nvmlGpuInstanceDestroy(instance)
    assert mig.nvml.nvmlComputeInstanceDestroy(compute) == pynvml.NVML_SUCCESS
    assert mig.nvml.nvmlGpuInstanceDestroy(instance) == pynvml.NVML_SUCCESS
    assert mig.placements() == {}


def test_what_was_destroyed_is_not_found_also_when_its_id_is_taken_again(mig: Mig) -> None:
    instance, compute = mig.made(9, 4)
    device = mig.nvml.nvmlComputeInstanceGetInfo(compute).device
    mig.nvml.nvmlComputeInstanceDestroy(compute)
    mig.nvml.nvmlGpuInstanceDestroy(instance)
    mig.made(9, 4)
    for call, handle in (
        (mig.nvml.nvmlGpuInstanceGetInfo, instance),
        (mig.nvml.nvmlGpuInstanceDestroy, instance),
        (mig.nvml.nvmlComputeInstanceGetInfo, compute),
        (mig.nvml.nvmlComputeInstanceDestroy, compute),
        (mig.nvml.nvmlDeviceGetUUID, device),
    ):
        with pytest.raises(pynvml.NVMLError_NotFound):
            call(handle)
    with pytest.raises(pynvml.NVMLError_NotFound):
        mig.nvml.nvmlDeviceGetGpuInstanceById(mig.device, 1)


def test_compute_instances_share_a_gpu_instance_slice_by_slice(mig: Mig) -> None:
    nvml, instance = mig.nvml, mig.make(9, 4)
    assert nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0) == 3
    one = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    assert nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0) == 2
    placement = pynvml.c_nvmlComputeInstancePlacement_t(2, 1)
    two = nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, ctypes.byref(placement))
    infos = [nvml.nvmlComputeInstanceGetInfo_v2(each) for each in (one, two)]
    assert [(info.id, info.profileId, info.placement.start, info.placement.size) for info in infos] == [
        (0, 0, 0, 1),
        (1, 0, 2, 1),
    ]
    assert nvml.nvmlGpuInstanceGetInfo(infos[0].gpuInstance).id == 2
    too_large = pynvml.c_nvmlComputeInstancePlacement_t(1, 2)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, ctypes.byref(too_large))
    for profile in (1, 2):  # with two and with three slices
        with pytest.raises(pynvml.NVMLError_InsufficientResources):
            nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, ctypes.byref(placement))
    nvml.nvmlComputeInstanceDestroy(one)
    assert nvml.nvmlComputeInstanceGetInfo(nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)).id == 0


def test_a_mig_device_lists_only_those_who_compute_on_it(mig: Mig, path: Path) -> None:
    nvml, instance = mig.nvml, mig.make(9, 4)
    one, two = (nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0) for _ in range(2))
    for pid, compute in ((4711, 0), (4712, 1)):
        faults.hold(path, 0, GpuProcess(pid=pid, gpu_instance=2, compute_instance=compute))
    devices = [nvml.nvmlComputeInstanceGetInfo_v2(each).device for each in (one, two)]
    listed = [[each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(device)] for device in devices]
    assert listed == [[4711], [4712]]


def test_compute_instances_are_listed_by_profile_and_found_by_id(mig: Mig) -> None:
    nvml, instance = mig.nvml, mig.make(9, 4)
    for profile in (1, 0):
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile)
    array, count = (pynvml.c_nvmlComputeInstance_t * 8)(), ctypes.c_uint()
    nvml.nvmlGpuInstanceGetComputeInstances(instance, 0, array, ctypes.byref(count))
    assert [nvml.nvmlComputeInstanceGetInfo(each).id for each in array[: count.value]] == [1]
    assert nvml.nvmlComputeInstanceGetInfo(nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)).profileId == 1
    with pytest.raises(pynvml.NVMLError_NotFound):
        nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 5)


def test_compute_profiles_are_those_that_fit_into_the_gpu_instance(mig: Mig) -> None:
    nvml, instance = mig.nvml, mig.make(9, 4)
    found = {}
    for kind in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, 0)
        except pynvml.NVMLError_NotSupported:
            continue
        found[info.name] = (
            info.id,
            info.sliceCount,
            info.instanceCount,
            info.multiprocessorCount,
            info.sharedDecoderCount,
        )
    assert found == {
        "MIG 1c.3g.40gb": (0, 1, 3, 20, 3), "MIG 2c.3g.40gb": (1, 2, 1, 40, 3), "MIG 3g.40gb": (2, 3, 1, 60, 3),
    }  # fmt: skip
    assert not hasattr(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 0, 0, version=1), "name")
    for kind, engine in ((pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT, 0), (0, 1)):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, engine)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, 4)  # seven slices


def test_compute_placements_are_asked_for_as_those_of_gpu_instances(mig: Mig) -> None:
    nvml, instance, count = mig.nvml, mig.make(0, 0), ctypes.c_uint()
    nvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance, 1, None, ctypes.byref(count))
    array = (pynvml.c_nvmlComputeInstancePlacement_t * count.value)()
    nvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance, 1, array, ctypes.byref(count))
    assert [(place.start, place.size) for place in array] == [(0, 2), (2, 2), (4, 2)]


@pytest.mark.parametrize("board", ["A100-40GB", "A30", "RTX-PRO-6000", "B200"])
def test_each_board_can_be_filled_with_its_smallest_and_its_largest_profile(
    a_state_file: StateFile, board: str
) -> None:
    path = a_state_file(board, gpus=1)
    mig = Mig(path)
    for kind in (pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE, None):
        profile_id = 0 if kind is None else mig.nvml.nvmlDeviceGetGpuInstanceProfileInfo(mig.device, kind).id
        most = mig.nvml.nvmlDeviceGetGpuInstanceProfileInfoById(mig.device, profile_id).instanceCount
        made = [mig.nvml.nvmlDeviceCreateGpuInstance(mig.device, profile_id) for _ in range(most)]
        ids = {mig.nvml.nvmlGpuInstanceGetInfo(handle).id for handle in made}
        assert len(ids) == most
        for handle in made:
            mig.nvml.nvmlComputeInstanceDestroy(mig.nvml.nvmlGpuInstanceCreateComputeInstance(handle, 0))
            mig.nvml.nvmlGpuInstanceDestroy(handle)


def test_what_has_all_media_engines_leaves_room_only_for_what_has_none(a_state_file: StateFile) -> None:
    mig = Mig(a_state_file("RTX-PRO-6000", gpus=1))
    mig.nvml.nvmlDeviceCreateGpuInstance(mig.device, 65)  # 1g.24gb+me.all
    for profile_id in (14, 21, 47, 5):
        assert mig.nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(mig.device, profile_id) == 0
        with pytest.raises(pynvml.NVMLError_InsufficientResources):
            mig.nvml.nvmlDeviceCreateGpuInstance(mig.device, profile_id)
    assert mig.nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(mig.device, 67) == 3
    mig.nvml.nvmlDeviceCreateGpuInstance(mig.device, 67)


def test_of_many_that_want_one_place_at_once_one_gets_it(mig: Mig, path: Path) -> None:
    def take(_number: int) -> int:
        nvml = opened(path)  # as another process would have it
        try:
            instance = nvml.nvmlDeviceCreateGpuInstance(nvml.nvmlDeviceGetHandleByIndex(0), 19)
        except pynvml.NVMLError_InsufficientResources:
            return -1
        return int(nvml.nvmlGpuInstanceGetInfo(instance).placement.start)

    with ThreadPoolExecutor(12) as workers:
        starts = list(workers.map(take, range(12)))
    assert sorted(starts) == [-1] * 5 + list(range(7))
    assert sorted(place[1] for place in mig.placements().values()) == list(range(7))


@given(steps=st.lists(st.tuples(st.sampled_from([19, 20, 15, 14, 9, 5, 0]), st.integers(0, 6)), max_size=25))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_made_and_destroyed_nothing_overlaps_and_refusals_are_right(
    path: Path, steps: list[tuple[int, int]]
) -> None:
    sizes = {19: 1, 20: 1, 15: 2, 14: 2, 9: 4, 5: 4, 0: 8}
    starts = {19: range(7), 20: range(7), 15: (0, 2, 4, 6), 14: (0, 2, 4), 9: (0, 4), 5: (0,), 0: (0,)}
    optical_flow = {20, 0}  # these take the only optical flow accelerator
    create(path, gpus=1, node_name="n")
    mig, there = Mig(path), dict[tuple[int, int], Any]()
    for profile_id, start in steps:
        if (profile_id, start) in there:
            mig.nvml.nvmlGpuInstanceDestroy(there.pop((profile_id, start)))
            continue
        taken = {unit for other, first in there for unit in range(first, first + sizes[other])}
        free = taken.isdisjoint(range(start, start + sizes[profile_id]))
        media = profile_id not in optical_flow or not any(other in optical_flow for other, _ in there)
        if start not in starts[profile_id]:
            with pytest.raises(pynvml.NVMLError_InvalidArgument):
                mig.make(profile_id, start)
        elif free and media:
            there[profile_id, start] = mig.make(profile_id, start)
        else:
            with pytest.raises(pynvml.NVMLError_InsufficientResources):
                mig.make(profile_id, start)
    found = mig.placements()
    assert sorted(found.values()) == sorted((profile, start, sizes[profile]) for profile, start in there)


def test_making_and_destroying_are_announced_to_everybody_who_listens(mig: Mig, path: Path) -> None:
    listener = opened(path)
    events = listener.nvmlEventSetCreate()
    listener.nvmlDeviceRegisterEvents(listener.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlEventTypeAll, events)
    instance, compute = mig.made(9, 4)
    mig.nvml.nvmlComputeInstanceDestroy(compute)
    mig.nvml.nvmlGpuInstanceDestroy(instance)
    for _ in range(4):
        data = listener.nvmlEventSetWait_v2(events, 0)
        assert (data.eventType, data.gpuInstanceId, data.computeInstanceId) == (
            pynvml.nvmlEventMigConfigChange,
            ANY,
            ANY,
        )
    with pytest.raises(pynvml.NVMLError_Timeout):
        listener.nvmlEventSetWait_v2(events, 0)


def test_rows_remapped_cannot_be_read_while_instances_exist(mig: Mig) -> None:
    instance = mig.make(19, 0)
    info = pynvml.c_nvmlRemappedRowsInfo_v2_t()
    for call in (
        lambda: mig.nvml.nvmlDeviceGetRemappedRows(mig.device),
        lambda: mig.nvml.nvmlDeviceGetRemappedRows_v2(mig.device, ctypes.byref(info)),
        lambda: mig.nvml.nvmlDeviceGetRowRemapperHistogram(mig.device),
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call()
    mig.nvml.nvmlGpuInstanceDestroy(instance)
    assert mig.nvml.nvmlDeviceGetRemappedRows(mig.device) == (0, 0, 0, 0)


def test_a_refusal_changes_nothing_in_the_file(mig: Mig, path: Path) -> None:
    mig.made(9, 0)
    before = path.read_bytes()
    for call in (
        lambda: mig.make(9, 0),
        lambda: mig.nvml.nvmlGpuInstanceDestroy(mig.nvml.nvmlDeviceGetGpuInstanceById(mig.device, 1)),
    ):
        with pytest.raises(pynvml.NVMLError):
            call()
    assert path.read_bytes() == before


def test_a_lost_gpu_makes_and_destroys_nothing(mig: Mig, path: Path) -> None:
    instance = mig.make(9, 0)
    faults.lose(path, 0)
    for call in (lambda: mig.make(9, 4), lambda: mig.nvml.nvmlGpuInstanceDestroy(instance)):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            call()
    assert len(load(path).gpus[0].instances) == 1


def test_a_handle_of_another_kind_or_session_is_an_invalid_argument(mig: Mig, path: Path) -> None:
    instance, compute = mig.made(9, 0)
    other = opened(path)
    other.nvmlShutdown()
    other.nvmlInit()
    for call, handle in (
        (mig.nvml.nvmlGpuInstanceGetInfo, mig.device),
        (mig.nvml.nvmlGpuInstanceGetInfo, compute),
        (mig.nvml.nvmlComputeInstanceGetInfo, instance),
        (mig.nvml.nvmlDeviceGetName, instance),
        (mig.nvml.nvmlGpuInstanceDestroy, None),
        (other.nvmlGpuInstanceGetInfo, instance),
    ):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(handle)


def test_instances_end_with_a_reset_a_reload_and_a_reboot(mig: Mig, path: Path) -> None:
    for end in (lambda: faults.reset(path, 0), lambda: faults.reload_driver(path), lambda: faults.reboot(path)):
        node = Mig(path)
        node.made(9, 0)
        end()
        assert load(path).gpus[0].instances == []


def test_a_state_file_of_the_version_before_is_read_and_written_anew(path: Path) -> None:
    old = path.read_text().replace('"format": 2', '"format": 1')
    for line in ('"failures": []', '"next_serial": 1', '"boot": 1'):
        old = old.replace(f",\n {line}", "")
    assert "next_serial" not in old
    path.write_text(old)
    Mig(path).made(9, 0)
    assert load(path).format == 2
    assert load(path).gpus[0].instances[0] == GpuInstance(1, 9, 0, 4, load(path).gpus[0].instances[0].compute, serial=1)
