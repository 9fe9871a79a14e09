"""Finds devices that claims have been allocated and that a GPU would no longer offer.

Owns the comparison of allocated devices with those that the wanted state offers. The scheduler counts used units by published
devices: if an allocated device were withdrawn, its units would be free for another claim. An agent knows of a claim only once its
pod starts, so these places are written to its GpuNode. Devices that stay offered need no promise. If a GPU's partitions are not
reported, its offer is unknown, so its allocated devices are promised unless the same policy still has it.
"""

from collections.abc import Iterable, Mapping

from draco.mig_policy.boards import boards_of
from draco.mig_policy.gpu_state import switched_by_reset
from draco.resources.api.draco import GpuNode, GpuStatus, MigMode, PromisedDevice, WantedGpu
from draco.resources.names import gpu_name, read_partition_name


def promises(node: GpuNode, wanted: Iterable[WantedGpu], allocated: Mapping[str, str]) -> list[PromisedDevice]:
    """What to keep for claims beside what is wanted. `allocated`: claims by device. Promises of unreported GPUs stay."""
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
    """Whether the GPU offers this partition."""
    if wanted is None or wanted.mode is MigMode.DISABLED:
        return False
    if switched_by_reset(gpu) and not (gpu.mig is not None and gpu.mig.enabled):
        return False
    if wanted.mode is MigMode.DYNAMIC:
        return not wanted.profiles or profile in wanted.profiles
    return any((each.profile, each.start) == (profile, start) for each in wanted.layout)
