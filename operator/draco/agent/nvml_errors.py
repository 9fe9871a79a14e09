"""What can go wrong with NVML, as sentences a person can act on.

Owns the hierarchy only; `nvml` knows which return code is which error.
"""

from draco.resources.errors import DracoError


class NvmlError(DracoError):
    """NVML refused; `code` is its return code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class DriverError(NvmlError):
    """The node's driver is the trouble, not one GPU."""


class DriverMissing(DriverError):
    """There is no NVIDIA driver on this node, or it is not loaded."""


class DriverReloaded(DriverError):
    """The driver was reloaded or upgraded, or the session was never opened: close, open again, forget all handles."""


class GpuLost(NvmlError):
    """The GPU has fallen off the bus; only a reboot of the node brings it back."""


class ResetRequired(NvmlError):
    """The GPU works again only after a reset."""


class PermissionMissing(NvmlError):
    """The agent may not make this call."""


class NotSupported(NvmlError):
    """The board or the driver does not have this."""


class GpuUnknown(NvmlError):
    """No GPU of this node has that UUID."""


class NoEvent(NvmlError):
    """Nothing happened in the time given."""


class Unreadable(NvmlError):
    """NVML's answer says nothing about the GPU's state."""
