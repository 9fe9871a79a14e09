"""The cgroups of one cluster's real nodes, on cgroup version 1 and 2.

Owns making and removing them: below the root of each hierarchy one folder for the cluster, in it one for each node, in
which kubelet keeps its pods. Must not move or end any process.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from draco_local.cluster.errors import ClusterError, MissingRequirement

_CONTROLLERS: Final = ("cpu", "cpuset", "io", "memory", "pids")
_SEEDED: Final = ("cpuset.cpus", "cpuset.mems")
_EMPTY_WITHIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where this machine's cgroups are mounted: one folder on version 2, one for each controller on version 1."""

    version: int
    roots: tuple[Path, ...]
    unified: tuple[Path, ...] = ()
    """Beside version 1, a version 2 hierarchy without controllers: not needed, but container runtimes use it."""


def hierarchies(mounts: str) -> Hierarchies:
    """Read them from the text of /proc/self/mounts. Raises MissingRequirement when nothing usable is mounted."""
    found: dict[str, list[Path]] = {"cgroup": [], "cgroup2": []}
    for line in mounts.splitlines():
        _, where, kind, *_ = line.split(" ")
        if kind in found:
            found[kind].append(Path(where))
    if found["cgroup"]:
        return Hierarchies(version=1, roots=tuple(sorted(found["cgroup"])), unified=tuple(found["cgroup2"]))
    if found["cgroup2"]:
        return Hierarchies(version=2, roots=(found["cgroup2"][0],))
    raise MissingRequirement("Real nodes need cgroups, and none are mounted: mount cgroup2 on /sys/fs/cgroup.")


def mounted() -> Hierarchies:
    """This machine's hierarchies."""
    return hierarchies(Path("/proc/self/mounts").read_text())


def create(found: Hierarchies, cluster: str, node: str) -> None:
    """Make the node's folder in every hierarchy, ready to hold processes."""
    for root in found.roots:
        parent = root
        for name in (cluster, node):
            if found.version == 2:
                _enable_controllers(parent)
            parent = parent / name
            parent.mkdir(exist_ok=True)
            _seed_cpuset(parent)
        if found.version == 2:
            _enable_controllers(parent)


def remove(found: Hierarchies, *path: str) -> None:
    """Remove the folders of a cluster, or of one of its nodes: `path` is the cluster's name and, if wanted, the node's.

    They are empty of processes, or will be within moments; raises ClusterError if they stay full.
    """
    name = "/".join(path)
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    while left := [folder for root in (*found.roots, *found.unified) for folder in _remove_below(root / name)]:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"The cgroup {left[0]} still holds processes: end them and run `draco cluster down` again."
            )
        time.sleep(0.05)


def _remove_below(top: Path) -> Iterable[Path]:
    """Remove `top` and all below, deepest first; returns what could not be removed."""
    if not top.exists():
        return []
    left = []
    for folder in sorted((top, *(path for path in top.rglob("*") if path.is_dir())), key=lambda path: -len(path.parts)):
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            left.append(folder)
    return left


def _enable_controllers(folder: Path) -> None:
    available = (folder / "cgroup.controllers").read_text().split()
    for controller in _CONTROLLERS:
        if controller in available:
            with suppress(OSError):  # another cgroup manager may hold it back; kubelet then says which it misses
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def _seed_cpuset(folder: Path) -> None:
    """On version 1 a new cpuset is empty and takes no process before it is given processors and memory nodes."""
    for name in _SEEDED:
        own, parents = folder / name, folder.parent / name
        if own.exists() and parents.exists() and not own.read_text().strip():
            value = parents.read_text().strip()
            if value:
                own.write_text(value)
