"""Preparing and unpreparing in a folder: refusals, full disks, the content of CDI specs, and recovery at start."""

import json
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draco.agent.claims import cdi, rebuilding, recovery
from draco.agent.claims.cdi import CdiFolder
from draco.agent.containers.common_edits import CommonEdits
from draco.agent.errors import PrepareError
from draco.agent.files import TEMPORARY, Files
from draco.agent.hardware.capabilities import Capabilities
from draco.agent.hardware.driver_root import DriverRoot
from draco.agent.hardware.gpus import Gpu
from draco.agent.mps.folder import DaemonName
from draco.agent.record import checkpoint
from draco.agent.record.checkpoint import Checkpoint, CheckpointDamaged
from draco.agent.record.contents import PreparationState
from draco.allocation.configurations import VERSION
from draco.resources.api.claims import (
    AllocatedDeviceStatus,
    DeviceAllocationConfiguration,
    OpaqueConfiguration,
    ResourceClaim,
)
from draco.resources.api.meta import Condition
from draco.resources.names import NVIDIA_DRIVER, ClaimUid
from tests.builders import a_claim, a_gpu, as_shares
from tests.doubles.files import FullCopyOnWriteDisk, FullDisk, Writes
from tests.doubles.undivided import UNDIVIDED, a_preparer
from tests.unit.agent.driver_on_disk import a_driver

GPUS = {f"gpu-{minor}": a_gpu(minor) for minor in range(3)}
BOOT = "this boot"


class Desk:
    """The claim preparer of one node in a folder; another one in the same folder is a restart."""

    def __init__(
        self,
        folder: Path,
        *,
        boot: str = BOOT,
        gpus: list[Gpu] | None = None,
        known: bool = True,
        files: FullDisk | None = None,
        common: CommonEdits | None = None,
        **node: Any,
    ) -> None:
        self.files = files or FullDisk()
        self.path = folder / "state" / "checkpoint.json"
        self.cdi_dir = folder / "cdi"
        self.cdi = CdiFolder(self.cdi_dir, self.files, driver=NVIDIA_DRIVER, node=Capabilities(**node), common=common)
        self.record = Checkpoint(self.path, self.files, boot_id="")
        self.desk = a_preparer(self.record, self.cdi)
        found = recovery.read_record(self.path, self.files)
        assert isinstance(found, checkpoint.RecordState)
        self.record.restore(found)
        seen = list(GPUS.values()) if gpus is None else gpus
        self.converged = recovery.converge(
            self.record, self.cdi, gpus=seen if known else None, boot_id=boot, instances=UNDIVIDED
        )

    def prepare(self, claim: ResourceClaim) -> list[str]:
        return [device.device for device in self.desk.prepare(claim, GPUS).devices]

    def spec(self, claim: ResourceClaim) -> Any:
        return json.loads(self.cdi.path(uid(claim)).read_text())

    def specs(self) -> list[str]:
        return sorted(path.name for path in self.cdi_dir.iterdir()) if self.cdi_dir.exists() else []


def uid(claim: ResourceClaim) -> ClaimUid:
    return ClaimUid(claim.metadata.uid)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


ONE = a_claim("one", on=["node-0/gpu-0"])
TWO = a_claim("two", on=["node-0/gpu-1", "node-0/gpu-2"])
SAME = a_claim("same", on=["node-0/gpu-0"])


# Preparing


def test_a_claim_is_not_prepared_while_the_node_has_no_driver_to_give(tmp_path: Path) -> None:
    desk = Desk(tmp_path, common=CommonEdits(DriverRoot(Path("/driver"), tmp_path / "driver"), hook_folder=tmp_path))
    with pytest.raises(
        PrepareError, match="default/one cannot be prepared: The node has no NVIDIA driver below /driver now"
    ):
        desk.prepare(ONE)
    assert (desk.specs(), dict(desk.record.claims)) == ([], {})
    a_driver(tmp_path / "driver")
    desk.prepare(ONE)
    assert any("libcuda" in each["hostPath"] for each in desk.spec(ONE)["containerEdits"]["mounts"])


