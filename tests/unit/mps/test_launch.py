"""A daemon on a node: started in the node's mount namespace, in one of its own, so that it outlives its keeper."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_UNSHARE = ("unshare", *(("--map-root-user",) if os.geteuid() else ()), "--mount", "--pid", "--fork", "--mount-proc")


def launched(loader: str = "") -> dict[str, Any]:
    """What is seen of a daemon of a driver root, with a C library of its own if that is named."""
    folder = tempfile.mkdtemp(dir="/var/tmp")
    script = Path(__file__).with_name("in_own_namespaces.py")
    done = subprocess.run(
        [*_UNSHARE, sys.executable, str(script), folder, loader],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_daemon_outlives_its_keeper_and_the_next_one_ends_it_with_all_that_it_had() -> None:
    found = launched()
    assert (found["ended"], found["answers"], found["left"]) == (0, True, [])
    assert found["root"] == "/"
    assert found["mounts"]["/tmp/nvidia-mps"].endswith("/pipe")
    assert found["mounts"]["/tmp/nvidia-log"].endswith("/log")
    assert found["mounts"]["/dev/shm"] == "/", "a file system of its own"
    assert found["hidden"], "nothing of the node is covered"
    assert found["pipe"] == "0o755", "clients cannot replace what is there"
    [libraries] = [each for each in found["environment"] if each.startswith("LD_LIBRARY_PATH=")]
    assert libraries.endswith("/driver/usr/lib/x86_64-linux-gnu")


def test_a_driver_with_a_c_library_of_its_own_is_the_daemons_root() -> None:
    found = launched("lib64/ld-linux-x86-64.so.2")
    assert (found["answers"], found["left"]) == (True, [])
    assert found["root"] == "/driver"
    assert found["mounts"]["/tmp/nvidia-mps"].endswith("/pipe")
    assert not any(each.startswith("LD_LIBRARY_PATH=") for each in found["environment"])
