"""The record of this node: claims promised to kubelet, our GPU instances, and the GPUs' names, time slices and compute modes.

Every change is durable before it is acted on.

Owns what is on record, and that the file has the last written state; `journal` owns the file's format. Knows nothing of CDI,
kubelet or NVML. A claim is recorded as `preparing`, an intent, then as `prepared` when everything it needs exists, and as
`releasing` while its instances are destroyed. An instance, a time slice or a compute mode is on record before it is made and
until it is gone.

Optional fields can be added to a change without a new version: an older agent drops them when it next rewrites the file.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import MappingProxyType

import msgspec

from draco.agent.errors import AgentError
from draco.agent.files import Files
from draco.agent.hardware.gpus import Gpu, KnownGpu, PlacementKey
from draco.agent.record import journal
from draco.agent.record.contents import (
    GpuComputeMode,
    GpuTimeSlice,
    InstanceState,
    OwnedInstance,
    PreparationState,
    PreparedClaim,
    PreparedDevice,
)
from draco.agent.record.journal import Journal, Position
from draco.resources.names import ClaimUid, GpuUuid


class CheckpointDamaged(AgentError):
    """The record of prepared claims cannot be trusted. `before` is its content before the damage, if known."""

    def __init__(self, sentence: str, *, before: "RecordState | None" = None) -> None:
        super().__init__(sentence)
        self.before = before


class _KnownGpu(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A known GPU as written. Its last reading may come from an agent with other fields."""

    uuid: GpuUuid
    device: str
    last: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def known(self) -> KnownGpu:
        try:
            last = None if self.last is msgspec.UNSET else msgspec.json.decode(self.last, type=Gpu)
        except journal.UNREADABLE:
            last = None
        return KnownGpu(uuid=self.uuid, device=self.device, last=last)


def _as_written(one: KnownGpu) -> _KnownGpu:
    last = msgspec.UNSET if one.last is None else msgspec.Raw(msgspec.json.encode(one.last))
    return _KnownGpu(uuid=one.uuid, device=one.device, last=last)


