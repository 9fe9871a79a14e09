"""What NVML reports about a GPU's NVLinks: where they lead, and the GPU's NVLink fabric.

Owns the calls. Link ends are read when the set of active links changes, which the health reading counts with one call; the fabric
is read every time, because it completes without an event. A driver or board without these functions reports nothing, and nothing
is published. `draco.agent.publish.nvlink` computes neighbours.
"""

import ctypes
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from draco.agent.hardware.gpus import FabricPlace, LinkEnds
from draco.agent.hardware.nvml_errors import NotSupported, VersionUnknown, optional
from draco.resources.names import GpuUuid

Call = Callable[..., Any]


class FabricReading(NamedTuple):
    """`place` is None outside a multi-node fabric; `pending`: the GPU has not joined its fabric yet.

    `failed` is a sentence why it could not join, "" if it could.
    """

    place: FabricPlace | None = None
    pending: bool = False
    failed: str = ""


class LinkReader:
    """Reads the links of one session's GPUs. `call` raises the errors of `nvml_errors`."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._ends: dict[GpuUuid, tuple[int, LinkEnds]] = {}
        self._without_fabric: set[GpuUuid] = set()

    def forget(self) -> None:
        """Start a new session: the driver may be another one, and boards may have moved."""
        self._ends, self._without_fabric = {}, set()

    def ends(self, uuid: GpuUuid, handle: Any, up: int | None, fabric: FabricReading) -> LinkEnds | None:
        """Where the active links (one bit each) lead; None if unknown, as for a divided GPU. Raises CallError if unreadable."""
        if up is None:
            return self._ends[uuid][1] if uuid in self._ends else None
        if uuid not in self._ends or self._ends[uuid][0] != up:
            self._ends[uuid] = (up, self._asked(handle, [link for link in range(up.bit_length()) if up >> link & 1]))
        ends = self._ends[uuid][1]
        apart = fabric.pending or fabric.failed  # switches carry nothing before the GPU has joined
        return LinkEnds(gpus=ends.gpus) if apart else ends

    def _asked(self, handle: Any, links: list[int]) -> LinkEnds:
        switched, gpus = False, set()
        for link in links:
            kind = optional(self._call, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                switched = True
            elif kind == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU:
                pci = optional(self._call, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
                if pci is not None:
                    gpus.add(f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0")
        return LinkEnds(switched=switched, gpus=tuple(sorted(gpus)))

    def fabric(self, uuid: GpuUuid, handle: Any, *, divided: bool) -> FabricReading:
        """The GPU's fabric. Raises CallError if it cannot be read now."""
        if uuid in self._without_fabric:
            return FabricReading()
        for function, kind in _FABRIC_CALLS:
            info: Any = kind()
            try:
                self._call(function, handle, ctypes.byref(info))
            except (NotSupported, VersionUnknown):
                continue
            return _fabric(info)
        if not divided:  # a divided GPU may answer differently
            self._without_fabric.add(uuid)
        return FabricReading()


_FABRIC_CALLS: tuple[tuple[str, Any], ...] = (
    ("nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfoV_t),
    ("nvmlDeviceGetGpuFabricInfo", pynvml.c_nvmlGpuFabricInfo_t),  # the only one in drivers before 2024
)


def _fabric(info: Any) -> FabricReading:
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return FabricReading()
    if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        return FabricReading(pending=True)
    if info.status != pynvml.NVML_SUCCESS:
        said = str(pynvml.NVMLError(int(info.status)))
        return FabricReading(
            failed=f"The GPU could not join its NVLink fabric ({said}, status {info.status}); look into the fabric manager's log "
            "(`journalctl -u nvidia-fabricmanager`), then reset the GPU or reboot the node."
        )
    cluster = bytes(info.clusterUuid)
    place = FabricPlace(cluster=str(uuid.UUID(bytes=cluster)), clique=int(info.cliqueId))
    return FabricReading(place if any(cluster) else None)
