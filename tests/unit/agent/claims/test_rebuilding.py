"""What is restored when the record was lost: from claims, from the agent's own report, from specs, and from nothing else."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draco.agent.claims import rebuilding, recovery
from draco.agent.claims.cdi import CLAIM, CdiFolder, annotated
from draco.agent.claims.mps import name_of
from draco.agent.files import Files
from draco.agent.hardware.capabilities import Capabilities
from draco.agent.hardware.gpus import Gpu, Instance, PlacementKey
from draco.agent.mps.folder import DaemonName
from draco.agent.record import checkpoint
from draco.agent.record.checkpoint import CheckpointDamaged
from draco.agent.record.contents import OwnedInstance, Partition, PreparationState, PreparedClaim, PreparedDevice
from draco.agent.report.claim_status import identity
from draco.allocation.configurations import VERSION
from draco.resources.api.claims import (
    AllocatedDeviceStatus,
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from draco.resources.api.draco import GpuMig, InstanceUse, MemoryLimitBy
from draco.resources.api.meta import Condition
from draco.resources.names import NVIDIA_DRIVER, ClaimUid, GpuUuid
from draco_local.simulator.gpus import state
from tests.builders import a_claim, a_gpu, a_mig_instance, a_mig_node, configured
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

OURS, THEIRS = (f"MIG-{number}0000000-0000-0000-0000-000000000000" for number in (1, 2))


def mps_place(units: Sequence[GpuUuid | PlacementKey]) -> tuple[DaemonName, str]:
    name = name_of(*units)
    return name, f"/mps/{name}"


def ready(claim: ResourceClaim) -> ResourceClaim:
    """The claim with a status that says its devices of node-0 are ready."""
    allocation = claim.status.allocation
    assert allocation
    entries = [
        AllocatedDeviceStatus(
            driver=one.driver, pool=one.pool, device=one.device, conditions=[Condition(type="Ready", status="True")]
        )
        for one in allocation.devices.results
    ]
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, devices=entries))


def reported(*, pool: str = "node-0", driver: str = NVIDIA_DRIVER, status: str = "True") -> ResourceClaim:
    """A claim with a driver's status of its device."""
    claim = a_claim("one", on=["node-0/gpu-0"])
    ready = Condition(type="Ready", status=status, reason="Prepared", message="")
    device = AllocatedDeviceStatus(driver=driver, pool=pool, device="gpu-0", conditions=[ready], data={"uuid": OURS})
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, devices=[device]))


def counted(claim: ResourceClaim) -> int:
    """How many claims count as prepared by the status of the claim alone."""
    gpus = {"gpu-0": a_gpu(0)}
    return len(
        rebuilding.rebuilt([claim], driver=NVIDIA_DRIVER, pool="node-0", gpus=gpus, mps_place=mps_place, with_spec=[])
    )


def known(claims: Sequence[ResourceClaim] = (), *uses: InstanceUse) -> set[str]:
    instances = [a_mig_instance("1g.10gb@0", use=use, uuid=THEIRS) for use in uses]
    node = a_mig_node(gpus=[GpuMig(capable=True, instances=instances)]) if uses else None
    return rebuilding.instance_uuids(claims, node, [], driver=NVIDIA_DRIVER, pool="node-0")


def test_a_claim_counts_as_prepared_only_if_this_driver_says_that_its_device_here_is_ready() -> None:
    assert counted(reported()) == 1
    assert counted(reported(status="False")) == 0
    assert counted(reported(pool="node-1")) == 0
    assert counted(reported(driver="other.example.com")) == 0


def test_instances_are_known_by_what_we_told_of_them() -> None:
    assert known([reported()]) == {OURS}
    assert known([reported(pool="node-1"), reported(driver="other.example.com")]) == set()
    assert known([], InstanceUse.CLAIM) == {THEIRS}
    assert known([], InstanceUse.FOREIGN) == set()