def test_a_claim_is_not_prepared_with_a_driver_that_has_no_cuda(tmp_path: Path) -> None:
    a_driver(tmp_path / "driver")
    [library] = (tmp_path / "driver").rglob("libcuda.so.*.*")
    library.rename(tmp_path / "aside")
    desk = Desk(tmp_path, common=CommonEdits(DriverRoot(Path("/driver"), tmp_path / "driver"), hook_folder=tmp_path))
    with pytest.raises(PrepareError, match=r"default/one cannot be prepared: .* below /driver has no libcuda\.so"):
        desk.prepare(ONE)
    (tmp_path / "aside").rename(library)
    desk.prepare(ONE)


def test_a_claim_is_on_record_as_an_intent_before_its_spec_is_written(tmp_path: Path) -> None:
    files = Writes()
    cdi = CdiFolder(tmp_path / "cdi", files, driver=NVIDIA_DRIVER, node=Capabilities())
    record = Checkpoint(tmp_path / "checkpoint.json", files, boot_id=BOOT)
    a_preparer(record, cdi).prepare(ONE, GPUS)
    assert [name for name, _ in files.written] == ["checkpoint.json", cdi.path(uid(ONE)).name, "checkpoint.json"]
    assert [b'"preparing"' in content for _, content in files.written] == [True, False, False]


def test_a_file_is_on_the_disk_and_in_its_folder_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, call, lambda one: synced.append(Path(f"/proc/self/fd/{one}").readlink()))
    Files().write(tmp_path / "record", b"content")
    assert synced == [tmp_path / f"record{TEMPORARY}", tmp_path]
    synced.clear()
    Files().overwrite(tmp_path / "record", 3, b"TE")
    assert synced == [tmp_path / "record"]
    assert (tmp_path / "record").read_bytes() == b"conTEnt"
    with pytest.raises(FileNotFoundError):
        Files().overwrite(tmp_path / "record", 6, b"TE")


def test_preparing_a_whole_gpu_waits_for_the_disk_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, call, lambda _, call=call: synced.append(call))
    desk.prepare(ONE)
    assert synced == ["fdatasync"]
    synced.clear()
    desk.desk.unprepare(uid(ONE))
    assert synced == ["fdatasync"]


def test_preparing_again_gives_the_same_devices_and_writes_nothing(desk: Desk) -> None:
    assert desk.prepare(TWO) == ["gpu-1", "gpu-2"]
    before = [path.stat().st_mtime_ns for path in (desk.path, desk.cdi.path(uid(TWO)))]
    assert desk.prepare(TWO) == ["gpu-1", "gpu-2"]
    assert [path.stat().st_mtime_ns for path in (desk.path, desk.cdi.path(uid(TWO)))] == before


def test_preparing_again_brings_back_a_spec_that_somebody_removed(desk: Desk) -> None:
    desk.prepare(ONE)
    desk.cdi.path(uid(ONE)).unlink()
    desk.prepare(ONE)
    assert desk.spec(ONE)["devices"]


def test_a_device_is_never_given_to_two_claims(desk: Desk) -> None:
    desk.prepare(ONE)
    with pytest.raises(
        PrepareError, match=r"default/same was allocated gpu-0, .* still prepared for claim default/one"
    ):
        desk.prepare(SAME)
    assert len(desk.specs()) == 1
    desk.desk.unprepare(uid(ONE))
    assert desk.prepare(SAME) == ["gpu-0"]


def test_the_same_hardware_under_another_name_is_still_taken(desk: Desk) -> None:
    desk.prepare(ONE)
    renamed = {"gpu-7": GPUS["gpu-0"]}
    with pytest.raises(PrepareError, match="still prepared for claim default/one"):
        desk.desk.prepare(a_claim("other", on=["node-0/gpu-7"]), renamed)


