"""Finds what containers need of an installed driver: the same files that NVIDIA's toolkit finds, without it.

Owns the list of files, and the substitute for a missing `nvidia-cdi-hook`, which tells the container's linker of them. Only
reads. Source: what nvidia-ctk 1.20.1 writes for a driver root, without the MPS pipe.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from draco.agent.containers.edits import READ_ONLY, SOCKET, ContainerEdits, Hook, Mount
from draco.agent.hardware.driver_root import InstalledDriver, resolved

CUDA_IMAGES_FOLDER: Final = "/usr/local/nvidia/lib64"
"""On the library path of CUDA images, so libraries are found there without the linker's cache."""
PROGRAMS: Final = (
    *("nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-debugdump", "nvidia-imex", "nvidia-imex-ctl"),
    *("nvidia-persistenced", "nvidia-smi"),
)
SOCKETS: Final = ("run/nvidia-fabricmanager/socket", "run/nvidia-persistenced/socket")
MPS_PIPE: Final = "/tmp/nvidia-mps"  # noqa: S108 - the path on which CUDA looks for it
"""Pipe of an MPS daemon of the node: CUDA uses it unasked, and any process with it can end the daemon. No container gets it."""
_UNVERSIONED: Final = re.compile(r"libnvidia-egl-(gbm|wayland|wayland2)\.so\.\d+(\.\d+)+")
_BY_NAME: Final = re.compile(r"lib(cuda|cudadebugger|nvcuvid|nvidia-[a-z0-9-]+|nvoptix)\.so(\.[0-9]+)+")
"""Driver libraries whose file names lack its version."""
_SETTINGS: Final = (
    ("usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
    ("usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json", ""),
    ("usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json", ""),
    ("etc/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
    ("usr/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
    ("etc/vulkan/implicit_layer.d/nvidia_layers.json", "/etc/vulkan/implicit_layer.d/nvidia_layers.json"),
    ("usr/share/vulkan/implicit_layer.d/nvidia_layers.json", "/etc/vulkan/implicit_layer.d/nvidia_layers.json"),
)
"""Files that register the driver with EGL and Vulkan, and their path in containers; "" is the same path."""
_LINKS: Final = (
    ("libcuda.so.1", "libcuda.so"),
    ("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so"),
)


def edits(driver: InstalledDriver, hook: Path | None) -> ContainerEdits:
    """What containers get of this driver. `hook` is the node's path of `nvidia-cdi-hook`, None without one."""
    libraries = sorted(_libraries(driver))
    mounts = [
        *(_mount(driver, each) for each in libraries),
        *(_mount(driver, each) for each in _programs(driver)),
        *(_mount(driver, each) for each in _firmware(driver)),
        *_settings(driver),
        *(_mount(driver, each, SOCKET) for name in SOCKETS if (each := driver.view / name).exists()),
    ]
    if hook is None:
        return ContainerEdits(mounts=[*mounts, *_under_other_names(driver, libraries)])
    folders = list(dict.fromkeys(str(_inside(driver, each.parent)) for each in libraries))
    return ContainerEdits(mounts=mounts, hooks=list(_hooks(driver, hook, folders, libraries)))


def _libraries(driver: InstalledDriver) -> Iterator[Path]:
    version = driver.version
    for folder in dict.fromkeys([driver.nvml.parent, driver.view / driver.folder]):
        for where in (folder, folder / "vdpau"):
            for path in where.iterdir() if where.is_dir() else ():
                named = path.name.endswith(f".so.{version}") if version else bool(_BY_NAME.fullmatch(path.name))
                if (named or _UNVERSIONED.fullmatch(path.name)) and not path.is_symlink():
                    yield path


def _programs(driver: InstalledDriver) -> Iterator[Path]:
    yield from (each for name in PROGRAMS if (each := driver.program(name)) is not None)


def _firmware(driver: InstalledDriver) -> list[Path]:
    return sorted((driver.view / "lib/firmware/nvidia" / driver.version).glob("gsp*.bin")) if driver.version else []


def _settings(driver: InstalledDriver) -> Iterator[Mount]:
    inside = set()
    for name, elsewhere in _SETTINGS:
        target = elsewhere or f"/{name}"
        if target not in inside and (driver.view / name).is_file():
            inside.add(target)
            yield Mount(str(driver.host / name), target, READ_ONLY)


def _under_other_names(driver: InstalledDriver, libraries: Iterable[Path]) -> Iterator[Mount]:
    """Without the hook: each library under the names that programs look up, on paths that they search."""
    there = set(libraries)
    for folder in dict.fromkeys(each.parent for each in libraries):
        for name in sorted(path.name for path in folder.iterdir()):
            file = resolved(folder / name, driver.view)
            if file not in there:
                continue
            host = str(driver.host / file.relative_to(driver.view))
            if folder / name != file:
                yield Mount(host, str(_inside(driver, folder / name)), READ_ONLY)
            yield Mount(host, f"{CUDA_IMAGES_FOLDER}/{name}", READ_ONLY)


def _hooks(driver: InstalledDriver, hook: Path, folders: list[str], libraries: list[Path]) -> Iterator[Hook]:
    """Only what every release of the hook supports: a container whose hook fails does not start."""
    beside = {each.name.split(".so.")[0]: _inside(driver, each.parent) for each in libraries}
    links = [
        word
        for target, link in _LINKS
        if (folder := beside.get(target.split(".so.")[0])) is not None
        for word in ("--link", f"{target}::{folder / link}")
    ]
    if links:
        yield _hook(hook, "create-symlinks", *links)
    yield _hook(hook, "update-ldcache", *(word for each in folders for word in ("--folder", each)))


def _hook(hook: Path, *args: str) -> Hook:
    return Hook("createContainer", str(hook), ["nvidia-cdi-hook", *args])


def _mount(driver: InstalledDriver, path: Path, options: list[str] = READ_ONLY) -> Mount:
    return Mount(str(driver.host / path.relative_to(driver.view)), str(_inside(driver, path)), options)


def _inside(driver: InstalledDriver, path: Path) -> Path:
    return Path("/") / path.relative_to(driver.view)
