"""What is said about partitions that cannot be created: to kubelet when it asks, and on the GPU when they were lost."""

from pathlib import Path

import msgspec
import pytest

from draco.agent.errors import PrepareError
from draco.agent.record.contents import PreparationState, PreparedClaim
from draco.mig.board import Board
from draco.resources.names import ClaimUid
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import state
from tests.builders import a_claim
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

ONE = a_mig_claim("one", *names([(9, 4)]))


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    build(tmp_path)
    return MigNode(tmp_path)


def take_profiles(node: MigNode) -> None:
    """Make the driver report no 3g.40gb."""
    board = node.edge.board(node.uuid)
    assert board is not None
    fewer = Board(tuple(one for one in board.profiles if one.id != 9))
    node.edge.board = lambda _uuid: fewer  # type: ignore[method-assign, assignment]


def take_mig(node: MigNode) -> None:
    """Make the driver report no MIG support."""
    node.edge.mode = lambda _uuid: None  # type: ignore[method-assign, assignment]


def lost(node: MigNode) -> str:
    """What is said after a claim's instance is lost."""
    faults.reset(node.path, 0)
    return node.instances.restore([node.uuid])[0]


def beside(claim: PreparedClaim, name: str, state: PreparationState) -> PreparedClaim:
    """The same claim under another name, with all memory slices of the GPU."""
    [device] = claim.devices
    assert device.partition
    part = msgspec.structs.replace(device.partition, profile_id=0, start=0, size=8, gi=-1, ci=-1, uuid="")
    device = msgspec.structs.replace(device, device="gpu-0-mig-7g80gb-0-0", partition=part)
    return msgspec.structs.replace(claim, uid=ClaimUid(name), name=name, state=state, devices=[device])


def test_a_gpu_that_lost_mig_is_told_to_whom_it_was_allocated_and_to_whom_it_had_a_part(node: MigNode) -> None:
    node.prepare(a_mig_claim("held", *names([(9, 0)])))
    take_mig(node)
    with pytest.raises(
        PrepareError, match=f"^Claim default/one was allocated a part of GPU {node.uuid}, which does not"
    ):
        node.prepare(ONE)
    assert lost(node) == "The instance profile 9 at 0 is gone, and its GPU does not support MIG any more."


def test_a_place_that_the_board_no_longer_has_is_told_by_its_numbers(node: MigNode) -> None:
    node.prepare(a_mig_claim("held", *names([(9, 0)])))
    take_profiles(node)
    with pytest.raises(PrepareError, match=f"^Profile 9 cannot start at 4 on GPU {node.uuid}.$"):
        node.prepare(ONE)
    assert lost(node) == f"Profile 9 cannot start at 0 on GPU {node.uuid}."


def test_slices_of_another_claim_are_told_with_that_claim(node: MigNode) -> None:
    """No claim is prepared over another one; a record that says so is not made worse."""
    held = node.prepare(ONE)
    with pytest.raises(PrepareError) as refused:
        node.instances.acquire(beside(held, "all", PreparationState.PREPARING))
    assert str(refused.value) == (
        "Claim default/all cannot get gpu-0-mig-7g80gb-0-0: its memory slices belong to claim default/one."
    )
    assert node.real() == [(9, 4, 1)]
    node.record.put(beside(held, "all", PreparationState.PREPARED))
    assert node.instances.restore([node.uuid]) == [
        "The instance 7g.80gb at 0, which a claim needs, is gone, and its memory slices belong to another claim."
    ]
    assert node.real() == [(9, 4, 1)]


def test_mig_mode_that_needs_a_reset_is_told_of_a_gpu_whose_claims_lost_their_parts(tmp_path: Path) -> None:
    build(tmp_path, board="A100-80GB")
    node = MigNode(tmp_path)
    node.prepare(a_mig_claim("held", *names([(9, 4)], gpu=node.gpus[0].minor)))
    with state.mutate(node.path) as there:
        [gpu] = there.gpus
        gpu.mig_current, gpu.mig_pending, gpu.instances = 0, 0, []
    assert node.instances.restore([node.uuid]) == [
        "Prepared claims need instances of this GPU, whose MIG mode is off, and turning it on needs a reset."
    ]
    assert (node.hardware().mig_current, node.real()) == (0, [])


@pytest.mark.parametrize("board", ["A100-80GB", "H100-80GB"])
def test_the_whole_of_a_gpu_is_prepared_only_when_it_is_known_not_to_be_in_mig_mode(tmp_path: Path, board: str) -> None:
    path = build(tmp_path, board=board)
    faults.fail(path, "nvmlDeviceGetMigMode", faults.ERRORS["UNKNOWN"])
    node = MigNode(tmp_path)
    claim = a_claim("whole", on=[f"node-0/gpu-{node.gpus[0].minor}"])
    with pytest.raises(PrepareError, match="nvmlDeviceGetMigMode answered Unknown Error"):
        node.prepare(claim)
    with pytest.raises(PrepareError, match="its MIG mode is unknown"):
        node.desk.prepare_unasked(claim, node.named)
    assert (node.specs(), dict(node.record.claims)) == ({}, {})
    faults.stop_failing(path)
    if board == "A100-80GB":
        with pytest.raises(PrepareError, match="is in MIG mode, and turning it off needs a reset"):
            node.prepare(claim)
        return
    node.prepare(claim)
    assert (node.hardware().mig_current, len(node.specs())) == (0, 1)
