"""Making and destroying GPU instances so that a crash at any step leaves nothing unexplained.

Owns the order of journal and hardware: a step is on record before it is taken and until its end has been seen in a fresh list.
So at every moment each GPU instance is one of: needed by a prepared claim, kept idle, a step on record that `settle` finishes or
undoes, or somebody else's. The last are reported and never touched. Decides neither which claims get what nor what is kept idle;
a GPU whose steps cannot be finished, or that cannot be listed, is dirty until it has been listed with nothing left over.

All methods block on NVML and the disk. Each holds the lock of the NVML session from its first look to its last step, so nobody
sees a change half done. Only while the holder of what was refused is looked for is the lock free: that may take long, and what
others see of the GPU then is that it is dirty.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from types import MappingProxyType

import msgspec

from draco.agent.checkpoint import Checkpoint, ClaimState, InstanceState, OwnedInstance, PreparedClaim
from draco.agent.errors import AgentError
from draco.agent.gpus import Gpu
from draco.agent.holdings import held, recognised, references
from draco.agent.instances import GpuMig, Instance, MigState, PlacementKey, Use
from draco.agent.nvml_errors import (
    DriverError,
    InUse,
    InvalidArgument,
    NoRoom,
    NotSupported,
    NvmlError,
    PermissionMissing,
    never_seen,
)
from draco.agent.nvml_instances import Mode, NvmlInstances
from draco.mig.board import Board, Placement
from draco.resources.names import ClaimUid, GpuUuid


class NotVerified(AgentError):
    """NVML said yes, and its list says something else."""


class StillHeld(AgentError):
    """An instance that has to go is in use."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a GPU."""

    gpu: Gpu
    mode: Mode | None
    board: Board | None
    instances: tuple[Instance, ...]

    def at(self, key: PlacementKey) -> Instance | None:
        """What stands at that place."""
        return next((one for one in self.instances if one.key == key), None)

    def overlapping(self, mask: int) -> list[Instance]:
        """What takes any of those units."""
        return [one for one in self.instances if one.mask & mask]


class Refused(msgspec.Struct, frozen=True):
    """A destroy that was refused as in use: by whom, and since when (monotonic)."""

    holder: str
    since_s: float


FindHolder = Callable[[Instance | None, Gpu, Sequence[int]], str]
"""Who holds an instance of a GPU, or anything of the GPU, as a phrase; "" when nobody is found. NVML lists the numbers."""
NOBODY_LISTED = "somebody who is in no list, such as a monitoring program that keeps it open"


