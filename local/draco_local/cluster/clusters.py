"""Making, finding and removing clusters by name.

Owns the life of a cluster across runs of the command line: only one program at a time changes a cluster, the next `up` or
`down` removes what a killed `up` left behind, and a failed `up` leaves its logs but no processes.
"""

import contextlib
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec.structs import replace

from draco_local.cluster import chart, locks
from draco_local.cluster.errors import ClusterError, StateDamaged
from draco_local.cluster.process import Processes
from draco_local.cluster.programs import binaries, versions
from draco_local.cluster.progress import Progress
from draco_local.cluster.providers import existing, kind, local
from draco_local.cluster.providers.interface import Cluster
from draco_local.cluster.state import ClusterSpec, ClusterState, Record
from draco_local.simulator.gpus.boards import board_named
from draco_local.simulator.gpus.state import new_node


class Component(msgspec.Struct, frozen=True):
    """One background process of a cluster."""

    name: str
    pid: int
    alive: bool
    log: str


class LocalClusterStatus(msgspec.Struct, frozen=True):
    """A cluster's current state. `components` are the processes that were started for it, dead ones included."""

    name: str
    phase: str
    provider: str
    kubernetes: str
    created: datetime
    kubeconfig: str
    components: list[Component]
    nodes: list[str]


def up(name: str, wanted: ClusterSpec, *, progress: Progress, wait_s: float, mirror: str = "") -> Cluster:
    """Make a cluster and return it, or return the one of this name that already runs with the same settings.

    Missing programs are downloaded from `mirror` (see `binaries.find`).
    Raises ClusterError, with nothing left running, if it cannot be made or another one of this name runs.
    """
    wanted = _checked(wanted)
    record = Record(name)
    with _locked(record):
        if running := _running_as_wanted(record, wanted, progress):
            return running
        cluster = _provided(record, wanted, mirror=mirror)
        cluster.check()
        state_now = ClusterState(name=name, phase="starting", wanted=wanted, created=datetime.now(UTC))
        record.write(state_now)
        try:
            cluster.create(progress, wait_s=wait_s)
        except BaseException:
            cluster.destroy(progress)
            record.write(replace(state_now, phase="failed"))
            raise
        record.write(replace(state_now, phase="ready"))
        return cluster


def down(name: str, *, progress: Progress) -> None:
    """Stop everything of a cluster and forget it; raises UnknownCluster when there is none of this name."""
    record = Record(name)
    with _locked(record):
        if not record.exists():
            record.read()
        with progress.step(f"Removing cluster {name}"):
            _remove(record, progress)


def opened(name: str) -> Cluster:
    """Open the cluster of this name, which must be recorded; it may be stopped or half started."""
    record = Record(name)
    return _provided(record, record.read().wanted)


def status(name: str) -> LocalClusterStatus:
    """Return the current state of the cluster of this name; raises UnknownCluster or StateDamaged."""
    record = Record(name)
    recorded = record.read()
    cluster = _provided(record, recorded.wanted)
    parts = [Processes(record.folder), Processes(record.folder / local.REAL_NODES_FOLDER)]
    return LocalClusterStatus(
        name=name,
        phase=recorded.phase,
        provider=recorded.wanted.provider,
        kubernetes=recorded.wanted.kubernetes,
        created=recorded.created,
        kubeconfig=str(cluster.kubeconfig),
        components=[
            Component(each.name, each.pid, processes.alive(each), str(processes.log(each.name)))
            for processes in parts
            for each in processes.records()
        ],
        nodes=cluster.nodes,
    )


def _checked(wanted: ClusterSpec) -> ClusterSpec:
    """The settings with defaults filled in; raises ClusterError or BoardError for impossible ones."""
    bin_dir = Path(wanted.bin_dir).absolute() if wanted.bin_dir else None
    if bin_dir and not bin_dir.is_dir():
        raise ClusterError(
            f"{bin_dir} is not a folder: --bin-dir names the folder that holds kube-apiserver and so on."
        )
    wanted = replace(wanted, board=board_named(wanted.board).key, bin_dir=str(bin_dir or ""))
    if wanted.from_image:
        wanted = replace(wanted, from_image=str(Path(wanted.from_image).absolute()))
        chart.image_of(Path(wanted.from_image))
    new_node(board=wanted.board, gpus=wanted.gpus, node_name="n")
    if wanted.provider == "existing":
        return replace(wanted, existing=str(Path(wanted.existing).expanduser().absolute()), kubernetes="")
    wanted = replace(
        wanted, kubernetes=wanted.kubernetes.removeprefix("v") or binaries.kubernetes_version(bin_dir=bin_dir)
    )
    versions.minor_of(wanted.kubernetes, wanted.features)
    return wanted


def _running_as_wanted(record: Record, wanted: ClusterSpec, progress: Progress) -> Cluster | None:
    """The cluster of this name if it runs with these settings; removes what is left of a dead one."""
    if not record.exists():
        return None
    recorded = record.read()
    processes = Processes(record.folder)
    alive = {each.name: processes.alive(each) for each in processes.records()}
    if recorded.phase == "ready" and _provided(record, recorded.wanted).runs():
        dead = sorted(name for name, lives in alive.items() if not lives)
        again = f"run `draco cluster down --name {record.name}` first"
        if dead:
            raise ClusterError(f"Cluster {record.name} runs, but without {', '.join(dead)}: {again}.")
        if recorded.wanted != wanted:
            raise ClusterError(
                f"Cluster {record.name} already runs with other settings: {again}, or choose another --name."
            )
        progress.note(f"Cluster {record.name} already runs.")
        return _provided(record, recorded.wanted)
    with progress.step(f"Removing what is left of an earlier cluster {record.name}"):
        _remove(record, progress)
    return None


def _remove(record: Record, progress: Progress) -> None:
    """Stop and remove whatever there is of a cluster, even if its state file cannot be read."""
    try:
        wanted = record.read().wanted
    except StateDamaged:
        wanted = ClusterSpec(provider="kind" if (record.folder / kind.CONFIG).exists() else "local")
    _provided(record, wanted).destroy(progress)
    shutil.rmtree(record.folder)


def _provided(record: Record, wanted: ClusterSpec, *, mirror: str = "") -> Cluster:
    match wanted.provider:
        case "local":
            return local.LocalCluster(record, wanted, mirror=mirror)
        case "kind":
            return kind.KindCluster(record, wanted, mirror=mirror)
        case "existing":
            return existing.ExistingCluster(record, wanted)


@contextlib.contextmanager
def _locked(record: Record) -> Iterator[None]:
    try:
        with locks.held(record.lock):
            yield
    except locks.LockHeld as other:
        who = f"process {other.holder}" if other.holder else "another process"
        raise ClusterError(f"Cluster {record.name} is being changed by {who}: wait until that has ended.") from None
