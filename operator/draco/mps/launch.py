"""Starts an MPS control daemon that outlives the keeper's container: `python -m draco.mps.launch`, with a Step on stdin.

A container runtime ends what is in the container's cgroup, and removes its files. So this process moves itself to a cgroup of its
own, enters the node's mount namespace, and makes one for the daemon, in which the claim's folders are where the daemon and its
clients expect them: below /tmp and at /dev/shm. A driver with a C library of its own (the GPU operator's driver container) gets
that folder as its root. Then it becomes the daemon. Owns these steps; knows nothing of claims.
"""

import ctypes
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

PIPE: Final = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks for it, in containers and here
LOG: Final = "/tmp/nvidia-log"  # noqa: S108 - in a mount namespace of its own
SHM: Final = "/dev/shm"  # noqa: S108 - where POSIX shared memory is
_LOADERS: Final = ("lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1")
_CLONE_NEWNS: Final = 0x00020000
_MNT_DETACH: Final = 2
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_SLAVE = 2, 4, 4096, 16384, 1 << 19


class Launch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What to start. Paths are the node's. `mounts` is the node's mount namespace, `cgroup` the daemon's; "" for none."""

    root: str
    program: str
    arguments: list[str]
    libraries: str
    pipe: str
    log: str
    shm: str
    environment: dict[str, str]
    mounts: str
    cgroup: str = ""
    shm_bytes: int = 0


class DaemonRemoval(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Which daemon's folder and cgroup to remove. Nothing of it runs any more."""

    folder: str
    shm: str
    mounts: str
    cgroup: str = ""


Step: TypeAlias = Launch | DaemonRemoval

_libc = ctypes.CDLL(None, use_errno=True)


def remove(removal: DaemonRemoval) -> None:
    """Unmount the shared memory, and remove the folder and the cgroup. Raises OSError."""
    if removal.cgroup:
        with suppress(FileNotFoundError):
            Path(removal.cgroup).rmdir()
    _enter(removal.mounts)
    if os.path.ismount(removal.shm):
        _checked(_libc.umount2(removal.shm.encode(), _MNT_DETACH), removal.shm)
    with suppress(FileNotFoundError):
        shutil.rmtree(removal.folder)


def become(launch: Launch) -> None:
    """Become the daemon. Raises OSError."""
    if launch.cgroup:
        Path(launch.cgroup).mkdir(parents=True, exist_ok=True)
        Path(launch.cgroup, "cgroup.procs").write_text("0")
    _enter(launch.mounts)
    os.umask(0o022)  # whoever could write in the pipe's folder could take the daemon's place
    for each in (launch.pipe, launch.log, launch.shm):
        Path(each).mkdir(parents=True, exist_ok=True)
    if not os.path.ismount(launch.shm):
        _mount("shm", launch.shm, "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=1777,size={launch.shm_bytes}")
    own_root = Path(launch.root) != Path("/") and any(Path(launch.root, each).exists() for each in _LOADERS)
    root = launch.root if own_root else "/"
    _checked(_libc.unshare(_CLONE_NEWNS), "a mount namespace")
    _mount("", "/", "", _MS_REC | _MS_SLAVE, "")
    descriptors = {each: os.open(each, os.O_PATH | os.O_DIRECTORY) for each in (launch.pipe, launch.log, launch.shm)}
    _mount("tmp", _in(root, "/tmp"), "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777,size=16m")  # noqa: S108 - covered for this daemon only
    for source, target in ((launch.pipe, PIPE), (launch.log, LOG), (launch.shm, SHM)):
        Path(_in(root, target)).mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptors[source]}", _in(root, target), "", _MS_BIND, "")
    environment = launch.environment
    program = launch.program
    if own_root:
        os.chroot(root)
        program = "/" + os.path.relpath(program, root)
    elif Path(launch.root) != Path("/"):
        folder = str(Path(program).parent)
        environment = {**environment, "LD_LIBRARY_PATH": launch.libraries, "PATH": f"{folder}:/usr/sbin:/usr/bin"}
    os.chdir("/")
    os.execve(program, [program, *launch.arguments], environment)  # noqa: S606 - the driver's, without a shell


def _enter(mounts: str) -> None:
    namespace = os.open(mounts, os.O_RDONLY | os.O_CLOEXEC)
    _checked(_libc.setns(namespace, _CLONE_NEWNS), "the node's mount namespace")
    os.close(namespace)


def _in(root: str, path: str) -> str:
    return path if root == "/" else root + path


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    done = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _checked(done, target)


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


if __name__ == "__main__":
    try:
        step: Step = msgspec.json.decode(sys.stdin.buffer.read(), type=Step)
        remove(step) if isinstance(step, DaemonRemoval) else become(step)
    except OSError as failure:
        sys.exit(f"{failure.filename or 'the program'}: {failure.strerror}")