def test_administrative_access_shares_a_device_in_both_orders(desk: Desk) -> None:
    desk.prepare(ONE)
    assert desk.prepare(a_claim("admin", on=["node-0/gpu-0"], admin_access=True)) == ["gpu-0"]
    desk.desk.unprepare(uid(ONE))
    assert desk.prepare(SAME) == ["gpu-0"]


@pytest.mark.parametrize(
    ("claim", "sentence"),
    [
        (a_claim("c"), "default/c is not allocated"),
        (a_claim("c", on=["gpu.example.com/node-0/gpu-0"]), "has no device of driver gpu.nvidia.com"),
        (a_claim("c", on=["node-1/gpu-0"]), "of pool node-1, but this node's pool is node-0"),
        (a_claim("c", on=["node-0/gpu-9"]), r"gpu-9, which this node does not have \(it has: gpu-0, gpu-1, gpu-2\)"),
    ],
)
def test_what_cannot_be_prepared_is_refused_with_a_reason(desk: Desk, claim: ResourceClaim, sentence: str) -> None:
    with pytest.raises(PrepareError, match=sentence):
        desk.prepare(claim)
    assert desk.specs() == []
    assert not desk.record.claims


def test_devices_of_other_drivers_in_the_claim_are_left_to_them(desk: Desk) -> None:
    assert desk.prepare(a_claim("mixed", on=["gpu.example.com/node-0/nic-0", "node-0/gpu-1"])) == ["gpu-1"]


def test_a_request_is_named_without_its_alternative(desk: Desk) -> None:
    claim = a_claim("c", on=["node-0/gpu-0"])
    allocation = claim.status.allocation
    assert allocation
    [result] = allocation.devices.results
    chosen = msgspec.structs.replace(result, request="gpu/large")
    devices = msgspec.structs.replace(allocation.devices, results=[chosen])
    status = msgspec.structs.replace(claim.status, allocation=msgspec.structs.replace(allocation, devices=devices))
    prepared = desk.desk.prepare(msgspec.structs.replace(claim, status=status), GPUS)
    assert [device.request for device in prepared.devices] == ["gpu"]


def test_a_claim_whose_allocation_changed_is_not_answered_with_its_old_devices(desk: Desk) -> None:
    desk.prepare(ONE)
    with pytest.raises(PrepareError, match="is prepared with gpu-0, but that is no longer its allocation"):
        desk.prepare(a_claim("one", on=["node-0/gpu-1"]))


def configured(parameters: Any) -> ResourceClaim:
    allocation = ONE.status.allocation
    assert allocation
    config = DeviceAllocationConfiguration(
        source="FromClaim", opaque=OpaqueConfiguration(driver=NVIDIA_DRIVER, parameters=parameters)
    )
    devices = msgspec.structs.replace(allocation.devices, config=[config])
    status = msgspec.structs.replace(ONE.status, allocation=msgspec.structs.replace(allocation, devices=devices))
    return msgspec.structs.replace(ONE, status=status)


def test_a_configuration_of_a_kind_that_there_is_not_is_refused_in_two_sentences(desk: Desk) -> None:
    with pytest.raises(PrepareError, match=r"there is GpuConfig, MigDeviceConfig\. Correct it in a new claim"):
        desk.prepare(configured({"apiVersion": VERSION, "kind": "Nothing"}))


