"""Real nodes release everything that they take from the machine, and clean up after a crash."""

import functools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from draco_local.cluster.pki import Authority
from draco_local.cluster.programs import binaries
from draco_local.cluster.realnode import cgroup, network
from draco_local.cluster.realnode.init import RUN_FOLDER
from draco_local.cluster.realnode.nodes import PROGRAMS, RealNodes, RealNodeSettings
from tests.e2e.kubectl import eventually
from tests.e2e.real_nodes.machines import service_pid

pytestmark = [pytest.mark.real_node, pytest.mark.local_provider]

SYSCTLS = ("kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "vm/panic_on_oom", "net/ipv4/ip_forward")


class NoControlPlane:
    """Gives nodes credentials but no API server: they boot without one."""

    def __init__(self, folder: Path) -> None:
        self.pki = folder
        folder.mkdir()
        (folder / "ca.crt").write_bytes(Authority.create("nobody").certificate)

    def write_kubeconfig(self, path: Path, user: str, *, organizations: Sequence[str] = ()) -> None:
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\n"
            "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\n"
            "contexts: [{name: a, context: {cluster: a, user: a}}]\n"
            f"users: [{{name: a, user: {{username: '{user}', password: none}}}}]\n"
        )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "real-nodes"
    yield folder
    RealNodes("leaves-nothing", folder).destroy()


def boot(folder: Path, count: int = 1) -> RealNodes:
    """Boot nodes and wait until kubelet runs on each."""
    nodes = RealNodes("leaves-nothing", folder)
    nodes.prepare_network()
    settings = RealNodeSettings(programs=binaries.find(*PROGRAMS), gpus=1)
    plane = NoControlPlane(folder / "pki")
    for name in nodes.boot(count, plane, settings):
        eventually(
            functools.partial(kubelet_runs, nodes, name),
            within_s=60,
            what=f"kubelet runs on {name}",
        )
    return nodes


def kubelet_runs(nodes: RealNodes, node: str) -> bool:
    return nodes.powered(node) and service_pid(nodes, node, "kubelet") is not None


def machine(folder: Path) -> dict[str, Any]:
    """All state of this machine that real nodes touch, apart from other clusters' changes."""
    names = network.names_of("leaves-nothing", folder)
    groups = cgroup.mounted()
    output = subprocess.run(["ip", "-brief", "link"], check=True, capture_output=True, text=True).stdout
    return {
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line],
        "links": [line.split()[0] for line in output.splitlines() if line.startswith(names.host_link)],
        "namespaces": network.cluster_namespaces(names),
        "cgroups": [root / names.cgroup for root in (*groups.roots, *groups.unified) if (root / names.cgroup).exists()],
        "processes": sorted(processes_of(folder)),
        "sysctls": {name: Path("/proc/sys", name).read_text() for name in SYSCTLS},
        "folders": [path.exists() for path in (Path("/var/lib/containerd"), Path("/etc/cni"), RUN_FOLDER, folder)],
        "routes": [str(route) for route in network.host_routes() if names.host_link in str(route)],
    }


def processes_of(folder: Path) -> list[int]:
    """Every process whose command line names the folder or that runs in one of its namespaces."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) in text:
                found.append(int(entry.name))
    return found


def test_destroyed_nodes_leave_nothing_on_the_machine(folder: Path) -> None:
    before = machine(folder)
    nodes = boot(folder, 2)
    during = machine(folder)
    assert during["links"]
    assert during["cgroups"]
    assert len(during["namespaces"]) == 3
    assert during["sysctls"] == before["sysctls"]
    nodes.destroy()
    assert machine(folder) == before


def test_another_process_finds_and_destroys_what_this_one_made(folder: Path) -> None:
    before = machine(folder)
    boot(folder)
    assert RealNodes("leaves-nothing", folder).nodes == ["real-1"]
    RealNodes("leaves-nothing", folder).destroy()
    assert machine(folder) == before


def test_nodes_whose_records_are_lost_are_cleaned_up_by_the_next_cluster(folder: Path) -> None:
    boot(folder)
    old = processes_of(folder)
    shutil.rmtree(folder, ignore_errors=True)
    nodes = RealNodes("leaves-nothing", folder)
    nodes.prepare_network()
    assert nodes.nodes == []
    assert network.cluster_namespaces(nodes.names) == [nodes.names.control_namespace]
    assert not set(old) & set(processes_of(folder))


def test_destroying_is_harmless_when_there_is_nothing_or_only_half(folder: Path) -> None:
    nodes = RealNodes("leaves-nothing", folder)
    nodes.destroy()
    nodes.prepare_network()
    network.delete_namespace(nodes.names.control_namespace)
    nodes.destroy()
    assert not folder.exists()


def test_destroying_one_cluster_leaves_the_other_running(folder: Path, tmp_path: Path) -> None:
    mine, theirs = RealNodes("leaves-nothing", folder), RealNodes("leaves-nothing", tmp_path / "others")
    try:
        mine.prepare_network()
        theirs.prepare_network()
        assert mine.address != theirs.address
        mine.destroy()
        assert network.cluster_namespaces(theirs.names) == [theirs.names.control_namespace]
    finally:
        theirs.destroy()


def test_a_node_without_power_runs_nothing_and_keeps_its_disk(folder: Path) -> None:
    nodes = boot(folder)
    nodes.exec_on_node("real-1", ["sh", "-c", "echo kept > /var/lib/kubelet/kept; echo lost > /run/lost"])
    boot_id = nodes.exec_on_node("real-1", ["cat", "/proc/sys/kernel/random/boot_id"]).stdout
    began = time.monotonic()
    nodes.power_off("real-1")
    assert time.monotonic() - began < 5
    assert network.processes_in(nodes.names.node_namespace("real-1")) == []
    nodes.power_on("real-1")
    eventually(lambda: kubelet_runs(nodes, "real-1"), within_s=60, what="it is back")
    assert nodes.exec_on_node("real-1", ["cat", "/var/lib/kubelet/kept"]).stdout == "kept\n"
    assert nodes.exec_on_node("real-1", ["cat", "/run/lost"]).returncode != 0
    assert nodes.exec_on_node("real-1", ["cat", "/proc/sys/kernel/random/boot_id"]).stdout != boot_id


def test_what_a_node_writes_below_etc_and_var_stays_on_the_node(folder: Path) -> None:
    nodes = boot(folder)
    name = f"draco-{os.getpid()}"
    done = nodes.exec_on_node(
        "real-1", ["sh", "-c", f"echo a > /etc/{name}; echo b > /var/{name}; cat /etc/{name} /var/{name}"]
    )
    assert done.stdout == "a\nb\n"
    assert not Path("/etc", name).exists()
    assert not Path("/var", name).exists()


def test_the_machine_keeps_its_sysctls_when_a_node_sets_its_own(folder: Path) -> None:
    nodes = boot(folder)
    before = Path("/proc/sys/kernel/panic").read_text()
    done = nodes.exec_on_node("real-1", ["sh", "-c", "echo 77 > /proc/sys/kernel/panic; cat /proc/sys/kernel/panic"])
    assert done.stdout == "77\n"
    assert Path("/proc/sys/kernel/panic").read_text() == before
