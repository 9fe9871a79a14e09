"""Decides who owns each existing GPU instance: us, by the record, or somebody else.

Owns recognising our instances. Pure: compares observed instances with the record. Decides nothing about their fate.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from draco.agent.hardware.gpus import Gpu, GpuMigView, HeldInstance, Instance, PlacementKey, Use
from draco.agent.record.contents import InstanceState, OwnedInstance, PreparedClaim
from draco.mig.board import PlacementId


def recognised(own: OwnedInstance, found: Instance | None, *, boot_id: str) -> bool:
    """Whether the instance found in a recorded place is the recorded one.

    Somebody may have destroyed ours and created another one there with the same ids. A MIG UUID is new at every creation, so it
    decides if both are known. Otherwise: no instance survives a reboot; a recorded id must match; and an instance with a compute
    instance but no recorded id is not ours, since we record the id before creating the compute instance.
    """
    if found is None or found.key != own.key:
        return False
    if own.uuid and found.uuid is not None:
        return own.uuid == found.uuid
    if own.boot_id != boot_id:
        return False
    if own.gi is not None:
        return found.gi == own.gi
    return found.ci is None


class CreationAttempt(Enum):
    """What this run of the agent knows of one of its creation steps."""

    MADE = "NVML was asked, and may have made it"
    REFUSED = "NVML made nothing, or was never asked"
    LEFT_OVER = "an earlier run recorded it"


class Ownership(Enum):
    """The owner of an instance in a recorded place."""

    OURS = "ours"
    DOUBTFUL = "ours or somebody else's"
    OTHERS = "somebody else's, or nobody's: nothing stands there"


def ownership_of(own: OwnedInstance, found: Instance | None, *, boot_id: str, attempt: CreationAttempt) -> Ownership:
    """The owner. If the step was interrupted before the id was recorded, only the run that took it knows."""
    if not recognised(own, found, boot_id=boot_id):
        return Ownership.OTHERS
    if own.gi is not None or attempt is CreationAttempt.MADE:
        return Ownership.OURS
    return Ownership.OTHERS if attempt is CreationAttempt.REFUSED else Ownership.DOUBTFUL


def references(claims: Iterable[PreparedClaim]) -> Mapping[PlacementKey, tuple[PreparedClaim, ...]]:
    """The claims that need each instance: prepared ones, and those that only wait for their MPS daemons."""
    found: dict[PlacementKey, tuple[PreparedClaim, ...]] = {}
    for claim in claims:
        if not claim.has_instances:
            continue
        for key in dict.fromkeys(device.key for device in claim.devices if device.key is not None):
            found[key] = (*found.get(key, ()), claim)
    return found


def held(
    observed: Sequence[Instance],
    owned: Mapping[PlacementKey, OwnedInstance],
    needed: Mapping[PlacementKey, tuple[PreparedClaim, ...]],
    *,
    layout: Collection[PlacementId] = (),
    holders: Mapping[PlacementKey, str],
    boot_id: str,
) -> tuple[HeldInstance, ...]:
    """Every observed instance of a GPU with its use."""
    found = []
    for one in observed:
        use = _use(one, owned.get(one.key), needed, layout, boot_id)
        # If a foreign instance replaced ours, the claims have lost theirs.
        claims = () if use is Use.FOREIGN else needed.get(one.key, ())
        found.append(
            HeldInstance(instance=one, use=use, claims=tuple(map(str, claims)), holder=holders.get(one.key, ""))
        )
    return tuple(found)


def _use(
    one: Instance,
    own: OwnedInstance | None,
    needed: Mapping[PlacementKey, tuple[PreparedClaim, ...]],
    layout: Collection[PlacementId],
    boot_id: str,
) -> Use:
    if own is None or not recognised(own, one, boot_id=boot_id):
        return Use.FOREIGN
    if own.state is not InstanceState.MADE or one.ci is None:
        return Use.ORPHAN
    if one.key in needed:
        return Use.CLAIM
    return Use.LAYOUT if one.key.place in layout else Use.WARM


def remains(gpu: Gpu, claims: Iterable[PreparedClaim]) -> GpuMigView:
    """The division of a GPU that cannot be read, from what prepared claims have of it."""
    parts = {
        key: HeldInstance(
            instance=Instance(
                gpu=key.gpu,
                gi=device.partition.gi,
                profile_id=key.profile_id,
                start=key.start,
                size=device.partition.size,
            ),
            use=Use.CLAIM,
            claims=tuple(map(str, holders)),
        )
        for key, holders in references(claims).items()
        for device in holders[0].devices
        if key.gpu == gpu.uuid and device.key == key and device.partition is not None
    }
    return GpuMigView(
        gpu=gpu.uuid,
        capable=gpu.board is not None,
        enabled=gpu.mig_enabled or bool(parts),
        board=gpu.board,
        held=tuple(parts.values()),
    )
