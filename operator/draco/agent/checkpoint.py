"""The record of this node: claims promised to kubelet, GPU instances that are ours, and what its GPUs are called.

All of it is durable before it is done.

Owns the file: its shape, its checksum, and that it always tells the last state that was written whole. Knows nothing of CDI,
kubelet or NVML. A claim is first recorded as `preparing`, an intent, and as `prepared` when everything it needs is in place; one
whose instances have to be destroyed is `releasing` meanwhile. An instance is on record before it is made and until it is gone.

Version 2 of the format adds instances; version 1 is read as a record without any. The known GPUs came later still: who knows
only what was before reads the record without them.
"""

import hashlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import msgspec

from draco.agent.errors import CheckpointDamaged
from draco.agent.files import Files
from draco.agent.gpus import Gpu, KnownGpu
from draco.agent.instances import PlacementKey
from draco.mig.board import unit_mask
from draco.resources.names import ClaimUid, GpuUuid

VERSION = 2
READABLE = frozenset({1, VERSION})


class ClaimState(StrEnum):
    """How far a claim has come."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    RELEASING = "releasing"  # kubelet gave it up; its instances are still being destroyed


class InstanceState(StrEnum):
    """How far an instance of ours has come."""

    CREATING = "creating"
    MADE = "made"
    DESTROYING = "destroying"


class OwnedInstance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU instance of ours: where it stands, and how to recognise it. `boot_id` is the boot in which it was made.

    `gi` is on record as soon as the GPU instance exists and before its compute instance is made, so an instance that has one
    and whose `gi` is not on record is not ours.
    """

    gpu: GpuUuid
    profile_id: int
    start: int
    size: int
    state: InstanceState
    boot_id: str
    gi: int | None = None
    ci: int | None = None
    uuid: str = ""

    @property
    def key(self) -> PlacementKey:
        """Where it stands."""
        return PlacementKey(self.gpu, self.profile_id, self.start)

    @property
    def mask(self) -> int:
        """The memory units it takes, one bit each."""
        return unit_mask(self.start, self.size)


class Partition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a GPU that a device is. `uuid`, `gi` and `ci` are those of the instance, once it is made."""

    profile_id: int
    start: int
    size: int
    gi: int = -1
    ci: int = -1
    uuid: str = ""

    @property
    def mask(self) -> int:
        """The memory units it takes, one bit each."""
        return unit_mask(self.start, self.size)


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device of a claim. `gpu` says which hardware it is; `device` is only the name it had when it was allocated.

    `partition` is the part of that GPU, None for all of it.
    """

    request: str
    pool: str
    device: str
    gpu: GpuUuid
    minor: int
    admin: bool = False
    share_id: str = ""
    partition: Partition | None = None

    @property
    def key(self) -> PlacementKey | None:
        """Where its instance stands; None for a whole GPU."""
        part = self.partition
        return None if part is None else PlacementKey(self.gpu, part.profile_id, part.start)


class PreparedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """One claim and what it got."""

    uid: ClaimUid
    namespace: str
    name: str
    state: ClaimState
    devices: list[PreparedDevice]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class _Record(msgspec.Struct, kw_only=True):
    boot_id: str
    claims: list[PreparedClaim] = []
    instances: list[OwnedInstance] = []
    gpus: list[KnownGpu] = []


class _KnownGpu(msgspec.Struct, kw_only=True):
    """A known GPU as it is read: how it was read last may have been written by an agent that knew other things of it."""

    uuid: GpuUuid
    device: str
    last: msgspec.Raw = msgspec.Raw()
    pcie_root: str | None = None
    numa_node: int | None = None

    def known(self) -> KnownGpu:
        try:
            last = msgspec.json.decode(self.last, type=Gpu) if bytes(self.last) else None
        except msgspec.ValidationError:
            last = None
        return KnownGpu(
            uuid=self.uuid, device=self.device, last=last, pcie_root=self.pcie_root, numa_node=self.numa_node
        )


class _ReadRecord(msgspec.Struct, kw_only=True):
    boot_id: str
    claims: list[PreparedClaim] = []
    instances: list[OwnedInstance] = []
    gpus: list[_KnownGpu] = []


class _Envelope(msgspec.Struct, kw_only=True):
    version: int
    checksum: str
    record: msgspec.Raw


