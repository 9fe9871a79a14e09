"""Finds a program of the installed driver, as this process can run it. Owns which installation's it is."""

import shutil
from pathlib import Path
from typing import NamedTuple

from draco.agent.hardware.driver_root import DriverRoot, InstalledDriver
from draco.agent.hardware.programs import ProgramFailed


class DriverProgram(NamedTuple):
    """A program, what it needs in its environment, and its driver; None if it was found on the path."""

    path: Path
    environment: dict[str, str]
    driver: InstalledDriver | None


class DriverPrograms:
    """The programs of an installed driver. Without a root they are looked for on the path."""

    def __init__(self, root: DriverRoot | None) -> None:
        self._root = root

    def find(self, name: str) -> DriverProgram:
        """The program of this name. Raises ProgramFailed."""
        if self._root is None:
            if (found := shutil.which(name)) is not None:
                return DriverProgram(Path(found), {}, None)
            raise ProgramFailed(f"there is no {name} on the agent's path; name the driver's folder with --driver-root")
        for driver in self._root.installed():
            if (program := driver.program(name)) is not None:
                # It must use the NVML that belongs to it: the driver's files may lie in a folder of their own.
                return DriverProgram(program, {"LD_PRELOAD": str(driver.nvml)}, driver)
        raise ProgramFailed(
            f"the driver below {self._root.host} has no {name}; install the driver's programs there, or name its folder with "
            "--driver-root (agent.driverRoot of the chart)"
        )
