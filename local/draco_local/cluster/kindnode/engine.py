"""A private Docker Engine for clusters of kind, where no Docker answers or it lacks the node image.

Owns starting it with the first cluster that uses it and stopping it after the last one. It is Debian's, and has no route out of
the machine. Its bridges and firewall rules are in its own network namespace, its processes in its own process namespace: so it
does not touch the network of the machine or of another Docker, and leaves nothing when it ends. Its images stay in Draco's cache.
Must not know what runs in it.
"""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

import msgspec

from draco_local.cluster import locks
from draco_local.cluster.errors import MissingRequirement, ProcessFailed
from draco_local.cluster.files import write_atomically
from draco_local.cluster.kindnode import watchers
from draco_local.cluster.kindnode.docker import Docker
from draco_local.cluster.process import Processes, ProcessRecord, start_ticks
from draco_local.cluster.programs import binaries
from draco_local.cluster.progress import Progress
from draco_local.cluster.realnode import cgroup, network
from draco_local.cluster.realnode.network import AddressPlan, names_of

_DAEMON: Final = "dockerd"
_ANSWERS_WITHIN_S: Final = 60.0
_ENDS_WITHIN_S: Final = 20.0
_POLL_S: Final = 0.1
_LAST_CAPABILITY: Final = Path("/proc/sys/kernel/cap_last_cap")
_MADE_BY_THE_WAY: Final = (Path("/lib/modules"), Path("/run/containerd"), Path("/run/docker"))
"""Folders that the engine makes if they are missing, and leaves empty."""
_IN_ITS_NAMESPACES: Final = """
for folder in /run/containerd /run/docker; do
  mkdir -p $folder
  mount -t tmpfs -o mode=711 tmpfs $folder
done
exec "$@"
"""


class _Record(msgspec.Struct, frozen=True):
    """The record of a started engine: its addresses, and the folders that were missing before."""

    nodes_cidr: str
    lacked: list[str]


