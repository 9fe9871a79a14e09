"""Creates and destroys GPU instances so that after a crash at any step every existing instance has a recorded owner.

Owns the order of journal and hardware: a step is recorded before it is taken, and until a fresh list shows its result. So each
GPU instance is always one of: needed by a prepared claim; kept idle; a recorded step that `settle` finishes or undoes; foreign,
which is reported and never touched. A GPU that cannot be listed, or has unfinished steps, is dirty until it is listed with
nothing left over. Does not decide which instances claims get or which stay idle.

All methods block on NVML and the disk. Each holds the NVML session's lock from its first look to its last step, so nobody sees
half a change. Only the search for the holder of an instance, which may be slow, releases the lock; others then see a dirty GPU.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

import msgspec

from draco.agent.errors import AgentError
from draco.agent.hardware.gpus import Gpu, Instance, PlacementKey
from draco.agent.hardware.nvml_errors import (
    DriverError,
    InsufficientResources,
    InUse,
    InvalidArgument,
    NotSupported,
    NvmlError,
    PermissionMissing,
)
from draco.agent.hardware.nvml_instances import NvmlInstances, RunningProcesses
from draco.agent.mig.inventory import GpuInventory, MigInventory
from draco.agent.mig.ownership import CreationAttempt, Ownership
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import InstanceState, OwnedInstance, PreparationState, PreparedClaim
from draco.mig.board import Placement
from draco.resources.names import ClaimUid, GpuUuid


class NotVerified(AgentError):
    """NVML reported success, but its list shows something else."""


class StillHeld(AgentError):
    """An instance that must be destroyed is in use."""


FindHolder = Callable[[Instance | None, Gpu, Sequence[int]], str]
"""The holder of an instance, or of the GPU, as a phrase; "" if none is found. The numbers are the PIDs that NVML lists."""
NOBODY_LISTED = "a process that NVML does not list, such as a monitoring program that keeps it open"


class InstanceManager:
    """Changes the instances of an inventory, with a journal. `holder` finds who keeps one from being destroyed.

    `end_on` ends what this node runs on an instance before it is destroyed: who still uses it then, as a phrase, "" for nobody;
    None if nothing ran there. It may let go of NVML's lock.
    """

    def __init__(
        self,
        record: Checkpoint,
        mig: NvmlInstances,
        inventory: MigInventory,
        *,
        holder: FindHolder,
        end_on: Callable[[PlacementKey], str | None] = lambda _: None,
    ) -> None:
        self._record = record
        self._mig = mig
        self._inventory = inventory
        self._holder = holder
        self._end_on = end_on

    def settle(self, uuid: GpuUuid) -> GpuInventory:
        """Undo unfinished creations, finish destroys, and forget what is gone. What is in use stays on record.

        Raises NvmlError or OSError if it cannot be done now; the GPU is then dirty.
        """
        with self._mig.lock:
            try:
                return self._settle(uuid)
            finally:
                self._inventory.show()

    def _settle(self, uuid: GpuUuid) -> GpuInventory:
        seen = self._inventory.observe(uuid)
        self._discard_broken(seen)
        steps = self._inventory.open_steps(uuid)
        for own in steps:
            if (user := self._end_on(own.key)) is not None:
                seen = self._inventory.observe(uuid)  # ending it took time
            found = seen.at(own.key)
            if found is None:
                continue
            if user:
                self._refused(own, user)
                continue
            verdict = self._inventory.ownership_of(own, found)
            if verdict is Ownership.OURS:
                seen = self._destroy(own, found, seen)
            elif verdict is Ownership.DOUBTFUL:
                self._inventory.trouble(uuid, self._inventory.stranger(found))
        if steps:
            seen = self._inventory.observe(uuid)
        gone = [
            own.key
            for own in self._record.instances.values()
            if own.gpu == uuid and self._inventory.ownership_of(own, seen.at(own.key)) is Ownership.OTHERS
        ]
        if gone:
            self._forget(gone)
        if not self._inventory.open_steps(uuid):
            self._inventory.trouble(uuid, "")
        return seen

    def make(self, uuid: GpuUuid, placements: Iterable[Placement], *, put: Sequence[PreparedClaim] = ()) -> None:
        """Create instances, largest first and otherwise in this order, and verify the list. `put` is recorded with the intent.

        On NvmlError, OSError or NotVerified the failed step and earlier ones stay on record for `settle`.
        """
        with self._mig.lock:
            wanted = sorted(placements, key=lambda one: -one.profile.size)
            fresh = {
                PlacementKey(uuid, one.profile.id, one.start): OwnedInstance(
                    gpu=uuid,
                    profile_id=one.profile.id,
                    start=one.start,
                    size=one.profile.size,
                    state=InstanceState.CREATING,
                    boot_id=self._inventory.boot_id,
                )
                for one in wanted
            }
            self._inventory.attempt(fresh, CreationAttempt.REFUSED)
            self._record.change(put=put, own=fresh.values())
            untried = list(fresh.values())
            for placement in wanted:
                try:
                    self._create(untried.pop(0), placement)
                except NvmlError:
                    # Steps not taken must not be undone: an instance that appears there later is not ours.
                    self._record.change(disown=[own.key for own in untried])
                    raise
            seen = self._inventory.observe(uuid)
            for key in fresh:
                found = seen.at(key)
                if found is None or found.ci is None or self._inventory.own(found) is None:
                    unlisted = f"NVML made {self._inventory.named(key)} but does not list it."
                    self._inventory.backoff.prolong(uuid, unlisted)
                    raise NotVerified(unlisted)
            self._inventory.backoff.forget(uuid)
            self._inventory.show()

    def _create(self, own: OwnedInstance, placement: Placement) -> None:
        def on_gi(number: int) -> None:
            self._record.change(own=[msgspec.structs.replace(own, gi=number)])

        self._inventory.attempt([own.key], CreationAttempt.MADE)
        try:
            made = self._mig.create(own.gpu, placement, on_gi)
        except (InsufficientResources, NotSupported, InvalidArgument, PermissionMissing):
            # Nothing was made. Forget the step: an instance that stands there now is not ours.
            if self._record.instances[own.key].gi is None:
                self._inventory.attempt([own.key], CreationAttempt.REFUSED)
                self._record.change(disown=[own.key])
            raise
        except DriverError:
            raise
        except NvmlError as error:
            self._inventory.backoff.prolong(own.gpu, str(error))
            raise
        fresh = msgspec.structs.replace(
            own, state=InstanceState.MADE, gi=made.gi, ci=made.ci or 0, uuid=made.uuid or ""
        )
        self._record.change(own=[fresh])

    def discard(
        self, keys: Collection[PlacementKey], *, put: Sequence[PreparedClaim] = (), drop: Sequence[ClaimUid] = ()
    ) -> None:
        """Record that our instances are to go; `settle` destroys them."""
        own = [
            msgspec.structs.replace(self._record.instances[key], state=InstanceState.DESTROYING)
            for key in keys
            if key in self._record.instances
        ]
        self._record.change(put=put, drop=drop, own=own)

    def _destroy(self, own: OwnedInstance, found: Instance, seen: GpuInventory) -> GpuInventory:
        """Destroy an instance; returns what the next step has to act on."""
        try:
            self._mig.destroy(found)
        except InUse:
            self._refuse(own, found, seen.gpu)
            return self._inventory.observe(own.gpu)  # the search for the holder took time
        except NvmlError as error:
            self._inventory.trouble(own.gpu, str(error))
            raise
        return seen

    def _refuse(self, own: OwnedInstance, found: Instance, gpu: Gpu) -> None:
        self._refused(own, self._find(found, gpu))

    def _refused(self, own: OwnedInstance, who: str) -> None:
        self._inventory.refuse(own.key, who)
        text = f"Its instance {self._inventory.named(own.key)} cannot be destroyed: it is in use by {who or NOBODY_LISTED}."
        self._inventory.trouble(own.gpu, text)

    def _find(self, one: Instance | None, gpu: Gpu) -> str:
        """Who holds an instance, or the GPU. Asks NVML first, then looks below /proc without its lock."""
        listed: list[int] = []
        if one is not None:
            with suppress(NvmlError):
                listed = self._mig.processes(one)
        return self._mig.aside(lambda: self._holder(one, gpu, listed))

    def _discard_broken(self, seen: GpuInventory) -> None:
        """Discard our instances whose compute instance somebody destroyed: they are useless."""
        broken = [
            one.key
            for one in seen.instances
            if (own := self._inventory.own(one)) is not None and own.state is InstanceState.MADE and one.ci is None
        ]
        if broken:
            self.discard(broken)

    def _forget(self, gone: Collection[PlacementKey]) -> None:
        """Take instances off the record, and with them claims that only waited for that."""
        left = {
            own.key
            for own in self._record.instances.values()
            if own.state is InstanceState.DESTROYING and own.key not in gone
        }
        done = [
            claim.uid
            for claim in self._record.claims.values()
            if claim.state is PreparationState.RELEASING and not left & {device.key for device in claim.devices}
        ]
        self._record.change(drop=done, disown=gone)
        self._inventory.forget(gone)

    def switch(self, uuid: GpuUuid, wanted: str) -> None:
        """Turn MIG mode `wanted`, "on" or "off"."""
        with self._mig.lock:
            try:
                self._mig.switch(uuid, wanted)
            finally:
                self._inventory.observe(uuid)
                self._inventory.show()

    def who(self, uuid: GpuUuid) -> str:
        """Who uses a GPU, as a phrase."""
        seen = self._inventory.known(uuid)
        return (self._find(None, seen.gpu) if seen else "") or NOBODY_LISTED

    def running(self, uuid: GpuUuid) -> RunningProcesses:
        """The processes that NVML lists on a whole GPU."""
        with self._mig.lock:
            return self._mig.running(uuid)

    def processes(self, one: Instance) -> list[int]:
        """The processes that NVML lists as computing on an instance."""
        with self._mig.lock:
            return self._mig.processes(one)
