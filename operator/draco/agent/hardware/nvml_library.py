"""Loads the node's NVML, and no other library of the node.

pynvml looks for `libnvidia-ml.so.1` on the library path. A container with the node's library folder there would also load the
node's C library, and crash if that is of another release. So the path stays as in the image: NVML is loaded by its full path and
handed to pynvml; the C library, its only dependency, is the container's. Owns which file is loaded, also after an upgrade of the
driver. Opens no session.
"""

import _ctypes  # unloads a library: ctypes has no public name for it
import ctypes
from typing import NamedTuple

import pynvml
import structlog

from draco.agent.hardware.driver_root import NVML, DriverRoot, InstalledDriver
from draco.agent.hardware.nvml_errors import DriverMissing

log = structlog.get_logger()


class _File(NamedTuple):
    path: str
    device: int
    inode: int
    modified_ns: int


class NodeLibrary:
    """The NVML below a driver root, for pynvml."""

    def __init__(self, root: DriverRoot) -> None:
        self._root = root
        self._loaded: _File | None = None
        self._library: ctypes.CDLL | None = None

    def load(self) -> None:
        """Make pynvml use the node's current NVML. Raises DriverMissing if there is none. No session may be open."""
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