class PrivateEngine:
    """The engine of this user's cache; every process that asks for it has the same one."""

    def __init__(self, cache: Path | None = None) -> None:
        self.folder = (cache or binaries.cache_folder()).absolute() / "kind"
        self._data = self.folder / "docker"
        self._users = self.folder / "users"
        self._record = self.folder / "engine.json"
        self._names = names_of("kind", self.folder)
        self._run = Path("/run") / self._names.namespace_prefix.rstrip("-")
        self._processes = Processes(self.folder)

    @property
    def log(self) -> Path:
        """Where the engine writes."""
        return self._processes.log(_DAEMON)

    def check(self, why: str, *, otherwise: str) -> None:
        """Raise MissingRequirement with one sentence: why this engine is wanted, what it lacks here, what else would help."""
        if os.geteuid() != 0:
            raise MissingRequirement(
                f"{why}, and a private Docker Engine needs root: {otherwise}, or run this command with sudo."
            )
        packages = missing_packages()
        if packages:
            line = f"apt-get install --no-install-recommends {' '.join(packages)}"
            raise MissingRequirement(
                f"{why}, and a private Docker Engine needs Debian packages: {otherwise}, or run `{line}`."
            )

    def client(self) -> Docker:
        """Return the client of the running engine."""
        namespace = network.NETNS_FOLDER / self._names.control_namespace
        return Docker(
            socket=self._run / "docker.sock",
            enter=("nsenter", f"--net={namespace}", "--"),
            address=str(self._addresses().control),
        )

    def users(self) -> list[Path]:
        """Return the folders of the clusters that use the engine."""
        if not self._users.exists():
            return []
        named = [Path(file.read_text()) for file in self._users.iterdir() if not file.name.startswith(".")]
        return sorted(folder for folder in named if folder.exists())

    def used_by(self, cluster: Path) -> bool:
        """Whether the cluster whose state is in this folder uses the engine."""
        return self._user(cluster).exists()

    def acquire(self, cluster: Path, progress: Progress) -> Docker:
        """Keep the engine running for a cluster until `release`."""
        with self._locked(progress):
            self._users.mkdir(parents=True, exist_ok=True)
            write_atomically(self._user(cluster), os.fsencode(cluster))
            if not self._serves():
                with progress.step("Starting a private Docker Engine"):
                    self._stop()
                    self._start()
            return self.client()

    def release(self, cluster: Path, progress: Progress) -> None:
        """Forget a cluster; the engine ends with the last one."""
        with self._locked(progress):
            self._user(cluster).unlink(missing_ok=True)
            if not self.users():
                self._stop()

    def running(self) -> bool:
        """Whether the engine runs and answers."""
        return self._runs() and self.client().answers()

    def _serves(self) -> bool:
        """Whether the engine runs and answers; a killed one keeps its process for a moment, but does not answer."""
        if not self._runs():
            return False
        answers = _until(self.client().answers, within_s=_ANSWERS_WITHIN_S, while_=self._runs)
        if not answers and (silent := self._records()):
            raise ProcessFailed(
                f"The private Docker Engine runs, but does not answer (its log is {self.log}): end its process "
                f"{silent[0].pid}, which ends the nodes of all its clusters, and run this command again."
            )
        return answers

    def _runs(self) -> bool:
        return bool(self._records())

    def _records(self) -> list[ProcessRecord]:
        """The record of the engine's process, while that lives."""
        records = self._processes.records()
        return [record for record in records if record.name == _DAEMON and self._processes.alive(record)]

    def _start(self) -> None:
        names = self._names
        self._run.mkdir(mode=0o700)
        lacked = [str(folder) for folder in _MADE_BY_THE_WAY if not folder.exists()]
        with network.changing():
            plan = network.choose_addresses(names, network.host_routes())
            record = _Record(nodes_cidr=str(plan.nodes), lacked=lacked)
            write_atomically(self._record, msgspec.json.encode(record))
            network.create_control(names, plan)
            with watchers.raised() as descriptor:
                self._start_daemon(descriptor)
        if not _until(self.client().answers, within_s=_ANSWERS_WITHIN_S, while_=self._runs):
            said = self._processes.last_words(_DAEMON) or "it wrote nothing"
            self._stop()
            raise ProcessFailed(f"The Docker Engine does not start: {said} (its log is {self.log}).")

    def _start_daemon(self, inherited: int) -> None:
        settings = self._run / "daemon.json"
        settings.write_text("{}")  # not those of the machine's own engine
        namespace = network.NETNS_FOLDER / self._names.control_namespace
        self._data.mkdir(parents=True, exist_ok=True)
        first = [shutil.which("docker-init") or "tini", "--"]  # adopts the orphans of its children
        separate = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
        self._processes.start(
            _DAEMON,
            [
                *("nsenter", f"--net={namespace}", "--", *separate),
                *("sh", "-ec", _IN_ITS_NAMESPACES, "sh", *first),
                *(_DAEMON, "--config-file", settings, "--host", f"unix://{self._run / 'docker.sock'}"),
                *("--data-root", self._data, "--exec-root", self._run / "exec", "--pidfile", self._run / "docker.pid"),
                *("--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", f"/{self._names.cgroup}"),
                *("--default-cgroupns-mode", "private"),
                *_runtime(),
            ],
            inherited=(inherited,),
        )

    def _stop(self) -> None:
        """End the engine and remove everything of it but its images; does nothing if there is nothing."""
        for record in self._records():
            _end_children(record.pid)
            _until(lambda: not self._runs(), within_s=_ENDS_WITHIN_S)
        self._processes.stop(_DAEMON, grace_s=0.0)
        self._processes.stop_strays()
        with network.changing():
            for namespace in network.cluster_namespaces(self._names):
                network.delete_namespace(namespace)
            network.delete_host_link(self._names)
            watchers.set_back()
        cgroup.remove(cgroup.mounted(), self._names.cgroup)
        if self._record.exists():
            before = msgspec.json.decode(self._record.read_bytes(), type=_Record)
            for folder in before.lacked:
                with contextlib.suppress(OSError):  # it was never made, or somebody else put something into it
                    Path(folder).rmdir()
            self._record.unlink()
        shutil.rmtree(self._run, ignore_errors=True)

    def _addresses(self) -> AddressPlan:
        nodes = IPv4Network(msgspec.json.decode(self._record.read_bytes(), type=_Record).nodes_cidr)
        return AddressPlan(nodes=nodes, pods=nodes)

    def _user(self, cluster: Path) -> Path:
        return self._users / names_of(cluster.name, cluster).cgroup

    @contextlib.contextmanager
    def _locked(self, progress: Progress) -> Iterator[None]:
        def waiting(holder: str) -> None:
            progress.note(f" • Waiting for process {holder}, which starts or stops the private Docker Engine ...")

        with locks.waited_for(self.folder / ".lock", waiting):
            yield


def missing_packages(find: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Find the Debian packages that the engine and its node image need and that are not installed."""
    needed = {
        "docker.io": bool(find("dockerd") and find("docker") and (find("docker-init") or find("tini"))),
        "mmdebstrap": bool(find("mmdebstrap")),
        "runc": bool(find("runc")),
        "iptables": bool(find("iptables")),
        "iproute2": bool(find("ip")),
        "util-linux": bool(find("nsenter") and find("unshare")),
        "busybox-static": bool(find("busybox")),
    }
    return [package for package, present in needed.items() if not present]


def _runtime() -> list[str | Path]:
    """Options that give containers only the capabilities that root has, where it lacks some."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (bounds,) = [int(line.split()[1], 16) for line in lines if line.startswith("CapBnd:")]
    if bounds == (2 << int(_LAST_CAPABILITY.read_text())) - 1:
        return []
    program = binaries.find("runc-bounded")["runc-bounded"]
    return ["--add-runtime", f"bounded={program}", "--default-runtime", "bounded"]


def _end_children(parent: int) -> None:
    """Send SIGTERM to a process's children: `unshare` itself would not pass it on."""
    ticks = start_ticks(parent)
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            if start_ticks(parent) == ticks:
                os.kill(int(child), signal.SIGTERM)


def _until(true: Callable[[], bool], *, within_s: float, while_: Callable[[], bool] = lambda: True) -> bool:
    deadline = time.monotonic() + within_s
    while not (reached := true()) and while_() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return reached