def test_what_has_no_compute_instance_is_nobody_s_that_is_known() -> None:
    one = Instance(gpu=GpuUuid("GPU-1"), gi=7, profile_id=19, start=0, size=1, ci=0, uuid=OURS, parts=1)
    bare = msgspec.structs.replace(one, gi=8, start=1, ci=None, uuid=None, parts=0)
    theirs = msgspec.structs.replace(one, gi=9, start=2, uuid=THEIRS)
    assert [own.start for own in rebuilding.adopted([one, bare, theirs], {OURS}, boot_id="boot")] == [0]


def test_a_record_that_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    class Broken(Files):
        def read(self, path: Path) -> bytes:
            raise OSError(5, "Input/output error", str(path))

    path = tmp_path / "checkpoint.json"
    path.write_text("{}")
    found = recovery.read_record(path, Broken())
    assert isinstance(found, recovery.Damaged)
    assert "cannot be read: Input/output error" in found.sentence
    assert found.moved_to.samefile(path)


def test_a_first_start_is_no_reboot(tmp_path: Path) -> None:
    build(tmp_path)
    assert not MigNode(tmp_path).converged.rebooted


def test_a_claim_whose_device_nodes_cannot_be_named_now_gets_no_spec_and_others_do(tmp_path: Path) -> None:
    build(tmp_path)
    node = MigNode(tmp_path)
    claims = [a_mig_claim(name, *names([(9, start)])) for name, start in (("left", 0), ("right", 4))]
    for claim in claims:
        node.prepare(claim)
        node.cdi.path(ClaimUid(claim.metadata.uid)).unlink()
    minors = tmp_path / "proc" / "driver" / "nvidia-caps" / "mig-minors"
    gone = f"gpu0/gi{node.hardware().instances[0].id}/"
    minors.write_text("".join(line for line in minors.read_text().splitlines(True) if not line.startswith(gone)))
    again = MigNode(tmp_path)
    assert again.converged.without_instance == [claims[0].metadata.uid]
    assert list(again.specs()) == [claims[1].metadata.uid]


# Every kind of damage, with every remaining source


FLIPS = (0x01, 0x20, 0x80, 0xFF)
PAIR, SMALL = names([(15, 4), (14, 0)]), names([(19, 3)])


class Lost:
    """A node with prepared claims, whose record is then lost."""

    def __init__(self, folder: Path) -> None:
        build(folder, gpus=2)
        with state.mutate(folder / "gpus.json") as changed:
            changed.gpus[1].mig_current = changed.gpus[1].mig_pending = 0
        self.node = MigNode(folder)
        self.claims = [
            a_mig_claim("pair", *PAIR),
            a_mig_claim("small", *SMALL),
            a_claim("whole", on=["node-0/gpu-1"]),
            a_claim("watching", on=["node-0/gpu-1"], admin_access=True),
        ]
        for claim in self.claims:
            self.node.prepare(claim)
        self.path = folder / "state" / "checkpoint.json"
        self.prepared = dict(self.node.record.claims)
        self.instances = dict(self.node.record.instances)
        self.content = self.path.read_bytes()

    def again(
        self, content: bytes, *, api: Sequence[ResourceClaim] = (), reboot: bool = False, denied: Collection[str] = ()
    ) -> tuple[dict[ClaimUid, PreparedClaim], dict[PlacementKey, OwnedInstance]]:
        """Claims and instances after a start with this record, as `startup` restores them."""
        by_spec = [] if reboot else self.node.cdi.claims()
        try:
            loaded = checkpoint.read(content)
        except CheckpointDamaged as damage:
            before = damage.before or checkpoint.RecordState()
            claims = rebuilding.rebuilt(
                api,
                driver=NVIDIA_DRIVER,
                pool="node-0",
                gpus=self.node.named,
                mps_place=mps_place,
                with_spec=[] if reboot else self.node.cdi.uids(),
                by_spec=by_spec,
                before=before.claims.values(),
                kubelet_denies=lambda uid: uid in denied,
            )
            instances = rebuilding.merged_instances(
                before.instances.values(), rebuilding.instances_of(by_spec, boot_id=self.node.boot)
            )
        else:
            fresh = rebuilding.forgotten(loaded.claims.values(), by_spec)
            claims = [*loaded.claims.values(), *fresh]
            instances = rebuilding.merged_instances(
                rebuilding.instances_of(fresh, boot_id=self.node.boot), loaded.instances.values()
            )
        return {claim.uid: claim for claim in claims}, {one.key: one for one in instances}


