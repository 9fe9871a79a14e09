"""Real nodes on one machine: each a kubelet, a containerd and a kube-proxy in namespaces of their own.

Owns the set of a cluster's real nodes: preparing the network, booting, power-off and power-on, running commands inside,
loading images, and removing everything. What it must remember is in one folder, and what exists in the kernel is found by
names derived from that folder, so another process can go on where this one stopped, or clean up after a crash. Must not
start the control plane: it only says where that has to run (`enter`, `address`).
"""

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final, Protocol

import msgspec

from draco_local.cluster.errors import ClusterError, ProcessFailed, StateDamaged
from draco_local.cluster.files import write_atomically
from draco_local.cluster.process import Processes
from draco_local.cluster.programs import versions
from draco_local.cluster.realnode import cgroup, image, network
from draco_local.cluster.realnode.agent import (
    agent_service,
    boot_gpus,
    create_gpus,
    driver_service,
    install_driver,
    mps_service,
)
from draco_local.cluster.realnode.check import CNI_BIN, may_lower_oom_score, require
from draco_local.cluster.realnode.config import AGENT_MOUNT, RealNodeFacts, plan_json, plan_node
from draco_local.cluster.realnode.network import AddressPlan, names_of

PROGRAMS: Final = ("kubelet", "kube-proxy", "containerd", "containerd-shim-runc-v2", "ctr")
"""What must be found or built for real nodes, beside a control plane's programs."""

API_PORT: Final = 6443
_GONE_WITHIN_S: Final = 15.0
_POLL_S: Final = 0.02
_RECORD: Final = "network.json"


class ControlPlaneAccess(Protocol):
    """What real nodes need of a control plane: its authority, and kubeconfigs for new identities."""

    pki: Path

    def write_kubeconfig(self, path: Path, user: str, *, organizations: Sequence[str] = ()) -> None:
        """Write a kubeconfig for a new client certificate of `user`."""


@dataclass(frozen=True, slots=True)
class RealNodeSettings:
    """How real nodes are equipped: `programs` as found for PROGRAMS, GPUs of `board` on each, further node labels.

    With `agent` they run the agent automatically, as soon as it has a token. `images` are archives that each node has from its
    first boot.
    """

    programs: Mapping[str, Path]
    kubernetes: str = versions.DEFAULT_KUBERNETES
    features: versions.Features = "all"
    gpus: int = 8
    board: str = "H100-80GB"
    labels: Mapping[str, str] = field(default_factory=dict)
    agent: bool = True
    images: Sequence[Path] = ()


class _NodeRecord(msgspec.Struct, frozen=True):
    name: str
    index: int


class _Record(msgspec.Struct, frozen=True):
    """What is remembered: the networks that were chosen, and the nodes, whose index counts from 1."""

    nodes_cidr: str
    pods_cidr: str
    nodes: tuple[_NodeRecord, ...] = ()

    @property
    def plan(self) -> AddressPlan:
        return AddressPlan(nodes=IPv4Network(self.nodes_cidr), pods=IPv4Network(self.pods_cidr))


