"""Creates a claim's GPU instances at Prepare, destroys them at Unprepare, and recreates lost ones.

Each is read → plan → apply: `reading` reads the GPU and what claims need of it, `mig.claim_plan` decides which instances are made
and destroyed, and this module carries the plan out. Owns the order of the steps and the refusals. `instance_manager` makes each
change survive a crash. An intent passed in conflicts with no prepared claim.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import msgspec

from draco.agent.errors import DeviceMissing, InstanceHeld, PrepareError
from draco.agent.files import advice
from draco.agent.hardware.gpus import Gpu, Instance, PlacementKey
from draco.agent.hardware.nvml_errors import DriverError, GpuLost, GpuUnknown, InUse, InvalidArgument, NvmlError
from draco.agent.hardware.nvml_instances import RunningProcesses
from draco.agent.mig.holders import Holders, HoldingProcess
from draco.agent.mig.instance_manager import NOBODY_LISTED, InstanceManager, NotVerified, StillHeld
from draco.agent.mig.inventory import MigInventory
from draco.agent.mig.ownership import references
from draco.agent.mig.reading import read_gpu, read_places, read_unneeded
from draco.agent.mig.taking_back import InstancesBack
from draco.agent.mig.users import UNLISTED, DeviceUsers, device_uuid, named
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparationState, PreparedClaim, PreparedDevice
from draco.mig.claim_plan import plan_places, plan_release, plan_whole
from draco.mig.gpu_plan import GpuPlan, Obstacle
from draco.mig.keeping import KeptInstances
from draco.mig.observed import IN_PLACE, ObservedInstance
from draco.resources.names import GpuUuid

PATIENCE_S = 30.0
"""How long kubelet gets a retryable error while an instance of a claim is in use; its units are published as tainted. After that
the claim is unprepared, and the instance is destroyed when it is free."""

NO_PROC = Path("/nonexistent")

KeepingOf = Callable[[GpuUuid], KeptInstances]
"""What stays idle on a GPU."""


class ClaimInstances:
    """The instances of claims. Without `users` nobody looks below /proc."""

    def __init__(
        self,
        record: Checkpoint,
        inventory: MigInventory,
        manager: InstanceManager,
        *,
        keeping: KeepingOf,
        monotonic: Callable[[], float],
        users: DeviceUsers | None = None,
    ) -> None:
        self._record = record
        self._inventory = inventory
        self._manager = manager
        self._keeping = keeping
        self._monotonic = monotonic
        self._users = users or DeviceUsers(record, Holders(NO_PROC), monotonic=monotonic)
        self._back = InstancesBack(record, inventory, manager, self._users)
        self._asked_since_s: dict[str, float] = {}

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while a claim is prepared or unprepared, so that nobody sees it half done."""
        return self._inventory.lock

    def shown(self) -> None:
        """Show others the recorded changes."""
        self._inventory.show()

    # Preparing

    def acquire(self, intent: PreparedClaim) -> list[PlacementKey]:
        """Record the intent and get all of its instances; returns the created ones. Undoes a failure and raises PrepareError."""
        devices = {device.key: device for device in intent.devices if device.key is not None}
        wanted = read_places(dict.fromkeys(devices, (intent,)))
        gpus = list(dict.fromkeys(key.gpu for key in wanted))
        created: list[PlacementKey] = []
        try:
            self._back.take(intent)
            for uuid in gpus:
                self._turn_on(intent, uuid, wanted)
            plans = {uuid: self._plan(uuid, wanted) for uuid in gpus}
            for key, device in devices.items():
                self._check(intent, device, key, plans[key.gpu])
            cleared = self._clear(plans.values(), put=[intent])
            making = [plan for plan in plans.values() if plan.makes]
            if not cleared and not making:
                self._record.put(intent)
            for plan in making:
                created += [PlacementKey(plan.uuid, *one.id) for one in plan.makes]
                self._manager.make(plan.uuid, plan.makes, put=[intent])
        except (NvmlError, NotVerified, StillHeld, OSError) as error:
            self.undo(intent, created)
            found = self._who(error, gpus) + self._what_is_there(gpus, wanted)
            why = _refusal(error) if isinstance(error, OSError) else f"{error} {found}".strip()
            raise PrepareError(f"Claim {intent} cannot be prepared: {why}") from error
        return created

    def undo(self, intent: PreparedClaim, created: Iterable[PlacementKey]) -> None:
        """Undo a failed attempt. What cannot be undone now stays on record, and its GPU is dirty."""
        created = list(created)
        with suppress(OSError):  # the record then has the intent, which is undone at the next chance
            self._manager.discard(created, drop=[intent.uid])
        for uuid in {device.gpu for device in intent.devices if device.partition is not None}:
            with suppress(NvmlError, OSError):
                self._manager.settle(uuid)

    def verify(self, claim: PreparedClaim, gpus: Mapping[GpuUuid, Gpu]) -> None:
        """Check that a claim's GPUs are where `gpus`, which may be older, says. Raises DeviceMissing if one has moved.

        A session that outlived its driver answers nothing, so its older readings cannot be trusted; nor can those behind an
        invalid handle, since handles become invalid when boards come and go. After any other error the GPU has not moved: within
        a session nothing else moves it.
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
        """End MIG mode, as NVML reports it now, on an intent's whole GPUs. Raises PrepareError that names the obstacle."""
        for device in intent.devices:
            if device.partition is not None or device.admin:
                continue
            may_be_divided = not self._inventory.never_divided(device.gpu)
            try:
                with self._inventory.lock:  # a reading between plan and step could make the plan invalid
                    if may_be_divided and self._inventory.divided(device.gpu):
                        self._manager.settle(device.gpu)
                        self._undivide(intent, device)
                if intent.state is PreparationState.PREPARING:
                    self._refuse_users(intent, device, self._running(device.gpu), device.gpu)
            except (NvmlError, StillHeld, OSError) as error:
                who = self._who(error, [device.gpu]) or "Kubelet tries again."
                why = _refusal(error) if isinstance(error, OSError) else f"{error} {who}"
                raise PrepareError(f"Claim {intent} cannot get the whole of {device.device}: {why}") from error

    def seen_whole(self, intent: PreparedClaim) -> None:
        """Refuse GPUs that were last read in MIG mode or have an earlier user, without asking NVML."""
        for device in intent.devices:
            if device.admin:
                continue
            if intent.state is PreparationState.PREPARING:
                self._refuse_users(intent, device, UNLISTED, device.gpu)
            if self._inventory.never_divided(device.gpu):
                continue
            seen = self._inventory.known(device.gpu)
            if seen is not None and seen.mode is not None and not seen.mode.enabled:
                continue
            divided = seen is not None and seen.mode is not None
            why = "it was in MIG mode when it was last read" if divided else "its MIG mode is unknown"
            raise PrepareError(
                f"Claim {intent} cannot get the whole of {device.device}: {why}, and NVML does not answer now. Kubelet tries "
                "again."
            )

    def _refuse_users(
        self,
        intent: PreparedClaim,
        device: PreparedDevice,
        running: RunningProcesses,
        uuid: str,
        *,
        at: PlacementKey | None = None,
    ) -> None:
        """Raise PrepareError while a process of an earlier claim runs on a device, or on its instance `at`."""
        if (process := self._users.earlier(intent, at or device.gpu, running, uuid=uuid)) is not None:
            raise PrepareError(
                f"Claim {intent} cannot get {device.device} yet: {named([process])}; end that process, and kubelet tries again."
            )

    def _running(self, uuid: GpuUuid) -> RunningProcesses:
        """The processes on a GPU; none if NVML does not list them: /proc still shows those of earlier claims."""
        try:
            return self._manager.running(uuid)
        except NvmlError:
            return UNLISTED

    def _undivide(self, intent: PreparedClaim, device: PreparedDevice) -> None:
        plan = plan_whole(read_gpu(device.gpu, self._inventory, self._record))
        if plan.needs_reset:
            raise PrepareError(
                f"Claim {intent} was allocated all of {device.device}, which is in MIG mode, and turning it off needs a reset; "
                "drain the GPU, turn the mode off and reset it, or delete all pods that use the claim, so that it is allocated "
                "again."
            )
        for part in plan.in_the_way:
            stranger = self._stranger(device.gpu, part)
            raise PrepareError(f"Claim {intent} cannot get the whole of {device.device}: {stranger}")
        self._clear([plan])
        if plan.switches_now:
            self._manager.switch(device.gpu, plan.mode_change)

    def _turn_on(self, intent: PreparedClaim, uuid: GpuUuid, wanted: Mapping[PlacementKey, ObservedInstance]) -> None:
        """Turn on MIG mode, with no step of an earlier change left over."""
        self._manager.settle(uuid)
        plan = self._plan(uuid, wanted)
        _refuse_gpu(intent, plan)
        if plan.switches_now:
            self._manager.switch(uuid, plan.mode_change)

    def _check(self, intent: PreparedClaim, device: PreparedDevice, key: PlacementKey, plan: GpuPlan) -> None:
        """Raise PrepareError if a device is unavailable: an instance that stays blocks it, or a process computes there."""
        for part in (*plan.keeps, *plan.destroys):
            if part.claims or device.admin or device.partition is None or not part.mask & device.partition.mask:
                continue
            one = self._at(key.gpu, part)
            running = RunningProcesses(tuple(self._manager.processes(one)))
            # Who had an instance that is destroyed now, and does not use it, cannot use it later.
            uuid = one.uuid if one.uuid and part.id == key.place and part in plan.keeps else ""
            self._refuse_users(intent, device, running, uuid, at=one.key)
        _refuse_gpu(intent, plan)
        for blocked in plan.blocked:
            if blocked.place.id != key.place:
                continue
            if isinstance(blocked.by, Obstacle):
                raise PrepareError(_no_such_place(key))
            if blocked.by.foreign:
                stranger = self._stranger(key.gpu, blocked.by)
                raise PrepareError(f"Claim {intent} cannot get {device.device}: {stranger}")
            needed = blocked.by.claims[0]
            raise PrepareError(
                f"Claim {intent} cannot get {device.device}: its memory slices belong to claim {needed}."
            )

    def _plan(self, uuid: GpuUuid, wanted: Mapping[PlacementKey, ObservedInstance]) -> GpuPlan:
        places = [place for key, place in wanted.items() if key.gpu == uuid]
        return plan_places(read_gpu(uuid, self._inventory, self._record), places)

    def _clear(self, plans: Iterable[GpuPlan], *, put: Sequence[PreparedClaim] = ()) -> list[PlacementKey]:
        """Destroy what the plans say and record `put` with it. Raises StillHeld if an instance stays."""
        keys = _destroyed(plans)
        if keys:
            self._manager.discard(keys, put=put)
        for uuid in dict.fromkeys(key.gpu for key in keys):
            self._manager.settle(uuid)
            for key in keys:
                if key.gpu == uuid and key in self._record.instances:
                    raise StillHeld(
                        f"The instance {self._inventory.named(key)} is in the way: no claim uses it any more, but it "
                        f"{_stays(self._inventory.refused.get(key))}."
                    )
        return keys

    def _at(self, uuid: GpuUuid, part: ObservedInstance) -> Instance:
        return next(one for one in self._inventory.divisions[uuid].instances if one.key.place == part.id)

    def _stranger(self, uuid: GpuUuid, part: ObservedInstance) -> str:
        return self._inventory.stranger(self._at(uuid, part))

    def _who(self, error: Exception, gpus: Iterable[GpuUuid]) -> str:
        """The users of GPUs whose MIG mode could not be changed; "" after any other error."""
        if not isinstance(error, InUse):
            return ""
        return f"The GPU is in use by {', '.join(map(self._manager.who, sorted(gpus)))}."

    def _what_is_there(self, gpus: Iterable[GpuUuid], wanted: Mapping[PlacementKey, ObservedInstance]) -> str:
        """A foreign instance that blocks the claim, as seen after the failure; "" without one."""
        for uuid in filter(self._inventory.known, gpus):
            for one in self._plan(uuid, wanted).blocked:
                if isinstance(one.by, ObservedInstance) and one.by.foreign:
                    return self._stranger(uuid, one.by)
        return ""

    def take_back(self, claim: PreparedClaim) -> bool:
        """Return an unprepared claim's instances to it while its own processes still run on them; whether it has all again."""
        return self._back.take(claim)

    def processes_of(self, claim: PreparedClaim) -> list[HoldingProcess]:
        """The processes on a claim's devices that may be its own."""
        running: dict[str, RunningProcesses] = {}
        for device in claim.devices:
            if device.key is None:
                running[device.gpu] = self._running(device.gpu)
                continue
            seen = self._inventory.known(device.gpu)
            found = seen.at(device.key) if seen is not None else None
            if found is not None and found.uuid == device_uuid(device):
                with suppress(NvmlError):
                    running[found.uuid] = RunningProcesses(tuple(self._manager.processes(found)))
        return self._users.of(claim, running)

    # Unpreparing

    def release(self, claim: PreparedClaim) -> None:
        """Destroy a claim's unneeded instances and forget it. Raises PrepareError while one is in use, OSError of the disk."""
        self._asked_since_s = {uid: at for uid, at in self._asked_since_s.items() if uid in self._record.claims}
        unneeded = read_unneeded(claim, self._record)
        go = _destroyed(plan_release(uuid, parts, self._keeping(uuid)) for uuid, parts in unneeded.items())
        if not go:
            self._record.drop(claim.uid)
            self._inventory.show()
            return
        self._manager.discard(go, put=[msgspec.structs.replace(claim, state=PreparationState.RELEASING)])
        problem = self._try_settle({key.gpu for key in go})
        # Instances of a GPU that left go off the record when it returns; otherwise their record is never used again.
        left = [key for key in go if key in self._record.instances and not self._inventory.left(key.gpu)]
        now_s = self._monotonic()
        if left and now_s - self._asked_since_s.setdefault(claim.uid, now_s) < PATIENCE_S:
            stays = _stays(self._inventory.refused.get(left[0]))
            why = problem or f"its instance {self._inventory.named(left[0])} {stays}."
            raise InstanceHeld(f"Claim {claim} cannot be unprepared yet: {why} Kubelet tries again.")
        self._asked_since_s.pop(claim.uid, None)
        self._record.drop(claim.uid)

    def _try_settle(self, gpus: Iterable[GpuUuid]) -> str:
        """Finish open steps; returns the obstacle as a sentence, "" without one."""
        problem = ""
        for uuid in gpus:
            try:
                self._manager.settle(uuid)
            except NvmlError as error:
                problem = str(error)
        return problem

    # Recreating

    def restore(self, gpus: Iterable[GpuUuid]) -> list[str]:
        """Settle GPUs and recreate prepared claims' instances; returns obstacles. Raises OSError if the disk refuses."""
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
        """Our instances as of the last reading of each GPU; none for a GPU whose reading failed."""
        return {
            one.instance.key: one.instance
            for uuid, division in self._inventory.divisions.items()
            if self._inventory.listed(uuid) is not None
            for one in division.held
            if one.use in IN_PLACE
        }

    def rebuild(self, uuid: GpuUuid) -> str:
        """Recreate lost instances of prepared claims; returns the obstacle as a sentence, "" without one.

        A reboot, a reset and a driver reload end all instances. Recreated ones have new UUIDs; `recovery.respec` records them
        with their claims. Raises NvmlError, OSError or NotVerified if it cannot be done now.
        """
        self._manager.settle(uuid)
        needed = read_places(references(self._record.claims.values()))
        plan = self._plan(uuid, needed)
        if plan.switches_now:
            self._manager.switch(uuid, plan.mode_change)
        there = {part.id for part in plan.keeps}
        hindrance = ""
        for key, place in needed.items():
            if key.gpu == uuid and place.id not in there:
                hindrance = self._make_again(key, place) or hindrance
        return hindrance

    def _make_again(self, key: PlacementKey, place: ObservedInstance) -> str:
        """Recreate one instance; returns the obstacle as a sentence, "" without one."""
        plan = self._plan(key.gpu, {key: place})
        for one in plan.blocked:
            return self._why_gone(key, one.by)
        try:
            self._clear([plan])
        except StillHeld as error:
            return str(error)
        if plan.makes:
            self._manager.make(key.gpu, plan.makes)
        return ""

    def _why_gone(self, key: PlacementKey, by: ObservedInstance | Obstacle) -> str:
        what = f"The instance {self._inventory.named(key)}, which a claim needs, is gone"
        match by:
            case Obstacle.NO_MIG:
                return f"The instance {self._inventory.named(key)} is gone, and its GPU does not support MIG any more."
            case Obstacle.NEEDS_RESET:
                return "Prepared claims need instances of this GPU, whose MIG mode is off, and turning it on needs a reset."
            case Obstacle.NO_SUCH_PLACE:
                return _no_such_place(key)
            case ObservedInstance(foreign=True) as part:
                return f"{what} and cannot be made again: {self._stranger(key.gpu, part)}"
            case ObservedInstance():
                return f"{what}, and its memory slices belong to another claim."


