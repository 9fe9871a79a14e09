"""The known state of one node's GPU instances: the last reading of each GPU, and who owns each instance.

Owns reading, and what others see of it. `instance_manager` changes and records instances. Reading blocks on NVML, under its
session's lock.

The record cannot settle one case. An agent that ends between recording a step and recording the id that NVML assigned leaves a
GPU instance without a compute instance. So does a person who created one in that place by hand. NVML reports neither creator nor
time, so the agent leaves such an instance alone for `DOUBT_S`, with its GPU dirty: a person would add a compute instance or open
it, which our interrupted step never does. If it is still bare and unused then, it counts as ours and is undone. The run that took
the step knows NVML's answer and has no doubt.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType

import msgspec

from draco.agent.hardware.gpus import Gpu, GpuLocation, GpuMigView, Instance, PlacementKey, Use
from draco.agent.hardware.nvml_errors import DriverError, NvmlError, never_seen
from draco.agent.hardware.nvml_instances import MigModes, NvmlInstances
from draco.agent.mig.ownership import CreationAttempt, Ownership, held, ownership_of, references
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import InstanceState, OwnedInstance, PreparedClaim
from draco.kube.connect.retry import Pauses
from draco.mig.board import Board, PlacementId
from draco.resources.api.draco import MigState
from draco.resources.names import GpuUuid


class GpuInventory(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a GPU."""

    gpu: Gpu
    mode: MigModes | None
    board: Board | None
    instances: tuple[Instance, ...]

    def at(self, key: PlacementKey) -> Instance | None:
        """The instance with that placement."""
        return next((one for one in self.instances if one.key == key), None)


UNFINISHED = "A change of its instances is not finished yet."
"""The message of a GPU with a step in progress, or interrupted."""
DOUBT_S = 30.0
"""How long an instance that may be ours or foreign is left alone."""
_REST_S, _LONGEST_REST_S = 60.0, 600.0
"""Backoff of a GPU on which creations fail: it still looks free, and the scheduler would send it one pod after another."""


