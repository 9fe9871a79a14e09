"""What is known of how GPUs are divided, also between two readings and when they cannot be read."""

from types import SimpleNamespace
from typing import cast

import msgspec

from draco.agent.hardware.faults import with_fault
from draco.agent.hardware.gpus import ABSENT, Gpu, GpuMigView, HeldInstance, Instance, Use
from draco.agent.publish.known_divisions import KnownDivisions
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import Partition, PreparationState, PreparedClaim, PreparedDevice
from draco.mig.known_boards import BOARDS
from draco.resources.names import ClaimUid, GpuUuid
from tests.builders import a_gpu

H100 = BOARDS["H100-80GB"]
GPU = msgspec.structs.replace(a_gpu(0), board=H100)
GONE = with_fault(GPU, ABSENT, "NVML does not list it.")
DEVICE = PreparedDevice(
    request="gpu",
    pool="node-0",
    device="gpu-0-mig-1g10gb-19-3",
    gpu=GPU.uuid,
    minor=0,
    partition=Partition(profile_id=19, start=3, size=1, gi=1),
)
CLAIM = PreparedClaim(
    uid=ClaimUid("uid"), namespace="default", name="one", state=PreparationState.PREPARED, devices=[DEVICE]
)
HELD = GpuMigView(
    gpu=GPU.uuid,
    capable=True,
    enabled=True,
    board=H100,
    held=(
        HeldInstance(
            instance=Instance(gpu=GPU.uuid, gi=1, profile_id=19, start=3, size=1),
            use=Use.CLAIM,
            claims=("default/one",),
        ),
    ),
)
LOOKED = msgspec.structs.replace(HELD, message="It was looked at.")


def known(
    gpu: Gpu, division: GpuMigView | None = None, before: GpuMigView | None = None, *, claimed: bool = False
) -> GpuMigView | None:
    divisions: dict[GpuUuid, GpuMigView] = {} if division is None else {GPU.uuid: division}
    claims = {CLAIM.uid: CLAIM} if claimed else {}
    made = KnownDivisions(cast("Checkpoint", SimpleNamespace(known={}, claims=claims)))
    if before is not None:
        made.of([GPU], {GPU.uuid: before})
    return made.of([gpu], divisions).get(GPU.uuid)


def test_what_was_seen_in_the_last_look_counts() -> None:
    assert known(GPU, LOOKED, HELD, claimed=True) is LOOKED
    assert known(msgspec.structs.replace(GPU, board=None)) is None


def test_a_gpu_that_a_look_has_just_missed_is_as_it_was_until_it_is_known_to_be_absent() -> None:
    assert known(GPU, None, LOOKED) is LOOKED
    assert known(GPU, None, None, claimed=True) == HELD, "what claims have of it is on record"
    gone = known(GONE, None, LOOKED)
    assert gone is not None
    assert (gone.enabled, gone.held) == (False, ())


def test_of_an_absent_gpu_and_of_one_that_cannot_be_looked_at_claims_keep_what_they_have() -> None:
    assert known(GONE, None, LOOKED, claimed=True) == HELD
    blind = known(GPU, GpuMigView(gpu=GPU.uuid), claimed=True)
    assert blind is not None
    assert (blind.board, blind.held) == (H100, HELD.held)
