"""Claim statuses and kubelet identify the hardware of a device, whatever its name."""

from typing import Any

import msgspec

from draco.agent.hardware.faults import with_fault
from draco.agent.hardware.gpus import Gpu, GpuMigView
from draco.agent.hardware.monitor import HardwareView
from draco.agent.mig.ownership import remains
from draco.agent.plugin.health_service import DeviceReport, claimed_reports, reports
from draco.agent.publish.device_names import remembered, shown
from draco.agent.publish.offering import Offering
from draco.agent.record.contents import Partition, PreparationState, PreparedClaim, PreparedDevice
from draco.agent.report.claim_status import identity, wanted
from draco.health.table import HealthState
from draco.mig.known_boards import BOARDS
from draco.resources.api.draco import MigMode, WantedGpu
from draco.resources.names import ClaimUid
from tests.builders import a_gpu
from tests.unit.agent.publish.test_offering import DRIVER

A, B = (msgspec.structs.replace(a_gpu(minor), device=f"gpu-{minor}") for minor in (0, 1))
PART = Partition(profile_id=19, start=3, size=1, gi=7, ci=0, uuid="MIG-1", profile="1g.10gb")
PART_NAME = "gpu-0-mig-1g10gb-19-3"
TAINT = "draco.dev/lost"


def a_device(gpu: Gpu = A, device: str = "", **fields: Any) -> PreparedDevice:
    name = device or gpu.device
    return PreparedDevice(
        request="r", pool="n", device=name, gpu=gpu.uuid, minor=gpu.minor, pci_bus_id=gpu.pci_bus_id, **fields
    )


def a_claim(*devices: PreparedDevice) -> PreparedClaim:
    return PreparedClaim(
        uid=ClaimUid("1"), namespace="n", name="c", state=PreparationState.PREPARED, devices=list(devices)
    )


def ill(gpu: Gpu) -> Gpu:
    return with_fault(gpu, "Xid79", "It smokes.")


def told(claim: PreparedClaim, *gpus: Gpu) -> list[DeviceReport]:
    view = HardwareView(driver=DRIVER, gpus=tuple(gpus))
    whole = reports(view)
    return [*whole, *claimed_reports(whole, view, [claim], {})]


def healthy(claim: PreparedClaim, *gpus: Gpu) -> list[str]:
    entries = wanted(claim, "gpu.nvidia.com", told(claim, *gpus))
    return [one.status for entry in entries for one in entry.conditions if one.type == "Healthy"]


def test_the_identity_of_a_gpu_and_of_a_partition() -> None:
    assert identity(a_device()) == {"version": 1, "uuid": A.uuid, "pciBusID": "0000:1b:00.0"}
    assert identity(a_device(device=PART_NAME, partition=PART)) == {
        "version": 1,
        "uuid": "MIG-1",
        "parentUUID": A.uuid,
        "pciBusID": "0000:1b:00.0",
        "profile": "1g.10gb",
        "placement": {"start": 3, "size": 1},
        "giID": 7,
        "ciID": 0,
    }


def test_what_an_earlier_version_did_not_record_is_left_out() -> None:
    part = Partition(profile_id=19, start=3, size=1)
    device = PreparedDevice(request="r", pool="n", device="gpu-0", gpu=A.uuid, minor=0, partition=part)
    assert identity(device) == {"version": 1, "parentUUID": A.uuid, "placement": {"start": 3, "size": 1}}


def test_a_claim_has_the_health_of_its_hardware_and_not_of_what_has_the_name() -> None:
    renamed, other = msgspec.structs.replace(ill(A), device="gpu-5"), msgspec.structs.replace(B, device="gpu-0")
    assert healthy(a_claim(a_device()), renamed, other) == ["False"]
    assert healthy(a_claim(a_device(device=PART_NAME, partition=PART)), renamed, other) == ["False"]
    assert healthy(a_claim(a_device()), other) == ["Unknown"]


def test_kubelet_is_told_of_a_gpu_under_the_name_that_its_claim_has() -> None:
    renamed = msgspec.structs.replace(ill(A), device="gpu-5")
    found = {one.device: one.state for one in told(a_claim(a_device()), renamed, B)}
    assert found == {"gpu-5": HealthState.UNHEALTHY, "gpu-0": HealthState.UNHEALTHY, "gpu-1": HealthState.HEALTHY}


def test_before_the_gpus_have_been_read_a_claims_devices_are_unknown_and_not_gone() -> None:
    view = HardwareView(fault="The kernel module is not loaded.")
    claim = a_claim(a_device(), a_device(device=PART_NAME, partition=PART))
    found = claimed_reports(reports(view), view, [claim, claim], {})
    assert [(one.device, one.state) for one in found] == [
        ("gpu-0", HealthState.UNKNOWN),
        (PART_NAME, HealthState.UNKNOWN),
    ]
    said = [
        one for entry in wanted(claim, "gpu.nvidia.com", found) for one in entry.conditions if one.type == "Healthy"
    ]
    assert [(one.status, one.message) for one in said] == [("Unknown", view.fault)] * 2


def test_an_absent_gpu_stays_in_the_slices_with_all_that_claims_have_of_it_and_with_the_taint() -> None:
    board = BOARDS["H100-80GB"]
    whole = msgspec.structs.replace(A, board=board)
    known = remembered({}, [whole, B])
    gpus = shown(known, [B])
    [gone] = [one for one in gpus if one.absent]
    claim = a_claim(a_device(device=PART_NAME, partition=PART))

    def offered(claims: list[PreparedClaim], wanted: dict[Any, WantedGpu]) -> dict[str, set[str]]:
        migs = {gone.uuid: remains(gone, claims), B.uuid: GpuMigView(gpu=B.uuid)}
        offer = Offering().offer(gpus, DRIVER, migs=migs, wanted=wanted, now_s=0.0)
        return {one.name: {taint.key for taint in one.taints} for one in offer.devices}

    assert offered([], {}) == {"gpu-0": {TAINT}, "gpu-1": set()}
    assert offered([claim], {}) == {"gpu-0": {TAINT}, PART_NAME: {TAINT}, "gpu-1": set()}
    dynamic = {gone.uuid: WantedGpu(uuid=gone.uuid, policy="p", mode=MigMode.DYNAMIC)}
    all_of_it = offered([claim], dynamic)
    assert len(all_of_it) == len(board.placements) + 2
    assert all(TAINT in taints for name, taints in all_of_it.items() if name != "gpu-1")
