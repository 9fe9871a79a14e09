"""What is recorded of a cluster, and where.

Owns the folders, the state file and its rules: names, phases, and what to do when the file cannot be read. One folder holds
everything of one cluster, so that removing it (and the processes that carry its path) removes the cluster.
"""

import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from draco_local.cluster.errors import ClusterError, StateDamaged, UnknownCluster
from draco_local.cluster.files import write_atomically
from draco_local.cluster.programs.versions import Features

FORMAT = 1
_FILE = "cluster.json"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?")


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What `up` was asked for. `gpus` is per simulated node; `port` 0 means any free one."""

    provider: Literal["local", "kind", "existing"] = "local"
    kubernetes: str = ""
    features: Features = "all"
    nodes: int = 2
    gpus: int = 8
    board: str = "H100-80GB"
    real_nodes: int = 0
    port: int = 0
    operator: bool = True
    allocate: bool = False
    node_prefix: str = "gpu-node"
    bin_dir: str = ""
    existing: str = ""
    from_image: str = ""


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster as recorded. A killed `up` leaves it in the phase `starting`."""

    name: str
    phase: Literal["starting", "ready", "failed"]
    wanted: ClusterSpec
    created: datetime
    format: int = FORMAT


def clusters_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of all clusters of this user."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base).absolute() / "draco" / "clusters"


def check_name(name: str) -> None:
    """Raise ClusterError if `name` cannot name a cluster."""
    if not _NAME.fullmatch(name):
        raise ClusterError(
            f'"{name}" cannot name a cluster: use up to 30 lower-case letters, digits and dashes, such as gpu-test.'
        )


class Record:
    """The place of one cluster's state."""

    def __init__(self, name: str, *, environ: Mapping[str, str] | None = None) -> None:
        check_name(name)
        self.name = name
        self.folder = clusters_folder(environ) / name
        self.lock = clusters_folder(environ) / f".{name}.lock"
        self._file = self.folder / _FILE

    def exists(self) -> bool:
        """Whether anything is left of a cluster of this name."""
        return self.folder.exists()

    def read(self) -> ClusterState:
        """Read what was recorded; raises UnknownCluster or StateDamaged."""
        if not self.exists():
            raise UnknownCluster(f"There is no cluster called {self.name}{_others(self)}.")
        damaged = (
            f"The state of cluster {self.name} in {self._file} cannot be read: run "
            f"`draco cluster down --name {self.name}`, which removes what is left, then `draco cluster up`"
        )
        try:
            state = msgspec.json.decode(self._file.read_bytes(), type=ClusterState)
        except FileNotFoundError as error:
            raise StateDamaged(f"{damaged} (the file is missing).") from error
        except (OSError, msgspec.MsgspecError) as error:
            raise StateDamaged(f"{damaged} ({error}).") from error
        if state.format != FORMAT:
            raise StateDamaged(f"{damaged} (it is of format {state.format}, this version of draco writes {FORMAT}).")
        return state

    def write(self, state: ClusterState) -> None:
        """Record `state`; readers see the old one or this one, whole."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self._file, msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")


def names(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the clusters of this user, running or not."""
    folder = clusters_folder(environ)
    return sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.exists() else []


def _others(record: Record) -> str:
    folder = record.folder.parent
    known = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.exists() else []
    return f"; known: {', '.join(known)}" if known else ": start one with `draco cluster up`"
