"""Compares what a policy wants of a GPU with what its agent reports. Owns the comparison and its messages."""

from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from draco.allocation.exclusion import waits_for
from draco.resources.api.draco import (
    GpuMig,
    GpuNode,
    GpuStatus,
    InstanceStatus,
    InstanceUse,
    MigMode,
    MigState,
    ResetPermit,
    WantedGpu,
)
from draco.resources.api.meta import find_condition
from draco.resources.names import CONDITION_PARTITIONABLE

_SWITCHED_BY_RESET = frozenset({"Ampere", ""})
"""Architectures with MIG whose mode changes only with a reset, and unknown ones. Source: NVIDIA's MIG user guide."""

_NO_COUNTERS = (
    "this cluster does not keep the counters of partitions, so none are published on demand; use mode Static, or Kubernetes 1.36 "
    "or newer (on 1.35 enable the feature gate DRAPartitionableDevices) and restart the agents"
)


def switched_by_reset(gpu: GpuStatus) -> bool:
    """Whether the GPU's MIG mode changes only with a reset."""
    return gpu.architecture in _SWITCHED_BY_RESET


class LayoutState(Enum):
    """Whether a GPU's layout is applied, will be, or cannot be."""

    APPLIED = "applied"
    CHANGING = "changing"
    FAILED = "failed"


class GpuCondition(NamedTuple):
    """The state of a GPU's layout and the reason; for an applied one, what has no room."""

    state: LayoutState
    message: str = ""


def condition_of(node: GpuNode, gpu: GpuStatus | None, wanted: WantedGpu, permit: ResetPermit) -> GpuCondition:
    """The state of the GPU. `permit` is its policy's permit for resets."""
    current = next((each for each in node.spec.gpus if each.uuid == wanted.uuid), None)
    if gpu is None or gpu.mig is None:
        return _changing("its agent has not reported its partitions")
    if current != wanted or node.status.observed_generation < node.metadata.generation:
        return _changing("its agent has not processed this yet")
    partitionable = find_condition(node.status.conditions, CONDITION_PARTITIONABLE)
    if wanted.mode is MigMode.DYNAMIC and partitionable is not None and partitionable.status == "False":
        return _failed(_NO_COUNTERS)
    mode_on = wanted.mode is not MigMode.DISABLED
    switching = gpu.mig.enabled is not mode_on and not any(each.claim for each in gpu.mig.instances)
    if switching and switched_by_reset(gpu) and not wanted.reset_permitted and not gpu.mig.pending:
        return _unpermitted(permit, "on" if mode_on else "off")
    return _by_state(gpu.mig, wanted, permit)


def _unpermitted(permit: ResetPermit, wanted: str) -> GpuCondition:
    needs = f"turning MIG {wanted} needs a reset of the GPU"
    if permit is ResetPermit.NEVER:
        return _failed(f"{needs}, which spec.reset.permit Never does not allow")
    return _changing(f"{needs}, which waits for a window of spec.reset")


def _by_state(mig: GpuMig, wanted: WantedGpu, permit: ResetPermit) -> GpuCondition:
    if mig.state is MigState.DIRTY:
        return _failed(
            mig.message or "its instances differ from what the policy asks; nothing is made until they agree"
        )
    if mig.state is MigState.NEEDS_RESET or mig.pending:
        return _reset(mig, wanted, permit)
    if wanted.mode is MigMode.DISABLED:
        return _disabled(mig)
    if mig.enabled:
        return _divided(mig, wanted)
    if wanted.mode is MigMode.DYNAMIC and mig.state is MigState.READY and mig.message:
        # In use as a whole, which is one of the demands where partitions are made on demand.
        return _applied(mig.message)
    return _changing(mig.message or "MIG is still off")


def _divided(mig: GpuMig, wanted: WantedGpu) -> GpuCondition:
    if wanted.mode is MigMode.STATIC:
        return _static(mig, wanted)
    if mig.state is MigState.CHANGING:
        return _changing(mig.message or "its instances are being changed")
    # Warm instances are kept if there is room; a busy GPU without any is still applied.
    return _applied(mig.message)


def _static(mig: GpuMig, wanted: WantedGpu) -> GpuCondition:
    want = {(each.profile, each.start) for each in wanted.layout}
    ours = [each for each in mig.instances if each.use is not InstanceUse.FOREIGN]
    missing = want - {(each.profile, each.start) for each in ours}
    surplus = [each for each in ours if (each.profile, each.start) not in want]
    if not missing and not surplus and mig.state is MigState.READY:
        return GpuCondition(LayoutState.APPLIED)
    if claims := _claims(surplus):
        return _changing(waits_for(claims))
    for each in surplus:
        if each.holder:
            return _changing(f"{each.profile} at {each.start} is held by {each.holder}")
    foreign = [each for each in mig.instances if each.use is InstanceUse.FOREIGN]
    if missing and foreign:
        one = foreign[0]
        return _failed(
            mig.message
            or f"{one.profile} at {one.start} was not made by Draco, which leaves it alone; destroy it by hand"
        )
    return _changing(mig.message or "its instances are being changed")


def _claims(instances: Iterable[InstanceStatus]) -> list[str]:
    return sorted({each.claim for each in instances if each.claim})


def _reset(mig: GpuMig, wanted: WantedGpu, permit: ResetPermit) -> GpuCondition:
    if permit is ResetPermit.NEVER:
        return _failed(mig.message or "it needs a reset, which spec.reset.permit does not allow")
    if not wanted.reset_permitted:
        return _changing("it needs a reset and waits for a window of spec.reset")
    return _changing(mig.message or "it waits for a reset")


def _disabled(mig: GpuMig) -> GpuCondition:
    if claims := _claims(mig.instances):
        return _changing(waits_for(claims))
    if mig.enabled:
        return _changing(mig.message or "MIG is still on")
    # It may have to be divided again for a claim that was allocated a partition before.
    return (
        _changing(mig.message) if mig.state is MigState.CHANGING and mig.message else GpuCondition(LayoutState.APPLIED)
    )


def _applied(message: str) -> GpuCondition:
    return GpuCondition(LayoutState.APPLIED, message.rstrip("."))


@lru_cache(maxsize=1024)  # thousands of GPUs have the same message
def _changing(message: str) -> GpuCondition:
    return GpuCondition(LayoutState.CHANGING, message.rstrip("."))


@lru_cache(maxsize=1024)
def _failed(message: str) -> GpuCondition:
    return GpuCondition(LayoutState.FAILED, message.rstrip("."))
