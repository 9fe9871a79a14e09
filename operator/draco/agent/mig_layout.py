"""What a policy wants of a GPU, made so around whoever is busy there.

Owns the steps from what is to what is wanted: MIG mode, idle instances that go, instances that are made without a claim. A busy
neighbour is waited for, never touched, and so is the place of a claim whose pod has not started yet. How a change survives a
crash is `mig_desk`'s; which layout is wanted is the operator's.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from draco.agent.checkpoint import Checkpoint, ClaimState, InstanceState
from draco.agent.claim_instances import ClaimInstances
from draco.agent.holdings import Keeping, keeping, kept, references
from draco.agent.instances import Instance, PlacementKey
from draco.agent.mig_desk import MigDesk, NotVerified
from draco.agent.mig_inventory import MigInventory, Seen
from draco.agent.nvml_errors import InUse, NvmlError, ResetRequired
from draco.mig.board import Board, Placement
from draco.mig.geometry import State, geometry
from draco.resources.draco import MigMode, PromisedDevice, WantedGpu
from draco.resources.names import GpuUuid

NAMED = 3
"""So many of those who leave no room are named; the rest is counted."""


class Progress(NamedTuple):
    """What a GPU still waits for, and what there is no room for; "" for nothing."""

    waits: str = ""
    lacks: str = ""


class LayoutDesk:
    """Applies what is wanted to GPUs, one at a time."""

    def __init__(self, record: Checkpoint, inventory: MigInventory, desk: MigDesk, instances: ClaimInstances) -> None:
        self._record = record
        self._inventory = inventory
        self._desk = desk
        self._instances = instances

    def keep(self, uuid: GpuUuid) -> str:
        """Finish and undo open steps and make again what claims need, and nothing else: what is wanted is not known."""
        return self._noted(uuid, lambda: Progress(self._instances.rebuild(uuid)))

    def apply(self, uuid: GpuUuid, wanted: WantedGpu | None, promised: Sequence[PromisedDevice] = ()) -> str:
        """Make a GPU what is wanted of it, None for a GPU that no policy has; what is not there yet, "" for nothing.

        `promised` is what else claims have of it. OSError when the disk refuses.
        """
        return self._noted(uuid, lambda: self._apply(uuid, wanted, promised))

    def _noted(self, uuid: GpuUuid, work: Callable[[], Progress]) -> str:
        with self._inventory.lock:
            try:
                done = work()
            except (NvmlError, NotVerified) as error:
                done = Progress(str(error))
                with suppress(NvmlError):  # the GPU is dirty then, and says why
                    self._desk.settle(uuid)
            self._inventory.note(uuid, done.waits, lacks=done.lacks)
            return f"{done.waits} {done.lacks}".strip()

    def _apply(self, uuid: GpuUuid, wanted: WantedGpu | None, promised: Sequence[PromisedDevice]) -> Progress:
        hindrance = self._instances.rebuild(uuid)
        seen = self._inventory.known(uuid)
        if seen is None or seen.mode is None or seen.board is None:
            if wanted is None or wanted.mode is MigMode.DISABLED:
                return Progress()
            return Progress(
                f"Policy {wanted.policy} divides this GPU, but it cannot be divided; exclude it from the policy."
            )
        keep = self._open(keeping(wanted, seen.board, promised))
        self._inventory.lay_out(uuid, keep.places)
        seen = self._thin_out(seen, keep)
        done = self._reach(seen, seen.board or Board(()), wanted, keep) if wanted else Progress()
        return _with_promises(Progress(done.waits or hindrance, done.lacks), wanted, keep)

    def _open(self, keep: Keeping) -> Keeping:
        """Without promises that have been kept, or that the layout keeps: what a prepared claim has is its own."""
        done = keep.places.union(references(self._record.claims.values()))
        promised = {key: one for key, one in keep.promised.items() if key not in done}
        return msgspec.structs.replace(keep, promised=promised)

    def _reach(self, seen: Seen, board: Board, wanted: WantedGpu, keep: Keeping) -> Progress:
        """Go from what is left to what is wanted, as far as that goes now."""
        if wanted.mode is MigMode.DISABLED:
            return Progress(self._off(seen, wanted, keep))
        enabled = seen.mode is None or seen.mode.enabled
        whole = ("" if enabled else self._whole(seen.gpu.uuid)) or keep.whole
        if whole and wanted.mode is MigMode.DYNAMIC:
            # Where partitions are made on demand, a GPU that is in use as a whole is just that.
            return Progress(lacks=_all_lack(board, keep, whole))
        if whole:
            what = f"The layout of policy {wanted.policy}" if enabled else "MIG mode"
            return Progress(f"{what} waits for claim {whole}, which has the whole GPU.")
        waits = self._on(seen, wanted)
        seen = self._inventory.known(seen.gpu.uuid) or seen
        if waits or seen.mode is None or not seen.mode.enabled:
            return Progress(waits)
        if wanted.mode is MigMode.STATIC:
            return Progress(self._lay_out(seen, board, wanted, keep))
        return Progress(lacks=self._warm(seen, board, keep))

    def _thin_out(self, seen: Seen, keep: Keeping) -> Seen:
        """Destroy idle instances of ours that nobody wants."""
        idle = self._idle(seen.gpu.uuid)
        stay = kept(idle, keep)
        go = [key for key in idle if key not in stay]
        if not go:
            return seen
        self._desk.discard(go)
        return self._desk.settle(seen.gpu.uuid)

    def _idle(self, uuid: GpuUuid) -> list[PlacementKey]:
        needed = references(self._record.claims.values())
        return [
            key
            for key, own in self._record.instances.items()
            if key.gpu == uuid and own.state is InstanceState.MADE and key not in needed
        ]

    def _lay_out(self, seen: Seen, board: Board, wanted: WantedGpu, keep: Keeping) -> str:
        """Make what is missing of a static layout and has room now."""
        waits, fresh = [], []
        shape, state = geometry(board), self._state(seen, board, keep)
        for one in wanted.layout:
            profile = board.profile(one.profile)
            if profile is None or one.start not in profile.starts:
                has = ", ".join(f"{each.name} at {', '.join(map(str, each.starts))}" for each in board.profiles)
                waits.append(f"the board has no {one.profile} at {one.start} (it has {has})")
                continue
            placement = Placement(profile, one.start)
            there = seen.at(PlacementKey(seen.gpu.uuid, profile.id, one.start))
            if there is not None and self._inventory.own(there) is not None:
                continue
            blocking = seen.overlapping(placement.mask)
            promised = [one.claim for one in keep.promised.values() if one.placement.mask & placement.mask]
            if blocking:
                waits.append(f"{_place(placement)} waits for {self._blame(blocking, keep)}")
            elif promised:
                waits.append(f"{_place(placement)} waits for claim {promised[0]}")
            elif not shape.fits_at(state, placement):  # one that NVML refuses would keep the others from being made
                waits.append(f"{_place(placement)} waits for engines that instances beside it have")
            else:
                fresh.append(placement)
                state = shape.add(state, placement)
        if fresh:
            self._desk.make(seen.gpu.uuid, fresh)
        return f"The layout of policy {wanted.policy} is not complete: {'; '.join(waits)}." if waits else ""

    @staticmethod
    def _state(seen: Seen, board: Board, keep: Keeping) -> State:
        there = {Placement(each, one.start) for one in seen.instances if (each := board.by_id(one.profile_id))}
        return geometry(board).state_of(there.union(one.placement for one in keep.promised.values()))

    def _warm(self, seen: Seen, board: Board, keep: Keeping) -> str:
        """Make warm instances where they cost least; those that do not fit now are made when there is room."""
        idle = [key for key in self._idle(seen.gpu.uuid) if key not in keep.promised]
        shape = geometry(board)
        lacks = []
        for profile in sorted(board.profiles, key=lambda each: -each.size):
            wanted = keep.counts.get(profile.id, 0)
            for there in range(sum(key.profile_id == profile.id for key in idle), wanted):
                seen = self._inventory.known(seen.gpu.uuid) or seen
                best = shape.best(self._state(seen, board, keep), profile)
                if best is None:
                    lacks.append(f"{wanted - there} of {wanted} warm {profile.name}")
                    break
                self._desk.make(seen.gpu.uuid, [best.placement])
        if not lacks:
            return ""
        idle = [key for key in self._idle(seen.gpu.uuid) if key not in keep.promised]
        others = [self._blame([one], keep) for one in seen.instances if one.key not in idle]
        others += [f"claim {one.claim}" for one in keep.promised.values()]
        beside = _few(dict.fromkeys(others))
        return f"There is no room for {' and '.join(lacks)}{' beside ' if beside else ''}{beside}."

    def _whole(self, uuid: GpuUuid) -> str:
        """The claim that has all of the GPU; "" when none has."""
        for claim in self._record.claims.values():
            if claim.state is ClaimState.PREPARED:
                for one in claim.devices:
                    if one.gpu == uuid and one.partition is None and not one.admin:
                        return str(claim)
        return ""

    def _on(self, seen: Seen, wanted: WantedGpu) -> str:
        """MIG mode on, if it can be; what it waits for otherwise."""
        if seen.mode is None or seen.mode.enabled:
            return ""
        return self._switch(seen, wanted, on=True)

    def _off(self, seen: Seen, wanted: WantedGpu, keep: Keeping) -> str:
        """MIG mode off, once nothing is left, and nothing is to come."""
        if seen.mode is None or not seen.mode.enabled:
            return ""
        if seen.instances:
            return f"MIG mode stays on until {self._blame(seen.instances, keep)} is gone."
        if keep.promised:
            return f"MIG mode stays on until claim {next(iter(keep.promised.values())).claim} is gone."
        return self._switch(seen, wanted, on=False)

    def _switch(self, seen: Seen, wanted: WantedGpu, *, on: bool) -> str:
        word = "on" if on else "off"
        if seen.mode is not None and seen.mode.pending is on:
            return ""  # asked for; it comes with the reset
        if seen.gpu.mig_needs_reset and not wanted.reset_permitted:
            return (
                f"Turning MIG mode {word} needs a reset of this GPU, which policy {wanted.policy} does not permit now."
            )
        try:
            (self._desk.enable if on else self._desk.disable)(seen.gpu.uuid)
        except ResetRequired:
            return ""  # the mode is pending, and the GPU says so
        except InUse:
            return f"MIG mode cannot be turned {word}: the GPU is in use by {self._desk.who(seen.gpu.uuid)}."
        return ""

    def _blame(self, blocking: Iterable[Instance], keep: Keeping) -> str:
        """Whose the instances in the way are."""
        needed = references(self._record.claims.values())
        for one in blocking:
            if one.key in needed:
                return f"claim {needed[one.key][0]}"
            if one.key in keep.promised:
                return f"claim {keep.promised[one.key].claim}"
            if self._inventory.own(one) is None:
                sure = one.key not in self._record.instances
                return f"GPU instance {one.gi} that somebody else {'made' if sure else 'may have made'}"
            if holder := self._inventory.refused.get(one.key):
                return f"an instance that is going, in use by {holder}"
        return "an instance that is going"


def _all_lack(board: Board, keep: Keeping, claim: str) -> str:
    """What a GPU that a claim has as a whole lacks."""
    largest_first = sorted(board.profiles, key=lambda each: -each.size)
    lacks = [f"{count} of {count} warm {one.name}" for one in largest_first if (count := keep.counts.get(one.id, 0))]
    so = f", so there is no room for {' and '.join(lacks)}" if lacks else ""
    return f"Claim {claim} has the whole GPU{so}."


def _place(placement: Placement) -> str:
    """A place as people write it: 1g.10gb at 3."""
    return f"{placement.profile.name} at {placement.start}"


def _with_promises(done: Progress, wanted: WantedGpu | None, keep: Keeping) -> Progress:
    """With what is kept for claims to come. Who wants a certain layout, or none, waits for them to end."""
    if not keep.promised:
        return done
    said = f"The GPU keeps {_few(f'{_place(one.placement)} for claim {one.claim}' for one in keep.promised.values())}."
    if wanted is None or wanted.mode is MigMode.DYNAMIC:
        return Progress(done.waits, f"{done.lacks} {said}".strip())
    return Progress(f"{done.waits} {said}".strip(), done.lacks)


def _few(phrases: Iterable[str]) -> str:
    """The first of them, and how many more; "" without any."""
    found = list(phrases)
    more = len(found) - NAMED
    *first, last = [*found[:NAMED], f"{more} more"] if more > 0 else found or [""]
    return f"{', '.join(first)} and {last}" if first else last
