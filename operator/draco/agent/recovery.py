"""From whatever the last run left to a state that kubelet can rely on.

Owns what happens to the record and the CDI specs at start, before any socket is served. Reads the API server only when the
record was lost.

A claim on record as prepared is kept whatever else changed: kubelet keeps a record of its own, survives reboots with it, and
asks to give up every claim it was ever told is prepared. Its CDI spec is written again where it is missing (a reboot empties
/var/run) or names an old minor number. An intent is undone: kubelet was never told. Specs that no claim on record needs go.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from draco.agent import checkpoint as journal
from draco.agent.capabilities import CapabilityUnknown
from draco.agent.cdi import CdiFolder
from draco.agent.checkpoint import Checkpoint, ClaimState, InstanceState, OwnedInstance, PreparedClaim
from draco.agent.claim_instances import ClaimInstances
from draco.agent.errors import CheckpointDamaged, PrepareError
from draco.agent.files import Files
from draco.agent.gpus import Gpu
from draco.agent.instances import Instance
from draco.agent.prepare import plan
from draco.resources.claims import ResourceClaim
from draco.resources.draco import GpuNode, InstanceUse
from draco.resources.names import ClaimUid, GpuUuid

_MIG_UUID = re.compile(r"MIG-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Damaged(msgspec.Struct, frozen=True):
    """The record was lost: `sentence` says how, `moved_to` where it lies for inspection, `before` what it said until then."""

    sentence: str
    moved_to: Path
    before: journal.Loaded


class Converged(msgspec.Struct, frozen=True, kw_only=True):
    """What was done at start, for the log. `hindered` says, as sentences, what could not be made again or settled."""

    undone: list[ClaimUid] = []
    rewritten: list[ClaimUid] = []
    without_gpu: list[ClaimUid] = []
    without_instance: list[ClaimUid] = []
    hindered: list[str] = []
    swept: list[ClaimUid] = []
    rebooted: bool = False


def read_record(path: Path, files: Files) -> journal.Loaded | Damaged:
    """The record as it was left, or, when it cannot be trusted, how it was lost; then it has been set aside.

    Raises OSError when the disk does not let it be set aside: nothing may be recorded over it.
    """
    try:
        return journal.load(path, files)
    except CheckpointDamaged as error:
        before = journal.Loaded("", []) if error.before is None else error.before
        return Damaged(str(error), journal.set_aside(path, files), before)


def rebuilt(
    claims: Iterable[ResourceClaim],
    *,
    driver: str,
    pool: str,
    gpus: Mapping[str, Gpu],
    with_spec: Iterable[ClaimUid],
) -> list[PreparedClaim]:
    """The prepared claims of this node, from what the API server and the CDI folder know.

    A claim counts as prepared when it is allocated from our pool and either its spec is here or its status says that we made it
    ready. An allocated claim with neither was never given to kubelet.
    """
    specs = set(with_spec)
    found: list[PreparedClaim] = []
    for claim in claims:
        if claim.metadata.uid not in specs and not _reported_ready(claim, driver, pool):
            continue
        try:
            intent = plan(claim, driver=driver, pool=pool, gpus=gpus)
        except PrepareError:
            continue  # of another node or driver, or its GPU is gone: there is nothing here that could be given twice
        found.append(msgspec.structs.replace(intent, state=ClaimState.PREPARED))
    return found


def instance_uuids(
    claims: Iterable[ResourceClaim], node: GpuNode | None, specs: Iterable[str], *, driver: str, pool: str
) -> set[str]:
    """MIG UUIDs of instances that we made, as far as we told anybody: in claims' status, in our GpuNode, in CDI specs."""
    found = {uuid for text in specs for uuid in _MIG_UUID.findall(text)}
    for claim in claims:
        for device in claim.status.devices:
            if device.driver == driver and device.pool == pool and isinstance(device.data, dict):
                found.add(str(device.data.get("uuid", "")))
    for gpu in node.status.gpus if node else ():
        found |= {one.uuid for one in (gpu.mig.instances if gpu.mig else ()) if one.use is not InstanceUse.FOREIGN}
    return found - {""}