class _Change(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A journal entry. A whole one has everything and replaces what came before."""

    whole: bool = False
    boot_id: str | None = None
    put: list[PreparedClaim] = []
    drop: list[ClaimUid] = []
    own: list[OwnedInstance] = []
    disown: list[PlacementKey] = []
    gpus: list[_KnownGpu] | None = None
    slices: list[GpuTimeSlice] = []
    modes: list[GpuComputeMode] = []


class RecordState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on record at one time, and the boot in which it was recorded ("" without a file)."""

    boot_id: str = ""
    claims: dict[ClaimUid, PreparedClaim] = {}
    instances: dict[PlacementKey, OwnedInstance] = {}
    gpus: dict[GpuUuid, KnownGpu] = {}
    slices: dict[GpuUuid, GpuTimeSlice] = {}
    modes: dict[GpuUuid, GpuComputeMode] = {}
    position: Position | None = None
    """Where the journal continues, in a state read from the file; None if the next change rewrites it."""

    def after(self, change: _Change) -> "RecordState":
        """The state after a change."""
        before = RecordState() if change.whole else self
        claims = {**before.claims, **{claim.uid: claim for claim in change.put}}
        instances = {**before.instances, **{one.key: one for one in change.own}}
        slices = {**before.slices, **{one.gpu: one for one in change.slices}}
        modes = {**before.modes, **{one.gpu: one for one in change.modes}}
        for uid in change.drop:
            claims.pop(uid, None)
        for key in change.disown:
            instances.pop(key, None)
        boot_id = before.boot_id if change.boot_id is None else change.boot_id
        gpus = before.gpus if change.gpus is None else {one.uuid: one.known() for one in change.gpus}
        return RecordState(
            boot_id=boot_id,
            claims=claims,
            instances=instances,
            gpus=gpus,
            slices=slices,
            modes={gpu: one for gpu, one in modes.items() if one.ours},
        )

    def as_change(self) -> _Change:
        """The change that leads here from any state."""
        return _Change(
            whole=True,
            boot_id=self.boot_id,
            put=list(self.claims.values()),
            own=list(self.instances.values()),
            gpus=[_as_written(one) for one in self.gpus.values()],
            slices=list(self.slices.values()),
            modes=list(self.modes.values()),
        )


class Checkpoint:
    """Claims, instances and known GPUs of one node, in memory and on disk.

    Any thread may read and write. A thread that writes what follows from reading, here or in CDI specs, holds `lock` and does not
    call NVML meanwhile: the driver may never answer.
    """

    def __init__(self, path: Path, files: Files, *, boot_id: str) -> None:
        self.lock = threading.RLock()
        self._journal = Journal(path, files)
        self._state = RecordState(boot_id=boot_id)
        self._last_users: dict[GpuUuid | PlacementKey, PreparedClaim] = {}

    def restore(self, loaded: RecordState) -> None:
        """Take over what was on disk."""
        self._state = msgspec.structs.replace(loaded, position=None)
        self._journal.go_on(loaded.position)

    @property
    def boot_id(self) -> str:
        """The boot in which the minor numbers on record were right; "" when nothing was ever recorded."""
        return self._state.boot_id

    @property
    def claims(self) -> Mapping[ClaimUid, PreparedClaim]:
        """By uid. The returned mapping never changes."""
        return MappingProxyType(self._state.claims)

    @property
    def instances(self) -> Mapping[PlacementKey, OwnedInstance]:
        """Our instances by placement, oldest first. The returned mapping never changes."""
        return MappingProxyType(self._state.instances)

    @property
    def slices(self) -> Mapping[GpuUuid, GpuTimeSlice]:
        """What is known of the GPUs' time slices. The returned mapping never changes."""
        return MappingProxyType(self._state.slices)

    @property
    def modes(self) -> Mapping[GpuUuid, GpuComputeMode]:
        """The compute modes that we set. The returned mapping never changes."""
        return MappingProxyType(self._state.modes)

    @property
    def last_users(self) -> Mapping[GpuUuid | PlacementKey, PreparedClaim]:
        """The last claim of each whole GPU and placement since this process started. Not on disk."""
        return MappingProxyType(self._last_users)

    @property
    def known(self) -> Mapping[GpuUuid, KnownGpu]:
        """The named GPUs by UUID. The returned mapping never changes."""
        return MappingProxyType(self._state.gpus)

    def remember(self, gpus: Iterable[KnownGpu]) -> None:
        """Record exactly these GPUs. Raises OSError and changes nothing if the disk refuses."""
        known = {one.uuid: one for one in gpus}
        change = _Change(gpus=[_as_written(one) for one in known.values()])
        with self.lock:
            self._make(change, msgspec.structs.replace(self._state, gpus=known))

    def change(
        self,
        *,
        put: Iterable[PreparedClaim] = (),
        drop: Iterable[ClaimUid] = (),
        own: Iterable[OwnedInstance] = (),
        disown: Iterable[PlacementKey] = (),
        slices: Iterable[GpuTimeSlice] = (),
        modes: Iterable[GpuComputeMode] = (),
    ) -> None:
        """Record and forget in one write, without what is on record already. On an OSError nothing changes."""
        change = _Change(
            put=list(put),
            drop=list(drop),
            own=list(own),
            disown=list(disown),
            slices=list(slices),
            modes=list(modes),
        )
        with self.lock:
            self._make(change, self._state.after(change))

    def _make(self, change: _Change, after: RecordState, append: Callable[..., bool] | None = None) -> None:
        if after == self._state:
            return
        reserve = _reserve(after) if _takes_more(change) else 0
        append = append or self._journal.append
        if not append(msgspec.json.encode(change), keep_free=reserve):
            self._rewrite(after)
        self._take(after)

    def _take(self, after: RecordState) -> None:
        """Take over a state, and remember the devices' users among claims that leave the record."""
        for uid, claim in self._state.claims.items():
            if uid in after.claims or claim.state is PreparationState.PREPARING:
                continue
            for device in claim.devices:
                if not device.admin:
                    for stale in [key for key in self._last_users if _meet(key, device)]:
                        del self._last_users[stale]
                    self._last_users[device.key or device.gpu] = claim
        self._state = after

    def intend(self, claim: PreparedClaim) -> None:
        """Record an intent without waiting for the disk. Only if it needs nothing but a spec, which a power loss ends too."""
        change = _Change(put=[claim])
        with self.lock:
            self._make(change, self._state.after(change), self._journal.append_volatile)

    def put(self, claim: PreparedClaim) -> None:
        """Record a claim. Raises OSError and changes nothing if the disk refuses."""
        self.change(put=[claim])

    def drop(self, uid: ClaimUid) -> None:
        """Forget a claim. Raises OSError and changes nothing if the disk refuses."""
        self.change(drop=[uid])

    def replace(
        self,
        claims: Iterable[PreparedClaim],
        *,
        boot_id: str,
        instances: Iterable[OwnedInstance] | None = None,
    ) -> None:
        """Record exactly these claims, as of that boot, and exactly these instances unless None."""
        with self.lock:
            kept = self._state.instances if instances is None else {one.key: one for one in instances}
            after = msgspec.structs.replace(
                self._state, boot_id=boot_id, claims={claim.uid: claim for claim in claims}, instances=kept
            )
            self._rewrite(after)
            self._take(after)

    def _rewrite(self, state: RecordState) -> None:
        self._journal.rewrite(msgspec.json.encode(state.as_change()), keep_free=_reserve(state))


def _meet(key: GpuUuid | PlacementKey, device: PreparedDevice) -> bool:
    """Whether one is a whole GPU and the other is it or a part of it."""
    if device.partition is None:
        return device.gpu == (key.gpu if isinstance(key, PlacementKey) else key)
    return key == device.gpu


def _takes_more(change: _Change) -> bool:
    """Whether a change adds something to release later. Room is reserved so that releases never fail on a full disk."""
    claims = any(claim.state is not PreparationState.RELEASING for claim in change.put)
    instances = any(one.state is not InstanceState.DESTROYING for one in change.own)
    settings = any(one.time_slice for one in change.slices) or any(one.ours for one in change.modes)
    return claims or instances or change.gpus is not None or settings


def _reserve(state: RecordState) -> int:
    """Most bytes that releasing everything takes: all of it is recorded once more, then claims and instances forgotten."""
    held = [*state.claims.values(), *state.instances.values(), *state.slices.values(), *state.modes.values()]
    return len(msgspec.json.encode(held)) + 512 * len(held)


def load(path: Path, files: Files) -> RecordState:
    """Read the record; empty without a file. Raises CheckpointDamaged if it is incomplete or of an unknown version."""
    what = f"The record of prepared claims {path}"
    try:
        content = files.read(path)
    except FileNotFoundError:
        return RecordState()
    except OSError as error:
        raise CheckpointDamaged(f"{what} cannot be read: {error.strerror}.") from error
    return read(content, what)


def read(content: bytes, what: str = "The record of prepared claims") -> RecordState:
    """The content of a record. Raises CheckpointDamaged if it is incomplete or of an unknown version."""
    found = journal.read(content)
    state = RecordState()
    damage = found.damage
    for entry in found.entries:
        try:
            state = state.after(msgspec.json.decode(entry, type=_Change))
        except journal.UNREADABLE as error:
            damage = f"has an entry that this agent does not understand ({error})"
            break
    if damage:
        raise CheckpointDamaged(f"{what} {damage}.", before=state)
    return msgspec.structs.replace(state, position=found.position)


def set_aside(path: Path, files: Files) -> Path:
    """Also keep a damaged record as `<name>.corrupt-<n>`, with the first free n; returns that path.

    The record stays until another replaces it: an agent that ends before must not read a missing record as a node without claims.
    An already kept record is not kept again.
    """
    prefix = f"{path.name}.corrupt-"
    taken = {name for name in files.names(path.parent) if name.startswith(prefix)}
    for name in taken:
        with suppress(OSError):
            if files.read(path.with_name(name)) == files.read(path):
                return path.with_name(name)
    number = next(number for number in count(1) if f"{prefix}{number}" not in taken)
    target = path.with_name(f"{prefix}{number}")
    files.keep_as(path, target)
    return target


def boot_id(proc: Path = Path("/proc")) -> str:
    """The kernel's ID of this boot."""
    return (proc / "sys/kernel/random/boot_id").read_text().strip()