def test_a_configuration_that_draco_does_not_do_is_refused_before_anything_is_done(desk: Desk) -> None:
    config = {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": {"strategy": "Mps"}}
    with pytest.raises(PrepareError) as refused:
        desk.prepare(configured(config))
    assert str(refused.value) == (
        "Claim default/one cannot be prepared: the claim's configuration for request gpu cannot be carried out, because "
        "sharing.strategy is Mps: there are TimeSlicing and MPS. Correct it in a new claim."
    )
    assert desk.record.claims == {}
    assert desk.prepare(configured({**config, "sharing": {"strategy": "TimeSlicing"}})) == ["gpu-0"]


def test_what_a_claim_says_in_its_configuration_forges_no_line(desk: Desk) -> None:
    with pytest.raises(PrepareError) as refused:
        desk.prepare(configured({"kind": "Gpu\n\x1b[2JConfig"}))
    assert str(refused.value).isprintable()


# Unpreparing


def test_giving_up_needs_only_the_uid_and_twice_is_fine(desk: Desk) -> None:
    desk.prepare(ONE)
    assert desk.desk.unprepare(uid(ONE)) is not None
    assert desk.desk.unprepare(uid(ONE)) is None
    assert desk.specs() == []
    assert not desk.record.claims


# A full disk


@pytest.mark.parametrize("full", ["/cdi/", "/state/"])
def test_a_full_disk_is_one_sentence_leaves_nothing_and_passes(tmp_path: Path, full: str) -> None:
    desk = Desk(tmp_path, files=FullCopyOnWriteDisk())
    desk.files.refused.add(full)
    with pytest.raises(PrepareError, match=r"default/one cannot be .*: No space left on device .*; make room"):
        desk.prepare(ONE)
    assert desk.specs() == []
    assert not desk.record.claims
    desk.files.refused.clear()
    assert desk.prepare(SAME) == ["gpu-0"]


def test_claims_are_given_up_on_a_full_disk_however_many_were_prepared_on_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.files.refused.add("/state/")
    prepared: list[ResourceClaim] = []
    refusal = ""
    while not refusal:
        claim = a_claim(f"claim-{len(prepared)}", on=["node-0/gpu-0"], admin_access=True)
        try:
            desk.prepare(claim)
        except PrepareError as error:
            refusal = str(error)
        else:
            prepared.append(claim)
    assert re.search(r"cannot be \w+: No space left on device .*checkpoint.json\); make room", refusal)
    assert len(prepared) > 20, "claims are refused although there is room"
    for claim in prepared:
        desk.desk.unprepare(uid(claim))
    assert not desk.record.claims
    assert not Desk(tmp_path).record.claims


def test_a_claim_survives_a_disk_that_does_not_let_it_be_given_up(tmp_path: Path) -> None:
    desk = Desk(tmp_path, files=FullCopyOnWriteDisk())
    desk.prepare(ONE)
    desk.files.refused.add("/state/")
    with pytest.raises(
        PrepareError, match=r"cannot be unprepared: No space left .*checkpoint.json\); make room or fix"
    ):
        desk.desk.unprepare(uid(ONE))
    desk.files.refused.clear()
    assert Desk(tmp_path).prepare(ONE) == ["gpu-0"]


@contextmanager
def files_of_at_most(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_half_way_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "file"
    files.write(path, b"before")
    with files_of_at_most(1000), pytest.raises(OSError, match="File too large") as caught:
        files.write(path, b"x" * 5000)
    assert caught.value.filename == str(path), "a person has to know which disk is full"
    assert path.read_bytes() == b"before"
    assert files.names(tmp_path) == ["file"]


# CDI specs


def test_each_device_has_its_own_edits_so_that_a_container_gets_only_its_requests(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia1", "nvidia2"):
        (tmp_path / "dev" / name).touch()
    desk = Desk(tmp_path, device_root=tmp_path)
    desk.prepare(TWO)
    spec = desk.spec(TWO)
    root = str(tmp_path)
    assert set(spec.pop("annotations")) == {cdi.CLAIM, cdi.BOOT, cdi.CHECKSUM, cdi.FORMAT}
    assert spec == {
        "cdiVersion": "0.6.0",
        "kind": "k8s.gpu.nvidia.com/claim",
        "devices": [
            {
                "name": f"gpu-{minor}-{uid(TWO)}",
                "containerEdits": {
                    "env": [f"DRACO_DEVICE_GPU_{minor}={GPUS[f'gpu-{minor}'].uuid}"],
                    "deviceNodes": [{"path": f"/dev/nvidia{minor}", "hostPath": f"{root}/dev/nvidia{minor}"}],
                },
            }
            for minor in (1, 2)
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", f"{cdi.claim_variable(uid(TWO))}={uid(TWO)}"],
            "deviceNodes": [
                {"path": f"/dev/{name}", "hostPath": f"{root}/dev/{name}"} for name in ("nvidiactl", "nvidia-uvm")
            ],
        },
    }


def test_on_a_real_node_a_device_is_where_containers_see_it(desk: Desk) -> None:
    desk.prepare(ONE)
    assert desk.spec(ONE)["devices"][0]["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidia0"}]


def test_a_device_that_a_claim_got_twice_is_in_its_spec_once(desk: Desk) -> None:
    desk.prepare(a_claim("c", on=["node-0/gpu-0", "node-0/gpu-0"], admin_access=True))
    assert len(desk.spec(a_claim("c"))["devices"]) == 1


def test_each_share_is_a_device_of_its_own_that_opens_the_same_gpu(desk: Desk) -> None:
    shares = as_shares(a_claim("c", on=["node-0/gpu-0"]), "s1", "s2", memory="10Gi")
    desk.prepare(shares)
    one, two = desk.spec(shares)["devices"]
    assert [one["name"], two["name"]] == [f"gpu-0-{uid(shares)}-{share}" for share in ("s1", "s2")]
    assert one["containerEdits"] == two["containerEdits"]
    [on_record] = desk.record.claims.values()
    assert [(each.share_id, each.consumed) for each in on_record.devices] == [
        (share, {"memory": "10Gi"}) for share in ("s1", "s2")
    ]


def test_claims_share_a_gpu_until_each_is_given_up(desk: Desk) -> None:
    one, two = (as_shares(a_claim(name, on=["node-0/gpu-0"]), name, memory="10Gi") for name in ("first", "second"))
    desk.prepare(one)
    desk.prepare(two)
    desk.desk.unprepare(uid(one))
    with pytest.raises(PrepareError, match="still prepared for claim default/second"):
        desk.prepare(ONE)
    desk.desk.unprepare(uid(two))
    desk.prepare(ONE)


def test_files_of_others_in_the_cdi_folder_are_never_touched(tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    folder.mkdir()
    others = ["k8s.gpu.nvidia.com-claim_1.yaml", "draco-gpu.example.com-1.json", "draco-gpu.nvidia.com-notes.txt"]
    for name in others:
        (folder / name).touch()
    (folder / "draco-gpu.nvidia.com-orphan.json").touch()
    (folder / "draco-gpu.nvidia.com-half.json.tmp").touch()
    desk = Desk(tmp_path)
    assert desk.specs() == sorted(others)
    assert desk.converged.swept == ["orphan"]


# The record


def test_the_record_survives_a_restart(tmp_path: Path) -> None:
    Desk(tmp_path).prepare(TWO)
    again = Desk(tmp_path)
    [claim] = again.record.claims.values()
    assert (str(claim), claim.state, [device.device for device in claim.devices]) == (
        "default/two",
        PreparationState.PREPARED,
        ["gpu-1", "gpu-2"],
    )
    assert again.converged == recovery.RecoveryResult()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content.replace(b"gpu-0", b"gpu-1"),
        lambda content: content.replace(b'"version":3', b'"version":99'),
        lambda content: content[: content.index(b"\n") + 1],
        lambda _: b"",
        lambda _: b"\0" * 100,
    ],
)
def test_a_damaged_record_is_set_aside_not_believed(tmp_path: Path, damage: Any) -> None:
    desk = Desk(tmp_path)
    desk.prepare(ONE)
    content = damage(desk.path.read_bytes())
    desk.path.write_bytes(content)
    with pytest.raises(CheckpointDamaged):
        checkpoint.load(desk.path, desk.files)
    found = recovery.read_record(desk.path, desk.files)
    assert isinstance(found, recovery.Damaged)
    assert found.moved_to == desk.path.with_name("checkpoint.json.corrupt-1")
    assert recovery.read_record(desk.path, desk.files) == found, "an agent that ended meanwhile forgot that it was lost"
    desk.record.replace([], boot_id=BOOT)
    assert found.moved_to.read_bytes() == content
    desk.path.write_bytes(b"damaged again")
    again = recovery.read_record(desk.path, desk.files)
    assert isinstance(again, recovery.Damaged)
    assert again.moved_to.name == "checkpoint.json.corrupt-2"


def ready(claim: ResourceClaim) -> ResourceClaim:
    allocation = claim.status.allocation
    assert allocation
    entries = [
        AllocatedDeviceStatus(
            driver=one.driver, pool=one.pool, device=one.device, conditions=[Condition(type="Ready", status="True")]
        )
        for one in allocation.devices.results
    ]
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, devices=entries))


