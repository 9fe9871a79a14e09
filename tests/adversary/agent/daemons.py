"""MPS on the adversary's node: the driver's control program and its daemons, and a keeper that can die at any step.

Owns the stand-ins for what the keeper and the agent run on the node; the keeper is the product's. Judges nothing but one thing
that only this module sees: whether somebody ends a daemon that has clients.
"""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from draco.agent.hardware.driver_program import DriverPrograms
from draco.agent.hardware.programs import ProgramFailed, ProgramSilent
from draco.agent.mps.control import MpsControl
from draco.agent.mps.folder import DaemonName, MpsFolder, WantedDaemon
from draco.kube.clock import Clock
from draco.mps.keeper import MpsKeeper
from draco.mps.processes import MarkedProcess
from tests.adversary.agent.processes import Process, current
from tests.adversary.agent.surroundings import Death, Disk, MortalFiles

NO_DAEMON = "Cannot find MPS control daemon process"


class Daemon(msgspec.Struct):
    """A control daemon. `clients` are processes; its server has a fault until all of them have left."""

    pid: int
    name: DaemonName
    purpose: str
    devices: list[str]
    percentage: float = 100.0
    limits: dict[int, str] = {}
    clients: set[int] = set()
    hangs: bool = False
    faulty: bool = False

    @property
    def server(self) -> int:
        """The process that serves the clients."""
        return self.pid + 1


class NodeMps(MpsControl):
    """All daemons of a node, by the folder of their pipes, and the program that asks them.

    `lives` and `may_run` say whether a process is there, and whether its claim is prepared.
    """

    def __init__(self, lives: Callable[[int], bool], may_run: Callable[[int], bool]) -> None:
        super().__init__(DriverPrograms(None))
        self._lives = lives
        self._may_run = may_run
        self.installed = False
        self.broken = False
        """Whether no daemon starts."""
        self.running: dict[Path, Daemon] = {}
        self.ended: list[str] = []
        """Daemons that somebody ended under clients."""
        self._pid = 900_000

    def missing(self) -> str:
        return "" if self.installed else "there is no nvidia-cuda-mps-control"

    def ask(self, pipe: Path, command: str) -> str:
        current().step(f"before mps {command}")
        daemon = self.running.get(pipe)
        if not self.installed or daemon is None:
            raise ProgramFailed(NO_DAEMON)
        if daemon.hangs:
            raise ProgramSilent("nvidia-cuda-mps-control does not answer")
        self.leave(daemon)
        return self._answer(pipe, daemon, command.split())

    def _answer(self, pipe: Path, daemon: Daemon, words: list[str]) -> str:
        match words:
            case ["get_default_active_thread_percentage"]:
                return f"{daemon.percentage:.1f}"
            case ["set_default_active_thread_percentage", amount]:
                daemon.percentage = float(amount)
            case ["set_default_device_pinned_mem_limit", number, amount]:
                daemon.limits[int(number)] = amount
            case ["get_default_device_pinned_mem_limit", number]:
                return daemon.limits.get(int(number), "")
            case ["get_server_list"]:
                return str(daemon.server) if daemon.clients else ""
            case ["get_server_status", _]:
                return "FAULT" if daemon.faulty else "ACTIVE"
            case ["get_client_list", _]:
                return "\n".join(map(str, sorted(daemon.clients)))
            case ["quit"]:
                self._end(pipe, "told to quit")
        return ""

    def leave(self, daemon: Daemon) -> None:
        """Clients whose processes have ended have left; a fault ends with the last one."""
        daemon.clients = {pid for pid in daemon.clients if self._lives(pid)}
        daemon.faulty = daemon.faulty and bool(daemon.clients)

    def _end(self, pipe: Path, how: str) -> None:
        daemon = self.running.pop(pipe)
        self.leave(daemon)
        if clients := sorted(filter(self._may_run, daemon.clients)):
            self.ended.append(f"{pipe.parent.name} was {how} under clients {clients}")

    # What the keeper does outside of its container

    def start(self, name: DaemonName, wanted: WantedDaemon, purpose: str, folder: MpsFolder) -> None:
        current().step("before mps start")
        if self.broken:
            raise ProgramFailed("nvidia-cuda-mps-control ended with status 1")
        for each in (folder.pipe(name), folder.log(name), folder.shm(name)):
            each.mkdir(parents=True, exist_ok=True)
        self._pid += 2
        self.running[folder.pipe(name)] = Daemon(self._pid, name, purpose, list(wanted.devices))
        current().step("after mps start")

    def of(self, name: DaemonName) -> list[MarkedProcess]:
        return [MarkedProcess(one.pid, one.purpose) for one in self.running.values() if one.name == name]

    def with_mount(self, folder: Path, *, besides: set[int]) -> list[int]:
        daemon = self.running.get(folder)
        if daemon is None:
            return []
        self.leave(daemon)
        return sorted(daemon.clients - besides)

    def kill(self, name: DaemonName) -> None:
        current().step("before mps kill")
        for pipe in [pipe for pipe, one in self.running.items() if one.name == name]:
            self._end(pipe, "killed")


class _Started:
    """What a keeper starts and removes, in its folder."""

    def __init__(self, node: NodeMps, folder: MpsFolder) -> None:
        self._node, self._folder = node, folder

    def start(self, name: DaemonName, wanted: WantedDaemon, purpose: str) -> None:
        self._node.start(name, wanted, purpose, self._folder)

    def remove(self, name: DaemonName) -> None:
        current().step("before mps remove")
        shutil.rmtree(self._folder.path(name), ignore_errors=True)


class _KeepersProcess(Process):
    """It acts without the agent's lock."""

    @property
    def holds(self) -> bool:
        return True


class Keeper:
    """One run of the keeper, from its start to its death."""

    def __init__(
        self,
        root: Path,
        node: NodeMps,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        disk: Disk,
        version: Callable[[], str],
    ) -> None:
        self.loop = loop
        self.process = _KeepersProcess(Death())
        folder = MpsFolder(root, MortalFiles(self.process, disk))
        processes: Any = node
        keeper = MpsKeeper(folder, node, processes, _Started(node, folder), version=version, clock=clock)
        self._lock = folder.keep()
        assert self._lock is not None, "another keeper keeps the node"
        self._task = loop.create_task(keeper.run(), context=self.process.context)

    @property
    def ended(self) -> bool:
        """Whether it has died."""
        return self.process.death.dead

    def check(self) -> None:
        """It works until it dies."""
        if self._task.done() and not self.ended:
            self._task.result()

    def end(self) -> None:
        """End as SIGKILL does; its daemons go on."""
        if self._lock is not None:
            self.process.end(self.loop)
            os.close(self._lock)
        self._lock = None