@pytest.mark.exhaustive
def test_whatever_byte_is_flipped_every_claim_and_instance_is_known_again_from_the_specs_alone(tmp_path: Path) -> None:
    lost = Lost(tmp_path)
    written = len(lost.content.rstrip(b" "))
    for at in range(written + 8):
        harmed = bytearray(lost.content)
        harmed[at] ^= FLIPS[at % len(FLIPS)]
        assert lost.again(bytes(harmed)) == (lost.prepared, lost.instances), f"byte {at}"


def test_wherever_the_record_was_cut_off_or_if_it_is_gone_it_is_known_again(tmp_path: Path) -> None:
    lost = Lost(tmp_path)
    for length in range(0, len(lost.content.rstrip(b" ")) + 8, 7):
        assert lost.again(lost.content[:length]) == (lost.prepared, lost.instances), f"{length} bytes"
    found = rebuilding.forgotten([], lost.node.cdi.claims())
    assert {claim.uid: claim for claim in found} == lost.prepared


def test_a_record_put_back_from_a_copy_gets_what_it_lacks_from_the_specs(tmp_path: Path) -> None:
    lost = Lost(tmp_path)
    late = a_mig_claim("late", *names([(19, 2)]))
    lost.node.unprepare(lost.claims[1])
    lost.node.prepare(late)
    claims, instances = lost.again(lost.content)
    assert set(lost.node.record.claims) <= set(claims)
    assert set(lost.node.record.instances) <= set(instances)


@pytest.mark.parametrize("which", [CLAIM.encode(), b"deviceNodes", b"cdiVersion"])
def test_a_spec_damaged_together_with_the_record_is_made_up_for_by_the_api_server(tmp_path: Path, which: bytes) -> None:
    lost = Lost(tmp_path)
    path = lost.node.cdi.path(ClaimUid(lost.claims[2].metadata.uid))
    content = path.read_bytes()
    for at in range(content.index(which), content.index(which) + 40):
        for flip in FLIPS:
            harmed = bytearray(content)
            harmed[at] ^= flip
            path.write_bytes(harmed)
            claims, _ = lost.again(b"", api=lost.claims)
            assert {uid: claim.devices for uid, claim in claims.items()} == {
                uid: claim.devices for uid, claim in lost.prepared.items()
            }


def test_after_a_reboot_claims_are_known_by_their_status_and_by_what_the_record_said_before(tmp_path: Path) -> None:
    lost = Lost(tmp_path)
    assert lost.again(b"", reboot=True) == ({}, {})
    said = [ready(claim) for claim in lost.claims]
    assert set(lost.again(b"", api=said, reboot=True)[0]) == set(lost.prepared)
    cut = lost.content[: lost.content.rindex(b"\n", 0, len(lost.content.rstrip(b" ")) - 1) + 1]
    known, instances = lost.again(cut, reboot=True)
    assert set(known) == {claim.metadata.uid for claim in lost.claims[:3]}
    assert instances == lost.instances
    denied = [claim.metadata.uid for claim in lost.claims[:2]]
    assert set(lost.again(cut, reboot=True, denied=denied)[0]) == {lost.claims[2].metadata.uid}


def test_what_the_record_said_before_gives_no_device_a_second_time(tmp_path: Path) -> None:
    lost = Lost(tmp_path)
    whole = lost.prepared[ClaimUid(lost.claims[2].metadata.uid)]
    stale = msgspec.structs.replace(whole, uid=ClaimUid("an earlier one"), name="earlier")
    found = rebuilding.rebuilt(
        [],
        driver=NVIDIA_DRIVER,
        pool="node-0",
        gpus={},
        mps_place=mps_place,
        with_spec=[],
        by_spec=[whole],
        before=[stale],
    )
    assert found == [whole]


