"""Applies what a policy wants of a GPU: reads how the GPU is divided, plans, takes one step, then reads and plans again.

Owns carrying out a `GpuPlan` (`mig.gpu_plan`, which decides everything), and what the GPU's status says of it. How a change
survives a crash is `instance_manager`'s; which layout is wanted is the operator's.
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
        """Change the MIG mode; who keeps it from being changed, as a sentence, "" for nobody."""
        try:
            self._manager.switch(plan.uuid, plan.mode_change)
        except ResetRequired:
            return ""  # the mode is pending, and the GPU says so
        except InUse:
            return f"MIG mode cannot be turned {plan.mode_change}: the GPU is in use by {self._manager.who(plan.uuid)}."
        return ""
