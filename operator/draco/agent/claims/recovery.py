"""Restores what the last run left to a state that kubelet can rely on.

Owns what happens to record and CDI specs at start, before any socket is served. Does not read the API server.

A claim recorded as prepared is kept whatever else changed: kubelet keeps its own record across reboots and unprepares every claim
whose Prepare was answered. Its CDI spec exists while all of its devices do (`presence`): it is rewritten if it is missing (a
reboot empties /var/run) or its GPU has another number, and removed if a GPU or an instance is gone. An intent is undone, since
kubelet never got an answer. Specs without a recorded claim are removed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from draco.agent.claims.cdi import CdiFolder
from draco.agent.claims.preparer import node_hardware
from draco.agent.claims.presence import as_it_is, gone
from draco.agent.containers.common_edits import LimitImpossible
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
    """The record was lost: `sentence` says how, `moved_to` is the kept copy, `before` its content before the damage."""

    sentence: str
    moved_to: Path
    before: checkpoint.RecordState


class RecoveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was done. `moved` claims have other numbers on record now, also where their spec could not be written."""

    undone: list[ClaimUid] = []
    moved: list[ClaimUid] = []
    rewritten: list[ClaimUid] = []
    without_gpu: list[ClaimUid] = []
    without_instance: list[ClaimUid] = []
    without_node: list[ClaimUid] = []
    swept: list[ClaimUid] = []
    rebooted: bool = False


def read_record(path: Path, files: Files) -> checkpoint.RecordState | Damaged:
    """The record as it was left; or how it was lost, after setting it aside. Raises OSError if that fails: then write nothing."""
    try:
        return checkpoint.load(path, files)
    except CheckpointDamaged as error:
        return Damaged(str(error), checkpoint.set_aside(path, files), error.before or checkpoint.RecordState())


def kubelet_denies(kubelet_dir: Path, uid: ClaimUid) -> bool:
    """Whether kubelet's own record is readable and lacks a claim: JSON that differs between releases, with every claim's uid."""
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

    Called at start, after GPUs were replaced or moved, and when instances of prepared claims are gone. Specs that open wrong
    devices are removed first.

    `gpus` None: not readable yet. Then no spec is written; existing ones stay, except after a reboot, when their minor numbers
    may belong to other GPUs. Raises OSError if the disk refuses; another call continues.
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
        instances.shown()  # the GPUs were read before the record was loaded, which tells whose instances they are
        swept = _retract(record, cdi, _judged(record, cdi, instances, gpus))
        _record(record, _kept(record), boot_id=boot_id)
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
    """Write the specs of complete prepared claims. Called after every reading of the GPUs.

    The caller holds the record's lock: otherwise a claim unprepared meanwhile would get its spec back. Nothing is written while
    the node has no working driver.
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
            except (DeviceNodeMissing, LimitImpossible):
                without_node.append(uid)
            else:
                rewritten.append(uid)
    return RecoveryResult(
        moved=[now.uid for now in moved],
        rewritten=rewritten,
        without_gpu=judged.without_gpu,
        without_instance=judged.without_instance,
        without_node=without_node,
        swept=[uid for uid in swept if uid not in rewritten],
    )


class _Judged(NamedTuple):
    """The prepared claims with current numbers, and those that lack something."""

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
    """Remove every spec that opens anything but its claim's current devices.

    A spec with files of a driver that is being replaced stays: it could not be rewritten without a driver.
    """
    right = (uid for uid, now in judged.there.items() if now == record.claims[uid] and cdi.opens_its_devices(now))
    return cdi.sweep(right)


def _kept(record: Checkpoint) -> list[PreparedClaim]:
    return [claim for claim in record.claims.values() if claim.state is not PreparationState.PREPARING]


def _record(record: Checkpoint, claims: list[PreparedClaim], *, boot_id: str) -> None:
    if list(record.claims.values()) != claims or record.boot_id != boot_id:
        record.replace(claims, boot_id=boot_id)
