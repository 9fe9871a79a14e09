"""Finds the devices that claims have been allocated and that a GPU would no longer offer.

Owns the comparison of what is allocated with what is offered by what is wanted. The scheduler counts what is taken by the devices
that are published: a device that were dropped while a claim has it would free its units for another claim. The agent knows of a
claim only once its pod starts, so those places are written for it here.

What is offered anyway is left out: where nothing changes under claims, nothing is promised. Of a GPU whose partitions are not
reported it is not known what is offered, so what claims have of it is promised, unless the policy that had it has it still.
"""

from collections.abc import Iterable, Mapping

from draco.mig_policy.boards import boards_of
from draco.mig_policy.gpu_state import switched_by_reset
from draco.resources.api.draco import GpuNode, GpuStatus, MigMode, PromisedDevice, WantedGpu
from draco.resources.names import gpu_name, read_partition_name


def promises(node: GpuNode, wanted: Iterable[WantedGpu], allocated: Mapping[str, str]) -> list[PromisedDevice]:
    """What is to be kept for claims beside what is wanted, by device. `allocated`: the node's devices, and the claim of each.

    What cannot be judged now, because the GPU is not reported, stays as it is.
    """
    if not allocated:
        return []
    gpus = {each.device: each for each in node.status.gpus}
    wanted_by_uuid = {each.uuid: each for each in wanted}
    boards = boards_of(node)
    now = {each.device: each for each in node.spec.promised}
    before = {each.uuid: each for each in node.spec.gpus}
    kept = []
    for device, claim in sorted(allocated.items()):
        part = read_partition_name(device)
        gpu = gpus.get(gpu_name(device))
        if gpu is None:
            kept += [now[device]] if device in now else []
            continue
        board = boards.get(gpu.mig.board) if gpu.mig is not None else None
        promise, want = PromisedDevice(device=device, uuid=gpu.uuid, claim=claim), wanted_by_uuid.get(gpu.uuid)
        if gpu.mig is None or (part is not None and board is None):
            stays_offered = part is None or (want is not None and want == before.get(gpu.uuid))
            kept += [promise] if device in now or not stays_offered else []
            continue
        if part is None:
            kept += [] if offers_whole(gpu, want) else [promise]
            continue
        profile = board.by_id(part.profile_id) if board is not None else None
        if profile is None or part.start not in profile.starts:
            continue  # no agent serves a device of that name
        if not offers(gpu, want, profile.name, part.start):
            kept.append(promise)
    return kept


def offers_whole(gpu: GpuStatus, wanted: WantedGpu | None) -> bool:
    """Whether the GPU is offered whole, now and until something else is wanted of it."""
    if wanted is None or wanted.mode is MigMode.DISABLED:
        return True
    return wanted.mode is MigMode.DYNAMIC and not switched_by_reset(gpu)


def offers(gpu: GpuStatus, wanted: WantedGpu | None, profile: str, start: int) -> bool:
    """Whether the GPU offers this part of it."""
    if wanted is None or wanted.mode is MigMode.DISABLED:
        return False
    if switched_by_reset(gpu) and not (gpu.mig is not None and gpu.mig.enabled):
        return False
    if wanted.mode is MigMode.DYNAMIC:
        return not wanted.profiles or profile in wanted.profiles
    return any((each.profile, each.start) == (profile, start) for each in wanted.layout)
