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
from draco.agent.hardware.nvml_errors import CallError
from draco.resources.names import GpuUuid

Call = Callable[..., Any]


class FabricReading(NamedTuple):
    """`place` is None for a GPU that is in no fabric of several nodes; `pending` is one that has not joined its fabric yet."""

    place: FabricPlace | None = None
    pending: bool = False


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

        CallError when an answer says that the GPU itself is in trouble.
        """
        if up is None:
            return self._ends[uuid][1] if uuid in self._ends else None
        if uuid not in self._ends or self._ends[uuid][0] != up:
            self._ends[uuid] = (up, self._asked(handle, [link for link in range(up.bit_length()) if up >> link & 1]))
        ends = self._ends[uuid][1]
        return LinkEnds(gpus=ends.gpus) if fabric.pending else ends  # switches carry nothing before the GPU has joined

    def _asked(self, handle: Any, links: list[int]) -> LinkEnds:
        switched, gpus = False, set()
        for link in links:
            kind = self._told("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                switched = True
            elif kind == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU:
                pci = self._told("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
                if pci is not None:
                    gpus.add(f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0")
        return LinkEnds(switched=switched, gpus=tuple(sorted(gpus)))

    def fabric(self, uuid: GpuUuid, handle: Any) -> FabricReading:
        """Which fabric the GPU is in. CallError when an answer says that the GPU itself is in trouble."""
        if uuid in self._without_fabric:
            return FabricReading()
        info: Any = pynvml.c_nvmlGpuFabricInfoV_t()
        if self._told("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None:  # before 2024's drivers
            info = pynvml.c_nvmlGpuFabricInfo_t()
            if self._told("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info)) is None:
                self._without_fabric.add(uuid)
                return FabricReading()
        if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status != pynvml.NVML_SUCCESS:
            return FabricReading(pending=info.state != pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED)
        cluster = bytes(info.clusterUuid)
        return FabricReading(_place(cluster, int(info.cliqueId)) if any(cluster) else None)

    def _told(self, function: str, *args: Any) -> Any:
        try:
            return self._call(function, *args)
        except CallError as error:
            if error.fault:  # what an answer says of the GPU itself counts more than that one thing could not be asked
                raise
            return None


def _place(cluster: bytes, clique: int) -> FabricPlace:
    return FabricPlace(cluster=str(uuid.UUID(bytes=cluster)), clique=clique)
