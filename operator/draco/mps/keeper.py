"""Keeps the MPS control daemons of one node: starts those that are wanted, ends the others, and replaces broken ones.

Each look at a daemon compares what the agent wants (`agent.mps.folder`), what runs (`processes`), and what the daemon says
(`agent.mps.control`); nothing is remembered, so another keeper continues where this one ended. A daemon that is dead is started
again at once: its clients died with it. One that serves something else, is of another driver, or hangs is replaced when its last
client has left, since that ends its clients. Starts are paced, as a daemon may fail forever.

Owns these decisions. Its work blocks; a daemon that hangs must not hold up another's.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import structlog

from draco.agent.hardware.programs import ProgramFailed, ProgramSilent
from draco.agent.mps.control import MpsControl
from draco.agent.mps.folder import DaemonName, DaemonState, MpsFolder, WantedDaemon
from draco.kube.clock import Clock
from draco.kube.queue import WorkQueue, run_workers
from draco.mps.processes import NodeProcesses

log = structlog.get_logger()

NEWS_S: Final = 0.25
"""How often the folder is read for new wishes: a pod waits for its daemon."""
LOOK_S: Final = 5.0
"""How often a daemon that is well is asked."""
AGAIN_S: Final = 1.0
END_S: Final = 3.0
"""How long a daemon may take to end before it is killed."""
WORKERS: Final = 8


class Daemons(Protocol):
    """Starts daemons on the node, and removes what is left of them."""

    def start(self, name: DaemonName, wanted: WantedDaemon, purpose: str) -> None:
        """Start a daemon, marked with its purpose. Raises ProgramFailed."""

    def remove(self, name: DaemonName) -> None:
        """Remove the files of a daemon that has ended. Raises ProgramFailed."""


class MpsKeeper:
    """The keeper of one node. `version` is that of the loaded driver."""

    def __init__(
        self,
        folder: MpsFolder,
        control: MpsControl,
        processes: NodeProcesses,
        daemons: Daemons,
        *,
        version: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._control = control
        self._processes = processes
        self._daemons = daemons
        self._version = version
        self._clock = clock
        self._queue: WorkQueue[DaemonName] = WorkQueue(clock=clock, base_s=AGAIN_S, cap_s=30.0)

    async def run(self) -> None:
        """Keep the daemons until cancelled; they go on."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hear(), name="news")
            tasks.create_task(run_workers(self._queue, self._reconcile, workers=WORKERS, log=log), name="daemons")

    async def _hear(self) -> None:
        known: dict[DaemonName, WantedDaemon | None] = {}
        while True:
            now = {name: self._folder.wanted(name) for name in self._folder.names()}
            for name, wanted in now.items():
                if name not in known or known[name] != wanted:
                    self._queue.add(name)
            known = now
            await self._clock.sleep(NEWS_S)

    async def _reconcile(self, name: DaemonName) -> float | None:
        return await asyncio.to_thread(self.keep, name)

    def keep(self, name: DaemonName) -> float | None:
        """One look at a daemon; returns seconds until the next."""
        wanted = self._folder.wanted(name)
        if wanted is None:
            return self._end(name)
        purpose = self._purpose(wanted)
        running = self._processes.of(name)
        if not running:
            return self._start(name, wanted, purpose)
        problem = ""
        if any(each.purpose != purpose for each in running):
            problem = "it serves an earlier claim or was started with another driver"
        else:
            problem = self._fault(name)
        if not problem:
            self._say(name, "")
            return LOOK_S
        if users := self._users(name, {each.pid for each in running}):
            then = f"it is replaced when its last client has left ({len(users)} now)"
            self._say(
                name, f"{problem}; {then}, and `draco mps end {name}` in the keeper's pod ends it with its clients"
            )
            return AGAIN_S
        log.warning("mps.replaced", daemon=name, claim=wanted.claim, reason=problem)
        self._stop(name)
        return self._start(name, wanted, purpose)

    def _purpose(self, wanted: WantedDaemon) -> str:
        """What a daemon is for: one with another purpose cannot take its place."""
        what = msgspec.json.encode((wanted.devices, wanted.percentage, wanted.limits_mib, wanted.multi_user))
        return hashlib.sha256(what + self._version().encode()).hexdigest()[:12]

    def _fault(self, name: DaemonName) -> str:
        """What is wrong with a running daemon, or its servers; "" for nothing."""
        pipe = self._folder.pipe(name)
        try:
            for server in self._control.servers(pipe):
                if (status := self._control.status(pipe, server)) == "FAULT":
                    return f"its server {server} has a {status}, which ended the clients on its GPU"
        except ProgramSilent:
            return "it does not answer"
        except ProgramFailed as error:
            return str(error)
        return ""

    def _users(self, name: DaemonName, own: set[int]) -> list[int]:
        """Its clients; if it does not say, the processes of containers that have its pipe."""
        pipe = self._folder.pipe(name)
        try:
            return [pid for server in self._control.servers(pipe) for pid in self._control.clients(pipe, server)]
        except ProgramFailed:
            return self._processes.with_mount(pipe, besides=own)

    def _start(self, name: DaemonName, wanted: WantedDaemon, purpose: str) -> float:
        try:
            self._daemons.start(name, wanted, purpose)
            self._control.set_up(self._folder.pipe(name), wanted)
            problem = self._control.lacking(self._folder.pipe(name), wanted)
        except ProgramFailed as error:
            problem = f"{error}; its log on the node is in {self._folder.log(name)}"
        before = self._folder.state(name)
        failures = before.failures + 1 if problem else 0
        self._folder.say(name, DaemonState(problem=problem, starts=before.starts + 1, failures=failures))
        if problem:
            log.warning("mps.not_started", daemon=name, claim=wanted.claim, error=problem)
            self._stop(name)  # without its limits it must serve nobody
            return AGAIN_S * float(min(2**failures, 30))
        log.info("mps.started", daemon=name, claim=wanted.claim, devices=wanted.devices)
        return LOOK_S

    def _end(self, name: DaemonName) -> float | None:
        if self._processes.of(name):
            self._stop(name)
            log.info("mps.ended", daemon=name)
        try:
            self._daemons.remove(name)
        except ProgramFailed as error:
            log.warning("mps.not_removed", daemon=name, error=str(error))
            return AGAIN_S
        return None

    def _stop(self, name: DaemonName) -> None:
        """End a daemon, and kill what is left of it."""
        try:
            self._control.quit(self._folder.pipe(name))
        except ProgramFailed:
            self._processes.kill(name)
        until_s = time.monotonic() + END_S
        while self._processes.of(name):
            if time.monotonic() > until_s:
                self._processes.kill(name)
            time.sleep(0.02)

    def _say(self, name: DaemonName, problem: str) -> None:
        before = self._folder.state(name)
        if before.problem != problem:
            self._folder.say(name, msgspec.structs.replace(before, problem=problem))
