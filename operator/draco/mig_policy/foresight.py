"""What will be done on a GPU, by what its agent reports of it: the report as the planner knows GPUs, and how it stands at last.

Owns the way from a GpuNode to the planner's structs and back. What happens to the GPU is decided in `mig.gpu_plan`, which the
agent asks with what it sees itself.
"""

from collections.abc import Mapping, Sequence

import msgspec

from draco.mig.board import Board
from draco.mig.gpu_plan import GpuPlan, ObservedGpu, Part, fits_beside
from draco.mig_policy.gpu_state import switched_by_reset
from draco.resources.api.draco import GpuMig, GpuStatus, InstanceUse, MigInstance, MigState
from draco.resources.names import GpuUuid

_UNKNOWN_PROFILE = -1


def observed(gpu: GpuStatus, board: Board, holders: Mapping[str, Sequence[str]]) -> ObservedGpu:
    """The GPU as it was reported. `holders` are the claims that have each device of its node."""
    mig = gpu.mig or GpuMig()
    parts = [_part(each, board, holders) for each in mig.instances]
    return ObservedGpu(
        uuid=GpuUuid(gpu.uuid),
        board=board,
        capable=mig.capable,
        enabled=mig.enabled,
        pending=mig.pending,
        switched_by_reset=switched_by_reset(gpu),
        parts=tuple(sorted(parts, key=lambda part: part.start)),
        whole=tuple(sorted(set(holders.get(gpu.device, ())))),
        settled=mig.state is not MigState.DIRTY,
    )


def _part(instance: MigInstance, board: Board, holders: Mapping[str, Sequence[str]]) -> Part:
    profile = board.profile(instance.profile)
    mine = {instance.claim, *holders.get(instance.device, ())} if instance.claim else set()
    return Part(
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
    """The GPU once all is done and everything that is waited for is gone, but for what others made, who know nothing of it."""
    mig = gpu.mig or GpuMig()
    others = [part for part in observed(gpu, board, {}).parts if part.use is InstanceUse.FOREIGN]
    wanted = [
        *((one.profile.name, one.start) for one in plan.makes),
        *((one.profile, one.start) for one in plan.makes_later),
    ]
    kept = {(part.profile, part.start) for part in plan.keeps}
    stay = [each for each in mig.instances if each.use is InstanceUse.FOREIGN or (each.profile, each.start) in kept]
    come = [
        MigInstance(profile=profile, start=start, size=1, use=InstanceUse.LAYOUT)
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
