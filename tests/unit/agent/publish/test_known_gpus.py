"""A board keeps its device name over reboots, losses and returns, until an administrator decides otherwise."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draco.agent.claims.presence import gone
from draco.agent.hardware.faults import with_fault
from draco.agent.hardware.gpus import Gpu, KnownGpu, UnidentifiedGpu, UnreadFact
from draco.agent.hardware.monitor import HardwareView
from draco.agent.publish.device_names import KnownGpus, bound, given, published, remembered, reported, shown
from draco.agent.publish.slices import device
from draco.agent.record import checkpoint
from draco.agent.record.checkpoint import Checkpoint, RecordState
from draco.agent.record.contents import PreparationState, PreparedClaim, PreparedDevice
from draco.agent.state.node import NodeState
from draco.health.table import HealthState
from draco.resources.api.draco import GpuNode, GpuNodeStatus, GpuStatus
from draco.resources.api.slices import Device, DeviceAttribute, ResourcePool, ResourceSlice, ResourceSliceSpec
from draco.resources.names import ClaimUid, GpuUuid
from tests.builders import a_gpu
from tests.doubles.clock import ManualClock
from tests.doubles.files import FullCopyOnWriteDisk
from tests.unit.agent.mig_node import MigNode, build
from tests.unit.agent.publish.test_slices import DRIVER

A, B, C = a_gpu(0), a_gpu(1), a_gpu(2)


def at(gpu: Gpu, minor: int, **fields: Any) -> Gpu:
    return msgspec.structs.replace(gpu, minor=minor, index=minor, **fields)


def read(*gpus: Gpu) -> list[Gpu]:
    return list(gpus)


def names(known: dict[GpuUuid, KnownGpu]) -> list[str]:
    return [known[gpu.uuid].device for gpu in (A, B, C) if gpu.uuid in known]


def after(*readings: Sequence[Gpu], **more: Any) -> dict[GpuUuid, KnownGpu]:
    known: dict[GpuUuid, KnownGpu] = {}
    for gpus in readings:
        known = remembered(known, read(*gpus), **more)
    return known


# Names


def test_at_first_sight_a_gpu_is_called_after_its_minor_number() -> None:
    assert names(after([at(A, 3), at(B, 0)])) == ["gpu-3", "gpu-0"]


def test_names_stay_when_minor_numbers_are_permuted() -> None:
    assert names(after([A, B, C], [at(A, 2), at(B, 0), at(C, 1)])) == ["gpu-0", "gpu-1", "gpu-2"]


def test_names_stay_when_a_gpu_is_gone_and_the_others_close_the_gap() -> None:
    assert names(after([A, B, C], [at(B, 0), at(C, 1)])) == ["gpu-0", "gpu-1", "gpu-2"]


def test_a_newcomer_whose_name_another_board_has_gets_the_lowest_free_number() -> None:
    known = after([A, B], [at(B, 1), at(C, 0)])
    assert names(known) == ["gpu-0", "gpu-1", "gpu-2"]


def test_newcomers_that_can_have_their_own_number_come_first() -> None:
    new, other = at(C, 1), at(a_gpu(7), 0)
    known = remembered(after([A]), read(other, new))
    assert (known[new.uuid].device, known[other.uuid].device) == ("gpu-1", "gpu-2")


def test_only_a_persons_word_frees_the_name_of_a_board_that_is_gone_and_that_no_claim_has() -> None:
    known = after([A, B])
    assert names(remembered(known, read(B), forget=[A.uuid], needed=[A.uuid])) == ["gpu-0", "gpu-1"]
    assert names(remembered(known, read(A, B), forget=[A.uuid])) == ["gpu-0", "gpu-1"]
    forgotten = remembered(known, read(at(B, 0)), forget=[A.uuid])
    assert names(forgotten) == ["gpu-1"]
    assert names(remembered(forgotten, read(at(B, 1), at(C, 0)))) == ["gpu-1", "gpu-0"]


# What others get to see


def test_a_gpu_that_is_no_longer_listed_is_told_of_as_absent_under_its_name() -> None:
    known = after([A, B])
    seen = {gpu.device: gpu for gpu in shown(known, read(at(B, 0)))}
    assert seen.keys() == {"gpu-0", "gpu-1"}
    assert (seen["gpu-1"].uuid, seen["gpu-1"].minor, seen["gpu-1"].fault) == (B.uuid, 0, None)
    fault = seen["gpu-0"].fault
    assert fault is not None
    assert (seen["gpu-0"].uuid, fault.status.name, fault.health) == (A.uuid, "Absent", HealthState.UNHEALTHY)
    assert f"draco.dev/forget-gpu={A.uuid}" in fault.status.message


def test_a_board_in_whose_place_another_sits_is_no_longer_told_of_unless_a_claim_has_it() -> None:
    def told(known: dict[GpuUuid, KnownGpu], *gpus: Gpu, **more: Any) -> list[str]:
        return [one.device for one in shown(remembered(known, read(*gpus), **more), read(*gpus), **more)]

    known, new = after([A, B]), at(C, 0, pci_bus_id=A.pci_bus_id)
    assert told(known, new, B, needed=[A.uuid]) == ["gpu-2", "gpu-1", "gpu-0"]
    assert told(known, new, B) == ["gpu-2", "gpu-1"]
    exchanged = remembered(known, read(new, B))
    assert told(exchanged, B) == ["gpu-1", "gpu-2"], "the one that was there last is away"
    back = remembered(exchanged, read(A, B))
    assert told(back, A, B) == ["gpu-0", "gpu-1"], "its name was kept for it"
    assert told(back, B) == ["gpu-1", "gpu-0"]


def test_an_absent_gpu_may_be_one_that_does_not_tell_its_uuid() -> None:
    [_, away] = shown(after([A, B]), read(B), unidentified=[UnidentifiedGpu(0, "lost")])
    assert away.fault is not None
    assert "NVML does not report the UUID of 1 GPU of this node, which may be this one." in away.fault.status.message


def test_what_changes_while_a_gpu_is_at_work_is_not_worth_a_write() -> None:
    known = after([A, B])
    busy = with_fault(msgspec.structs.replace(A, index=5), "ThermalSlowdown", "hot")
    assert remembered(known, read(busy, B)) == known


# How names are restored from before they were recorded


def a_slice(generation: int, *devices: Device) -> ResourceSlice:
    pool = ResourcePool(name="node-0", generation=generation, resource_slice_count=1)
    return ResourceSlice(spec=ResourceSliceSpec(driver="gpu.nvidia.com", pool=pool, devices=list(devices)))


def test_names_are_found_again_in_claims_on_record_in_slices_and_in_the_gpunode() -> None:
    part = PreparedDevice(request="r", pool="node-0", device="gpu-4-mig-1g10gb-19-0", gpu=A.uuid, minor=4)
    claim = PreparedClaim(uid=ClaimUid("1"), namespace="n", name="c", state=PreparationState.PREPARED, devices=[part])
    assert given([claim]) == [KnownGpu(uuid=A.uuid, device="gpu-4")]
    whole = device(at(B, 3), DRIVER)
    partition = Device(name="gpu-6-mig-1g10gb-19-0", attributes={"parentUUID": DeviceAttribute(string=C.uuid)})
    old = a_slice(1, device(at(A, 0), DRIVER))
    assert [(one.uuid, one.device) for one in published([old, a_slice(2, whole, partition)])] == [
        (B.uuid, "gpu-3"),
        (C.uuid, "gpu-6"),
        (A.uuid, "gpu-0"),
    ]
    node = GpuNode(status=GpuNodeStatus(gpus=[GpuStatus(device="gpu-5", uuid=C.uuid)]))
    assert reported(node) == [KnownGpu(uuid=C.uuid, device="gpu-5")]
    assert reported(None) == []


def test_who_tells_a_name_first_is_right_and_no_name_is_told_twice() -> None:
    said = [(A, "gpu-1"), (A, "gpu-2"), (B, "gpu-1"), (B, "gpu-0")]
    assert names(bound({}, [KnownGpu(uuid=gpu.uuid, device=name) for gpu, name in said])) == ["gpu-1", "gpu-0"]


def test_what_was_published_of_a_gpu_that_is_gone_is_enough_to_publish_it_again() -> None:
    before = msgspec.structs.replace(A, device="gpu-4", addressing_mode="ATS", pcie_root="pci0000:00", numa_node=1)
    known = bound({}, [*reported(None), *published([a_slice(1, device(before, DRIVER))])])
    [away] = shown(known, [])
    assert away.absent
    assert device(away, DRIVER) == device(before, DRIVER)
    bare = Device(name="gpu-4", attributes={"uuid": DeviceAttribute(string=A.uuid)})
    assert published([a_slice(1, bare)]) == [KnownGpu(uuid=A.uuid, device="gpu-4")]
    later = bound({A.uuid: KnownGpu(uuid=A.uuid, device="gpu-4")}, published([a_slice(1, device(before, DRIVER))]))
    assert later[A.uuid].last is not None


# The record


def a_record(path: Path, files: FullCopyOnWriteDisk | None = None) -> Checkpoint:
    files = files or FullCopyOnWriteDisk()
    record = Checkpoint(path, files, boot_id="")
    found = checkpoint.load(path, files)
    assert isinstance(found, RecordState)
    record.restore(found)
    return record


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


def a_view(*gpus: Gpu) -> HardwareView:
    return HardwareView(driver=DRIVER, gpus=tuple(read(*gpus)))


async def test_a_name_is_on_record_before_anybody_is_told_of_it(tmp_path: Path) -> None:
    files, path = FullCopyOnWriteDisk(), tmp_path / "checkpoint.json"
    known = KnownGpus(a_record(path, files), NodeState(ManualClock()), in_thread=at_once)
    known.tell()
    known.record()
    await known.view(a_view(A))
    files.refused.add("checkpoint")
    view = await known.view(a_view(A, B))
    assert [one.device for one in view.gpus] == ["gpu-0"]
    assert "has no device name yet, as it cannot be recorded: No space left" in view.unidentified[0].message
    files.refused.clear()
    assert [one.device for one in (await known.view(a_view(A, B))).gpus] == ["gpu-0", "gpu-1"]
    again = KnownGpus(a_record(path), NodeState(ManualClock()), in_thread=at_once)
    again.tell()
    assert [one.device for one in (await again.view(a_view(at(A, 1), at(B, 0)))).gpus] == ["gpu-0", "gpu-1"]


async def test_without_names_there_are_no_gpus(tmp_path: Path) -> None:
    view = await KnownGpus(a_record(tmp_path / "checkpoint.json"), NodeState(ManualClock()), in_thread=at_once).view(
        a_view(A)
    )
    assert (view.driver, view.gpus) == (None, ())
    assert "has not read this node's published device names" in view.fault


async def test_nothing_is_written_over_a_record_that_is_being_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    known = KnownGpus(a_record(path), NodeState(ManualClock()), in_thread=at_once)
    known.tell([KnownGpu(uuid=A.uuid, device="gpu-3")])
    assert [one.device for one in (await known.view(a_view(A))).gpus] == ["gpu-3"]
    assert not path.exists()
    known.record()
    await known.view(a_view(A))
    assert names(dict(a_record(path).known)) == ["gpu-3"]


def test_the_record_keeps_gpus_whole_and_a_name_survives_what_cannot_be_read_of_its_gpu(tmp_path: Path) -> None:
    build(tmp_path, gpus=2)
    gpus = MigNode(tmp_path).gpus
    record = a_record(tmp_path / "checkpoint.json")
    record.remember(
        remembered({}, [msgspec.structs.replace(gpu, pcie_root="pci0000:00", numa_node=1) for gpu in gpus]).values()
    )
    assert a_record(tmp_path / "checkpoint.json").known == record.known
    assert all(one.last and one.last.board for one in record.known.values())
    odd = checkpoint._KnownGpu(uuid=A.uuid, device="gpu-9", last=msgspec.Raw(b'{"uuid": 7}'))
    assert odd.known() == KnownGpu(uuid=A.uuid, device="gpu-9")


@pytest.mark.parametrize("change", [{"claims": []}, {"instances": []}])
def test_whatever_else_is_recorded_the_names_stay(tmp_path: Path, change: dict[str, Any]) -> None:
    record = a_record(tmp_path / "checkpoint.json")
    record.remember(after([A]).values())
    record.replace([], boot_id="next") if "claims" in change else record.change()
    assert names(dict(a_record(tmp_path / "checkpoint.json").known)) == ["gpu-0"]


def test_a_gpu_that_does_not_tell_where_it_is_stays_what_it_was_and_is_given_to_nobody() -> None:
    [kept, _] = sorted(
        shown(after([A, B]), read(B), unidentified=[UnidentifiedGpu(0, "It has no minor number.", A.uuid)]),
        key=lambda one: one.device,
    )
    assert (kept.uuid, kept.minor, gone(kept)) == (A.uuid, -1, True)
    assert kept.fault is not None
    assert (kept.fault.status.name, kept.fault.status.message) == ("Unreadable", "It has no minor number.")
    assert not kept.absent


def test_what_cannot_be_read_now_is_as_it_was_for_an_agent_that_starts_and_what_does_not_exist_is_not() -> None:
    known = after([at(A, 0, numa_node=1)])
    unread = (UnreadFact("memory", "x"), UnreadFact("numaNode", "x"), UnreadFact("brand", "x", lacking=True))
    now = at(A, 0, memory_bytes=None, numa_node=None, brand="", unread=unread)
    [seen] = shown(remembered(known, read(now)), read(now))
    assert (seen.memory_bytes, seen.numa_node, seen.brand) == (A.memory_bytes, 1, "")
    assert remembered(known, read(now))[A.uuid].last == msgspec.structs.replace(known[A.uuid].last or A, brand="")


def test_a_numa_node_from_sysfs_counts_though_nvml_cannot_read_it() -> None:
    known = after([at(A, 0, numa_node=1)])
    now = at(A, 0, numa_node=0, unread=(UnreadFact("numaNode", "x"),))
    [seen] = shown(remembered(known, read(now)), read(now))
    assert seen.numa_node == 0


def test_a_gpu_that_was_published_with_little_can_be_published_again() -> None:
    little = at(A, 0, memory_bytes=None, brand="", architecture="", compute_major=None, compute_minor=None)
    before = msgspec.structs.replace(little, device="gpu-0")
    [away] = shown(bound({}, published([a_slice(1, device(before, DRIVER))])), [])
    assert device(away, DRIVER) == device(before, DRIVER)