def test_a_lost_record_is_rebuilt_from_specs_and_from_what_claims_say() -> None:
    claims = [
        ready(ONE),
        TWO,
        a_claim("never-prepared", on=["node-0/gpu-2"]),
        ready(a_claim("elsewhere", on=["node-1/gpu-0"])),
        a_claim("pending"),
    ]
    found = rebuilding.rebuilt(
        claims,
        driver=NVIDIA_DRIVER,
        pool="node-0",
        gpus=GPUS,
        mps_place=lambda _: (DaemonName(""), ""),
        with_spec=[uid(TWO)],
    )
    assert [(claim.name, claim.state) for claim in found] == [
        ("one", PreparationState.PREPARED),
        ("two", PreparationState.PREPARED),
    ]


# Reboots and moving GPUs


def moved_to(gpu: Gpu, minor: int) -> Gpu:
    return msgspec.structs.replace(gpu, minor=minor)


def test_after_a_reboot_the_specs_are_written_again(tmp_path: Path) -> None:
    before = Desk(tmp_path)
    before.prepare(ONE)
    written = before.spec(ONE)
    before.cdi.path(uid(ONE)).unlink()
    after = Desk(tmp_path, boot="next boot")
    assert after.converged.rebooted
    assert after.spec(ONE) == written
    assert not Desk(tmp_path, boot="next boot").converged.rebooted