class MigInventory:
    """The GPU instances of one node as of the last reading.

    Others see `divisions`, as of the last finished change; `shown` is called with a new one in the thread of that change.
    `refused` are the instances whose destroy was refused as in use, with the holder of each ("" if none is listed). `backoff` is
    for GPUs on which creations fail through their own fault; one failure in a row may be an accident.
    """

    def __init__(
        self,
        record: Checkpoint,
        mig: NvmlInstances,
        *,
        boot_id: str,
        monotonic: Callable[[], float],
        shown: Callable[[Mapping[GpuUuid, GpuMigView]], None] = lambda _: None,
    ) -> None:
        self.boot_id = boot_id
        self.divisions: Mapping[GpuUuid, GpuMigView] = MappingProxyType({})
        self.refused: Mapping[PlacementKey, str] = MappingProxyType({})
        self._shown = shown
        self._monotonic = monotonic
        self._record = record
        self._mig = mig
        self._seen: dict[GpuUuid, GpuInventory] = {}
        self._unlisted: set[GpuUuid] = set()
        self._looked = False
        self._trouble: dict[GpuUuid, str] = {}
        self._notes: dict[GpuUuid, str] = {}
        self._lacks: dict[GpuUuid, str] = {}
        self._layouts: dict[GpuUuid, frozenset[PlacementId]] = {}
        self._attempts: dict[PlacementKey, CreationAttempt] = {}
        self._doubtful_since_s: dict[PlacementKey, float] = {}
        self.backoff: Pauses[GpuUuid] = Pauses(monotonic, first_s=_REST_S, longest_s=_LONGEST_REST_S, tolerated=1)

    @property
    def lock(self) -> AbstractContextManager[object]:
        """The NVML session's lock; held by callers across related steps."""
        return self._mig.lock

    # Reading

    def look(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """Read all GPUs with boards and instances; forget those that left. A GPU that cannot be listed keeps its last reading."""
        with self._mig.lock:
            for uuid in self._seen.keys() - {gpu.uuid for gpu in gpus}:
                del self._seen[uuid]
                self._unlisted.discard(uuid)
                for known in (self._trouble, self._notes, self._lacks, self._layouts):
                    known.pop(uuid, None)
                self.backoff.forget(uuid)
            looked = [self._look(gpu) for gpu in gpus]
            self._looked = True
            self.show()
            return looked

    def _look(self, gpu: Gpu) -> Gpu:
        known = self._seen.get(gpu.uuid)
        self._seen[gpu.uuid] = (
            GpuInventory(gpu=gpu, mode=None, board=None, instances=())
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

    def observe(self, uuid: GpuUuid) -> GpuInventory:
        """A fresh list of a GPU's instances. NvmlError makes the GPU dirty; GpuUnknown before the first `look`."""
        if uuid not in self._seen:
            # The record may name a GPU that left the node, or that a failed driver has not shown yet.
            raise never_seen(uuid)
        gpu = self._seen[uuid].gpu
        try:
            mode = self._mig.mode(uuid)
            board = None if mode is None else self._mig.board(uuid)
            listed = () if mode is None or not mode.enabled else tuple(self._mig.instances(uuid))
        except NvmlError as error:
            self._trouble[uuid] = str(error)
            self._unlisted.add(uuid)
            raise
        self._unlisted.discard(uuid)
        self._seen[uuid] = GpuInventory(gpu=gpu, mode=mode, board=board, instances=listed)
        return self._seen[uuid]

    def divided(self, uuid: GpuUuid) -> bool:
        """Whether a GPU is in MIG mode now, or was at the last reading. Raises NvmlError if NVML does not say."""
        with self._mig.lock:
            seen = self._seen.get(uuid)
            modes = (self._mig.mode(uuid), None if seen is None else seen.mode)
            return any(mode is not None and mode.enabled for mode in modes)

    def never_divided(self, uuid: GpuUuid) -> bool:
        """Whether the last reading says that a GPU has no MIG mode. False if it failed: the GPU may be in MIG mode."""
        seen = self.listed(uuid)
        return seen is not None and seen.mode is None

    def known(self, uuid: GpuUuid) -> GpuInventory | None:
        """The last successful reading, even if a later one failed."""
        return self._seen.get(uuid)

    def listed(self, uuid: GpuUuid) -> GpuInventory | None:
        """The last reading, None if it failed."""
        return None if uuid in self._unlisted else self._seen.get(uuid)

    def left(self, uuid: GpuUuid) -> bool:
        """Whether a GPU was missing from the last `look`."""
        return self._looked and uuid not in self._seen

    def where(self, uuid: GpuUuid) -> GpuLocation:
        """A GPU's current place. Raises NvmlError if NVML does not say."""
        with self._mig.lock:
            return self._mig.where(uuid)

    def named(self, key: PlacementKey) -> str:
        """A placement for people: 1g.10gb at 3."""
        seen = self._seen.get(key.gpu)
        profile = seen.board.by_id(key.profile_id) if seen and seen.board else None
        return f"{profile.name if profile else f'profile {key.profile_id}'} at {key.start}"

    def own(self, one: Instance) -> OwnedInstance | None:
        """The instance's record if it is certainly ours."""
        own = self._record.instances.get(one.key)
        return own if own is not None and self.ownership_of(own, one) is Ownership.OURS else None

    def ownership_of(self, own: OwnedInstance, found: Instance | None) -> Ownership:
        """Who owns the instance in the place of a recorded one. Nothing is doubtful longer than DOUBT_S."""
        attempt = self._attempts.get(own.key, CreationAttempt.LEFT_OVER)
        verdict = ownership_of(own, found, boot_id=self.boot_id, attempt=attempt)
        if verdict is Ownership.DOUBTFUL:
            since_s = self._doubtful_since_s.setdefault(own.key, self._monotonic())
            return verdict if self._monotonic() - since_s < DOUBT_S else Ownership.OURS
        return verdict

    def stranger(self, one: Instance) -> str:
        """Who made an instance that is not certainly ours, and what to do, as a sentence."""
        own = self._record.instances.get(one.key)
        bare = "" if one.ci is not None else ", without a compute instance,"
        if own is not None and self.ownership_of(own, one) is Ownership.DOUBTFUL:
            return (
                f"GPU instance {one.gi} ({self.named(one.key)}){bare} may come from an interrupted step of this agent, or "
                f"from somebody else; the agent removes it unless somebody uses it within {DOUBT_S:g} s."
            )
        return (
            f"GPU instance {one.gi} ({self.named(one.key)}){bare} was made by somebody else; destroy it with nvidia-smi if "
            "nobody needs it."
        )

    def open_steps(self, uuid: GpuUuid) -> list[OwnedInstance]:
        """Recorded steps that are not finished, latest first."""
        steps = [
            one for one in self._record.instances.values() if one.gpu == uuid and one.state is not InstanceState.MADE
        ]
        return steps[::-1]

    # Attempts and trouble

    def attempt(self, keys: Iterable[PlacementKey], outcome: CreationAttempt) -> None:
        """Remember the outcome of this run's own steps."""
        self._attempts |= dict.fromkeys(keys, outcome)

    def trouble(self, uuid: GpuUuid, text: str) -> None:
        """Mark a GPU dirty with a reason; "" clears it."""
        _set(self._trouble, uuid, text)

    def refuse(self, key: PlacementKey, holder: str) -> None:
        """Remember that an instance's destroy was refused, and its holder."""
        self.refused = MappingProxyType({**self.refused, key: holder})

    def forget(self, gone: Collection[PlacementKey]) -> None:
        """Forget holders and attempts of instances that are off the record."""
        for key in gone:
            self._attempts.pop(key, None)
            self._doubtful_since_s.pop(key, None)
        self.refused = MappingProxyType({key: one for key, one in self.refused.items() if key not in gone})

    # Publishing

    def note(self, uuid: GpuUuid, text: str, *, lacks: str = "") -> None:
        """Set what is still to be done on a GPU, and what it has no room for; "" for nothing.

        A GPU that only lacks room is Ready: instances are kept warm only as far as there is room.
        """
        _set(self._notes, uuid, text)
        _set(self._lacks, uuid, lacks)
        self.show()

    def lay_out(self, uuid: GpuUuid, places: frozenset[PlacementId]) -> None:
        """Set the places of a static layout, to tell idle instances apart."""
        self._layouts[uuid] = places

    def show(self) -> None:
        """Publish the current state to others."""
        needed = references(self._record.claims.values())
        fresh = {uuid: self._division(uuid, needed) for uuid in self._seen}
        if fresh != self.divisions:
            self.divisions = MappingProxyType(fresh)
            self._shown(self.divisions)

    def _division(self, uuid: GpuUuid, needed: Mapping[PlacementKey, tuple[PreparedClaim, ...]]) -> GpuMigView:
        seen = self._seen[uuid]
        parts = held(
            seen.instances,
            self._record.instances,
            needed,
            layout=self._layouts.get(uuid, frozenset()),
            holders=self.refused,
            boot_id=self.boot_id,
        )
        state, message = self._mig_state(uuid, seen)
        there = {one.instance.key for one in parts if one.use is Use.CLAIM}
        return GpuMigView(
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

    def _mig_state(self, uuid: GpuUuid, seen: GpuInventory) -> tuple[MigState, str]:
        if self._trouble.get(uuid):
            return MigState.DIRTY, self._trouble[uuid]
        if self.open_steps(uuid):
            return MigState.DIRTY, UNFINISHED
        if self.backoff.left_s(uuid) > 0:
            times, why, _ = self.backoff.by_key[uuid]
            return MigState.DIRTY, (
                f"Creating instances on it failed {times} times in a row. Last failure: {why} The agent tries again later; look "
                "into the node's kernel log, and reset the GPU if necessary."
            )
        if seen.mode is not None and seen.mode.pending != seen.mode.enabled:
            wanted = "on" if seen.mode.pending else "off"
            return (
                MigState.NEEDS_RESET,
                f"MIG mode will be {wanted} after a reset; drain it and run `nvidia-smi --gpu-reset -i {uuid}`.",
            )
        note, lacks = self._notes.get(uuid, ""), self._lacks.get(uuid, "")
        return (MigState.CHANGING if note else MigState.READY), f"{note} {lacks}".strip()


def _set(texts: dict[GpuUuid, str], uuid: GpuUuid, text: str) -> None:
    if text:
        texts[uuid] = text
    else:
        texts.pop(uuid, None)
