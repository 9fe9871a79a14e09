"""Runs the node's nvidia-smi, for what NVML has no call for.

Owns which program runs, and that it uses the NVML that belongs to it: the driver's files may lie in a folder of their own.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from draco.agent.hardware.driver_root import DriverRoot
from draco.agent.hardware.programs import ProgramFailed, run

SMI: Final = "nvidia-smi"
Smi: TypeAlias = Callable[[Sequence[str]], object]
"""Runs nvidia-smi with these arguments. Raises ProgramFailed."""


class NvidiaSmi:
    """The program of an installed driver. Without a root it is looked for on the path."""

    def __init__(self, root: DriverRoot | None) -> None:
        self._root = root

    def __call__(self, arguments: Sequence[str]) -> bytes:
        """Its output. Raises ProgramFailed."""
        program, environment = self._program()
        return run([str(program), *arguments], called=SMI, environment=environment)

    def _program(self) -> tuple[Path, dict[str, str]]:
        if self._root is None:
            if (found := shutil.which(SMI)) is not None:
                return Path(found), {}
            raise ProgramFailed(f"there is no {SMI} on the agent's path; name the driver's folder with --driver-root")
        for driver in self._root.installed():
            if (program := driver.program(SMI)) is not None:
                return program, {"LD_PRELOAD": str(driver.nvml)}
        raise ProgramFailed(
            f"the driver below {self._root.host} has no {SMI}; install the driver's programs there, or name its folder with "
            "--driver-root (agent.driverRoot of the chart)"
        )
