"""Loads the node's NVML, and no other library of the node.

pynvml looks for `libnvidia-ml.so.1` on the library path. A container that has the node's library folder there would load the
node's C library too, and die of it where that is of another release. So the path stays as the image has it: NVML is loaded by
where it lies and handed to pynvml, and what it needs, the C library alone, is the container's.

Owns which file is loaded, also after the driver was upgraded. Opens no session.
"""

import _ctypes  # what unloads a library: ctypes has no public name for it
import ctypes
from typing import NamedTuple

import pynvml
import structlog

from draco.agent.hardware.driver_root import NVML, DriverRoot, InstalledDriver
from draco.agent.hardware.nvml_errors import DriverMissing

log = structlog.get_logger()


class _File(NamedTuple):
    """Which file a library was loaded from."""

    path: str
    device: int
    inode: int
    modified_ns: int


class NodeLibrary:
    """The NVML below a driver root, as pynvml's."""

    def __init__(self, root: DriverRoot) -> None:
        self._root = root
        self._loaded: _File | None = None
        self._library: ctypes.CDLL | None = None

    def load(self) -> None:
        """Make pynvml use the node's NVML as it is now; DriverMissing when there is none. No session may be open."""
        faults = []
        for driver in self._root.installed():
            try:
                self._use(driver)
            except OSError as error:
                faults.append(f"{driver.nvml} cannot be loaded ({error}).")
            else:
                return
        self._unload()
        raise DriverMissing(self._sentence(faults), int(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))

    def _use(self, driver: InstalledDriver) -> None:
        status = driver.nvml.stat()
        file = _File(str(driver.nvml), status.st_dev, status.st_ino, status.st_mtime_ns)
        if file == self._loaded:
            return
        self._unload()  # first: the loader takes a file of the same name for the same library
        self._library = ctypes.CDLL(file.path)
        self._loaded = file
        pynvml.nvmlLib = self._library
        log.info("nvml.loaded", library=file.path)

    def _unload(self) -> None:
        library, self._library, self._loaded = self._library, None, None
        if library is None:
            return
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()
        _ctypes.dlclose(library._handle)

    def _sentence(self, faults: list[str]) -> str:
        fix = "install the NVIDIA driver, or name the folder where it is with --driver-root (agent.driverRoot of the chart)"
        if faults:
            return f"NVML is not available on this node: {' '.join(faults)} Repair the NVIDIA driver, or {fix.split(', or ')[1]}."
        return f"NVML is not available on this node: there is no {NVML} in {self._root.searched()}; {fix}."