class Checkpoint:
    """Claims, instances and known GPUs of one node, in memory and on disk. Written by one thread at a time; others may read.

    `boot_id` is the boot in which the minor numbers on record were right; "" when nothing was ever recorded.
    """

    def __init__(self, path: Path, files: Files, *, boot_id: str, claims: Iterable[PreparedClaim] = ()) -> None:
        self._path = path
        self._files = files
        self.boot_id = boot_id
        self._claims = {claim.uid: claim for claim in claims}
        self._instances: dict[PlacementKey, OwnedInstance] = {}
        self._known: dict[GpuUuid, KnownGpu] = {}

    def restore(self, loaded: "Loaded") -> None:
        """Take up what was on disk."""
        self._claims = {claim.uid: claim for claim in loaded.claims}
        self._instances = {one.key: one for one in loaded.instances}
        self._known = {one.uuid: one for one in loaded.gpus}
        self.boot_id = loaded.boot_id

    @property
    def claims(self) -> Mapping[ClaimUid, PreparedClaim]:
        """By uid. What is returned never changes."""
        return MappingProxyType(self._claims)

    @property
    def instances(self) -> Mapping[PlacementKey, OwnedInstance]:
        """Our instances by where they stand, oldest first. What is returned never changes."""
        return MappingProxyType(self._instances)

    @property
    def known(self) -> Mapping[GpuUuid, KnownGpu]:
        """The GPUs that have a name, by UUID. What is returned never changes."""
        return MappingProxyType(self._known)

    def remember(self, gpus: Iterable[KnownGpu]) -> None:
        """Record exactly these GPUs; raises OSError and changes nothing when the disk refuses."""
        self._write(self._claims, self._instances, self.boot_id, {one.uuid: one for one in gpus})

    def change(
        self,
        *,
        put: Iterable[PreparedClaim] = (),
        drop: Iterable[ClaimUid] = (),
        own: Iterable[OwnedInstance] = (),
        disown: Iterable[PlacementKey] = (),
    ) -> None:
        """Record and forget, all in one write; raises OSError and changes nothing when the disk refuses."""
        claims = {**self._claims, **{claim.uid: claim for claim in put}}
        instances = {**self._instances, **{one.key: one for one in own}}
        for uid in drop:
            claims.pop(uid, None)
        for key in disown:
            instances.pop(key, None)
        self._write(claims, instances, self.boot_id)

    def put(self, claim: PreparedClaim) -> None:
        """Record a claim; raises OSError and changes nothing when the disk refuses."""
        self.change(put=[claim])

    def drop(self, uid: ClaimUid) -> None:
        """Forget a claim; raises OSError and changes nothing when the disk refuses."""
        self.change(drop=[uid])

    def replace(
        self,
        claims: Iterable[PreparedClaim],
        *,
        boot_id: str,
        instances: Iterable[OwnedInstance] | None = None,
    ) -> None:
        """Record exactly these claims, right in that boot; and exactly these instances, unless None are given."""
        kept = self._instances if instances is None else {one.key: one for one in instances}
        self._write({claim.uid: claim for claim in claims}, kept, boot_id)

    def _write(
        self,
        claims: dict[ClaimUid, PreparedClaim],
        instances: dict[PlacementKey, OwnedInstance],
        boot_id: str,
        known: dict[GpuUuid, KnownGpu] | None = None,
    ) -> None:
        gpus = self._known if known is None else known
        content = _Record(
            boot_id=boot_id, claims=list(claims.values()), instances=list(instances.values()), gpus=list(gpus.values())
        )
        record = msgspec.json.encode(content)
        envelope = _Envelope(version=VERSION, checksum=_checksum(record), record=msgspec.Raw(record))
        self._files.write(self._path, msgspec.json.encode(envelope))
        self._claims, self._instances, self.boot_id, self._known = claims, instances, boot_id, gpus


class Loaded(msgspec.Struct, frozen=True):
    """What the file said, and the boot in which it was recorded ("" when there was no file)."""

    boot_id: str
    claims: list[PreparedClaim]
    instances: list[OwnedInstance] = []
    gpus: list[KnownGpu] = []


def load(path: Path, files: Files) -> Loaded:
    """Read the record. No file means no claims; CheckpointDamaged when it is not whole or not of a version we know."""
    try:
        content = files.read(path)
    except FileNotFoundError:
        return Loaded("", [])
    except OSError as error:
        raise CheckpointDamaged(f"The record of prepared claims {path} cannot be read: {error.strerror}.") from error
    try:
        envelope = msgspec.json.decode(content, type=_Envelope)
        if envelope.version not in READABLE:
            raise CheckpointDamaged(
                f"The record of prepared claims {path} has version {envelope.version}; this agent knows {VERSION}."
            )
        if envelope.checksum != _checksum(bytes(envelope.record)):
            raise CheckpointDamaged(f"The record of prepared claims {path} does not match its checksum.")
        record = msgspec.json.decode(envelope.record, type=_ReadRecord)
    except msgspec.DecodeError as error:
        raise CheckpointDamaged(f"The record of prepared claims {path} is not whole: {error}.") from error
    return Loaded(record.boot_id, record.claims, record.instances, [one.known() for one in record.gpus])


def set_aside(path: Path, files: Files) -> Path:
    """Rename a damaged record to `<name>.corrupt-<n>`, the first free n, and return that path."""
    taken = set(files.names(path.parent))
    number = 1
    while f"{path.name}.corrupt-{number}" in taken:
        number += 1
    target = path.with_name(f"{path.name}.corrupt-{number}")
    files.rename(path, target)
    return target


def boot_id(proc: Path = Path("/proc")) -> str:
    """The kernel's name for this boot."""
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def _checksum(record: bytes) -> str:
    return hashlib.sha256(record).hexdigest()