def test_a_claim_whose_gpu_is_not_there_is_known_by_the_uuid_in_its_status() -> None:
    claim = reported()
    [entry] = claim.status.devices
    gone = msgspec.structs.replace(entry, data={"uuid": "GPU-gone"})
    claim = msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, devices=[gone]))
    [found] = rebuilding.rebuilt(
        [claim], driver=NVIDIA_DRIVER, pool="node-0", gpus={}, mps_place=mps_place, with_spec=[]
    )
    assert [(device.gpu, device.minor) for device in found.devices] == [("GPU-gone", rebuilding.NOT_THERE)]
    assert (
        rebuilding.rebuilt([claim], driver=NVIDIA_DRIVER, pool="node-1", gpus={}, mps_place=mps_place, with_spec=[])
        == []
    )


BY_LIBRARY = {"memoryLimitBy": "library", "memoryLimitLibrary": "/opt/libvgpu.so"}


@pytest.mark.parametrize("gpus", [{"gpu-0": a_gpu(0)}, {}], ids=["present", "gone"])
@pytest.mark.parametrize("by", [{}, BY_LIBRARY, {"memoryLimitBy": "mps"}], ids=["driver", "library", "mps"])
def test_a_share_keeps_the_limit_that_its_status_tells(gpus: dict[str, Gpu], by: dict[str, str]) -> None:
    claim = reported()
    assert claim.status.allocation is not None
    [result], [entry] = claim.results, claim.status.devices
    share = msgspec.structs.replace(result, share_id="one", consumed_capacity={"memory": "10Gi"})
    entry = msgspec.structs.replace(entry, share_id="one", data={"uuid": "GPU-0", "memoryLimit": "10240Mi", **by})
    allocation = AllocationResult(devices=DeviceAllocationResult(results=[share]))
    status = msgspec.structs.replace(claim.status, allocation=allocation, devices=[entry])
    claim = msgspec.structs.replace(claim, status=status)
    [found] = rebuilding.rebuilt(
        [claim], driver=NVIDIA_DRIVER, pool="node-0", gpus=gpus, mps_place=mps_place, with_spec=[]
    )
    [device] = found.devices
    assert device.limit is not None
    assert (device.share_id, device.limit.mib) == ("one", 10240)
    said = identity(device)
    assert (said["memoryLimit"], said["memoryLimitBy"]) == ("10240Mi", by.get("memoryLimitBy", "driver"))
    assert device.limit.library == said.get("memoryLimitLibrary", "") == by.get("memoryLimitLibrary", "")
    assert (device.mps is not None and device.mps.multi_user) is (device.limit.by is MemoryLimitBy.MPS)


def test_a_claim_with_mps_keeps_its_daemon() -> None:
    parameters = {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}
    claim = configured(a_claim("mps", on=["node-0/gpu-0"]), parameters)
    gpus = {"gpu-0": a_gpu(0)}
    [found] = rebuilding.rebuilt(
        [ready(claim)], driver=NVIDIA_DRIVER, pool="node-0", gpus=gpus, mps_place=mps_place, with_spec=[]
    )
    [device] = found.devices
    assert device.mps is not None
    assert (device.mps.daemon, device.mps.folder) == mps_place([device.gpu])


def test_a_spec_of_another_boot_tells_nothing(tmp_path: Path) -> None:
    lost = Lost(tmp_path)
    path = lost.node.cdi.path(ClaimUid(lost.claims[0].metadata.uid))
    found = annotated(path.read_bytes())
    assert found
    assert found.boot_id == lost.node.boot
    assert found.claim.uid in {one.uid for one in lost.node.cdi.claims()}


# From the status of a claim whose GPU is missing


