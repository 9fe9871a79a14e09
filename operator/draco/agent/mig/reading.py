"""Reads the planner's input for a GPU: its state after the last step, instance owners, and what claims need.

Owns the conversion from inventory and record to the planner's values. Does not call NVML and decides nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from draco.agent.hardware.gpus import HeldInstance, PlacementKey, Use
from draco.agent.hardware.nvml_errors import never_seen
from draco.agent.mig.inventory import MigInventory
from draco.agent.mig.ownership import references
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import InstanceState, PreparationState, PreparedClaim
from draco.mig.board import Board
from draco.mig.observed import ObservedGpu, ObservedInstance
from draco.resources.names import GpuUuid


def read_gpu(uuid: GpuUuid, inventory: MigInventory, record: Checkpoint) -> ObservedGpu:
    """The GPU as the last step left it."""
    seen, division = inventory.known(uuid), inventory.divisions.get(uuid)
    if seen is None or division is None:
        raise never_seen(uuid)
    needed = references(record.claims.values())
    ages = {key: age for age, key in enumerate(record.instances)}
    return ObservedGpu(
        uuid=uuid,
        board=division.board,
        capable=division.capable,
        enabled=division.enabled,
        pending=division.pending,
        switched_by_reset=seen.gpu.mig_needs_reset,
        instances=tuple(_held(inventory, division.board, one, ages.get(one.instance.key, 0)) for one in division.held),
        missing={key.place: str(needed[key][0]) for key in division.missing},
        whole=_whole(uuid, record),
    )


def read_places(claims: Mapping[PlacementKey, Sequence[PreparedClaim]]) -> dict[PlacementKey, ObservedInstance]:
    """The placements that claims have or are to get."""
    return {
        key: _observed_instance(key, part.size, part.profile, use=None, claims=tuple(map(str, holders)))
        for key, holders in claims.items()
        for device in holders[0].devices
        if device.key == key and (part := device.partition)
    }


def read_unneeded(claim: PreparedClaim, record: Checkpoint) -> dict[GpuUuid, list[ObservedInstance]]:
    """Recorded instances on the claim's GPUs that no other claim needs. The claim's own come first and carry its name."""
    others = references(one for one in record.claims.values() if one.uid != claim.uid)
    free = {key: own for key, own in record.instances.items() if key not in others}
    mine = [key for device in claim.devices if (key := device.key) and key in free]
    found: dict[GpuUuid, list[ObservedInstance]] = {key.gpu: [] for key in mine}
    ages = {key: age for age, key in enumerate(free)}
    for key in dict.fromkeys((*mine, *(key for key in free if key.gpu in found))):
        use, claims = (Use.CLAIM, (str(claim),)) if key in mine else (Use.WARM, ())
        use = use if free[key].state is InstanceState.MADE else Use.ORPHAN
        found[key.gpu].append(_observed_instance(key, free[key].size, use=use, claims=claims, age=ages[key]))
    return found


def _held(inventory: MigInventory, board: Board | None, one: HeldInstance, age: int) -> ObservedInstance:
    profile = board.by_id(one.instance.profile_id) if board else None
    going = one.use is Use.ORPHAN  # an orphan that could be destroyed is gone by now
    return _observed_instance(
        one.instance.key,
        one.instance.size,
        profile.name if profile else "",
        use=one.use,
        claims=one.claims,
        stuck=going,
        holder=one.holder,
        number=one.instance.gi,
        doubtful=going and inventory.own(one.instance) is None,
        age=age,
    )


def _observed_instance(key: PlacementKey, size: int, profile: str = "", **fields: Any) -> ObservedInstance:
    name = profile or f"profile {key.profile_id}"
    return ObservedInstance(profile=name, profile_id=key.profile_id, start=key.start, size=size, **fields)


def _whole(uuid: GpuUuid, record: Checkpoint) -> tuple[str, ...]:
    return tuple(
        str(claim)
        for claim in record.claims.values()
        if claim.state is PreparationState.PREPARED
        and any(one.gpu == uuid and one.partition is None and not one.admin for one in claim.devices)
    )
