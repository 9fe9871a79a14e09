"""The private network of one cluster: its names, its subnet, and the links that make it.

Everything lives inside network namespaces of the cluster's own. The control plane's namespace holds the bridge that all
nodes are plugged into, so the host's firewall never sees their traffic, and deleting that namespace takes the bridge and
every link with it. The host gets one veth end, over which people and the operator reach the API server.

Names are derived from the folder that holds the cluster's state, so a later process (or the one after a crash) finds
exactly what this cluster made and nothing else. Must not start or stop anything but links and namespaces.
"""

import fcntl
import hashlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from draco.resources.errors import DracoError
from draco_local.cluster.controlplane import SERVICE_CIDR

NETNS_FOLDER: Final = Path("/run/netns")
MTU: Final = 1400
MAX_NODES: Final = 200
_FIRST_NODE_HOST: Final = 10
_HOST, _CONTROL = 1, 2
_CANDIDATES: Final = (IPv4Network("10.99.0.0/16"), IPv4Network("198.18.0.0/16"), IPv4Network("172.30.0.0/16"))
_POD_OCTETS: Final = range(100, 250)


class NetworkError(DracoError):
    """The cluster's network cannot be made."""


@dataclass(frozen=True, slots=True)
class NetworkNames:
    """Every name one cluster gives to what it makes in the kernel: at most 15 characters where it is a link."""

    cluster: str
    mark: str

    @property
    def host_link(self) -> str:
        """The end of the veth pair that the host keeps."""
        return f"dr{self.mark}h"

    @property
    def control_namespace(self) -> str:
        """The namespace of the control plane, which holds the bridge."""
        return self.node_namespace("control")

    @property
    def namespace_prefix(self) -> str:
        """The prefix of the names of this cluster's namespaces, and of no other cluster's."""
        return f"draco-{self.mark}-{self.cluster}-"

    @property
    def cgroup(self) -> str:
        """The cgroup, below the root of each hierarchy, that holds every container of the cluster."""
        return f"draco-{self.mark}-{self.cluster}"

    def node_namespace(self, node: str) -> str:
        """Return the namespace of one node."""
        return f"{self.namespace_prefix}{node}"

    def node_port(self, index: int) -> str:
        """Return the bridge's port of one node, inside the control plane's namespace."""
        return f"port{index}"


def names_of(cluster: str, state_dir: Path) -> NetworkNames:
    """Return the names of a cluster: two clusters of one name in different state folders get different ones."""
    mark = hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:6]
    return NetworkNames(cluster=cluster, mark=mark)


@dataclass(frozen=True, slots=True)
class AddressPlan:
    """Which addresses a cluster uses: hosts in `nodes`, pods of node i in the i-th /24 of `pods`."""

    nodes: IPv4Network
    pods: IPv4Network

    @property
    def host(self) -> IPv4Address:
        """The host's own address, and the nodes' default gateway."""
        return self.nodes[_HOST]

    @property
    def control(self) -> IPv4Address:
        """The control plane's address."""
        return self.nodes[_CONTROL]

    def node(self, index: int) -> IPv4Address:
        """Return the address of node `index`, counted from 1."""
        return self.nodes[_FIRST_NODE_HOST + index]

    def pod_cidr(self, index: int) -> IPv4Network:
        """Return the addresses of the pods of node `index`, counted from 1."""
        return IPv4Network((int(self.pods.network_address) + (index << 8), 24))


def choose_addresses(names: NetworkNames, taken: Iterable[IPv4Network]) -> AddressPlan:
    """Choose addresses that overlap nothing in `taken` (the host's routes). Raises NetworkError when none is free."""
    occupied = [*taken, IPv4Network(SERVICE_CIDR)]
    start = int(names.mark, 16)

    def free(network: IPv4Network) -> bool:
        return not any(network.overlaps(other) for other in occupied)

    nodes = next(
        (
            network
            for block in _CANDIDATES
            for step in range(256)
            if free(network := IPv4Network((int(block.network_address) + ((start + step) % 256 << 8), 24)))
        ),
        None,
    )
    # Pods' addresses exist only inside the cluster's namespaces, so any range that the host does not route will do; when a
    # VPN routes all of 10/8 a range is still chosen: nothing in the cluster needs to reach the VPN.
    octets = [_POD_OCTETS[(start + step) % len(_POD_OCTETS)] for step in range(len(_POD_OCTETS))]
    ranges = [IPv4Network(f"10.{octet}.0.0/16") for octet in octets]
    pods = next((network for network in ranges if free(network)), ranges[0])
    if nodes is None:
        blocks = ", ".join(str(block) for block in _CANDIDATES)
        raise NetworkError(
            f"No /24 is free for the nodes: this machine routes all of {blocks}. Remove a route, for example a VPN's."
        )
    return AddressPlan(nodes=nodes, pods=pods)


