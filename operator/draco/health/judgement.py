"""What the ledger's faults mean for new work: the effect of each, the worst one, and the taints.

The table decides, unless a HealthPolicy made the operator write an override. Pure; `ledger` has the facts.
"""

from collections.abc import Iterable, Sequence

import msgspec

from draco.health.ledger import LedgerEntry
from draco.health.table import FaultAction, HealthState, severity
from draco.resources.api.health import (
    BLOCKING_FAULTS,
    FaultFamily,
    FaultOverride,
    FaultScope,
    GpuFaultStatus,
    HealthEffect,
)
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import TAINT_FAMILIES, GpuUuid

_TAINT_EFFECTS = {
    HealthEffect.ANNOUNCE: "None",
    HealthEffect.NO_SCHEDULE: "NoSchedule",
    HealthEffect.EVICT: "NoSchedule",  # the operator evicts with a DeviceMaintenance
    HealthEffect.NO_EXECUTE: "NoExecute",
}


class JudgedFault(msgspec.Struct, frozen=True):
    """A fault with its effect. `mask` are the memory units that it affects, None for the whole GPU."""

    status: GpuFaultStatus
    mask: int | None = None
    health: HealthState = HealthState.UNHEALTHY

    @property
    def blocking(self) -> bool:
        """Whether it keeps new work away."""
        return self.status.effect in BLOCKING_FAULTS

    def concerns(self, mask: int | None) -> bool:
        """Whether it affects a partition with these units. None is the whole GPU, which every fault affects."""
        return self.mask is None or mask is None or bool(self.mask & mask)


def judge(entries: Sequence[LedgerEntry], overrides: Iterable[FaultOverride] = ()) -> tuple[JudgedFault, ...]:
    """The faults of one GPU, the worst first."""
    said = list(overrides)
    ranked = sorted(((one, _judged(one, said)) for one in entries), key=lambda pair: _rank(*pair))
    return tuple(judged for _, judged in ranked)


def override_of(
    overrides: Iterable[FaultOverride], gpu: GpuUuid, name: str, instance: int | None
) -> FaultOverride | None:
    """The override for one fault: one for its instance before one for all."""
    fitting = [one for one in overrides if one.uuid == gpu and one.fault == name and one.instance in {None, instance}]
    return max(fitting, key=lambda one: one.instance is not None, default=None)


def blocking(faults: Iterable[JudgedFault], mask: int | None) -> JudgedFault | None:
    """The worst fault that keeps new work from a partition with these units, or from the whole GPU (None)."""
    return next((one for one in faults if one.blocking and one.concerns(mask)), None)


def whole_blocking(faults: Iterable[JudgedFault]) -> JudgedFault | None:
    """The worst fault that keeps new work from the GPU and all its partitions."""
    return next((one for one in faults if one.blocking and one.mask is None), None)


def taints(faults: Iterable[JudgedFault], mask: int | None = None) -> list[DeviceTaint]:
    """A taint per fault family for a partition, or the GPU (None). Its value is the worst fault; the worst come first."""
    found: dict[FaultFamily, DeviceTaint] = {}
    for one in faults:
        effect = _TAINT_EFFECTS.get(one.status.effect)
        if effect is not None and one.concerns(mask):
            key = f"{TAINT_FAMILIES}{one.status.family.value}"
            found.setdefault(one.status.family, DeviceTaint(key=key, value=one.status.name, effect=effect))
    return list(found.values())


def _judged(one: LedgerEntry, overrides: Sequence[FaultOverride]) -> JudgedFault:
    kind = one.kind
    override = override_of(overrides, one.gpu, one.name, one.instance)
    effect = kind.effect if override is None else override.effect or kind.effect
    if not one.certain:
        effect = HealthEffect.RECORD
    scope = kind.scope
    if one.instance is not None:
        scope = FaultScope.GPU_INSTANCE if one.compute is None else FaultScope.COMPUTE_INSTANCE
    status = GpuFaultStatus(
        family=kind.family,
        name=one.name,
        code=one.code,
        scope=scope,
        instance=one.instance,
        message=one.message or kind.sentence,
        latched=kind.latched,
        effect=effect,
        policy="" if override is None else override.policy,
        count=one.count,
        clean_probes=one.clean,
        first_seen=one.first_seen,
        last_seen=one.last_seen,
    )
    return JudgedFault(status, one.mask, kind.health)


def _rank(entry: LedgerEntry, judged: JudgedFault) -> tuple[object, ...]:
    """Order: strongest effect, then reboot before other repairs, then XIDs (which NVML reports once), then the oldest."""
    status = judged.status
    first = status.first_seen.timestamp() if status.first_seen is not None else 0.0
    return (
        -severity(status.effect),
        entry.kind.action is not FaultAction.REBOOT,
        status.family is not FaultFamily.XID,
        first,
        status.name,
        -1 if status.instance is None else status.instance,
    )
