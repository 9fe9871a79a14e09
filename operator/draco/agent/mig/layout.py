"""Applies what a policy wants of a GPU: reads how the GPU is divided, plans, takes one step, then reads and plans again.

Owns carrying out a `GpuPlan` (`mig.gpu_plan`, which decides everything), and what the GPU's status says of it. How a change
survives a crash is `instance_manager`'s; which layout is wanted is the operator's.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from draco.agent.hardware.instances import GpuMigView, HeldInstance, PlacementKey, Use
from draco.agent.hardware.nvml_errors import InUse, NvmlError, ResetRequired, never_seen
from draco.agent.mig.claim_instances import ClaimInstances
from draco.agent.mig.instance_manager import InstanceManager, NotVerified
from draco.agent.mig.inventory import MigInventory
from draco.agent.mig.ownership import references
from draco.agent.record.checkpoint import Checkpoint, PreparationState
from draco.mig.gpu_plan import GpuPlan, LayoutProgress, plan_gpu
from draco.mig.observed import ObservedGpu, Part
from draco.resources.api.draco import PromisedDevice, WantedGpu
from draco.resources.names import GpuUuid

log = structlog.get_logger()


class LayoutApplier:
    """Applies what is wanted to GPUs, one at a time."""

    def __init__(
        self, record: Checkpoint, inventory: MigInventory, manager: InstanceManager, instances: ClaimInstances
    ) -> None:
        self._record = record
        self._inventory = inventory
        self._manager = manager
        self._instances = instances

    def keep(self, uuid: GpuUuid) -> str:
        """Finish and undo open steps and make again what claims need, and nothing else: what is wanted is not known."""
        return self._noted(uuid, lambda: LayoutProgress(self._instances.rebuild(uuid)))

    def apply(self, uuid: GpuUuid, wanted: WantedGpu | None, promised: Sequence[PromisedDevice] = ()) -> str:
        """Make a GPU what is wanted of it, None for a GPU that no policy has; what is not there yet, "" for nothing.

        `promised` is what else claims have of it. OSError when the disk refuses.
        """
        return self._noted(uuid, lambda: self._apply(uuid, wanted, promised))

    def _noted(self, uuid: GpuUuid, work: Callable[[], LayoutProgress]) -> str:
        with self._inventory.lock:
            try:
                done = work()
            except (NvmlError, NotVerified) as error:
                done = LayoutProgress(str(error))
                with suppress(NvmlError):  # the GPU is dirty then, and says why
                    self._manager.settle(uuid)
            self._inventory.note(uuid, done.waits, lacks=done.lacks)
            return f"{done.waits} {done.lacks}".strip()

    def _apply(self, uuid: GpuUuid, wanted: WantedGpu | None, promised: Sequence[PromisedDevice]) -> LayoutProgress:
        """Each step ends with a look at the GPU, from which the rest is planned again."""
        hindrance = self._instances.rebuild(uuid)
        plan = plan_gpu(self._read(uuid), wanted, promised)
        self._inventory.lay_out(uuid, frozenset(one.id for one in plan.layout))
        if not plan.idle:
            log.info("gpu.planned", plan=str(plan))
        if plan.destroys:
            self._manager.discard([PlacementKey(uuid, *part.id) for part in plan.destroys])
            self._manager.settle(uuid)
            plan = plan_gpu(self._read(uuid), wanted, promised)
        if plan.switches_now:
            hindrance = self._switch(plan) or hindrance
            plan = plan_gpu(self._read(uuid), wanted, promised)
        if plan.makes and not plan.mode_change:
            self._manager.make(uuid, plan.makes)
        return plan.progress(hindrance)

    def _switch(self, plan: GpuPlan) -> str:
        """Change the MIG mode; who keeps it from being changed, as a sentence, "" for nobody."""
        try:
            (self._manager.enable if plan.mode_change == "on" else self._manager.disable)(plan.uuid)
        except ResetRequired:
            return ""  # the mode is pending, and the GPU says so
        except InUse:
            return f"MIG mode cannot be turned {plan.mode_change}: the GPU is in use by {self._manager.who(plan.uuid)}."
        return ""

    def _read(self, uuid: GpuUuid) -> ObservedGpu:
        """The GPU as the last step left it."""
        seen, division = self._inventory.known(uuid), self._inventory.divisions.get(uuid)
        if seen is None or division is None:
            raise never_seen(uuid)
        needed = references(self._record.claims.values())
        ages = {key: age for age, key in enumerate(self._record.instances)}
        return ObservedGpu(
            uuid=uuid,
            board=division.board,
            capable=division.capable,
            enabled=division.enabled,
            pending=division.pending,
            switched_by_reset=seen.gpu.mig_needs_reset,
            parts=tuple(self._part(division, one, ages.get(one.instance.key, 0)) for one in division.held),
            missing={key.place: str(needed[key][0]) for key in division.missing},
            whole=self._whole(uuid),
        )

    def _part(self, division: GpuMigView, one: HeldInstance, age: int) -> Part:
        instance = one.instance
        profile = division.board.by_id(instance.profile_id) if division.board else None
        going = one.use is Use.ORPHAN  # what could be destroyed is gone by now
        return Part(
            profile=profile.name if profile else f"profile {instance.profile_id}",
            profile_id=instance.profile_id,
            start=instance.start,
            size=instance.size,
            use=one.use,
            claims=one.claims,
            stuck=going,
            holder=one.holder,
            number=instance.gi,
            doubtful=going and self._inventory.own(instance) is None,
            age=age,
        )

    def _whole(self, uuid: GpuUuid) -> tuple[str, ...]:
        """The claims that have all of the GPU."""
        return tuple(
            str(claim)
            for claim in self._record.claims.values()
            if claim.state is PreparationState.PREPARED
            and any(one.gpu == uuid and one.partition is None and not one.admin for one in claim.devices)
        )
