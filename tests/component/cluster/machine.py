"""A user's machine as `draco cluster` sees it, for tests that run the command from outside."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from draco_local.cluster.process import Processes

BARE = ("--nodes", "0", "--no-operator")
"""Options for a cluster that is a control plane and nothing else."""


class Machine:
    """One user's clusters, separate from those of the person who runs the tests."""

    def __init__(self, home: Path, runtime: Path) -> None:
        self.home = home
        self.runtime = runtime
        self.clusters = home / "draco" / "clusters"
        self.environ = {**os.environ, "XDG_STATE_HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)}

    def draco(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "draco", "cluster", *arguments]
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=120, check=False)

    def must(self, *arguments: str) -> str:
        done = self.draco(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "draco", "cluster", *arguments]
        return subprocess.Popen(command, env=self.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def pids(self, name: str) -> dict[str, tuple[int, int]]:
        return {each.name: (each.pid, each.start_ticks) for each in Processes(self.clusters / name).records()}

    def mentioned(self) -> list[str]:
        """Command lines of all processes with this machine's folder in their arguments or environment."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                known = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(self.home) in known:
                found.append(known.replace(b"\0", b" ")[:200].decode(errors="replace"))
        return found


def until(condition: Callable[[], object], *, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)
