"""Asks NVIDIA's container toolkit what containers need: `nvidia-ctk cdi generate`.

Owns which of its programs run and how their answer is read. The node's own toolkit comes first, in the node's root, because it
matches the node; then the one in the agent's image. It runs as another process, because it calls NVML, which may hang, and so
that its memory is freed.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from draco.agent import files
from draco.agent.containers.driver_files import MPS_PIPE
from draco.agent.containers.edits import ContainerEdits, Hook, Mount
from draco.agent.hardware.driver_root import DriverRoot, InstalledDriver
from draco.agent.hardware.programs import ProgramFailed, run
from draco.resources.errors import DracoError

CTK: Final = "nvidia-ctk"
HOOK: Final = "nvidia-cdi-hook"
NVML_HOOK: Final = "nvidia-cdi-hook-nvml"
"""The image's hook for commands that load NVML. The other is linked statically, and crashes as it calls NVML, on any node."""
FOLDERS: Final = ("usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit", "opt/nvidia/toolkit")
"""Folders of the toolkit on a node: from a package, or from the GPU operator."""
MODES: Final = ("nvml", "management")
"""Detection modes: by all GPUs, including graphics files; and without NVML, if the first fails."""


class ToolkitFailed(DracoError):
    """The toolkit is missing, or did not answer."""


class _Generated(msgspec.Struct, rename="camel"):
    container_edits: ContainerEdits = ContainerEdits()


class Program(NamedTuple):
    """A program of the node. A repair shows in its inode, or in its change time if it was made executable."""

    path: str
    inode: int
    changed_ns: int


def programs(root: DriverRoot) -> tuple[Program, ...]:
    """The toolkit's programs that the node has now."""
    found = []
    for folder in FOLDERS:
        for name in (CTK, HOOK):
            with suppress(OSError):
                status = (root.view / folder / name).stat()
                found.append(Program(f"{folder}/{name}", status.st_ino, status.st_ctime_ns))
    return tuple(found)


def hook(root: DriverRoot, *, keep_in: Path) -> Path | None:
    """The node's path of the program for CDI hooks; one from the image is copied to `keep_in`, which node and agent see.

    None if there is none. OSError if it cannot be copied.
    """
    for folder in FOLDERS:
        if (root.view / folder / HOOK).is_file():
            return root.host / folder / HOOK
    return _carried_hook(HOOK, keep_in)


def _carried_hook(name: str, keep_in: Path) -> Path | None:
    carried = shutil.which(name)
    if carried is None:
        return None
    kept = keep_in / name
    files.keep(kept, Path(carried).read_bytes(), mode=0o755)
    return kept


def memory_limit(driver: InstalledDriver, gpu: str, limit_mib: int, *, keep_in: Path) -> ContainerEdits:
    """What limits a container's memory of a GPU. The hook is the image's: an older one on the node does not know the command.

    It needs both variables; a soft limit other than 0 would stay in the cgroups above when the container's is removed.
    Source: `nvidia-cdi-hook apply-cuda-memory-limits` of NVIDIA's container toolkit 1.20. Raises ToolkitFailed or OSError.
    """
    hook = _carried_hook(NVML_HOOK, keep_in)
    if hook is None:
        raise ToolkitFailed(f"there is no {NVML_HOOK} in the image, which sets memory limits")
    arguments = [HOOK, "apply-cuda-memory-limits", "--driver-root", str(driver.host), "--gpu-id", gpu]
    return ContainerEdits(
        env=["NVIDIA_GPU_MEMORY_REQUEST=0", f"NVIDIA_GPU_MEMORY_LIMIT={limit_mib}"],
        hooks=[Hook("createRuntime", str(hook), arguments)],
    )


def edits(root: DriverRoot, driver: InstalledDriver, *, hook: Path | None) -> ContainerEdits:
    """What the toolkit adds to every container, with this hook of the node. Raises ToolkitFailed."""
    if hook is None:
        raise ToolkitFailed(f"there is no {HOOK} on the node and none in the image")
    failed = []
    for command, seen in _commands(root, driver):
        for mode in MODES:
            try:
                answer = run([*command, "--mode", mode, "--nvidia-cdi-hook-path", str(hook)], called=CTK)
                return _read(answer, seen, driver)
            except (ProgramFailed, ToolkitFailed) as error:
                failed.append(str(error))
    if not failed:
        raise ToolkitFailed(f"there is no {CTK} on the node and none in the image")
    raise ToolkitFailed("; ".join(dict.fromkeys(failed)))


def _commands(root: DriverRoot, driver: InstalledDriver) -> Iterator[tuple[list[str], Path]]:
    """Command lines, each with the driver's root as that command sees it."""
    generate = ["--quiet", "cdi", "generate", "--format", "json"]
    chroot = shutil.which("chroot", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    for folder in FOLDERS:
        if chroot is not None and os.access(root.view / folder / CTK, os.X_OK):
            own = [chroot, str(root.view), f"/{folder}/{CTK}", *generate]
            yield [*own, "--driver-root", str(driver.host), "--dev-root", "/"], driver.host
    carried = shutil.which(CTK)
    if carried is not None:
        yield [carried, *generate, "--driver-root", str(driver.view), "--dev-root", "/"], driver.view


def _read(answer: bytes, seen: Path, driver: InstalledDriver) -> ContainerEdits:
    """Its common edits with the node's own paths. Device nodes are left out: they depend on the claim."""
    try:
        generated = msgspec.json.decode(answer, type=_Generated).container_edits
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ToolkitFailed(f"{CTK} wrote no CDI spec ({error})") from error
    if not generated.mounts:
        raise ToolkitFailed(f"{CTK} found no files of the driver")
    for wrong in _unusable(generated):
        raise ToolkitFailed(f"{CTK} wrote a CDI spec that no runtime accepts ({wrong})")
    if lacking := _needed(driver) - {Path(each.host_path).name for each in generated.mounts}:
        raise ToolkitFailed(f"{CTK} left out {', '.join(sorted(lacking))}")
    return ContainerEdits(
        env=sorted(generated.env),
        hooks=[Hook(each.hook_name, each.path, each.args, each.env) for each in generated.hooks],
        mounts=[
            Mount(_on_host(each.host_path, seen, driver), each.container_path, each.options)
            for each in generated.mounts
            if each.container_path != MPS_PIPE
        ],
    )


def _unusable(edits: ContainerEdits) -> Iterator[str]:
    """What would keep every container with these edits from starting."""
    yield from (f"the variable {each!r}" for each in edits.env if not each.partition("=")[1] or each.startswith("="))
    yield from (f"a hook {each.hook_name!r} without a path" for each in edits.hooks if not each.path.startswith("/"))
    for mount in edits.mounts:
        yield from (
            f"the path {each!r}" for each in (mount.host_path, mount.container_path) if not each.startswith("/")
        )


def _needed(driver: InstalledDriver) -> set[str]:
    """Libraries of this driver that every container needs; their names contain its version, which excludes another driver's."""
    cuda = driver.nvml.with_name(f"libcuda.so.{driver.version}")
    return {each.name for each in (driver.nvml, cuda) if driver.version and each.is_file()}


def _on_host(path: str, seen: Path, driver: InstalledDriver) -> str:
    found = Path(path)
    return str(driver.host / found.relative_to(seen)) if found.is_relative_to(seen) else path