GONE, OTHER = "GPU-gone", "other.example.com"


def result(device: str = "gpu-0", **changes: Any) -> DeviceRequestAllocationResult:
    fields = {"request": "gpu", "driver": NVIDIA_DRIVER, "pool": "node-0", "device": device} | changes
    return DeviceRequestAllocationResult(**fields)


def entry(device: str = "gpu-0", uuid: str | None = GONE, **changes: Any) -> AllocatedDeviceStatus:
    fields: dict[str, Any] = {"driver": NVIDIA_DRIVER, "pool": "node-0", "device": device, "data": {"uuid": uuid}}
    fields["conditions"] = [Condition(type="Ready", status="True")]
    return AllocatedDeviceStatus(**fields | changes)


def by_status(
    results: Sequence[DeviceRequestAllocationResult], entries: Sequence[AllocatedDeviceStatus]
) -> list[PreparedDevice]:
    """What the status of a claim alone says about its devices."""
    allocation = AllocationResult(devices=DeviceAllocationResult(results=list(results)))
    claim = a_claim("one")
    status = msgspec.structs.replace(claim.status, allocation=allocation, devices=list(entries))
    claim = msgspec.structs.replace(claim, status=status)
    found = rebuilding.rebuilt(
        [claim],
        driver=NVIDIA_DRIVER,
        pool="node-0",
        gpus={},
        mps_place=mps_place,
        with_spec=[ClaimUid(claim.metadata.uid)],
    )
    return [device for one in found for device in one.devices]


@pytest.mark.parametrize(
    "said",
    [
        [entry(driver=OTHER)],
        [entry(pool="node-1")],
        [entry(data=["no", "table"])],
        [entry(data=None)],
        [entry(uuid="")],
        [entry(uuid=None)],
        [entry("gpu-1")],
        [entry(share_id="one")],
        [],
    ],
    ids=str,
)
def test_no_gpu_is_known_by_a_status_that_does_not_name_it(said: list[AllocatedDeviceStatus]) -> None:
    assert by_status([result()], said) == []
    assert [device.gpu for device in by_status([result()], [entry(), *said])] == [GONE]


def test_a_claim_of_which_a_part_is_not_known_is_not_known() -> None:
    assert by_status([result(), result("gpu-1")], [entry()]) == []
    assert by_status([result(), result(pool="node-1")], [entry()]) == [], "it cannot have both"


def test_a_partition_of_a_gpu_that_is_not_there_is_known_by_what_its_status_says_of_it() -> None:
    [part] = names([(19, 3)])
    said = {"uuid": OURS, "parentUUID": GONE, "profile": "1g.10gb", "placement": {"start": 3, "size": 1}}
    [device] = by_status([result(part)], [entry(part, data=said)])
    assert (device.gpu, device.minor) == (GONE, rebuilding.NOT_THERE)
    assert device.partition == Partition(profile_id=19, start=3, size=1, profile="1g.10gb")
    for lacking in said.keys() - {"uuid", "profile"}:
        less = {name: value for name, value in said.items() if name != lacking}
        assert by_status([result(part)], [entry(part, data=less)]) == [], lacking


def test_a_claim_that_never_reported_is_known_by_its_spec_of_an_earlier_boot_while_its_gpu_is_not_there(
    tmp_path: Path,
) -> None:
    lost = Lost(tmp_path)
    specs = lost.node.cdi.claims()
    found = rebuilding.rebuilt(
        lost.claims,
        driver=NVIDIA_DRIVER,
        pool="node-0",
        gpus={},
        mps_place=mps_place,
        with_spec=lost.node.cdi.uids(),
        by_old_spec=specs,
    )
    assert {claim.uid: claim for claim in found} == lost.prepared
    next_boot = CdiFolder(
        tmp_path / "cdi", Files(), driver=NVIDIA_DRIVER, node=Capabilities(proc=tmp_path / "proc"), boot_id="next"
    )
    assert next_boot.claims() == []
    assert next_boot.claims_before_boot() == specs


