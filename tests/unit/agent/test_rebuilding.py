"""What is known again when the record was lost: from claims, from our own report, from specs, and from nothing else."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from draco.agent import recovery
from draco.agent.files import LocalFiles
from draco.agent.instances import Instance
from draco.resources.claims import AllocatedDeviceStatus, ResourceClaim
from draco.resources.draco import GpuMig, InstanceUse
from draco.resources.meta import Condition
from draco.resources.names import NVIDIA_DRIVER, ClaimUid, GpuUuid
from tests.builders import a_claim, a_gpu, a_mig_instance, a_mig_node
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

OURS, THEIRS = (f"MIG-{number}0000000-0000-0000-0000-000000000000" for number in (1, 2))


def reported(*, pool: str = "node-0", driver: str = NVIDIA_DRIVER, status: str = "True") -> ResourceClaim:
    """A claim of whose device a driver says something."""
    claim = a_claim("one", on=["node-0/gpu-0"])
    ready = Condition(type="Ready", status=status, reason="Prepared", message="")
    device = AllocatedDeviceStatus(driver=driver, pool=pool, device="gpu-0", conditions=[ready], data={"uuid": OURS})
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, devices=[device]))


def counted(claim: ResourceClaim) -> int:
    """How many claims count as prepared, if only the claim itself may say so."""
    gpus = {"gpu-0": a_gpu(0)}
    return len(recovery.rebuilt([claim], driver=NVIDIA_DRIVER, pool="node-0", gpus=gpus, with_spec=[]))


def known(claims: Sequence[ResourceClaim] = (), *uses: InstanceUse) -> set[str]:
    instances = [a_mig_instance("1g.10gb@0", use=use, uuid=THEIRS) for use in uses]
    node = a_mig_node(gpus=[GpuMig(capable=True, instances=instances)]) if uses else None
    return recovery.instance_uuids(claims, node, [], driver=NVIDIA_DRIVER, pool="node-0")


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
    assert [own.start for own in recovery.adopted([one, bare, theirs], {OURS}, boot_id="boot")] == [0]


def test_a_record_that_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    class Broken(LocalFiles):
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
