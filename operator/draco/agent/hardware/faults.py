"""What ends a GPU for new work, and until when: NVIDIA's XIDs by number, and what is remembered of one that came.

Owns the decisions which of the XIDs in `xids.toml` end a GPU, and whether a fault is over. It is the floor below policies: only
what leaves a GPU unusable, or its memory untrusted, counts.
"""

import pkgutil
from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from draco.agent.hardware.gpus import EventKind, Gpu, GpuEvent, GpuFault, GpuHealth, HealthState
from draco.resources.names import GpuUuid

LOST = "Lost"
NOT_FOUND = "NotFound"
REMAP_FAILED = "RemapFailed"
"""Faults that NVML tells of by itself, beside the recovery actions that it asks for."""


class Recovery(StrEnum):
    """The faults that stand for what NVML's recovery action asks for, and ceases to ask for when it was done."""

    RESET = "NeedsReset"
    REBOOT = "NeedsReboot"
    DRAIN_P2P = "NeedsDrainP2P"
    DRAIN_AND_RESET = "NeedsDrainAndReset"
    IMEX_RECOVERY = "NeedsImexRecovery"
    BUS_RESET = "NeedsBusReset"
    SYSTEM_REBOOT = "NeedsSystemReboot"
    UNKNOWN = "NeedsRecovery"
    """One that this release has no word for."""


REBOOTS = frozenset({LOST, NOT_FOUND, Recovery.REBOOT, Recovery.SYSTEM_REBOOT})


class FaultEnd(IntEnum):
    """What ends a fault, the milder first. A reboot ends all; a reloaded driver has reset its GPUs."""

    RESET = 1
    REBOOT = 2


class FatalXid(msgspec.Struct, frozen=True):
    """An XID that ends a GPU. `spreads`: also when it is reported for one instance, the others are hit."""

    what: str
    ends: FaultEnd = FaultEnd.RESET
    spreads: bool = False

    def sentence(self, xid: int) -> str:
        """What happened, and what to do."""
        cure = {
            FaultEnd.RESET: "drain it and reset it with `nvidia-smi --gpu-reset`, reload the driver, or reboot the node",
            FaultEnd.REBOOT: "drain and reboot the node",
        }
        return f"XID {xid}: {self.what}; {cure[self.ends]}."


class Xid(msgspec.Struct, frozen=True):
    """A row of `xids.toml`, which says what `action` and `spreads` are."""

    codes: list[int]
    action: Literal["reset", "reboot", "recovery-action", "next-reset", "application", "inspect", "record"]
    what: str
    spreads: bool = False


_FILE = pkgutil.get_data(__package__, "xids.toml") or b""
TABLE: Final = msgspec.toml.decode(_FILE, type=dict[str, list[Xid]])["xids"]
FATAL: Mapping[int, FatalXid] = MappingProxyType(
    {
        code: FatalXid(each.what, FaultEnd[each.action.upper()], each.spreads)
        for each in TABLE
        for code in each.codes
        if each.action in {"reset", "reboot"}
    }
)


class LatchedXid(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fatal XID that came, in which boot and which load of the driver ("" if unknown).

    `asked`: since then NVML has asked for a recovery action. When it asks for none any more, that has been done.
    """

    gpu: GpuUuid
    xid: int
    boot_id: str
    driver_load: str = ""
    asked: bool = False

    @property
    def fatal(self) -> FatalXid:
        """What the table says of it. A record of another release may name what this one does not know."""
        return FATAL.get(self.xid, FatalXid("an error that another release of the agent treats as fatal"))

    @property
    def fault(self) -> GpuFault:
        """What it means for the GPU."""
        return GpuFault(f"Xid{self.xid}", self.fatal.sentence(self.xid))


def latched(event: GpuEvent, *, boot_id: str, driver_load: str) -> LatchedXid | None:
    """What is to be remembered of an event; None if it ends no GPU, or only one of its instances."""
    fatal = FATAL.get(event.data) if event.kind is EventKind.XID else None
    if fatal is None or event.gpu is None or (event.gpu_instance is not None and not fatal.spreads):
        return None
    return LatchedXid(gpu=event.gpu, xid=event.data, boot_id=boot_id, driver_load=driver_load)


def after_load(one: LatchedXid, *, boot_id: str, driver_load: str) -> LatchedXid | None:
    """What is left of a fault in this boot and this load of the driver; None when it is over."""
    if one.boot_id != boot_id:
        return None
    reloaded = bool(one.driver_load and driver_load and one.driver_load != driver_load)
    return None if reloaded and one.fatal.ends is FaultEnd.RESET else one


def after_look(one: LatchedXid, seen: Gpu) -> LatchedXid | None:
    """What is left of a fault when NVML has been asked how the GPU is; None when it was reset.

    No call tells of a reset. Where the driver has recovery actions, it asks for one after such an XID and stops asking when it
    was done; where it has none, only a new load of the driver and a reboot are certain.
    """
    if seen.fault is not None:
        return msgspec.structs.replace(one, asked=True) if seen.fault.name in set(Recovery) else one
    done = one.asked and seen.health.state is HealthState.HEALTHY and one.fatal.ends is FaultEnd.RESET
    return None if done else one


def judged(gpu: Gpu, remembered: Iterable[LatchedXid]) -> Gpu:
    """The GPU with the fault that counts: the one that takes most to end, the remembered before what NVML says, the first."""
    found = sorted((one for one in remembered if one.gpu == gpu.uuid), key=lambda one: -one.fatal.ends)
    if not found or gpu.absent:
        return gpu
    if gpu.fault is not None and gpu.fault.name in REBOOTS and found[0].fatal.ends is FaultEnd.RESET:
        return gpu
    return with_fault(gpu, found[0].fault)


def with_fault(gpu: Gpu, fault: GpuFault) -> Gpu:
    """A GPU that takes no new work. It is unhealthy, whatever else is known of it."""
    return msgspec.structs.replace(gpu, fault=fault, health=GpuHealth(HealthState.UNHEALTHY, fault.message))