def _destroyed(plans: Iterable[GpuPlan]) -> list[PlacementKey]:
    return [PlacementKey(plan.uuid, *part.id) for plan in plans for part in plan.destroys]


def _refuse_gpu(intent: PreparedClaim, plan: GpuPlan) -> None:
    """Raise PrepareError if the GPU, in its present mode, can have none of the claim's instances."""
    for one in plan.blocked:
        if one.by is Obstacle.NO_MIG:
            raise PrepareError(f"Claim {intent} was allocated a part of GPU {plan.uuid}, which does not support MIG.")
        if one.by is Obstacle.NEEDS_RESET:
            raise PrepareError(
                f"Claim {intent} was allocated a part of GPU {plan.uuid}, whose MIG mode is off, and turning it on needs a "
                "reset; drain the GPU, turn the mode on and reset it, or delete all pods that use the claim, so that it is "
                "allocated again."
            )


def _no_such_place(key: PlacementKey) -> str:
    return f"Profile {key.profile_id} cannot start at {key.start} on GPU {key.gpu}."


def _refusal(error: OSError) -> str:
    return f"{advice(error)}; kubelet tries again."


def _stays(holder: str | None) -> str:
    """Why a destroyed instance still exists. `holder`: who uses it, "" if nobody is listed, None if not refused."""
    if holder is None:
        return "is still listed by NVML, which reported it destroyed"
    return f"is in use by {holder or NOBODY_LISTED}"
