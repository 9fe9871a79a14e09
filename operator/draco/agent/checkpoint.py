"""The record of claims on this node: what was promised to kubelet, durable before it is done.

Owns the file: its shape, its checksum, and that it always tells the last state that was written whole. Knows nothing of CDI or
kubelet. A claim is first recorded as `preparing`, an intent, and as `prepared` when everything it needs is in place.
"""

import hashlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import msgspec

from draco.agent.errors import CheckpointDamaged
from draco.agent.files import Files
from draco.resources.names import ClaimUid, GpuUuid

VERSION = 1


class ClaimState(StrEnum):
    """How far a claim has come."""

    PREPARING = "preparing"
    PREPARED = "prepared"


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device of a claim. `gpu` says which hardware it is; `device` is only the name it had when it was allocated."""

    request: str
    pool: str
    device: str
    gpu: GpuUuid
    minor: int
    admin: bool = False
    share_id: str = ""


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


class _Envelope(msgspec.Struct, kw_only=True):
    version: int
    checksum: str
    record: msgspec.Raw


class Checkpoint:
    """The claims of one node, in memory and on disk. Written by one thread; `claims` may be read by others.

    `boot_id` is the boot in which the minor numbers on record were right; "" when nothing was ever recorded.
    """

    def __init__(self, path: Path, files: Files, *, boot_id: str, claims: Iterable[PreparedClaim] = ()) -> None:
        self._path = path
        self._files = files
        self.boot_id = boot_id
        self._claims = {claim.uid: claim for claim in claims}

    def restore(self, loaded: "Loaded") -> None:
        """Take up what was on disk."""
        self._claims = {claim.uid: claim for claim in loaded.claims}
        self.boot_id = loaded.boot_id

    @property
    def claims(self) -> Mapping[ClaimUid, PreparedClaim]:
        """By uid. What is returned never changes."""
        return MappingProxyType(self._claims)

    def put(self, claim: PreparedClaim) -> None:
        """Record a claim; raises OSError and changes nothing when the disk refuses."""
        self._write({**self._claims, claim.uid: claim}, self.boot_id)

    def drop(self, uid: ClaimUid) -> None:
        """Forget a claim; raises OSError and changes nothing when the disk refuses."""
        self._write({other: claim for other, claim in self._claims.items() if other != uid}, self.boot_id)

    def replace(self, claims: Iterable[PreparedClaim], *, boot_id: str) -> None:
        """Record exactly these claims, right in that boot."""
        self._write({claim.uid: claim for claim in claims}, boot_id)

    def _write(self, claims: dict[ClaimUid, PreparedClaim], boot_id: str) -> None:
        record = msgspec.json.encode(_Record(boot_id=boot_id, claims=list(claims.values())))
        envelope = _Envelope(version=VERSION, checksum=_checksum(record), record=msgspec.Raw(record))
        self._files.write(self._path, msgspec.json.encode(envelope))
        self._claims, self.boot_id = claims, boot_id


class Loaded(msgspec.Struct, frozen=True):
    """What the file said: the claims, and the boot in which they were recorded ("" when there was no file)."""

    boot_id: str
    claims: list[PreparedClaim]


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
        if envelope.version != VERSION:
            raise CheckpointDamaged(
                f"The record of prepared claims {path} has version {envelope.version}; this agent knows {VERSION}."
            )
        if envelope.checksum != _checksum(bytes(envelope.record)):
            raise CheckpointDamaged(f"The record of prepared claims {path} does not match its checksum.")
        record = msgspec.json.decode(envelope.record, type=_Record)
    except msgspec.DecodeError as error:
        raise CheckpointDamaged(f"The record of prepared claims {path} is not whole: {error}.") from error
    return Loaded(record.boot_id, record.claims)


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
