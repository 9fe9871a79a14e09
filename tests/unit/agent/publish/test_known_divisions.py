"""How GPUs are divided, as far as it is known: also between two looks, and when nobody can look."""

import msgspec

from draco.agent.hardware.gpus import ABSENT, Gpu, GpuFault, GpuMigView, HeldInstance, Instance, Use
from draco.agent.publish.known_divisions import known_of
from draco.mig.known_boards import BOARDS
from draco.resources.names import GpuUuid
from tests.builders import a_gpu

H100 = BOARDS["H100-80GB"]
GPU = msgspec.structs.replace(a_gpu(0), board=H100)
GONE = msgspec.structs.replace(GPU, fault=GpuFault(ABSENT, "NVML does not list it."))
HELD = GpuMigView(
    gpu=GPU.uuid,
    enabled=True,
    board=H100,
    held=(HeldInstance(instance=Instance(gpu=GPU.uuid, gi=1, profile_id=19, start=3, size=1), use=Use.CLAIM),),
)
LOOKED = msgspec.structs.replace(HELD, capable=True)


def nothing(_: Gpu) -> GpuMigView | None:
    return None


def on_record(_: Gpu) -> GpuMigView | None:
    return HELD


def known(
    gpu: Gpu, division: GpuMigView | None = None, before: GpuMigView | None = None, *, claimed: bool = False
) -> GpuMigView | None:
    divisions: dict[GpuUuid, GpuMigView] = {} if division is None else {GPU.uuid: division}
    earlier: dict[GpuUuid, GpuMigView] = {} if before is None else {GPU.uuid: before}
    return known_of([gpu], divisions, earlier, on_record if claimed else nothing).get(GPU.uuid)


def test_what_was_seen_in_the_last_look_counts() -> None:
    assert known(GPU, LOOKED, HELD, claimed=True) is LOOKED
    assert known(GPU) is None


def test_a_gpu_that_a_look_has_just_missed_is_as_it_was_until_it_is_known_to_be_absent() -> None:
    assert known(GPU, None, LOOKED) is LOOKED
    assert known(GPU, None, None, claimed=True) is HELD, "what claims have of it is on record"
    assert known(GONE, None, LOOKED) is None


def test_of_an_absent_gpu_and_of_one_that_cannot_be_looked_at_claims_keep_what_they_have() -> None:
    assert known(GONE, None, LOOKED, claimed=True) is HELD
    blind = known(GPU, GpuMigView(gpu=GPU.uuid), claimed=True)
    assert blind is not None
    assert (blind.board, blind.held) == (H100, HELD.held)
