"""Starts MPS control daemons on the node with the driver's program, and removes what is left of them.

Owns what a daemon is given: its devices, its folders, its mark. `launch` makes the process, outside of this container.
"""

import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from draco.agent.hardware.driver_program import DriverPrograms
from draco.agent.hardware.programs import run
from draco.agent.mps.control import CONTROL, LOG_VARIABLE, PIPE_VARIABLE, PROTOCOL
from draco.agent.mps.folder import DaemonName, MpsFolder, WantedDaemon
from draco.mps import launch
from draco.mps.launch import DaemonRemoval, Launch, Step
from draco.mps.processes import mark

_CGROUP: Final = "draco-mps"


class NodeDaemons:
    """The daemons of one node. `cgroups` is where the node's cgroups (v2) are seen; without them, daemons end with the keeper."""

    def __init__(self, folder: MpsFolder, programs: DriverPrograms, *, proc: Path, cgroups: Path) -> None:
        self._folder = folder
        self._programs = programs
        self._mounts = str(proc / "1/ns/mnt")
        self._cgroups = cgroups if (cgroups / "cgroup.controllers").exists() else None

    def start(self, name: DaemonName, wanted: WantedDaemon, purpose: str) -> None:
        """Start a daemon. Raises ProgramFailed."""
        program = self._programs.find(CONTROL)
        driver = program.driver
        on_node = program.path if driver is None else driver.host / program.path.relative_to(driver.view)
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "CUDA_VISIBLE_DEVICES": ",".join(wanted.devices),
            **PROTOCOL,
            PIPE_VARIABLE: launch.PIPE,
            LOG_VARIABLE: launch.LOG,
            **mark(name, purpose),
        }
        step = Launch(
            root="/" if driver is None else str(driver.host),
            program=str(on_node),
            arguments=["-d", *(["-M"] if wanted.multi_user else [])],
            libraries="" if driver is None else str(driver.host / driver.folder),
            pipe=str(self._folder.pipe(name)),
            log=str(self._folder.log(name)),
            shm=str(self._folder.shm(name)),
            shm_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2,
            environment=environment,
            mounts=self._mounts,
            cgroup=self._cgroup(name),
        )
        _take(step, CONTROL)

    def remove(self, name: DaemonName) -> None:
        """Remove a daemon's folder and cgroup. Raises ProgramFailed."""
        folder, shm = str(self._folder.path(name)), str(self._folder.shm(name))
        _take(DaemonRemoval(folder=folder, shm=shm, mounts=self._mounts, cgroup=self._cgroup(name)), "the keeper")

    def _cgroup(self, name: DaemonName) -> str:
        return "" if self._cgroups is None else str(self._cgroups / _CGROUP / name)


def _take(step: Step, called: str) -> None:
    run([sys.executable, "-m", launch.__name__], called=called, given=msgspec.json.encode(step))