def host_routes() -> list[IPv4Network]:
    """Return the IPv4 networks this machine routes anywhere but through its default gateway."""
    networks = []
    for route in json.loads(_ip("-json", "route", "show", "table", "all") or "[]"):
        destination = route.get("dst", "default")
        if destination == "default" or route.get("type") in {"local", "broadcast", "multicast"}:
            continue
        with suppress(ValueError):  # IPv6
            networks.append(IPv4Network(destination, strict=False))
    return networks


@contextmanager
def changing() -> Iterator[None]:
    """Change this machine's links and namespaces while no other cluster does, so that no two choose the same addresses.

    The lock is on the host's network namespace itself, so it leaves no file. `ip netns add` makes the folder of names a
    mount point the first time; a folder that is left empty is taken away again.
    """
    descriptor = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        if NETNS_FOLDER.exists() and not any(NETNS_FOLDER.iterdir()):
            subprocess.run(["umount", NETNS_FOLDER], check=False, capture_output=True)
            with suppress(OSError):
                NETNS_FOLDER.rmdir()
    finally:
        os.close(descriptor)


def create_control(names: NetworkNames, plan: AddressPlan) -> None:
    """Make the control plane's namespace with its bridge, and the host's link into it."""
    control = names.control_namespace
    prefix = plan.nodes.prefixlen
    _ip(
        "netns",
        "add",
        control,
        why="The kernel cannot make network namespaces here (CONFIG_NET_NS, or root, is missing)",
    )
    _ip("-n", control, "link", "set", "lo", "up")
    _ip(
        "-n",
        control,
        "link",
        "add",
        "nodes",
        "mtu",
        str(MTU),
        "type",
        "bridge",
        why="The kernel cannot make a bridge (module bridge)",
    )
    _ip("-n", control, "addr", "add", f"{plan.control}/{prefix}", "dev", "nodes")
    _ip("-n", control, "link", "set", "nodes", "up")
    _ip(
        "link",
        "add",
        names.host_link,
        "mtu",
        str(MTU),
        "type",
        "veth",
        "peer",
        "name",
        "host",
        "netns",
        control,
        why="The kernel cannot make a veth pair (module veth)",
    )
    _ip("link", "set", "dev", names.host_link, "alias", f"draco cluster {names.cluster}")
    _ip("-n", control, "link", "set", "host", "master", "nodes", "up")
    _ip("addr", "add", f"{plan.host}/{prefix}", "dev", names.host_link)
    _ip("link", "set", names.host_link, "up")
    _ip("-n", control, "route", "add", "default", "via", str(plan.host))


def create_node(names: NetworkNames, plan: AddressPlan, node: str, index: int, *, others: Iterable[int]) -> None:
    """Make one node's namespace, plug it into the bridge, and give it routes to the pods of `others`."""
    control, own = names.control_namespace, names.node_namespace(node)
    _ip("netns", "add", own)
    _ip("-n", own, "link", "set", "lo", "up")
    _ip(
        "-n",
        control,
        "link",
        "add",
        names.node_port(index),
        "mtu",
        str(MTU),
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        own,
    )
    _ip("-n", control, "link", "set", names.node_port(index), "master", "nodes", "up")
    _ip("-n", own, "addr", "add", f"{plan.node(index)}/{plan.nodes.prefixlen}", "dev", "eth0")
    _ip("-n", own, "link", "set", "eth0", "up")
    _ip("-n", own, "route", "add", "default", "via", str(plan.host))
    _ip("-n", control, "route", "replace", str(plan.pod_cidr(index)), "via", str(plan.node(index)))
    for other in others:
        _ip("-n", own, "route", "replace", str(plan.pod_cidr(other)), "via", str(plan.node(other)))


def cluster_namespaces(names: NetworkNames) -> list[str]:
    """Return the cluster's namespaces that exist now, the control plane's last."""
    try:
        found = [entry.name for entry in NETNS_FOLDER.iterdir() if entry.name.startswith(names.namespace_prefix)]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda name: (name == names.control_namespace, name))


def processes_in(namespace: str) -> list[int]:
    """Return the processes whose network namespace this is, by their ids here."""
    output = _ip("netns", "pids", namespace)
    return [int(pid) for pid in output.split()]


def delete_namespace(namespace: str) -> None:
    """Delete one namespace and with it every link inside; nothing happens when it is gone already."""
    _delete((NETNS_FOLDER / namespace).exists, "netns", "delete", namespace)


def delete_host_link(names: NetworkNames) -> None:
    """Delete the host's end of the link, which normally goes with the control plane's namespace."""
    _delete(lambda: _is_link(names.host_link), "link", "delete", names.host_link)


def _is_link(name: str) -> bool:
    try:
        socket.if_nametoindex(name)
    except OSError:
        return False
    return True


def _delete(exists: Callable[[], bool], *command: str) -> None:
    """Delete something that the kernel or another process may delete at the same time."""
    try:
        if exists():
            _ip(*command)
    except NetworkError:
        if exists():
            raise


def _ip(*arguments: str, why: str = "") -> str:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout
    reason = re.sub(r"\s+", " ", done.stderr).strip().rstrip(".")
    sentence = why or f"`ip {' '.join(arguments)}` failed"
    raise NetworkError(f"{sentence}: {reason}.")
