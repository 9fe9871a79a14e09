"""What NVML answers about a GPU's NVLinks: where they lead, and which NVLink fabric the GPU is in.

Owns the calls. Where links lead is asked when another set of them is up than before, which the health reading counts with one
call for all of them; the fabric is asked at every reading, as it completes without an event. A driver or board without these
functions has nothing to say, and then nothing is said. Which GPUs that makes neighbours is in `draco.agent.publish.nvlink`.
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
    """`place` is None for a GPU that is in no fabric of several nodes; `pending` is one that has not joined its fabric yet.

    `failed` says in a sentence why it could not join, "" where it could.
    """

    place: FabricPlace | None = None
    pending: bool = False
    failed: str = ""


class LinkReader:
    """Reads the links of one session's GPUs. `call` raises what `nvml_errors` knows."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._ends: dict[GpuUuid, tuple[int, LinkEnds]] = {}
        self._without_fabric: set[GpuUuid] = set()

    def forget(self) -> None:
        """A new session begins: the driver may be another one, and boards may have changed places."""
        self._ends, self._without_fabric = {}, set()

    def ends(self, uuid: GpuUuid, handle: Any, up: int | None, fabric: FabricReading) -> LinkEnds | None:
        """Where the links lead that are up, one bit each; None when that is not known, as while the GPU is divided.

        CallError when it cannot be read now.
        """
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
        """Which fabric the GPU is in. CallError when that cannot be read now."""
        if uuid in self._without_fabric:
            return FabricReading()
        for function, kind in _FABRIC_CALLS:
            info: Any = kind()
            try:
                self._call(function, handle, ctypes.byref(info))
            except (NotSupported, VersionUnknown):
                continue
            return _fabric(info)
        if not divided:  # what it answers while it is divided may be another thing
            self._without_fabric.add(uuid)
        return FabricReading()


_FABRIC_CALLS: tuple[tuple[str, Any], ...] = (
    ("nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfoV_t),
    ("nvmlDeviceGetGpuFabricInfo", pynvml.c_nvmlGpuFabricInfo_t),  # drivers before 2024 have this one only
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
