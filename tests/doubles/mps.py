"""MPS on a node of a test: a driver with the simulated control program, and daemons that start in the test's own namespaces."""

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from draco.agent.files import Files
from draco.agent.hardware.driver_program import DriverPrograms
from draco.agent.hardware.driver_root import DriverRoot
from draco.agent.hardware.programs import run
from draco.agent.mps.control import CONTROL, PROTOCOL, MpsControl
from draco.agent.mps.folder import DaemonName, MpsFolder, WantedDaemon
from draco.mps.keeper import MpsKeeper
from draco.mps.processes import MarkedProcess, NodeProcesses, mark
from draco_local.simulator.driver import root
from tests.doubles.clock import ManualClock

CACHE: Final = Path("/tmp/draco-tests-mps")


class OwnProcesses(NodeProcesses):
    """The processes of one test's daemons: others run at the same time, with daemons of the same names."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Path("/proc"))
        self._pipes = f"CUDA_MPS_PIPE_DIRECTORY={folder}/".encode()

    def of(self, name: DaemonName) -> list[MarkedProcess]:
        return [each for each in super().of(name) if self._is_own(each.pid)]

    def _is_own(self, pid: int) -> bool:
        try:
            return self._pipes in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False


class PlainDaemons:
    """Daemons of the test's own namespaces: what `NodeDaemons` does without the node's."""

    def __init__(self, folder: MpsFolder, programs: DriverPrograms) -> None:
        self._folder = folder
        self._programs = programs
        self.broken = False

    def start(self, name: DaemonName, wanted: WantedDaemon, purpose: str) -> None:
        for each in (self._folder.pipe(name), self._folder.log(name), self._folder.shm(name)):
            each.mkdir(parents=True, exist_ok=True)
        environment = {
            "CUDA_VISIBLE_DEVICES": ",".join(wanted.devices),
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder.pipe(name)),
            **PROTOCOL,
            **mark(name, purpose),
        }
        program = "/bin/false" if self.broken else str(self._programs.find(CONTROL).path)
        run([program, "-d", *(["-M"] if wanted.multi_user else [])], called=CONTROL, environment=environment)

    def remove(self, name: DaemonName) -> None:
        shutil.rmtree(self._folder.path(name))


class MpsNode:
    """A keeper with its folder and driver. Ends its daemons when the block is left."""

    def __init__(self, folder: Path, version: str = "580.95.05") -> None:
        self.root = DriverRoot(folder / "driver", folder / "driver")
        root.install(self.root.host, version, cache=CACHE)
        self.folder = MpsFolder(folder / "mps", Files())
        self.control = MpsControl(DriverPrograms(self.root))
        self.processes = OwnProcesses(self.folder.root)
        self.daemons = PlainDaemons(self.folder, DriverPrograms(self.root))
        self.version = version
        self.keeper = self.another_keeper()

    def another_keeper(self) -> MpsKeeper:
        return MpsKeeper(
            self.folder,
            self.control,
            self.processes,
            self.daemons,
            version=lambda: self.version,
            clock=ManualClock(),
        )

    @contextmanager
    def hanging(self, name: DaemonName) -> Iterator[None]:
        """A daemon does not answer for the time of a block."""
        pids = [each.pid for each in self.processes.of(name)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.folder.names():
            for each in self.processes.of(name):
                os.kill(each.pid, signal.SIGCONT)
            self.processes.kill(name)


class MpsClient:
    """A program that uses MPS: a client of the daemon of a pipe, until it ends."""

    def __init__(self, pipe: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(5)
        folder = os.open(pipe, os.O_PATH)
        self._socket.connect(f"/proc/self/fd/{folder}/control")
        os.close(folder)
        self.answer = self.say("client")

    def say(self, word: str) -> str:
        self._socket.sendall(f"{word}\n".encode())
        return self._socket.recv(256).decode().strip()

    def end(self) -> None:
        """End, as by SIGKILL."""
        self._socket.close()
