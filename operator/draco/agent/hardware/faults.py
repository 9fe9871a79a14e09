"""What the ledger of faults means for a GPU.

Owns the fault names for NVML's answers, and how a GPU's fault, faults and health follow from its ledger. `draco.health` knows
what each fault means and when it is over.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from draco.agent.hardware.gpus import Gpu, GpuFault, GpuHealth
from draco.health.judgement import JudgedFault, judge, whole_blocking
from draco.health.ledger import FAMILIES, FaultLedger, GpuReading, LedgerEntry, Sign
from draco.health.table import HealthState, kind_of
from draco.resources.api.health import FaultFamily, FaultOverride, HealthEffect

LOST = "Lost"
NOT_FOUND = "NotFound"
REMAP_PENDING = "RowRemapPending"
REMAP_FAILED = "RowRemapFailed"
ECC_UNCORRECTED = "EccUncorrected"
ECC_THRESHOLD = "EccThreshold"
THERMAL_SLOWDOWN = "ThermalSlowdown"
FABRIC_FAILED = "FabricFailed"
UNREADABLE = "Unreadable"
DRIVER_HANGS = "DriverHangs"
"""The fault of a GPU about which a call hangs, and the reason why GPUs are unreadable then."""
DRIVER_MISMATCH = "DriverMismatch"
"""The fault of all GPUs while the driver's files and its loaded modules have different versions."""


class Recovery(StrEnum):
    """The faults for NVML's recovery actions; NVML requests an action until it is done."""

    RESET = "NeedsReset"
    REBOOT = "NeedsReboot"
    DRAIN_P2P = "NeedsDrainP2P"
    DRAIN_AND_RESET = "NeedsDrainAndReset"
    IMEX_RECOVERY = "NeedsImexRecovery"
    BUS_RESET = "NeedsBusReset"
    SYSTEM_REBOOT = "NeedsSystemReboot"
    UNKNOWN = "NeedsRecovery"
    """An action that this release does not know."""


def judged(gpu: Gpu, ledger: FaultLedger, overrides: Iterable[FaultOverride] = ()) -> Gpu:
    """The GPU with its recorded faults and its health. One that is not readable now keeps its current fault."""
    faults = judge(ledger.of(gpu.uuid), overrides)
    if gpu.fault is not None and (gpu.absent or gpu.minor < 0):
        name = gpu.fault.name
        kept = [one for one in gpu.faults if one.status.name == name][:1]
        return msgspec.structs.replace(gpu, faults=(*kept, *(one for one in faults if one.status.name != name)))
    worst = whole_blocking(faults)
    fault = None if worst is None else GpuFault(worst.status.name, worst.status.message)
    return msgspec.structs.replace(gpu, faults=faults, fault=fault, health=_health(faults, worst))


def with_fault(gpu: Gpu, fault: GpuFault) -> Gpu:
    """A GPU that takes no new work for a reason that outranks its ledger."""
    [found] = judge([LedgerEntry(gpu=gpu.uuid, name=fault.name, message=fault.message, failing=2**31 - 1)])
    health = GpuHealth(found.health, fault.message)
    return msgspec.structs.replace(gpu, fault=fault, faults=(found, *gpu.faults), health=health)


def with_sign(gpu: Gpu, sign: Sign) -> Gpu:
    """A GPU with one more sign from its reading."""
    before = gpu.reading
    return msgspec.structs.replace(gpu, seen=msgspec.structs.replace(before, signs=(*before.signs, sign)))


def only_sign(gpu: Gpu, sign: Sign) -> Gpu:
    """A GPU whose reading shows only this, and says nothing else."""
    unasked = FAMILIES - {kind_of(sign.name).family, FaultFamily.UNREADABLE}
    return msgspec.structs.replace(gpu, seen=GpuReading(gpu=gpu.uuid, signs=(sign,), unasked=unasked))


def _health(faults: Sequence[JudgedFault], worst: JudgedFault | None) -> GpuHealth:
    """The health. An unreadable GPU is Unknown even before its fault blocks new work; an announced fault is mentioned."""
    if worst is not None and worst.health is HealthState.UNHEALTHY:
        return GpuHealth(HealthState.UNHEALTHY, worst.status.message)
    unreadable = next((one for one in faults if one.status.family is FaultFamily.UNREADABLE), None)
    if unreadable is not None:
        return GpuHealth(HealthState.UNKNOWN, unreadable.status.message)
    said = worst or next((one for one in faults if one.status.effect is not HealthEffect.RECORD), None)
    if said is None:
        return GpuHealth(HealthState.HEALTHY)
    state = said.health if worst is not None else HealthState.HEALTHY
    return GpuHealth(state, said.status.message)
