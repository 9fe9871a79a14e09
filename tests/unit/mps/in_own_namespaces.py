"""What `test_launch` runs in namespaces of its own: two keepers, one after the other, and what they leave, as JSON."""

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from draco.agent.files import Files
from draco.agent.hardware.driver_program import DriverPrograms
from draco.agent.hardware.driver_root import DriverRoot
from draco.agent.mps.control import MpsControl
from draco.agent.mps.folder import MpsFolder, WantedDaemon, daemon_name
from draco.mps.processes import NodeProcesses
from draco_local.simulator.driver import root
from tests.doubles.mps import CACHE

GPU = "GPU-11111111-2222-3333-4444-555555555555"
NAME = daemon_name([GPU])
WANTED = WantedDaemon(claim="default/one", devices=[GPU], percentage=50)


def main(folder: Path, loader: str) -> dict[str, Any]:
    driver = folder / "driver"
    root.install(driver, "580.95.05", cache=CACHE)
    if loader:
        for each in (loader, "tmp/.keep", "dev/shm/.keep"):
            (driver / each).parent.mkdir(parents=True, exist_ok=True)
            (driver / each).touch()
    mps = MpsFolder(folder / "mps", Files())
    control = MpsControl(DriverPrograms(DriverRoot(driver, driver)))
    processes = NodeProcesses(Path("/proc"))
    mps.want(NAME, WANTED)
    command = [sys.executable, "-m", "draco", "mps", "--mps-folder", str(mps.root), "--driver-root", str(driver)]
    with subprocess.Popen(command) as keeper:
        wait(lambda: not control.lacking(mps.pipe(NAME), WANTED))
        keeper.terminate()
    [one] = processes.of(NAME)
    proc = Path(f"/proc/{one.pid}")
    mounts = [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
    found = {
        "ended": keeper.returncode,
        "answers": control.lacking(mps.pipe(NAME), WANTED) == "",
        "root": str((proc / "root").readlink()).removeprefix(str(folder)),
        "mounts": {each[4].removeprefix(str(driver)): each[3].removeprefix(str(folder)) for each in mounts},
        "pipe": oct(mps.pipe(NAME).stat().st_mode & 0o7777),
        "hidden": not Path("/tmp/nvidia-mps").exists(),
        "environment": (proc / "environ").read_text().split("\0"),
    }
    mps.forget(NAME)
    with subprocess.Popen(command) as keeper:
        wait(lambda: not mps.names())
        keeper.terminate()
    return {**found, "left": [each.pid for each in processes.of(NAME)]}


def wait(until: Any) -> None:
    for _ in range(600):
        with suppress(OSError):
            if until():
                return
        time.sleep(0.05)
    raise TimeoutError


if __name__ == "__main__":
    place = Path(sys.argv[1])
    try:
        sys.stdout.write(json.dumps(main(place, sys.argv[2])))
    finally:
        shutil.rmtree(place, ignore_errors=True)