class MigDesk:
    """The GPU instances of one node.

    `divisions` is what everybody else may know of them, as of the last finished change; `shown` is called, in the thread of that
    change, when it differs. `refused` are the destroys that were refused.
    """

    def __init__(
        self,
        record: Checkpoint,
        mig: NvmlInstances,
        *,
        boot_id: str,
        holder: FindHolder,
        monotonic: Callable[[], float],
        shown: Callable[[], None] = lambda: None,
    ) -> None:
        self._shown = shown
        self.divisions: Mapping[GpuUuid, GpuMig] = MappingProxyType({})
        self.refused: Mapping[PlacementKey, Refused] = MappingProxyType({})
        self._record = record
        self._mig = mig
        self._boot_id = boot_id
        self._holder = holder
        self._monotonic = monotonic
        self._seen: dict[GpuUuid, Seen] = {}
        self._trouble: dict[GpuUuid, str] = {}
        self._notes: dict[GpuUuid, str] = {}
        self._layouts: dict[GpuUuid, frozenset[PlacementKey]] = {}

    @property
    def lock(self) -> AbstractContextManager[object]:
        """The lock of the NVML session; whoever takes several steps that belong together holds it meanwhile."""
        return self._mig.lock

    # Looking

    def look(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """All GPUs of the node, each with its board and instances as they are now; those that left it are forgotten.

        A GPU that cannot be listed keeps what was seen last.
        """
        with self._mig.lock:
            for uuid in self._seen.keys() - {gpu.uuid for gpu in gpus}:
                del self._seen[uuid]
                for known in (self._trouble, self._notes, self._layouts):
                    known.pop(uuid, None)
            looked = [self._look(gpu) for gpu in gpus]
            self.show()
            return looked

    def _look(self, gpu: Gpu) -> Gpu:
        known = self._seen.get(gpu.uuid)
        self._seen[gpu.uuid] = (
            Seen(gpu=gpu, mode=None, board=None, instances=())
            if known is None
            else msgspec.structs.replace(known, gpu=gpu)
        )
        try:
            seen = self.observe(gpu.uuid)
            if not self.open_steps(gpu.uuid):
                self._trouble.pop(gpu.uuid, None)
        except DriverError:
            raise
        except NvmlError:
            seen = self._seen[gpu.uuid]
        return msgspec.structs.replace(gpu, board=seen.board, instances=seen.instances)

    def observe(self, uuid: GpuUuid) -> Seen:
        """A fresh list of a GPU's instances. An NvmlError makes the GPU dirty; GpuUnknown before the first look."""
        if uuid not in self._seen:
            # The record may name a GPU that left the node, or that a driver which is down has not shown yet.
            raise never_seen(uuid)
        gpu = self._seen[uuid].gpu
        try:
            mode = self._mig.mode(uuid)
            board = None if mode is None else self._mig.board(uuid)
            listed = () if mode is None or not mode.enabled else tuple(self._mig.instances(uuid))
        except NvmlError as error:
            self._trouble[uuid] = str(error)
            raise
        self._seen[uuid] = Seen(gpu=gpu, mode=mode, board=board, instances=listed)
        return self._seen[uuid]

    def divided(self, uuid: GpuUuid) -> bool:
        """Whether a GPU is in MIG mode at this moment. NvmlError when it does not say."""
        with self._mig.lock:
            mode = self._mig.mode(uuid)
            return mode is not None and mode.enabled

    def known(self, uuid: GpuUuid) -> Seen | None:
        """The last look."""
        return self._seen.get(uuid)

    def named(self, key: PlacementKey) -> str:
        """A place as people write it: 1g.10gb@3."""
        seen = self._seen.get(key.gpu)
        profile = seen.board.by_id(key.profile_id) if seen and seen.board else None
        return f"{profile.name if profile else f'profile {key.profile_id}'}@{key.start}"

    def own(self, one: Instance) -> OwnedInstance | None:
        """The instance's record, if it is ours."""
        own = self._record.instances.get(one.key)
        return own if own is not None and recognised(own, one, boot_id=self._boot_id) else None

    def open_steps(self, uuid: GpuUuid) -> list[OwnedInstance]:
        """Steps on record that have not been seen to their end, latest first."""
        steps = [
            one for one in self._record.instances.values() if one.gpu == uuid and one.state is not InstanceState.MADE
        ]
        return steps[::-1]

    # Changing

    def settle(self, uuid: GpuUuid) -> Seen:
        """Undo what was being made, finish what was being destroyed, and forget what is gone.

        What is in use stays on record for the next time. NvmlError and OSError when it cannot be done now; the GPU is dirty
        then.
        """
        with self._mig.lock:
            try:
                return self._settle(uuid)
            finally:
                self.show()

    def _settle(self, uuid: GpuUuid) -> Seen:
        seen = self.observe(uuid)
        self._discard_broken(seen)
        steps = self.open_steps(uuid)
        for own in steps:
            found = seen.at(own.key)
            if found is not None and recognised(own, found, boot_id=self._boot_id):
                self._destroy(own, found, seen.gpu)
        if steps:
            seen = self.observe(uuid)
        gone = [
            own.key
            for own in self._record.instances.values()
            if own.gpu == uuid and not recognised(own, seen.at(own.key), boot_id=self._boot_id)
        ]
        if gone:
            self._forget(gone)
        if not self.open_steps(uuid):
            self._trouble.pop(uuid, None)
        return seen

    def make(self, uuid: GpuUuid, placements: Iterable[Placement], *, put: Sequence[PreparedClaim] = ()) -> None:
        """Make instances, largest first, and see them in the list. `put` goes on record together with the intent.

        What fails leaves its step on record, for `settle`, and those before it: NvmlError, OSError, NotVerified.
        """
        with self._mig.lock:
            wanted = sorted(placements, key=lambda one: (-one.profile.size, one.start))
            fresh = {
                PlacementKey(uuid, one.profile.id, one.start): OwnedInstance(
                    gpu=uuid,
                    profile_id=one.profile.id,
                    start=one.start,
                    size=one.profile.size,
                    state=InstanceState.CREATING,
                    boot_id=self._boot_id,
                )
                for one in wanted
            }
            self._record.change(put=put, own=fresh.values())
            untried = list(fresh.values())
            for placement in wanted:
                try:
                    self._create(untried.pop(0), placement)
                except NvmlError:
                    # What stands there later is not ours: a step that was never taken must not be undone.
                    self._record.change(disown=[own.key for own in untried])
                    raise
            seen = self.observe(uuid)
            for key in fresh:
                found = seen.at(key)
                if found is None or found.ci is None or self.own(found) is None:
                    raise NotVerified(f"NVML made {self.named(key)} and does not list it.")
            self.show()

    def _create(self, own: OwnedInstance, placement: Placement) -> None:
        def on_gi(number: int) -> None:
            self._record.change(own=[msgspec.structs.replace(own, gi=number)])

        try:
            made = self._mig.create(own.gpu, placement, on_gi)
        except (NoRoom, NotSupported, InvalidArgument, PermissionMissing):
            # Nothing was made. Whatever stands there now is not ours, so the step must not be taken for its maker.
            if self._record.instances[own.key].gi is None:
                self._record.change(disown=[own.key])
            raise
        fresh = msgspec.structs.replace(
            own, state=InstanceState.MADE, gi=made.gi, ci=made.ci or 0, uuid=made.uuid or ""
        )
        self._record.change(own=[fresh])

    def discard(
        self, keys: Collection[PlacementKey], *, put: Sequence[PreparedClaim] = (), drop: Sequence[ClaimUid] = ()
    ) -> None:
        """Put on record that instances of ours are to go; `settle` destroys them."""
        own = [
            msgspec.structs.replace(self._record.instances[key], state=InstanceState.DESTROYING)
            for key in keys
            if key in self._record.instances
        ]
        self._record.change(put=put, drop=drop, own=own)

    def _destroy(self, own: OwnedInstance, found: Instance, gpu: Gpu) -> None:
        try:
            self._mig.destroy(found)
        except InUse:
            self._refuse(own, found, gpu)
        except NvmlError as error:
            self._trouble[own.gpu] = str(error)
            raise

    def _refuse(self, own: OwnedInstance, found: Instance, gpu: Gpu) -> None:
        """Remember that an instance is in use, and by whom."""
        who = self._find(found, gpu)
        before = self.refused.get(own.key)
        since_s = before.since_s if before else self._monotonic()
        self.refused = MappingProxyType({**self.refused, own.key: Refused(who, since_s)})
        text = f"Its instance {self.named(own.key)} cannot be destroyed: it is in use by {who or NOBODY_LISTED}."
        self._trouble[own.gpu] = text

    def _find(self, one: Instance | None, gpu: Gpu) -> str:
        """Who holds an instance, or anything of the GPU: NVML is asked now, and the processes without its lock."""
        listed: list[int] = []
        if one is not None:
            with suppress(NvmlError):
                listed = self._mig.processes(one)
        return self._mig.aside(lambda: self._holder(one, gpu, listed))

    def _discard_broken(self, seen: Seen) -> None:
        """An instance of ours that lost its compute instance to somebody is of no use: it has to go."""
        broken = [
            one.key
            for one in seen.instances
            if (own := self.own(one)) is not None and own.state is InstanceState.MADE and one.ci is None
        ]
        if broken:
            self.discard(broken)

    def _forget(self, gone: Collection[PlacementKey]) -> None:
        """Take instances off the record, and with them the claims that only waited for that."""
        left = {
            own.key
            for own in self._record.instances.values()
            if own.state is InstanceState.DESTROYING and own.key not in gone
        }
        done = [
            claim.uid
            for claim in self._record.claims.values()
            if claim.state is ClaimState.RELEASING and not left & {device.key for device in claim.devices}
        ]
        self._record.change(drop=done, disown=gone)
        self.refused = MappingProxyType({key: one for key, one in self.refused.items() if key not in gone})

    def enable(self, uuid: GpuUuid) -> None:
        """Turn MIG mode on."""
        with self._mig.lock:
            self._switch(uuid, self._mig.enable)

    def disable(self, uuid: GpuUuid) -> None:
        """Turn MIG mode off."""
        with self._mig.lock:
            self._switch(uuid, self._mig.disable)

    def _switch(self, uuid: GpuUuid, switch: Callable[[GpuUuid], None]) -> None:
        try:
            switch(uuid)
        finally:
            self.observe(uuid)
            self.show()

    def who(self, uuid: GpuUuid) -> str:
        """Who uses a GPU."""
        return self._find(None, self._seen[uuid].gpu) or NOBODY_LISTED

    def processes(self, one: Instance) -> list[int]:
        """Who computes on an instance, as far as NVML says."""
        with self._mig.lock:
            return self._mig.processes(one)

    # Telling

    def note(self, uuid: GpuUuid, text: str) -> None:
        """Say what is still to be done on a GPU; "" for nothing."""
        if text:
            self._notes[uuid] = text
        else:
            self._notes.pop(uuid, None)
        self.show()

    def lay_out(self, uuid: GpuUuid, places: frozenset[PlacementKey]) -> None:
        """Which places a static layout wants, for telling idle instances apart."""
        self._layouts[uuid] = places

    def show(self) -> None:
        """Make what is known now what others see."""
        needed = references(self._record.claims.values())
        fresh = {uuid: self._division(uuid, needed) for uuid in self._seen}
        if fresh != self.divisions:
            self.divisions = MappingProxyType(fresh)
            self._shown()

    def _division(self, uuid: GpuUuid, needed: Mapping[PlacementKey, tuple[PreparedClaim, ...]]) -> GpuMig:
        seen = self._seen[uuid]
        parts = held(
            seen.instances,
            self._record.instances,
            needed,
            layout=self._layouts.get(uuid, frozenset()),
            holders={key: one.holder for key, one in self.refused.items()},
            boot_id=self._boot_id,
        )
        state, message = self._standing(uuid, seen)
        there = {one.instance.key for one in parts if one.use is Use.CLAIM}
        return GpuMig(
            gpu=uuid,
            capable=seen.mode is not None,
            enabled=seen.mode is not None and seen.mode.enabled,
            pending=seen.mode is not None and seen.mode.pending != seen.mode.enabled,
            board=seen.board,
            state=state,
            message=message,
            held=parts,
            missing=tuple(key for key in needed if key.gpu == uuid and key not in there),
        )

    def _standing(self, uuid: GpuUuid, seen: Seen) -> tuple[MigState, str]:
        if self._trouble.get(uuid):
            return MigState.DIRTY, self._trouble[uuid]
        if self.open_steps(uuid):
            return MigState.DIRTY, "A change of its instances was interrupted and is still to be finished or undone."
        if seen.mode is not None and seen.mode.pending != seen.mode.enabled:
            wanted = "on" if seen.mode.pending else "off"
            return (
                MigState.NEEDS_RESET,
                f"MIG mode will be {wanted} after a reset; drain it and run `nvidia-smi --gpu-reset`.",
            )
        note = self._notes.get(uuid, "")
        return (MigState.CHANGING, note) if note else (MigState.READY, "")
