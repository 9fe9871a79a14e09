"""How a GpuNode reports the division of its GPUs, for people and the operator. Pure; `node_status` writes it."""

from collections.abc import Iterable, Mapping

import msgspec

from draco.agent.hardware.gpus import Gpu, GpuMigView, HeldInstance, device_name
from draco.agent.publish.partitions import partition_name
from draco.mig.board import Board, Placement, Profile
from draco.resources.api import draco as api
from draco.resources.api.draco import BoardTable, InstanceStatus, InstanceUse, MigProfile
from draco.resources.names import GpuUuid


def boards(gpus: Iterable[Gpu]) -> Mapping[Board, str]:
    """A name for each distinct board, after the product; several tables of one product are numbered."""
    names: dict[Board, str] = {}
    for gpu in gpus:
        if gpu.board is None or gpu.board in names:
            continue
        product = gpu.product_name or "unnamed board"
        alike = sum(name.partition(" #")[0] == product for name in names.values())
        names[gpu.board] = f"{product} #{alike + 1}" if alike else product
    return names


def tables(names: Mapping[Board, str]) -> list[BoardTable]:
    """Each board's table once."""
    return [BoardTable(name=name, profiles=[_profile(one) for one in board.profiles]) for board, name in names.items()]


def _profile(one: Profile) -> MigProfile:
    row = msgspec.convert(one, MigProfile, from_attributes=True)
    return msgspec.structs.replace(row, memory=f"{one.memory_mib}Mi")


def mig(gpu: Gpu, divisions: Mapping[GpuUuid, GpuMigView], names: Mapping[Board, str]) -> api.GpuMig | None:
    """How a GPU is divided; None while unknown. One without MIG reports only that."""
    division = divisions.get(gpu.uuid)
    if division is None:
        return None
    if not division.capable:
        unknown = any(one.name == "mig" for one in gpu.unread)
        return None if gpu.mig_capable or gpu.absent or unknown else api.GpuMig()
    board = division.board
    return api.GpuMig(
        capable=True,
        enabled=division.enabled,
        pending=division.pending,
        board=names.get(board, "") if board else "",
        state=division.state,
        message=division.message,
        instances=[_instance(one, gpu, board) for one in division.held],
    )


def _instance(one: HeldInstance, gpu: Gpu, board: Board | None) -> InstanceStatus:
    instance = one.instance
    profile = board.by_id(instance.profile_id) if board else None
    published = profile is not None and one.use is not InstanceUse.FOREIGN
    return InstanceStatus(
        profile=profile.name if profile else f"profile {instance.profile_id}",
        start=instance.start,
        size=instance.size,
        uuid=instance.uuid or "",
        device=partition_name(device_name(gpu), Placement(profile, instance.start)) if profile and published else "",
        use=one.use,
        claim=one.claims[0] if one.claims else "",
        holder=one.holder,
    )
