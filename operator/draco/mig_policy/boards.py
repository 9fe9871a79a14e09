"""Boards and GPUs of nodes as planner structs, and the final state of a GPU.

Owns the conversion from a GpuNode to the planner's structs and back. Equal tables make equal boards, which share their derived
data. `mig.gpu_plan` decides what happens to a GPU; the agent calls it with its own observations.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from draco.mig.board import Board, Profile
from draco.mig.gpu_plan import GpuPlan, fits_beside
from draco.mig.observed import ObservedGpu, ObservedInstance
from draco.mig_policy.gpu_state import switched_by_reset
from draco.resources.api.draco import (
    BoardTable,
    GpuMig,
    GpuNode,
    GpuStatus,
    InstanceStatus,
    InstanceUse,
    MigProfile,
    MigState,
)
from draco.resources.names import GpuUuid
from draco.resources.quantity import Quantity


def boards_of(node: GpuNode) -> dict[str, Board]:
    """The node's boards, by the names that its GPUs use."""
    return {table.name: board_of(table) for table in node.status.boards}


def board_of(table: BoardTable) -> Board:
    """A table as a board: the same object for equal tables, since thousands of nodes report the same few."""
    return _shared(Board(tuple(_profile(row) for row in table.profiles)))


@lru_cache(maxsize=256)
def _shared(board: Board) -> Board:
    return board


def profile_names(boards: Mapping[str, Board]) -> list[str]:
    """Every profile that one of the boards has, smallest first."""
    profiles = {profile.name: profile for board in boards.values() for profile in board.profiles}
    return [each.name for each in sorted(profiles.values(), key=lambda each: (each.size, each.slices, each.name))]


def _profile(row: MigProfile) -> Profile:
    # Field by field: thousands of nodes report tables, and msgspec's conversion takes three times as long.
    return Profile(
        id=row.id,
        name=row.name,
        slices=row.slices,
        size=row.size,
        starts=tuple(sorted(row.starts)),
        max_instances=row.max_instances or len(row.starts),
        memory_mib=_mebibytes(row.memory),
        multiprocessors=row.multiprocessors,
        copy_engines=row.copy_engines,
        decoders=row.decoders,
        encoders=row.encoders,
        jpeg_engines=row.jpeg_engines,
        ofa_engines=row.ofa_engines,
    )


@lru_cache(maxsize=1024)
def _mebibytes(text: str) -> int:
    memory = Quantity.read(text)
    return memory.value() >> 20 if memory is not None else 0


_UNKNOWN_PROFILE = -1


def observed(gpu: GpuStatus, board: Board, holders: Mapping[str, Sequence[str]]) -> ObservedGpu:
    """The GPU as reported. `holders` are the claims that have each device of its node."""
    mig = gpu.mig or GpuMig()
    instances = [_observed_instance(each, board, holders) for each in mig.instances]
    return ObservedGpu(
        uuid=GpuUuid(gpu.uuid),
        board=board,
        capable=mig.capable,
        enabled=mig.enabled,
        pending=mig.pending,
        switched_by_reset=switched_by_reset(gpu),
        instances=tuple(sorted(instances, key=lambda each: each.start)),
        whole=tuple(sorted(set(holders.get(gpu.device, ())))),
        settled=mig.state is not MigState.DIRTY,
    )


def _observed_instance(
    instance: InstanceStatus, board: Board, holders: Mapping[str, Sequence[str]]
) -> ObservedInstance:
    profile = board.profile(instance.profile)
    mine = {instance.claim, *holders.get(instance.device, ())} if instance.claim else set()
    return ObservedInstance(
        profile=instance.profile,
        profile_id=profile.id if profile else _UNKNOWN_PROFILE,
        start=instance.start,
        size=instance.size,
        use=instance.use,
        claims=tuple(sorted(mine)),
        stuck=bool(instance.holder),
        holder=instance.holder,
    )


def at_last(gpu: GpuStatus, board: Board, plan: GpuPlan) -> GpuStatus:
    """The GPU once the plan is done and everything it waits for is gone, except instances that others made."""
    mig = gpu.mig or GpuMig()
    others = [each for each in observed(gpu, board, {}).instances if each.use is InstanceUse.FOREIGN]
    wanted = [
        *((one.profile.name, one.start) for one in plan.makes),
        *((one.profile, one.start) for one in plan.makes_later),
    ]
    kept = {(each.profile, each.start) for each in plan.keeps}
    stay = [each for each in mig.instances if each.use is InstanceUse.FOREIGN or (each.profile, each.start) in kept]
    come = [
        InstanceStatus(profile=profile, start=start, size=1, use=InstanceUse.LAYOUT)
        for profile, start in wanted
        if fits_beside(board, others, profile, start)
    ]
    settled = mig.state in {MigState.READY, MigState.CHANGING} and not mig.pending
    done = msgspec.structs.replace(
        mig,
        enabled=plan.mode_change == "on" or (mig.enabled and not plan.mode_change),
        instances=[*stay, *come],
        state=MigState.READY if settled else mig.state,
        message="" if settled else mig.message,
    )
    return msgspec.structs.replace(gpu, mig=done)
