"""Asks an MPS control daemon through its pipe, with the driver's nvidia-cuda-mps-control.

Owns the commands and how their answers are read. Starts no daemon. Source: NVIDIA's MPS documentation, r615.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from draco.agent.hardware.driver_program import DriverPrograms
from draco.agent.hardware.programs import ProgramFailed, ProgramSilent, run
from draco.agent.mps.folder import WantedDaemon

CONTROL: Final = "nvidia-cuda-mps-control"
PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
PROTOCOL: Final[Mapping[str, str]] = {"CUDA_MPS_PROTOCOL_VERSION": "2"}
"""Which commands daemons are to take, whatever the node's environment says: drivers since 615 know 3, too."""
LOG_VARIABLE: Final = "CUDA_MPS_LOG_DIRECTORY"
ANSWER_S: Final = 3.0
"""A daemon that is well answers within milliseconds."""
_PERCENTAGE: Final = "default_active_thread_percentage"
_LIMIT: Final = "default_device_pinned_mem_limit"


class MpsControl:
    """The control program of the installed driver."""

    def __init__(self, programs: DriverPrograms) -> None:
        self._programs = programs

    def missing(self) -> str:
        """Why there is no control program, as the end of a sentence; "" if there is one."""
        try:
            self._programs.find(CONTROL)
        except ProgramFailed as error:
            return str(error)
        return ""

    def newest_protocol(self) -> int:
        """The newest protocol of the installed program: 3 has limits for namespaces of clients. Raises ProgramFailed."""
        program = self._programs.find(CONTROL)
        try:
            said = run(
                [str(program.path), "-p", "3", "-h"], called=CONTROL, environment=program.environment, within_s=ANSWER_S
            )
        except ProgramSilent:
            raise
        except ProgramFailed:
            return 2  # it does not know the option
        return 3 if b"namespace" in said else 2

    def ask(self, pipe: Path, command: str) -> str:
        """The daemon's answer. Raises ProgramFailed, ProgramSilent if one is there that does not answer."""
        program = self._programs.find(CONTROL)
        environment = {**program.environment, **PROTOCOL, PIPE_VARIABLE: str(pipe)}
        said = run(
            [str(program.path)],
            called=CONTROL,
            environment=environment,
            given=f"{command}\n".encode(),
            within_s=ANSWER_S,
        )
        return said.decode(errors="replace").strip()

    def set_up(self, pipe: Path, wanted: WantedDaemon) -> None:
        """Give a new daemon its limits, which concern the servers that it starts from now on. Raises ProgramFailed."""
        if wanted.percentage is not None:
            self.ask(pipe, f"set_{_PERCENTAGE} {wanted.percentage}")
        for number, mib in enumerate(wanted.limits_mib):
            if mib is not None:
                self.ask(pipe, f"set_{_LIMIT} {number} {mib}M")

    def lacking(self, pipe: Path, wanted: WantedDaemon) -> str:
        """Why a daemon is not ready for clients, as the end of a sentence; "" if it is."""
        try:
            percentage = self.ask(pipe, f"get_{_PERCENTAGE}")
            if wanted.percentage is not None and _number(percentage) != wanted.percentage:
                return f"it gives each client {percentage} % of the threads instead of {wanted.percentage} %"
            for number, mib in enumerate(wanted.limits_mib):
                if mib is not None and not _is_limit(limit := self.ask(pipe, f"get_{_LIMIT} {number}"), mib):
                    return f"it limits each client's memory to {limit or 'nothing'} instead of {mib}M"
        except ProgramFailed as error:
            return str(error)
        return ""

    def servers(self, pipe: Path) -> list[int]:
        """The processes that serve clients. Raises ProgramFailed."""
        return _pids(self.ask(pipe, "get_server_list"))

    def clients(self, pipe: Path, server: int) -> list[int]:
        """The clients of a server. Raises ProgramFailed."""
        return _pids(self.ask(pipe, f"get_client_list {server}"))

    def status(self, pipe: Path, server: int) -> str:
        """A server's status, such as ACTIVE or FAULT. Raises ProgramFailed."""
        return self.ask(pipe, f"get_server_status {server}")

    def quit(self, pipe: Path) -> None:
        """End the daemon and its servers. Raises ProgramFailed."""
        self.ask(pipe, "quit")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_limit(text: str, mib: int) -> bool:
    """Whether the daemon's answer is this limit. Drivers since 595 tell limits from 1 GiB on in whole GiB, cut off: 10G."""
    said = text.strip().removesuffix("B")
    number = _number(said.removesuffix("M").removesuffix("G"))
    return number is not None and int(number) == (mib >> 10 if said.endswith("G") else mib)


def _pids(text: str) -> list[int]:
    return [int(each) for each in text.split() if each.isdecimal()]