def test_a_claim_follows_its_gpu_to_its_new_minor_number(tmp_path: Path) -> None:
    Desk(tmp_path).prepare(ONE)
    moved = moved_to(a_gpu(0), 5)
    after = Desk(tmp_path, boot="next boot", gpus=[moved, moved_to(a_gpu(1), 0)])
    assert after.spec(ONE)["devices"][0]["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidia5"}]


def test_after_a_reboot_no_spec_is_written_from_memory_before_the_gpus_are_known(tmp_path: Path) -> None:
    Desk(tmp_path).prepare(ONE)
    blind = Desk(tmp_path, boot="next boot", known=False)
    assert blind.specs() == []
    assert Desk(tmp_path, boot="next boot", known=False).specs() == []
    assert Desk(tmp_path, boot="next boot", gpus=[moved_to(a_gpu(0), 5)]).spec(ONE)["devices"][0]["containerEdits"][
        "deviceNodes"
    ] == [{"path": "/dev/nvidia5"}]


def test_in_the_same_boot_a_restart_without_nvml_keeps_specs(tmp_path: Path) -> None:
    Desk(tmp_path).prepare(ONE)
    assert len(Desk(tmp_path, known=False).specs()) == 1


def test_a_claim_whose_gpu_is_lost_is_kept_but_not_given_another_gpu(tmp_path: Path) -> None:
    Desk(tmp_path).prepare(ONE)
    same_boot = Desk(tmp_path, gpus=[a_gpu(1)])
    assert same_boot.converged.without_gpu == [uid(ONE)]
    assert same_boot.specs() == []
    next_boot = Desk(tmp_path, boot="next boot", gpus=[moved_to(a_gpu(1), 0)])
    assert next_boot.specs() == []
    assert uid(ONE) in next_boot.record.claims


def test_the_variable_of_a_device_is_a_legal_name() -> None:
    assert cdi.variable("gpu-0-mig-1g.10gb") == "DRACO_DEVICE_GPU_0_MIG_1G_10GB"
