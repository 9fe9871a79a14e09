"""What is said about folders that refuse access: what failed, and what to do."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draco.agent.files import Files, advice

REFUSED = """
import ctypes, os, sys
from pathlib import Path
from draco.agent.files import Files
libc = ctypes.CDLL(None, use_errno=True)
folder = Path(sys.argv[1])
MS_RDONLY, MS_REMOUNT, CLONE_NEWNS, CLONE_NEWUSER = 1, 32, 0x20000, 0x10000000
assert libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if os.geteuid() else 0)) == 0, ctypes.get_errno()
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0, ctypes.get_errno()  # private, and all below it
assert libc.mount(b"none", bytes(folder), b"tmpfs", 0, None) == 0, ctypes.get_errno()
print(Files().hindrance(folder))
assert libc.mount(b"none", bytes(folder), b"tmpfs", MS_RDONLY | MS_REMOUNT, None) == 0, ctypes.get_errno()
print(Files().hindrance(folder))
print(Files().hindrance(folder / "below" / "it"))
try:
    Files().write_volatile(folder / "spec.json", b"")
except OSError as error:
    print(error)
"""


def test_a_folder_that_is_mounted_read_only_is_known_before_anything_is_written(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED, str(tmp_path)], capture_output=True, text=True, check=False)
    said = done.stdout.splitlines()
    assert said == [
        "None",
        f"[Errno 30] Read-only file system: '{tmp_path}'",
        f"[Errno 30] Read-only file system: '{tmp_path}/below/it'",
        f"[Errno 30] Read-only file system: '{tmp_path}/spec.json.tmp'",
    ], done.stderr


def test_nothing_speaks_against_a_folder_that_is_there_or_can_be_made(tmp_path: Path) -> None:
    assert Files().hindrance(tmp_path) is None
    assert Files().hindrance(tmp_path / "not" / "yet") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "user", "said"),
    [
        (errno.EROFS, 0, "Read-only file system (/var/run/cdi); mount it writable on the node"),
        (
            errno.EACCES,
            0,
            "Permission denied (/var/run/cdi); the agent is root, so SELinux, AppArmor or an immutable flag",
        ),
        (
            errno.EPERM,
            0,
            "Operation not permitted (/var/run/cdi); the agent is root, so SELinux, AppArmor or an immutable",
        ),
        (errno.EACCES, 1000, "Permission denied (/var/run/cdi); run the agent as root"),
        (errno.ENOSPC, 0, "No space left on device (/var/run/cdi); make room or fix the folder"),
    ],
)
def test_what_refused_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch, code: int, user: int, said: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert advice(OSError(code, os.strerror(code), "/var/run/cdi")).startswith(said)
