"""NVML's numbers in words: return codes as errors, and names of boards, events and recovery actions.

Owns the hierarchy of errors, with messages that a person can act on, and the tables. What an error means for a claim is decided
elsewhere.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pynvml

from draco.agent.hardware import faults
from draco.agent.hardware.faults import Recovery
from draco.agent.hardware.gpus import EventKind
from draco.health.ledger import Sign
from draco.resources.errors import DracoError

_LOOK_FOR_GPU = "look for it with `nvidia-smi -L`, and reboot the node if it should be there"


class NvmlError(DracoError):
    """NVML refused; `code` is its return code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class DriverError(NvmlError):
    """The driver fails, not one GPU."""


class DriverMissing(DriverError):
    """The node has no NVIDIA driver, or it is not loaded."""


class DriverReloaded(DriverError):
    """The driver was reloaded or upgraded, or the session was never opened: close, open again, forget all handles."""


class DriverMismatched(DriverError):
    """The library and the loaded driver have different versions: no call works until the driver is reloaded."""


class CallError(NvmlError):
    """One call, or the GPU that it concerns, fails; the driver answers."""

    fault: str = ""
    """The fault of a GPU that answers so; "" if the answer says nothing of its state."""
    blames_gpu: bool = True
    """Whether a GPU that answers so may be broken. False if the answer concerns the board's features or the caller's rights."""


class GpuLost(CallError):
    """The GPU has fallen off the bus; only a reboot of the node brings it back."""

    fault = faults.LOST


class ResetRequired(CallError):
    """The GPU works again only after a reset."""

    fault = Recovery.RESET


class PermissionMissing(CallError):
    """The agent may not make this call."""

    blames_gpu = False


class NotSupported(CallError):
    """The board or the driver does not have this: nothing is broken."""

    blames_gpu = False


class VersionUnknown(CallError):
    """The driver does not know this version of a call's argument: it is older than the agent expects."""

    blames_gpu = False


class GpuUnknown(CallError):
    """The GPU or instance does not exist, or not any more."""

    fault = faults.NOT_FOUND


class InUse(CallError):
    """A process uses the instance, or an instance in it: find the holder and retry."""


class InsufficientResources(CallError):
    """The units are taken, or an engine is used up: read the instances again; a retry does not help."""


class InvalidArgument(CallError):
    """A number that the board does not know; NVML also ends enumerations with it."""


class NoEvent(CallError):
    """No event within the timeout; from a call that changes something, the outcome is unknown."""


def never_seen(uuid: str) -> GpuUnknown:
    """The error for a GPU that this agent has never seen."""
    return GpuUnknown(
        f"GPU {uuid} has not been seen since the agent started: it left the node, or the driver does not answer; "
        f"{_LOOK_FOR_GPU}.",
        int(pynvml.NVML_ERROR_NOT_FOUND),
    )


class Unreadable(CallError):
    """NVML's answer says nothing about the GPU's state."""


def translated(error: Any, function: str, *, gpu: str = "") -> NvmlError:
    """NVML's refusal of a function as one of these errors. `gpu` is the UUID of the GPU it concerns, "" for none."""
    code = int(error.value)
    if code in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_GPU_NOT_FOUND) and gpu:
        return GpuUnknown(
            f"NVML knows no GPU {gpu} ({function}): it was removed, or has fallen off the bus; {_LOOK_FOR_GPU}.", code
        )
    if code == pynvml.NVML_ERROR_NOT_SUPPORTED and "Instance" in function:
        return NotSupported(
            f"This GPU does not support NVML's {function} now: its MIG mode is off, or its board has no such profile.",
            code,
        )
    kind, sentence = _ERRORS.get(
        code, (Unreadable, "NVML's {function} answered {error} (code {code}); look for NVRM in the kernel log.")
    )
    return kind(sentence.format(function=function, error=_NAMELESS.get(code, error), code=code), code)


def optional(call: Callable[..., Any], function: str, *args: Any) -> Any:
    """What a function answers, or None where the board or the driver does not have this."""
    try:
        return call(function, *args)
    except NotSupported:
        return None


def not_text(function: str) -> NvmlError:
    """The error for an answer that is not UTF-8, which pynvml cannot decode."""
    sentence = (
        f"NVML's {function} answered bytes that are not text; reload the driver, or replace the GPU if they come back."
    )
    return Unreadable(sentence, int(pynvml.NVML_ERROR_UNKNOWN))


