"""Keeps fatal XIDs on disk for the next run of the agent: NVML reports an XID only once.

Owns the file and what is known of each GPU; what ends a GPU and what ends its fault is `faults`'. Used by the thread that reads
NVML. A file that cannot be read or written costs what is remembered over a restart, and nothing else: it is said, and what NVML
answers now still counts.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import structlog

from draco.agent.files import Files
from draco.agent.hardware.faults import FaultEnd, LatchedXid, after_load, after_look, judged, latched
from draco.agent.hardware.gpus import Gpu, GpuEvent
from draco.resources.api.foreign import read

log = structlog.get_logger()

FAULTS = "faults.json"
VERSION = 1


class _Record(msgspec.Struct, kw_only=True):
    version: int
    faults: list[LatchedXid] = []


_decoder = msgspec.json.Decoder(_Record)


def driver_load(sysfs_root: Path) -> str:
    """Names this load of the NVIDIA kernel module; "" where that is unknown.

    Sysfs numbers its folders in the order in which they come into being, and gives no number twice.
    """
    try:
        return str((sysfs_root / "module" / "nvidia").stat().st_ino)
    except OSError:
        return ""


class FaultRecord:
    """The faults that NVML reported for one node's GPUs. `driver_load` names the load of the driver."""

    def __init__(self, path: Path, files: Files, *, boot_id: str, driver_load: Callable[[], str]) -> None:
        self._path = path
        self._files = files
        self._boot_id = boot_id
        self._driver_load = driver_load
        self._faults: tuple[LatchedXid, ...] | None = None
        self._written: tuple[LatchedXid, ...] | None = None
        self._said = ""

    def happened(self, event: GpuEvent) -> None:
        """Remember what an event means, if it ends a GPU."""
        fresh = latched(event, boot_id=self._boot_id, driver_load=self._driver_load())
        if fresh is None or any((one.gpu, one.xid) == (fresh.gpu, fresh.xid) for one in self._known()):
            return
        self._keep((*self._known(), fresh))

    def reloaded(self) -> None:
        """The driver was reloaded during this session."""
        self._keep(one for one in self._known() if one.fatal.ends is not FaultEnd.RESET)

    def look(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """The GPUs as NVML shows them now, each with the fault that counts; what is over is forgotten."""
        load = self._driver_load()
        seen = {gpu.uuid: gpu for gpu in gpus}
        left = (after_load(one, boot_id=self._boot_id, driver_load=load) for one in self._known())
        looked = (after_look(one, seen[one.gpu]) if one and one.gpu in seen else one for one in left)
        self._keep(one for one in looked if one is not None)
        return self.judge(gpus)

    def judge(self, gpus: Iterable[Gpu]) -> list[Gpu]:
        """The same by what is known already, without a new look."""
        return [judged(gpu, self._known()) for gpu in gpus]

    def _known(self) -> tuple[LatchedXid, ...]:
        if self._faults is None:
            self._faults = self._written = self._read()
        return self._faults

    def _read(self) -> tuple[LatchedXid, ...]:
        try:
            record = read(_decoder, self._files.read(self._path))
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as error:
            log.warning("faults.forgotten", path=str(self._path), error=str(error))
            return ()
        return tuple(record.faults) if record.version == VERSION else ()

    def _keep(self, faults: Iterable[LatchedXid]) -> None:
        before, self._faults = self._known(), tuple(faults)
        for one in self._faults:
            if (one.gpu, one.xid) not in {(known.gpu, known.xid) for known in before}:
                log.error("gpu.fault", gpu=one.gpu, fault=one.fault.name, error=one.fault.message)
        for one in before:
            if (one.gpu, one.xid) not in {(left.gpu, left.xid) for left in self._faults}:
                log.info("gpu.fault_over", gpu=one.gpu, fault=one.fault.name)
        if self._faults == self._written:
            return
        try:
            self._files.write(self._path, msgspec.json.encode(_Record(version=VERSION, faults=list(self._faults))))
        except OSError as error:
            if str(error) != self._said:
                log.warning("faults.not_kept", path=str(self._path), error=str(error))
            self._said = str(error)
            return
        self._written, self._said = self._faults, ""
