"""What the ledger of faults means for a GPU.

Owns the fault names for NVML's answers, and how a GPU's faults and health follow from its ledger. `draco.health` knows what each
fault means and when it is over.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from draco.agent.hardware.gpus import Gpu
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
    """The GPU with its recorded faults. One that is not readable now keeps its current fault."""
    faults = judge(ledger.of(gpu.uuid), overrides)
    if (kept := gpu.fault) is not None and (gpu.absent or gpu.minor < 0):
        faults = (kept, *(one for one in faults if one.status.name != kept.status.name))
    return msgspec.structs.replace(gpu, faults=faults)


def with_fault(gpu: Gpu, name: str, message: str) -> Gpu:
    """A GPU that takes no new work for a reason that outranks its ledger."""
    [found] = judge([LedgerEntry(gpu=gpu.uuid, name=name, message=message, failing=2**31 - 1)])
    return msgspec.structs.replace(gpu, faults=(found, *gpu.faults))


def with_sign(gpu: Gpu, sign: Sign) -> Gpu:
    """A GPU with one more sign from its reading."""
    before = gpu.reading
    return msgspec.structs.replace(gpu, seen=msgspec.structs.replace(before, signs=(*before.signs, sign)))


def only_sign(gpu: Gpu, sign: Sign) -> Gpu:
    """A GPU whose reading shows only this, and says nothing else."""
    unasked = FAMILIES - {kind_of(sign.name).family, FaultFamily.UNREADABLE}
    return msgspec.structs.replace(gpu, seen=GpuReading(gpu=gpu.uuid, signs=(sign,), unasked=unasked))


def health(gpu: Gpu) -> tuple[HealthState, JudgedFault | None]:
    """The health, and the fault that explains it. An unreadable GPU is Unknown even before its fault blocks new work.

    A healthy GPU may have one, too: the worst fault that is announced.
    """
    worst = whole_blocking([one for one in gpu.faults if one.health is not HealthState.HEALTHY])
    if worst is not None:
        return worst.health, worst
    unreadable = next((one for one in gpu.faults if one.status.family is FaultFamily.UNREADABLE), None)
    if unreadable is not None:
        return HealthState.UNKNOWN, unreadable
    announced = (one for one in gpu.faults if one.status.effect is not HealthEffect.RECORD)
    return HealthState.HEALTHY, gpu.fault or next(announced, None)