def test_a_spec_of_an_earlier_boot_tells_nothing_of_a_claim_that_has_something_else_by_now(tmp_path: Path) -> None:
    lost = Lost(tmp_path)
    specs = lost.node.cdi.claims()
    elsewhere = [a_claim(claim.metadata.name, on=["node-0/gpu-7"]) for claim in lost.claims]
    for claims in (elsewhere, []):
        found = rebuilding.rebuilt(
            claims,
            driver=NVIDIA_DRIVER,
            pool="node-0",
            gpus={},
            mps_place=mps_place,
            with_spec=lost.node.cdi.uids(),
            by_old_spec=specs,
        )
        assert found == []


def test_devices_of_other_drivers_in_a_claim_are_not_ours() -> None:
    [device] = by_status([result(driver=OTHER), result("gpu-1")], [entry(driver=OTHER), entry("gpu-1", "GPU-1")])
    assert (device.device, device.gpu, device.share_id) == ("gpu-1", "GPU-1", "")


def test_shares_of_one_device_are_known_apart() -> None:
    shares = {"left": "GPU-0", "right": "GPU-1"}
    found = by_status(
        [result(share_id=each) for each in shares], [entry(uuid=uuid, share_id=each) for each, uuid in shares.items()]
    )
    assert {device.share_id: device.gpu for device in found} == shares


def test_a_device_counts_as_ready_by_no_other_condition() -> None:
    claim = reported()
    [said] = claim.status.devices
    healthy = msgspec.structs.replace(said, conditions=[Condition(type="Healthy", status="True")])
    claim = msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, devices=[healthy]))
    assert counted(claim) == 0


# From specs, and from the previous record


def test_what_the_record_said_before_is_believed_unless_kubelet_denies_it(tmp_path: Path) -> None:
    whole = Lost(tmp_path).prepared[ClaimUid(a_claim("whole").metadata.uid)]
    arguments: Any = {"driver": NVIDIA_DRIVER, "pool": "node-0", "gpus": {}, "mps_place": mps_place, "with_spec": []}
    arguments["before"] = [whole]
    assert rebuilding.rebuilt([], **arguments) == [whole]
    assert rebuilding.rebuilt([], **arguments, kubelet_denies=lambda _: True) == []


def test_a_claim_on_record_is_not_forgotten_and_one_that_contradicts_it_is_not_believed(tmp_path: Path) -> None:
    lost = Lost(tmp_path)
    whole = lost.prepared[ClaimUid(lost.claims[2].metadata.uid)]
    stale, other = (msgspec.structs.replace(whole, uid=ClaimUid(uid), name=uid) for uid in ("stale", "other"))
    assert rebuilding.forgotten([whole], [whole]) == []
    releasing = msgspec.structs.replace(whole, state=PreparationState.RELEASING)
    assert rebuilding.forgotten([releasing], [whole]) == [], "what the record says of it counts"
    assert rebuilding.forgotten([whole], [stale]) == []
    assert rebuilding.forgotten([], [stale, other]) == [stale], "nor two that contradict each other"


def test_instances_without_a_uuid_are_not_known_by_specs(tmp_path: Path) -> None:
    small = Lost(tmp_path).prepared[ClaimUid(a_mig_claim("small", *SMALL).metadata.uid)]
    [device] = small.devices
    assert device.partition
    unmade = msgspec.structs.replace(device, partition=msgspec.structs.replace(device.partition, uuid=""))
    assert len(rebuilding.instances_of([small], boot_id="boot")) == 1
    assert rebuilding.instances_of([msgspec.structs.replace(small, devices=[unmade])], boot_id="boot") == []


def test_data_that_is_no_table_names_no_instance() -> None:
    claim = reported()
    for data in (["uuid"], None, {"uuid": ""}, {}):
        [said] = claim.status.devices
        devices = [msgspec.structs.replace(said, data=data)]
        assert (
            known([msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, devices=devices))])
            == set()
        )
