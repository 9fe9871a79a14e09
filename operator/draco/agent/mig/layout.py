"""Applies a policy to a GPU: read how it is divided, plan, take one step, then read and plan again.

Owns carrying out a `GpuPlan`, which `mig.gpu_plan` decides, and the GPU's progress message. `instance_manager` makes each change
survive a crash; the operator chooses the layout.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from draco.agent.hardware.gpus import PlacementKey
from draco.agent.hardware.nvml_errors import InUse, NvmlError, ResetRequired
from draco.agent.mig.claim_instances import ClaimInstances
from draco.agent.mig.instance_manager import InstanceManager, NotVerified
from draco.agent.mig.inventory import MigInventory
from draco.agent.mig.reading import read_gpu
from draco.agent.record.checkpoint import Checkpoint
from draco.mig.gpu_plan import GpuPlan, LayoutProgress, plan_gpu
from draco.resources.api.draco import PromisedDevice, WantedGpu
from draco.resources.names import GpuUuid

log = structlog.get_logger()


class LayoutApplier:
    """Applies wanted specs to GPUs, one at a time."""

    def __init__(
        self, record: Checkpoint, inventory: MigInventory, manager: InstanceManager, instances: ClaimInstances
    ) -> None:
        self._record = record
        self._inventory = inventory
        self._manager = manager
        self._instances = instances

    def keep(self, uuid: GpuUuid) -> str:
        """Only settle open steps and recreate what claims need: the wanted spec is unknown."""
        return self._noted(uuid, lambda: LayoutProgress(self._instances.rebuild(uuid)))

    def apply(self, uuid: GpuUuid, wanted: WantedGpu | None, promised: Sequence[PromisedDevice] = ()) -> str:
        """Bring a GPU to `wanted`, None without a policy; returns what is still missing, "" for nothing.

        `promised` is what other claims were allocated of it. Raises OSError if the disk refuses.
        """
        return self._noted(uuid, lambda: self._apply(uuid, wanted, promised))

    def _noted(self, uuid: GpuUuid, work: Callable[[], LayoutProgress]) -> str:
        with self._inventory.lock:
            try:
                done = work()
            except (NvmlError, NotVerified) as error:
                done = LayoutProgress(str(error))
                with suppress(NvmlError):  # the GPU is then dirty and has the reason
                    self._manager.settle(uuid)
            self._inventory.note(uuid, done.waits, lacks=done.lacks)
            return f"{done.waits} {done.lacks}".strip()

    def _apply(self, uuid: GpuUuid, wanted: WantedGpu | None, promised: Sequence[PromisedDevice]) -> LayoutProgress:
        """Plan again from a fresh reading after each step."""
        hindrance = self._instances.rebuild(uuid)
        plan = self._plan(uuid, wanted, promised)
        self._inventory.lay_out(uuid, frozenset(one.id for one in plan.layout))
        if not plan.idle:
            log.info("gpu.planned", plan=str(plan))
        if plan.destroys:
            self._manager.discard([PlacementKey(uuid, *part.id) for part in plan.destroys])
            self._manager.settle(uuid)
            plan = self._plan(uuid, wanted, promised)
        if plan.switches_now:
            hindrance = self._switch(plan) or hindrance
            plan = self._plan(uuid, wanted, promised)
        if plan.makes and not plan.mode_change:
            self._manager.make(uuid, plan.makes)
        return plan.progress(hindrance)

    def _plan(self, uuid: GpuUuid, wanted: WantedGpu | None, promised: Sequence[PromisedDevice]) -> GpuPlan:
        return plan_gpu(read_gpu(uuid, self._inventory, self._record), wanted, promised)

    def _switch(self, plan: GpuPlan) -> str:
        """Change the MIG mode; returns who blocks it as a sentence, "" for nobody."""
        try:
            self._manager.switch(plan.uuid, plan.mode_change)
        except ResetRequired:
            return ""  # the mode is pending, which the GPU's status shows
        except InUse:
            return f"MIG mode cannot be turned {plan.mode_change}: the GPU is in use by {self._manager.who(plan.uuid)}."
        return ""
