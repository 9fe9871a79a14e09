"""A GPU with a fault gets no new claim, keeps those it has, and admits claims that inspect it."""

from pathlib import Path

import pytest

from draco.agent.claims.cdi import CdiFolder
from draco.agent.errors import PrepareError
from draco.agent.files import Files
from draco.agent.hardware.capabilities import Capabilities
from draco.agent.hardware.faults import with_fault
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparationState
from draco.resources.names import NVIDIA_DRIVER, ClaimUid
from tests.builders import a_claim, a_gpu
from tests.doubles.undivided import a_preparer
from tests.unit.agent import mig_node
from tests.unit.agent.mig_node import MigNode, a_mig_claim

FAULT = ("Xid79", "XID 79: the GPU has fallen off the PCI bus; drain and reboot the node.")
WELL = {f"gpu-{minor}": a_gpu(minor) for minor in range(3)}
SICK = WELL | {"gpu-1": with_fault(a_gpu(1), *FAULT), "gpu-2": with_fault(a_gpu(2), "NeedsReset", "Reset it.")}


class Desk:
    def __init__(self, folder: Path) -> None:
        self.record = Checkpoint(folder / "checkpoint.json", Files(), boot_id="")
        self.cdi = CdiFolder(folder / "cdi", Files(), driver=NVIDIA_DRIVER, node=Capabilities())
        self.desk = a_preparer(self.record, self.cdi)


def test_a_first_prepare_is_refused_with_the_faults_name_and_leaves_nothing(tmp_path: Path) -> None:
    node = Desk(tmp_path)
    with pytest.raises(PrepareError) as refused:
        node.desk.prepare(a_claim("one", on=["node-0/gpu-1"]), SICK)
    assert str(refused.value) == (
        f"Claim default/one was allocated a device that takes no new work: gpu-1 (Xid79: {FAULT[1]}); delete all pods "
        "that use the claim, so that it is allocated again, elsewhere."
    )
    assert (dict(node.record.claims), node.cdi.uids()) == ({}, [])


def test_of_several_gpus_the_sick_ones_are_named_and_no_other(tmp_path: Path) -> None:
    claim = a_claim("many", on=["node-0/gpu-0", "node-0/gpu-1", "node-0/gpu-2"])
    with pytest.raises(PrepareError, match=r"gpu-1 \(Xid79: .*\); gpu-2 \(NeedsReset: Reset it\.\)") as refused:
        Desk(tmp_path).desk.prepare(claim, SICK)
    assert "gpu-0" not in str(refused.value)


def test_a_claim_that_was_prepared_before_keeps_its_gpu(tmp_path: Path) -> None:
    node, claim = Desk(tmp_path), a_claim("one", on=["node-0/gpu-1"])
    before = node.desk.prepare(claim, WELL)
    assert node.desk.prepare(claim, {**WELL, "gpu-1": with_fault(a_gpu(1), *FAULT)}) == before
    node.desk.unprepare(ClaimUid(claim.metadata.uid))
    assert not node.record.claims
    with pytest.raises(PrepareError, match="Xid79"):
        node.desk.prepare(claim, SICK)


def test_administrative_access_comes_to_look_and_is_let_in(tmp_path: Path) -> None:
    looker = a_claim("looker", on=["node-0/gpu-1"], admin_access=True)
    assert Desk(tmp_path).desk.prepare(looker, SICK).state is PreparationState.PREPARED


def test_no_partition_of_a_sick_gpu_is_made(tmp_path: Path) -> None:
    mig_node.build(tmp_path)
    node = MigNode(tmp_path)
    gpus = {name: with_fault(gpu, *FAULT) for name, gpu in node.named.items()}
    with pytest.raises(PrepareError, match=r"gpu-0-mig-1g10gb-19-4 \(Xid79: "):
        node.desk.prepare(a_mig_claim("part", "gpu-0-mig-1g10gb-19-4"), gpus)
    assert (node.real(), dict(node.record.instances)) == ([], {})
