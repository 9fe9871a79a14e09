"""Creates the GPU instances of a claim when it is prepared, destroys them with it, and recreates those that were lost.

Owns which instances a claim needs, what has to give way to them, and what stays for the next one. How a change survives a crash
is `instance_manager`'s. What is asked for comes in as an intent that conflicts with no prepared claim.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress

import msgspec

from draco.agent.errors import DeviceMissing, InstanceHeld, PrepareError
from draco.agent.hardware.gpus import Gpu
from draco.agent.hardware.instances import Instance, PlacementKey
from draco.agent.hardware.nvml_errors import DriverError, GpuLost, GpuUnknown, InUse, InvalidArgument, NvmlError
from draco.agent.mig.instance_manager import NOBODY_LISTED, InstanceManager, NotVerified, StillHeld
from draco.agent.mig.inventory import GpuInventory, MigInventory
from draco.agent.mig.ownership import references
from draco.agent.record.checkpoint import Checkpoint, InstanceState, PreparationState, PreparedClaim, PreparedDevice
from draco.mig.board import Placement
from draco.mig.keeping import KeptInstances, kept
from draco.resources.names import GpuUuid

PATIENCE_S = 30.0
"""How long kubelet gets a retryable error while an instance of a claim is in use. Its units are published as tainted meanwhile.
After that the claim is given up, and the instance destroyed when it can be."""

KeepingOf = Callable[[GpuUuid], KeptInstances]
"""What is to stay idle on a GPU."""


class AcquiredInstances(msgspec.Struct, frozen=True):
    """A claim with its instances, not yet on record as prepared; and those that were made for it."""

    claim: PreparedClaim
    created: tuple[PlacementKey, ...]


class ClaimInstances:
    """Instances for claims, over a `InstanceManager`."""

    def __init__(
        self,
        record: Checkpoint,
        inventory: MigInventory,
        manager: InstanceManager,
        *,
        keeping: KeepingOf,
        monotonic: Callable[[], float],
    ) -> None:
        self._record = record
        self._inventory = inventory
        self._manager = manager
        self._keeping = keeping
        self._monotonic = monotonic
        self._asked_since_s: dict[str, float] = {}

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while a claim is prepared or given up, so that nobody sees it half done."""
        return self._inventory.lock

    def shown(self) -> None:
        """What was done is on record now: let others see it."""
        self._inventory.show()

    # Preparing

    def acquire(self, intent: PreparedClaim) -> AcquiredInstances:
        """Put the intent on record and have all its instances. PrepareError when that fails; then what was made is undone."""
        wanted = {device.key: device for device in intent.devices if device.key is not None}
        created: list[PlacementKey] = []
        try:
            seen = {uuid: self._ready(intent, uuid) for uuid in dict.fromkeys(key.gpu for key in wanted)}
            clear, fresh = self._steps(intent, wanted, seen)
            if clear:
                self._manager.discard(clear, put=[intent])
                for uuid in {key.gpu for key in clear}:
                    self._clear_away(uuid, clear)
            if not clear and not fresh:
                self._record.put(intent)
            for uuid, placements in fresh.items():
                created += [PlacementKey(uuid, one.profile.id, one.start) for one in placements]
                self._manager.make(uuid, sorted(placements, key=lambda one: one.start), put=[intent])
        except PrepareError:
            raise
        except (NvmlError, NotVerified, StillHeld) as error:
            self.undo(intent, created)
            why = f"{error} {self._who(error, wanted)}{self._what_is_there(wanted)}".strip()
            raise PrepareError(f"Claim {intent} cannot be prepared: {why}") from error
        except OSError as error:
            self.undo(intent, created)
            raise PrepareError(f"Claim {intent} cannot be prepared: {_refusal(error)}") from error
        return AcquiredInstances(self.filled(intent), tuple(created))

    def undo(self, intent: PreparedClaim, created: Iterable[PlacementKey]) -> None:
        """Leave nothing of a failed attempt. What cannot be undone now stays on record, and its GPU dirty."""
        created = list(created)
        with suppress(OSError):  # what is on record then is the intent, which is undone at the next chance
            self._manager.discard(created, drop=[intent.uid])
        for uuid in {device.gpu for device in intent.devices if device.partition is not None}:
            try:
                self._manager.settle(uuid)
            except (NvmlError, OSError):
                continue

    def verify(self, claim: PreparedClaim, gpus: Mapping[GpuUuid, Gpu]) -> None:
        """See that NVML says of a claim's GPUs what `gpus` say, which may be older. NotThere when it says something else.

        A session that outlived its driver answers nothing, so what was read in it is not relied on. Nor is a handle that has
        become invalid: so they do when boards come and go. A GPU of which only this cannot be read is where it was: within a
        session nothing else moves.
        """
        for uuid in dict.fromkeys(device.gpu for device in claim.devices):
            try:
                now = self._inventory.where(uuid)
            except (DriverError, GpuLost, GpuUnknown, InvalidArgument) as error:
                raise PrepareError(f"Claim {claim} cannot be prepared: {error} Kubelet tries again.") from error
            except NvmlError:
                continue
            gpu = gpus[uuid]
            if now != (gpu.minor, gpu.pci_bus_id):
                raise DeviceMissing(
                    f"Claim {claim} cannot be prepared: GPU {uuid} has moved from /dev/nvidia{gpu.minor} at {gpu.pci_bus_id} to "
                    f"/dev/nvidia{now.minor} at {now.pci_bus_id}; kubelet tries again."
                )

    def whole(self, intent: PreparedClaim) -> None:
        """Make the whole GPUs of an intent on record undivided. PrepareError says what is in the way.

        NVML is asked for the mode, since the last look may be older than what somebody did by hand.
        """
        for device in intent.devices:
            seen = self._inventory.known(device.gpu)
            if device.partition is not None or device.admin or seen is None or seen.mode is None:
                continue
            try:
                if self._inventory.divided(device.gpu):
                    self._undivide(intent, device, self._manager.settle(device.gpu))
                elif seen.mode.enabled:  # somebody has turned it off since
                    self._manager.settle(device.gpu)
            except (NvmlError, StillHeld) as error:
                who = self._who(error, [device.gpu]) or "Kubelet tries again."
                raise PrepareError(f"Claim {intent} cannot get the whole of {device.device}: {error} {who}") from error
            except OSError as error:
                raise PrepareError(
                    f"Claim {intent} cannot get the whole of {device.device}: {_refusal(error)}"
                ) from error

    def seen_whole(self, intent: PreparedClaim) -> None:
        """Refuse what was divided when it was last looked at. NVML is not asked."""
        for device in intent.devices:
            seen = self._inventory.known(device.gpu)
            if device.admin or seen is None or seen.mode is None or not seen.mode.enabled:
                continue
            raise PrepareError(
                f"Claim {intent} cannot get the whole of {device.device} now: it had GPU instances when it was last read, and "
                "NVML does not answer. Kubelet tries again."
            )

    def _undivide(self, intent: PreparedClaim, device: PreparedDevice, seen: GpuInventory) -> None:
        if seen.mode is None or not seen.mode.enabled:
            return
        if seen.gpu.mig_needs_reset:
            raise PrepareError(
                f"Claim {intent} was allocated all of {device.device}, which is in MIG mode, and turning it off needs a reset; "
                "drain the GPU, turn the mode off and reset it, or delete the pod so that it is allocated again."
            )
        for one in seen.instances:
            if self._inventory.own(one) is None:
                raise PrepareError(
                    f"Claim {intent} cannot get the whole of {device.device}: {self._inventory.stranger(one)}"
                )
        idle = [one.key for one in seen.instances]
        if idle:
            self._manager.discard(idle)
            self._clear_away(device.gpu, idle)
        self._manager.disable(device.gpu)

    def _ready(self, intent: PreparedClaim, uuid: GpuUuid) -> GpuInventory:
        """The GPU in MIG mode, with no step of a change left over."""
        seen = self._manager.settle(uuid)
        if seen.mode is None or seen.board is None:
            raise PrepareError(f"Claim {intent} was allocated a part of GPU {uuid}, which does not support MIG.")
        if not seen.mode.enabled:
            if seen.gpu.mig_needs_reset:
                raise PrepareError(
                    f"Claim {intent} was allocated a part of GPU {uuid}, whose MIG mode is off, and turning it on needs a "
                    "reset; drain the GPU, turn the mode on and reset it, or delete the pod so that it is allocated again."
                )
            self._manager.enable(uuid)
        return self._inventory.known(uuid) or seen

    def _steps(
        self, intent: PreparedClaim, wanted: Mapping[PlacementKey, PreparedDevice], seen: Mapping[GpuUuid, GpuInventory]
    ) -> tuple[list[PlacementKey], dict[GpuUuid, list[Placement]]]:
        """What has to go, and what has to be made. PrepareError when something that must stay is in the way."""
        needed = references(self._record.claims.values())
        clear: list[PlacementKey] = []
        fresh: dict[GpuUuid, list[Placement]] = {}
        for key, device in wanted.items():
            there = seen[key.gpu].at(key)
            if there is not None and self._usable(there):
                if key not in needed:
                    self._refuse_busy(intent, device, there)
                continue
            for one in seen[key.gpu].overlapping(device.partition.mask if device.partition else 0):
                if self._inventory.own(one) is None:
                    raise PrepareError(f"Claim {intent} cannot get {device.device}: {self._inventory.stranger(one)}")
                if one.key in needed:
                    raise PrepareError(
                        f"Claim {intent} cannot get {device.device}: its memory slices belong to claim {needed[one.key][0]}."
                    )
                clear.append(one.key)
            fresh.setdefault(key.gpu, []).append(_placement(seen[key.gpu], key))
        return list(dict.fromkeys(clear)), fresh

    def _usable(self, one: Instance) -> bool:
        own = self._inventory.own(one)
        return own is not None and own.state is InstanceState.MADE and one.ci is not None

    def _refuse_busy(self, intent: PreparedClaim, device: PreparedDevice, one: Instance) -> None:
        """An idle instance that somebody still computes on is not idle."""
        pids = self._manager.processes(one)
        if pids:
            raise PrepareError(
                f"Claim {intent} cannot get {device.device} yet: process {pids[0]} of an earlier user still runs on it; end "
                "that process, and kubelet tries again."
            )

    def _clear_away(self, uuid: GpuUuid, keys: Iterable[PlacementKey]) -> None:
        """Destroy what was discarded. StillHeld when something stays."""
        self._manager.settle(uuid)
        for key in keys:
            if key.gpu == uuid and key in self._record.instances:
                holder = self._inventory.refused.get(key)
                raise StillHeld(
                    f"The instance {self._inventory.named(key)} is in the way: no claim uses it any more, but it "
                    f"{_stays(holder)}."
                )

    def _who(self, error: Exception, gpus: Iterable[PlacementKey | GpuUuid]) -> str:
        """Who uses the GPU whose MIG mode could not be changed; "" after any other error."""
        if not isinstance(error, InUse):
            return ""
        uuids = sorted({one.gpu if isinstance(one, PlacementKey) else one for one in gpus})
        return f"The GPU is in use by {', '.join(map(self._manager.who, uuids))}."

    def _what_is_there(self, wanted: Mapping[PlacementKey, PreparedDevice]) -> str:
        """What stands in the way, from a look after the failure; "" when nothing does."""
        for key, device in wanted.items():
            seen = self._inventory.known(key.gpu)
            part = device.partition
            for one in seen.overlapping(part.mask) if seen and part else ():
                if self._inventory.own(one) is None:
                    return self._inventory.stranger(one)
        return ""

    # Giving up

    def release(self, claim: PreparedClaim) -> None:
        """Give up a claim's instances and forget the claim. PrepareError while one of them is in use.

        Those of a GPU that left the node are in nobody's way. OSError when the disk refuses.
        """
        others = references(one for one in self._record.claims.values() if one.uid != claim.uid)
        mine = [device.key for device in claim.devices if device.key is not None and device.key not in others]
        go = self._not_kept([key for key in mine if key in self._record.instances], others)
        if not go:
            self._record.drop(claim.uid)
            self._inventory.show()
            return
        self._manager.discard(go, put=[msgspec.structs.replace(claim, state=PreparationState.RELEASING)])
        problem = self._try_settle({key.gpu for key in go})
        # What a GPU took along is off the record when the GPU is back, or else never used again.
        left = [key for key in go if key in self._record.instances and not self._inventory.left(key.gpu)]
        if not left:
            self._asked_since_s.pop(claim.uid, None)
            self._record.drop(claim.uid)
            return
        since_s = self._asked_since_s.setdefault(claim.uid, self._monotonic())
        if self._monotonic() - since_s >= PATIENCE_S:
            del self._asked_since_s[claim.uid]
            self._record.drop(claim.uid)
            return
        holder = self._inventory.refused.get(left[0])
        why = problem or f"its instance {self._inventory.named(left[0])} {_stays(holder)}."
        raise InstanceHeld(f"Claim {claim} cannot be unprepared yet: {why} Kubelet tries again.")

    def _not_kept(
        self, mine: Sequence[PlacementKey], others: Mapping[PlacementKey, tuple[PreparedClaim, ...]]
    ) -> list[PlacementKey]:
        """Which of the instances that nobody needs any more have to go."""
        go: list[PlacementKey] = []
        for uuid in dict.fromkeys(key.gpu for key in mine):
            idle = [
                key
                for key, own in self._record.instances.items()
                if key.gpu == uuid and own.state is InstanceState.MADE and key not in others
            ]
            earlier_first = sorted(idle, key=lambda key: key in mine)
            stay = kept([key.place for key in earlier_first], self._keeping(uuid))
            go += [key for key in mine if key.gpu == uuid and key.place not in stay]
        return go

    def _try_settle(self, gpus: Iterable[GpuUuid]) -> str:
        """Finish what was begun; why not, as a sentence."""
        problem = ""
        for uuid in gpus:
            try:
                self._manager.settle(uuid)
            except NvmlError as error:
                problem = str(error)
        return problem

    # Making again

    def restore(self, gpus: Iterable[GpuUuid]) -> list[str]:
        """Settle GPUs and make again what prepared claims need; what hinders, as sentences. OSError when the disk refuses."""
        hindrances = []
        for uuid in gpus:
            with self._inventory.lock:
                try:
                    hindrance = self.rebuild(uuid)
                except (NvmlError, NotVerified) as error:
                    hindrance = str(error)
                self._inventory.note(uuid, hindrance)
            if hindrance:
                hindrances.append(hindrance)
        return hindrances

    def observed(self) -> dict[PlacementKey, Instance]:
        """Our instances that were seen in the last look at their GPU; where that failed nothing was."""
        found = {}
        for key in self._record.instances:
            seen = self._inventory.listed(key.gpu)
            one = seen.at(key) if seen is not None else None
            if one is not None and self._usable(one):
                found[key] = one
        return found

    def rebuild(self, uuid: GpuUuid) -> str:
        """Make the instances that prepared claims need and that are gone; what hinders, as a sentence, "" for nothing.

        A reboot, a reset and a reload of the driver end all instances. Those made again have new UUIDs, which the claims get.
        NvmlError, OSError and NotVerified when it cannot be done now.
        """
        seen = self._manager.settle(uuid)
        devices = {
            device.key: device
            for claim in self._record.claims.values()
            if claim.state is PreparationState.PREPARED
            for device in claim.devices
            if device.key is not None and device.gpu == uuid
        }
        missing = [key for key in devices if (there := seen.at(key)) is None or not self._usable(there)]
        hindrance = ""
        if missing and seen.mode is not None and not seen.mode.enabled:
            if seen.gpu.mig_needs_reset:
                return "Prepared claims need instances of this GPU, whose MIG mode is off, and turning it on needs a reset."
            self._manager.enable(uuid)
        for key in missing:
            hindrance = self._make_again(key, devices[key]) or hindrance
        current = {claim.uid: self.filled(claim) for claim in self._record.claims.values()}
        moved = [claim for claim in current.values() if claim != self._record.claims[claim.uid]]
        if moved:
            self._record.change(put=moved)
            self._inventory.show()
        return hindrance

    def _make_again(self, key: PlacementKey, device: PreparedDevice) -> str:
        seen = self._inventory.known(key.gpu)
        if seen is None or seen.board is None or device.partition is None:
            return f"The instance {self._inventory.named(key)} is gone, and its GPU does not support MIG any more."
        what = f"The instance {self._inventory.named(key)}, which a claim needs, is gone"
        try:
            placement = _placement(seen, key)
        except PrepareError as error:
            return str(error)
        in_the_way = seen.overlapping(device.partition.mask)
        needed = references(self._record.claims.values())
        for one in in_the_way:
            if self._inventory.own(one) is None:
                return f"{what} and cannot be made again: {self._inventory.stranger(one)}"
            if one.key in needed and one.key != key:
                return f"{what}, and its memory slices belong to another claim."
        if in_the_way:
            self._manager.discard([one.key for one in in_the_way])
            try:
                self._clear_away(key.gpu, [one.key for one in in_the_way])
            except StillHeld as error:
                return str(error)
        self._manager.make(key.gpu, [placement])
        return ""

    def filled(self, claim: PreparedClaim) -> PreparedClaim:
        """The claim with the numbers and UUIDs that its instances have now."""
        devices = [self._filled(device) for device in claim.devices]
        return claim if devices == claim.devices else msgspec.structs.replace(claim, devices=devices)

    def _filled(self, device: PreparedDevice) -> PreparedDevice:
        own = None if device.key is None else self._record.instances.get(device.key)
        if own is None or device.partition is None or own.state is not InstanceState.MADE:
            return device
        part = msgspec.structs.replace(
            device.partition, gi=-1 if own.gi is None else own.gi, ci=-1 if own.ci is None else own.ci, uuid=own.uuid
        )
        return msgspec.structs.replace(device, partition=part)


def _placement(seen: GpuInventory, key: PlacementKey) -> Placement:
    profile = seen.board.by_id(key.profile_id) if seen.board else None
    if profile is None or key.start not in profile.starts:
        raise PrepareError(f"Profile {key.profile_id} cannot start at {key.start} on GPU {key.gpu}.")
    return Placement(profile, key.start)


def _refusal(error: OSError) -> str:
    """What a disk refuses, and what to do."""
    return f"{error.strerror} ({error.filename}); make room or fix the folder, kubelet tries again."


def _stays(holder: str | None) -> str:
    """Why an instance that was to be destroyed is there; None if that was not refused."""
    if holder is None:
        return "is still listed by NVML, which reported it destroyed"
    return f"is in use by {holder or NOBODY_LISTED}"