class RealNodes:
    """The real nodes of one cluster; `folder` is theirs alone and is removed by `destroy`.

    Every call may be made by another process than the one before. Not for use by two programs at once.
    """

    def __init__(self, cluster: str, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder.absolute()
        self.names = names_of(cluster, self.folder)
        self.processes = Processes(self.folder)

    @property
    def enter(self) -> list[str]:
        """What goes before a command line so that the program runs in the control plane's network namespace."""
        return ["nsenter", f"--net={network.NETNS_FOLDER / self.names.control_namespace}", "--"]

    @property
    def address(self) -> str:
        """Where the API server must listen: reachable from the nodes and from this machine. Port API_PORT is free there."""
        return str(self._record().plan.control)

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes that were booted, whether or not they are powered now."""
        return [node.name for node in self._record().nodes] if self.prepared else []

    @property
    def prepared(self) -> bool:
        """Whether `prepare_network` was called and `destroy` was not."""
        return (self.folder / _RECORD).exists()

    def prepare_network(self) -> None:
        """Make the cluster's network, after removing what a crash may have left of an older one.

        Raises MissingRequirement when this machine cannot host real nodes, NetworkError when no network can be made.
        """
        require(self.folder)
        self.destroy()
        self.folder.mkdir(parents=True, mode=0o700)
        with network.changing():
            plan = network.choose_addresses(self.names, network.host_routes())
            self._write(_Record(nodes_cidr=str(plan.nodes), pods_cidr=str(plan.pods)))
            network.create_control(self.names, plan)

    def boot(self, count: int, control_plane: ControlPlaneAccess, settings: RealNodeSettings) -> list[str]:
        """Boot `count` further nodes and return their names at once; `join.join` waits for them."""
        self._write_images(settings.images)
        record = self._record()
        first = len(record.nodes) + 1
        added = tuple(_NodeRecord(name=f"real-{index}", index=index) for index in range(first, first + count))
        if first + count - 1 > network.MAX_NODES:
            raise ClusterError(f"A cluster has at most {network.MAX_NODES} real nodes.")
        self._write(msgspec.structs.replace(record, nodes=(*record.nodes, *added)))
        for node in added:
            with network.changing():
                everyone = [other.index for other in self._record().nodes if other.index != node.index]
                network.create_node(self.names, record.plan, node.name, node.index, others=everyone)
            self._write_plan(node, record.plan, control_plane, settings)
            self.power_on(node.name)
        return [node.name for node in added]

    def power_on(self, node: str) -> None:
        """Boot a node that is off: its disk is unchanged, its containers are gone. Does nothing if it is on.

        Its GPUs are booted with it: their instances are gone.
        """
        self._known(node)
        if self._first_process(node):
            return
        boot_gpus(self._disk(node))
        cgroup.create(cgroup.mounted(), self.names.cgroup, node)
        namespace = network.NETNS_FOLDER / self.names.node_namespace(node)
        separate = ("--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc")
        first_process = (sys.executable, "-m", "draco_local.cluster.realnode.init", self._plan_file(node))
        self.processes.start(
            _console(node),
            ["nsenter", f"--net={namespace}", "--", "unshare", *separate, "--", *first_process],
            environment={"PYTHONUNBUFFERED": "1"},
        )

    def power_off(self, node: str) -> None:
        """Cut the node's power: everything on it ends at once. Does nothing if it is off."""
        self._known(node)
        self._cut_power(node)

    def powered(self, node: str) -> bool:
        """Whether the node is on."""
        return self._first_process(node) is not None

    def exec_on_node(self, node: str, argv: Sequence[str | Path]) -> "subprocess.CompletedProcess[str]":
        """Run a program in the node's namespaces and return what it said; its exit status is not checked."""
        self._known(node)
        first = self._first_process(node)
        if first is None:
            raise ClusterError(f"Node {node} is off: power it on first.")
        return subprocess.run(
            ["nsenter", "--target", str(first), "--net", "--mount", "--pid", "--uts", "--ipc", "--", *argv],
            check=False,
            capture_output=True,
            text=True,
            timeout=60.0,
            stdin=subprocess.DEVNULL,
        )

    def log(self, node: str, service: str) -> Path:
        """Return where a service of the node writes; "console" is the node's first process."""
        return (
            self.processes.log(_console(node)) if service == "console" else self._disk(node) / "logs" / f"{service}.log"
        )

    def write_agent_token(self, node: str, token: str) -> None:
        """Give the node's agent its identity; the agent starts when it first has one, and notices a newer one."""
        self._known(node)
        write_atomically(self._disk(node) / "fs" / AGENT_MOUNT.lstrip("/") / "token", token.encode())

    def destroy(self) -> None:
        """Remove everything: processes, mounts, links, namespaces, cgroups, files. Does nothing if there is nothing."""
        namespaces = network.cluster_namespaces(self.names)
        _end_all(namespaces)
        self.processes.stop_each([record.name for record in self.processes.records()], grace_s=0.0)
        if namespaces or self.folder.exists():
            with network.changing():
                for namespace in namespaces:
                    network.delete_namespace(namespace)
                network.delete_host_link(self.names)
            cgroup.remove(cgroup.mounted(), self.names.cgroup)
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def _cut_power(self, node: str) -> None:
        _end_all([self.names.node_namespace(node)])
        self.processes.stop(_console(node), grace_s=0.0)
        # A rebooted machine has no cgroups of old containers; with them kubelet would wait 12 s at its start.
        cgroup.remove(cgroup.mounted(), self.names.cgroup, node)

    def _first_process(self, node: str) -> int | None:
        namespace = self.names.node_namespace(node)
        if not (network.NETNS_FOLDER / namespace).exists():
            return None
        depth = len(_ids_in_namespaces("self"))
        for pid in network.processes_in(namespace):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                ids = _ids_in_namespaces(str(pid))
                if len(ids) == depth + 1 and ids[-1] == 1:
                    return pid
        return None

    def _known(self, node: str) -> None:
        if node not in self.nodes:
            known = ", ".join(self.nodes) or "none"
            raise ClusterError(f"The cluster {self.cluster} has no real node {node}; it has {known}.")

    def _write_plan(
        self, node: _NodeRecord, plan: AddressPlan, control_plane: ControlPlaneAccess, settings: RealNodeSettings
    ) -> None:
        disk = self._disk(node.name)
        disk.mkdir(parents=True)
        kubelet, proxy = disk / "kubelet.kubeconfig", disk / "kube-proxy.kubeconfig"
        control_plane.write_kubeconfig(kubelet, f"system:node:{node.name}", organizations=["system:nodes"])
        control_plane.write_kubeconfig(proxy, "system:kube-proxy")
        authority = control_plane.pki / "ca.crt"
        mount = disk / "fs" / AGENT_MOUNT.lstrip("/")
        mount.mkdir(parents=True)
        write_atomically(mount / "ca.crt", authority.read_bytes())
        create_gpus(disk, board=settings.board, gpus=settings.gpus, node=node.name)
        install_driver(disk)
        facts = RealNodeFacts(
            name=node.name,
            address=plan.node(node.index),
            pods=plan.pod_cidr(node.index),
            all_pods=plan.pods,
            disk=disk,
            images=self._images,
            programs=settings.programs,
            cni_bin=CNI_BIN,
            kubelet_kubeconfig=kubelet,
            proxy_kubeconfig=proxy,
            authority=authority,
            cgroup=f"/{self.names.cgroup}/{node.name}",
            feature_gates=versions.minor_of(settings.kubernetes, settings.features).gates,
            labels=settings.labels,
            gpus=settings.gpus,
            driver=driver_service(),
            agent=agent_service(node.name, api_host=str(plan.control), api_port=API_PORT) if settings.agent else None,
            mps=mps_service() if settings.agent else None,
            may_lower_oom_score=may_lower_oom_score(Path("/proc/self/status").read_text()),
        )
        self._plan_file(node.name).write_text(plan_json(plan_node(facts)))

    def _write_images(self, further: Sequence[Path]) -> None:
        self._images.mkdir(parents=True, exist_ok=True)
        for archive in further:
            shutil.copyfile(archive, self._images / archive.name)
        for name, make in (("pause", image.pause_image), ("busybox", image.busybox_image)):
            archive = self._images / f"{name}.tar"
            if not archive.exists():
                image.write_archive(make(), archive, machine=platform.machine())

    @property
    def _images(self) -> Path:
        return self.folder / "images"

    def _disk(self, node: str) -> Path:
        return disk_of(self.folder, node)

    def _plan_file(self, node: str) -> Path:
        return self._disk(node) / "plan.json"

    def _record(self) -> _Record:
        path = self.folder / _RECORD
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Record)
        except FileNotFoundError as error:
            raise ClusterError(f"The cluster {self.cluster} has no real nodes.") from error
        except msgspec.MsgspecError as error:
            raise StateDamaged(f"{path} is damaged: run `draco cluster down --name {self.cluster}`.") from error

    def _write(self, record: _Record) -> None:
        write_atomically(self.folder / _RECORD, msgspec.json.encode(record))


def disk_of(folder: Path, node: str) -> Path:
    """Return a node's disk; `folder` is that of all real nodes."""
    return folder / "disks" / node


def _console(node: str) -> str:
    return f"node-{node}"


def _ids_in_namespaces(pid: str) -> list[int]:
    """The process's ids in its pid namespace and those around it, the outermost visible one first."""
    for line in Path("/proc", pid, "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return [int(value) for value in line.split()[1:]]
    raise ProcessLookupError(pid)


def _end_all(namespaces: Sequence[str]) -> None:
    """Kill every process in these network namespaces, and with a node's first process its containers; return when all ended."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while pids := [pid for namespace in namespaces for pid in network.processes_in(namespace)]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ProcessFailed(f"Processes {', '.join(map(str, pids))} do not end: end them by hand and try again.")
        time.sleep(_POLL_S)
