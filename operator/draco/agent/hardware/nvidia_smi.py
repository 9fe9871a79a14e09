"""Runs the node's nvidia-smi, for what NVML has no call for."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from draco.agent.hardware.driver_program import DriverPrograms
from draco.agent.hardware.driver_root import DriverRoot
from draco.agent.hardware.programs import run

SMI: Final = "nvidia-smi"
Smi: TypeAlias = Callable[[Sequence[str]], object]
"""Runs nvidia-smi with these arguments. Raises ProgramFailed."""


class NvidiaSmi:
    """The program of an installed driver. Without a root it is looked for on the path."""

    def __init__(self, root: DriverRoot | None) -> None:
        self._programs = DriverPrograms(root)

    def __call__(self, arguments: Sequence[str]) -> bytes:
        """Its output. Raises ProgramFailed."""
        program = self._programs.find(SMI)
        return run([str(program.path), *arguments], called=SMI, environment=program.environment)
