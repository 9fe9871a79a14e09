"""Brings what the last run left behind to a state that kubelet can rely on.

Owns what happens to the record and the CDI specs at start, before any socket is served. Reads the API server only when the
record was lost.

A claim on record as prepared is kept whatever else changed: kubelet keeps a record of its own, survives reboots with it, and asks
to unprepare every claim whose Prepare was ever answered. Its CDI spec exists as long as all that it names is there (`presence`):
it is written again where it is missing (a reboot empties /var/run) and where its GPU has another number now, and taken away where
a GPU or an instance is gone. An intent is undone: kubelet never got an answer. Specs that no claim on record needs are removed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from draco.agent.claims.cdi import CdiFolder
from draco.agent.claims.preparer import node_hardware
from draco.agent.claims.presence import as_it_is, gone, located
from draco.agent.errors import DeviceMissing
from draco.agent.files import Files
from draco.agent.hardware.capabilities import CapabilityUnknown
from draco.agent.hardware.device_nodes import DeviceNodeMissing
from draco.agent.hardware.gpus import Gpu
from draco.agent.mig.claim_instances import ClaimInstances
from draco.agent.record import checkpoint
from draco.agent.record.checkpoint import Checkpoint, CheckpointDamaged
from draco.agent.record.contents import PreparationState, PreparedClaim
from draco.resources.names import ClaimUid


class Damaged(msgspec.Struct, frozen=True):
    """The record was lost: `sentence` says how, `moved_to` where it lies for inspection, `before` what it said until then."""

    sentence: str
    moved_to: Path
    before: checkpoint.RecordState


class RecoveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was done at start, for the log."""

    undone: list[ClaimUid] = []
    rewritten: list[ClaimUid] = []
    without_gpu: list[ClaimUid] = []
    without_instance: list[ClaimUid] = []
    without_node: list[ClaimUid] = []
    swept: list[ClaimUid] = []
    rebooted: bool = False


def read_record(path: Path, files: Files) -> checkpoint.RecordState | Damaged:
    """The record as it was left, or, when it cannot be trusted, how it was lost; then it has been set aside.

    Raises OSError when the disk does not let it be set aside: nothing may be recorded over it.
    """
    try:
        return checkpoint.load(path, files)
    except CheckpointDamaged as error:
        return Damaged(str(error), checkpoint.set_aside(path, files), error.before or checkpoint.RecordState())


def kubelet_denies(kubelet_dir: Path, uid: ClaimUid) -> bool:
    """Whether kubelet's own record can be read and lacks a claim: JSON that differs between releases, with every claim's uid."""
    try:
        return uid not in (kubelet_dir / "dra_manager_state").read_text()
    except (OSError, UnicodeDecodeError):
        return False


def converge(
    record: Checkpoint,
    cdi: CdiFolder,
    *,
    gpus: Sequence[Gpu] | None,
    boot_id: str,
    instances: ClaimInstances,
) -> RecoveryResult:
    """Make record, GPU instances and specs agree.

    To be run at start, when GPUs are others or elsewhere than before, and when instances that prepared claims need are gone.
    What points at something else by now goes before anything else is done.

    `gpus` None: they cannot be read yet. Then no spec is written, and those there are stay, but not after a reboot: their minor
    numbers may belong to other GPUs now. Raises OSError when the disk refuses; running it again continues.
    """
    with record.lock:
        rebooted = bool(record.boot_id) and record.boot_id != boot_id
        undone = [uid for uid, claim in record.claims.items() if claim.state is PreparationState.PREPARING]
        if gpus is None:
            kept = [
                uid for uid, claim in record.claims.items() if claim.state is PreparationState.PREPARED and not rebooted
            ]
            done = RecoveryResult(undone=undone, swept=cdi.sweep(kept), rebooted=rebooted)
            _record(record, _kept(record), boot_id=record.boot_id if rebooted else boot_id)
            return done
        instances.shown()  # the GPUs were looked at before the record told whose the instances are
        swept = _retract(record, cdi, _judged(record, cdi, instances, gpus))
        by_uuid = {gpu.uuid: gpu for gpu in gpus}
        _record(record, [located(claim, by_uuid) for claim in _kept(record)], boot_id=boot_id)
    instances.restore([gpu.uuid for gpu in gpus if not gone(gpu)])
    with record.lock:
        done = respec(record, cdi, instances, gpus=gpus)
    return msgspec.structs.replace(
        done,
        undone=undone,
        rebooted=rebooted,
        swept=[uid for uid in dict.fromkeys([*swept, *done.swept]) if uid not in done.rewritten],
    )


def respec(record: Checkpoint, cdi: CdiFolder, instances: ClaimInstances, *, gpus: Sequence[Gpu]) -> RecoveryResult:
    """Make the specs those of the prepared claims of which all is there. To be run after every look at the GPUs.

    The caller holds the record's lock: otherwise a claim that is given up meanwhile would get its spec back. None is written
    while the node has no driver that works.
    """
    judged = _judged(record, cdi, instances, gpus)
    swept = _retract(record, cdi, judged)
    moved = [now for uid, now in judged.there.items() if now != record.claims[uid]]
    if moved:
        record.change(put=moved)
    rewritten, without_node = [], []
    for uid, now in judged.there.items():
        if not cdi.is_current(now) and not cdi.common.lacking():
            try:
                cdi.write(now)
            except CapabilityUnknown:
                judged.without_instance.append(uid)
            except DeviceNodeMissing:
                without_node.append(uid)
            else:
                rewritten.append(uid)
    return RecoveryResult(
        rewritten=rewritten,
        without_gpu=judged.without_gpu,
        without_instance=judged.without_instance,
        without_node=without_node,
        swept=[uid for uid in swept if uid not in rewritten],
    )


class _Judged(NamedTuple):
    """The prepared claims as they are now, and those that lack something."""

    there: dict[ClaimUid, PreparedClaim]
    without_gpu: list[ClaimUid]
    without_instance: list[ClaimUid]


def _judged(record: Checkpoint, cdi: CdiFolder, instances: ClaimInstances, gpus: Sequence[Gpu]) -> _Judged:
    what = node_hardware(gpus, cdi, instances)
    judged = _Judged({}, [], [])
    for claim in record.claims.values():
        if claim.state is not PreparationState.PREPARED:
            continue
        try:
            judged.there[claim.uid] = as_it_is(claim, what)
        except (DeviceMissing, CapabilityUnknown):
            no_gpu = any(gone(what.gpus.get(device.gpu)) for device in claim.devices)
            (judged.without_gpu if no_gpu else judged.without_instance).append(claim.uid)
    return judged


def _retract(record: Checkpoint, cdi: CdiFolder, judged: _Judged) -> list[ClaimUid]:
    """Take away every spec that opens anything but what its claim's devices are now.

    One that names files of a driver that is being replaced stays: while there is no other it could not be written again.
    """
    right = (uid for uid, now in judged.there.items() if now == record.claims[uid] and cdi.opens_its_devices(now))
    return cdi.sweep(right)


def _kept(record: Checkpoint) -> list[PreparedClaim]:
    return [claim for claim in record.claims.values() if claim.state is not PreparationState.PREPARING]


def _record(record: Checkpoint, claims: list[PreparedClaim], *, boot_id: str) -> None:
    if list(record.claims.values()) != claims or record.boot_id != boot_id:
        record.replace(claims, boot_id=boot_id)
