"""Where the node's NVIDIA driver is installed: on the host, by the GPU operator's driver container, or by a cloud's installer.

Owns the searched layouts. Only reads: `nvml_library` loads what is found, and CDI specs give it to containers. The agent sees the
node's files below its own folder (in a pod, `/driver-root`). Absolute links, such as Debian's alternatives, refer to the node's
files too, so they are resolved inside that folder.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

NVML: Final = "libnvidia-ml.so.1"
ROOTS: Final = ("", "run/nvidia/driver", "home/kubernetes/bin/nvidia")
"""Below the named folder: itself; the GPU operator's driver container; Google's driver installer."""
FOLDERS: Final = (
    *("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib"),
    *("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "usr/local/nvidia/lib64"),
)
"""Library folders of a root; 64-bit ones come first where a distribution has both."""
PROGRAM_FOLDERS: Final = ("usr/local/nvidia/bin", "usr/bin", "bin", "usr/local/bin")
"""The first is that of a driver that is all below one folder: programs elsewhere may be scripts that start its own."""
LOADED: Final = "driver/nvidia/version"
"""File below /proc with the version of the loaded kernel modules, as a line of text."""
_VERSION: Final = re.compile(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)")
_LOADED_VERSION: Final = re.compile(r"NVRM version:.*?\s(\d+(?:\.\d+)+)\s")
_MOST_LINKS: Final = 40  # the kernel's limit


class InstalledDriver(msgspec.Struct, frozen=True):
    """An installed driver. `host` is its root on the node, `view` the same folder as the agent sees it.

    `folder` has its libraries, below either. `nvml` is the resolved file of NVML, as the agent sees it.
    """

    host: Path
    view: Path
    folder: str
    nvml: Path

    @property
    def version(self) -> str:
        """The version in the file name of its NVML; "" if that has none."""
        match = _VERSION.fullmatch(self.nvml.name)
        return match[1] if match else ""

    def program(self, name: str) -> Path | None:
        """A program of the driver, as the agent sees it; None if it has none of that name."""
        found = (self.view / folder / name for folder in PROGRAM_FOLDERS)
        return next((each for each in found if resolved(each, self.view) is not None), None)

    def mismatch(self, loaded: str) -> str:
        """Why no container could use a GPU with these files, as a sentence; "" if they match the loaded version, or may.

        This happens when packages are upgraded without a reload: a program that has opened NVML continues with the old files.
        """
        if not (loaded and self.version) or self.version == loaded:
            return ""
        return (
            f"The NVIDIA driver's files below {self.host} are of version {self.version}, and the loaded kernel modules are of "
            f"{loaded}: containers could not use a GPU. Reload the driver or reboot the node."
        )


class DriverRoot(msgspec.Struct, frozen=True):
    """The folder to search: on the node, and as the agent sees it. `proc` is where the node's /proc is mounted."""

    host: Path
    view: Path
    proc: Path = Path("/proc")

    def installed(self) -> Iterator[InstalledDriver]:
        """Every installed NVML, first that of the loaded modules: other packages may be left beside a driver container."""
        loaded = loaded_version(self.proc)
        others = []
        for driver in self._found():
            if loaded in ("", driver.version):
                yield driver
            else:
                others.append(driver)
        yield from others

    def _found(self) -> Iterator[InstalledDriver]:
        for root in ROOTS:
            view = self.view / root
            for folder in FOLDERS:
                file = resolved(view / folder / NVML, view)
                if file is not None and file.is_file():
                    yield InstalledDriver(self.host / root, view, folder, file)

    def searched(self) -> str:
        """The searched paths, as part of a sentence."""
        roots = [str(self.host / root) for root in ROOTS]
        return f"{', '.join(FOLDERS[:-1])} and {FOLDERS[-1]} below {', '.join(roots[:-1])} and {roots[-1]}"


def loaded_version(proc: Path) -> str:
    """The version of the loaded kernel modules, proprietary or open; "" if none are loaded or the version is unreadable."""
    try:
        match = _LOADED_VERSION.match((proc / LOADED).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return match[1] if match else ""


def resolved(path: Path, root: Path) -> Path | None:
    """Resolve a path for a process whose root folder is `root`; None if it does not exist. It cannot leave the root."""
    pending = list(reversed(path.relative_to(root).parts))
    at = root
    links = 0
    while pending:
        name = pending.pop()
        if name == "..":
            at = at if at == root else at.parent
            continue
        following = at / name
        try:
            target = os.readlink(following)  # noqa: PTH115 - as text, since it may contain ..
        except OSError:
            at = following
            continue
        links += 1
        if links > _MOST_LINKS:
            return None
        steps = [step for step in target.split("/") if step not in ("", ".")]
        at = root if target.startswith("/") else at
        pending += reversed(steps)
    return at if at.exists() else None