_NAMELESS: Mapping[int, str] = MappingProxyType({int(pynvml.NVML_ERROR_INVALID_STATE): "Invalid State"})
"""Texts that pynvml lacks."""
_INSTALL = "install the NVIDIA driver, or have the container toolkit pass it into this container"
_GONE = "NVML's {function} did not find the GPU or instance; it is gone, or never existed."
_ERRORS: Mapping[int, tuple[Callable[[str, int], NvmlError], str]] = MappingProxyType(
    {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
            DriverMissing,
            f"NVML is not available on this node: libnvidia-ml.so.1 was not found; {_INSTALL}.",
        ),
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
            DriverMissing,
            "NVML is not available on this node: the kernel module is not loaded; load it with `modprobe nvidia`.",
        ),
        pynvml.NVML_ERROR_UNINITIALIZED: (
            DriverReloaded,
            "NVML must be opened again, as after a reload of the NVIDIA driver; the agent does so within seconds.",
        ),
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            DriverMismatched,
            "NVML's library and the loaded NVIDIA driver have different versions; reload the driver or reboot the node.",
        ),
        pynvml.NVML_ERROR_GPU_IS_LOST: (
            GpuLost,
            "The GPU is lost: it has fallen off the PCI bus; drain and reboot the node.",
        ),
        pynvml.NVML_ERROR_RESET_REQUIRED: (
            ResetRequired,
            "The GPU needs a reset before it can be used; drain it and run `nvidia-smi --gpu-reset`.",
        ),
        pynvml.NVML_ERROR_NO_PERMISSION: (
            PermissionMissing,
            "NVML's {function} needs more rights; run the agent as root with access to the NVIDIA device nodes.",
        ),
        pynvml.NVML_ERROR_NOT_SUPPORTED: (NotSupported, "This GPU does not support NVML's {function}."),
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
            NotSupported,
            "The installed NVIDIA driver is too old for NVML's {function}; upgrade the driver.",
        ),
        pynvml.NVML_ERROR_DEPRECATED: (
            NotSupported,
            "The installed NVIDIA driver no longer has NVML's {function}; upgrade Draco.",
        ),
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: (
            VersionUnknown,
            "The installed NVIDIA driver is too old for this way to call NVML's {function}; upgrade the driver.",
        ),
        pynvml.NVML_ERROR_NOT_FOUND: (GpuUnknown, _GONE),
        pynvml.NVML_ERROR_GPU_NOT_FOUND: (GpuUnknown, _GONE),
        pynvml.NVML_ERROR_TIMEOUT: (
            NoEvent,
            "NVML's {function} timed out; if this continues, look for NVRM in the kernel log.",
        ),
        pynvml.NVML_ERROR_IN_USE: (InUse, "NVML refused {function}: the GPU or instance is still in use."),
        pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: (
            InsufficientResources,
            "NVML refused {function}: the GPU has no room there.",
        ),
        pynvml.NVML_ERROR_INVALID_ARGUMENT: (
            InvalidArgument,
            "NVML's {function} rejected its arguments; report this with the output of `nvidia-smi -q`.",
        ),
    }
)


# Spelled as in the attributes of NVIDIA's DRA driver.
BRANDS: Mapping[int, str] = MappingProxyType(
    {
        pynvml.NVML_BRAND_QUADRO: "Quadro",
        pynvml.NVML_BRAND_TESLA: "Tesla",
        pynvml.NVML_BRAND_NVS: "NVS",
        pynvml.NVML_BRAND_GRID: "Grid",
        pynvml.NVML_BRAND_GEFORCE: "GeForce",
        pynvml.NVML_BRAND_TITAN: "Titan",
        pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
        pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
        pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
        pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
        pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
        pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
        pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
        pynvml.NVML_BRAND_NVIDIA: "Nvidia",
        pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
        pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
    }
)
ARCHITECTURES: Mapping[int, str] = MappingProxyType(
    {
        pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
        pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
        pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
        pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
        pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
        pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
        pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
        pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
        pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    }
)
ADDRESSING_MODES: Mapping[int | None, str] = MappingProxyType(
    {
        pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE: "None",
        pynvml.NVML_DEVICE_ADDRESSING_MODE_HMM: "HMM",
        pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS: "ATS",
    }
)

EVENT_KINDS: Mapping[int, EventKind] = MappingProxyType(
    {
        pynvml.nvmlEventTypeXidCriticalError: EventKind.XID,
        pynvml.nvmlEventTypeSingleBitEccErrorStorm: EventKind.CORRECTED_ECC,
        pynvml.nvmlEventTypeDoubleBitEccError: EventKind.UNCORRECTED_ECC,
        pynvml.nvmlEventTypeGpuRecoveryAction: EventKind.RECOVERY_ACTION,
        pynvml.nvmlEventMigConfigChange: EventKind.MIG_CHANGED,
        pynvml.nvmlEventTypeNonFatalPoisonError: EventKind.POISON,
        pynvml.nvmlEventTypeFatalPoisonError: EventKind.POISON,
        pynvml.nvmlEventTypeGpuUnavailableError: EventKind.UNAVAILABLE,
    }
)
WATCHED = sum(EVENT_KINDS)

RECOVERY_ACTIONS: Mapping[int, Sign] = MappingProxyType(
    {
        pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: Sign(
            Recovery.RESET, "The GPU needs a reset; drain it and run `nvidia-smi --gpu-reset`."
        ),
        pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: Sign(Recovery.REBOOT, "The GPU needs a reboot of its node."),
        pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: Sign(
            Recovery.DRAIN_P2P, "All work that uses peer access to the GPU must end."
        ),
        pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: Sign(
            Recovery.DRAIN_AND_RESET,
            "The GPU runs with less than its full capability; let its work end, then reset it.",
        ),
        pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: Sign(
            Recovery.IMEX_RECOVERY, "The GPU needs its IMEX domain to be recovered."
        ),
        pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: Sign(Recovery.BUS_RESET, "The GPU needs a reset of its PCI bus."),
        pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: Sign(
            Recovery.SYSTEM_REBOOT, "The GPU needs a reboot of the whole system."
        ),
    }
)