def adopted(observed: Iterable[Instance], uuids: Collection[str], *, boot_id: str) -> list[OwnedInstance]:
    """Those of the instances that are there that we made. Without such proof an instance counts as somebody else's."""
    return [
        OwnedInstance(
            gpu=one.gpu,
            profile_id=one.profile_id,
            start=one.start,
            size=one.size,
            state=InstanceState.MADE,
            boot_id=boot_id,
            gi=one.gi,
            ci=one.ci,
            uuid=one.uuid,
        )
        for one in observed
        if one.uuid is not None and one.uuid in uuids
    ]


def _reported_ready(claim: ResourceClaim, driver: str, pool: str) -> bool:
    return any(
        condition.type == "Ready" and condition.status == "True"
        for device in claim.status.devices
        if device.driver == driver and device.pool == pool
        for condition in device.conditions
    )


def converge(
    record: Checkpoint,
    cdi: CdiFolder,
    *,
    gpus: Sequence[Gpu] | None,
    boot_id: str,
    instances: ClaimInstances | None = None,
) -> Converged:
    """Make record, GPU instances and specs agree.

    To be run at start, when GPUs have other minor numbers than before, and when instances that prepared claims need are gone.

    `gpus` None: they cannot be read yet. Then minor numbers are taken as recorded, but not after a reboot: they may belong
    to other GPUs now, so no spec is written until the GPUs are known. Raises OSError when the disk refuses; running it again
    continues.
    """
    rebooted = bool(record.boot_id) and record.boot_id != boot_id
    undone = [uid for uid, claim in record.claims.items() if claim.state is ClaimState.PREPARING]
    kept = [claim for claim in record.claims.values() if claim.state is not ClaimState.PREPARING]
    by_uuid = None if gpus is None else {gpu.uuid: gpu.minor for gpu in gpus}
    trusted = by_uuid is not None or not rebooted
    current = [_with_minors(claim, by_uuid) for claim in kept]
    boot = boot_id if trusted else record.boot_id
    for uid in undone:
        cdi.remove(uid)  # first, so that no spec is ever there without its claim on record
    if list(record.claims.values()) != current or record.boot_id != boot:
        record.replace(current, boot_id=boot)
    if not trusted:
        return Converged(undone=undone, swept=cdi.sweep([]), rebooted=True)
    hindered = [] if instances is None or gpus is None else instances.restore([gpu.uuid for gpu in gpus])
    done = respec(record, cdi, instances, here=by_uuid, rebooted=rebooted)
    return msgspec.structs.replace(done, undone=undone, hindered=hindered, rebooted=rebooted)


def respec(
    record: Checkpoint,
    cdi: CdiFolder,
    instances: ClaimInstances | None,
    *,
    here: Collection[GpuUuid] | None,
    rebooted: bool = False,
) -> Converged:
    """Make the specs those of the prepared claims, and no others. `here` are the GPUs that are there, None: not known."""
    claims = [claim for claim in record.claims.values() if claim.state is ClaimState.PREPARED]
    rewritten: list[ClaimUid] = []
    without_gpu: list[ClaimUid] = []
    without_instance: list[ClaimUid] = []
    for claim in claims:
        if here is not None and any(device.gpu not in here for device in claim.devices):
            without_gpu.append(claim.uid)
        elif here is not None and instances is not None and instances.lacking(claim):
            without_instance.append(claim.uid)
        elif not cdi.is_current(claim):
            try:
                cdi.write(claim)
            except CapabilityUnknown:
                without_instance.append(claim.uid)
            else:
                rewritten.append(claim.uid)
    # In the boot in which it was written a spec of a lost GPU is still right; after a reboot its minor may be another GPU's.
    # What opened an instance that is gone may open somebody else's at any time.
    unsafe = {*without_instance, *(without_gpu if rebooted else ())}
    swept = cdi.sweep(claim.uid for claim in claims if claim.uid not in unsafe)
    return Converged(rewritten=rewritten, without_gpu=without_gpu, without_instance=without_instance, swept=swept)


def _with_minors(claim: PreparedClaim, by_uuid: Mapping[GpuUuid, int] | None) -> PreparedClaim:
    """The claim with the minor numbers its GPUs have now; they can move over a reboot."""
    if by_uuid is None:
        return claim
    devices = [msgspec.structs.replace(device, minor=by_uuid.get(device.gpu, device.minor)) for device in claim.devices]
    return claim if devices == claim.devices else msgspec.structs.replace(claim, devices=devices)
