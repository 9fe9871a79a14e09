"""The private Docker Engine: one for all clusters, and nothing of it is left when the last cluster is gone."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draco_local.cluster.kindnode.engine import PrivateEngine
from draco_local.cluster.process import Processes, marked_with
from draco_local.cluster.progress import SilentProgress
from draco_local.cluster.realnode import cgroup, network

SILENT = SilentProgress()


WATCHERS = Path("/proc/sys/fs/inotify/max_user_instances")


@contextlib.contextmanager
def an_engine(cache: Path) -> Iterator[PrivateEngine]:
    engine = PrivateEngine(cache)
    try:
        yield engine
    finally:
        for cluster in engine.users():
            engine.release(cluster, SILENT)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[PrivateEngine]:
    """A separate engine that no cluster uses yet."""
    with an_engine(tmp_path / "cache") as engine:
        yield engine


@pytest.fixture
def another_users(tmp_path: Path) -> Iterator[PrivateEngine]:
    """The engine of a user with another cache."""
    with an_engine(tmp_path / "another-users-cache") as engine:
        yield engine


def kill(engine: PrivateEngine) -> None:
    for pid, _ in marked_with(engine.folder):
        with contextlib.suppress(ProcessLookupError):  # it ended with its parent
            os.kill(pid, signal.SIGKILL)


def a_cluster(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def machine(engine: PrivateEngine) -> dict[str, Any]:
    """All state of this machine that an engine touches, apart from others' changes."""
    names = network.names_of("kind", engine.folder)
    groups = cgroup.mounted()
    links = subprocess.run(["ip", "-brief", "link"], check=True, capture_output=True, text=True).stdout
    rules = subprocess.run(["iptables-save"], check=True, capture_output=True, text=True).stdout
    return {
        "processes": sorted(marked_with(engine.folder)),
        "links": [
            line.split()[0] for line in links.splitlines() if line.startswith((names.host_link, "docker", "br-"))
        ],
        "rules": [line for line in rules.splitlines() if "docker" in line.lower() or "FORWARD" in line],
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        "watchers": WATCHERS.read_text(),
        "namespaces": network.cluster_namespaces(names),
        "cgroups": [root / names.cgroup for root in (*groups.roots, *groups.unified) if (root / names.cgroup).exists()],
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(engine.folder) in line],
        "folders": [Path(name).exists() for name in ("/lib/modules", "/run/docker", "/var/lib/docker")],
    }


def test_one_engine_serves_all_clusters_and_leaves_nothing_after_the_last(
    engine: PrivateEngine, tmp_path: Path
) -> None:
    one, other = a_cluster(tmp_path, "one"), a_cluster(tmp_path, "other")
    before = machine(engine)
    client = engine.acquire(one, SILENT)
    assert client.answers()
    assert engine.acquire(other, SILENT) == client
    during = machine(engine)
    assert during["processes"]
    assert int(during["watchers"]) >= 1024  # by default root has 128, for the nodes of all clusters
    assert (during["rules"], during["forwarding"]) == (before["rules"], before["forwarding"])
    engine.release(one, SILENT)
    assert client.answers()
    engine.release(other, SILENT)
    assert not engine.running()
    assert machine(engine) == before


def test_an_engine_that_was_killed_is_started_again(engine: PrivateEngine, tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "one")
    before = machine(engine)
    engine.acquire(cluster, SILENT)
    kill(engine)
    assert engine.acquire(cluster, SILENT).answers()
    engine.release(cluster, SILENT)
    assert machine(engine) == before


def test_an_engine_that_is_about_to_end_is_waited_for_and_started_again(engine: PrivateEngine, tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "one")
    engine.acquire(cluster, SILENT)
    (first,) = [record.pid for record in Processes(engine.folder).records() if record.name == "dockerd"]
    os.kill(first, signal.SIGSTOP)
    for pid, _ in marked_with(engine.folder):
        if pid != first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    last = threading.Timer(0.3, os.kill, (first, signal.SIGKILL))
    last.start()
    try:
        assert engine.acquire(cluster, SILENT).answers()
    finally:
        last.join()


def test_an_engine_that_stops_leaves_another_users_enough_watchers(
    engine: PrivateEngine, another_users: PrivateEngine, tmp_path: Path
) -> None:
    cluster, before = a_cluster(tmp_path, "one"), WATCHERS.read_text()
    engine.acquire(cluster, SILENT)
    client = another_users.acquire(cluster, SILENT)
    engine.release(cluster, SILENT)
    assert client.answers()
    assert int(WATCHERS.read_text()) >= 1024
    another_users.release(cluster, SILENT)
    assert WATCHERS.read_text() == before


def test_a_killed_engine_does_not_keep_the_number_of_watchers_up(
    engine: PrivateEngine, another_users: PrivateEngine, tmp_path: Path
) -> None:
    cluster, before = a_cluster(tmp_path, "one"), WATCHERS.read_text()
    engine.acquire(cluster, SILENT)
    another_users.acquire(cluster, SILENT)
    kill(engine)
    another_users.release(cluster, SILENT)
    assert WATCHERS.read_text() == before


def test_a_cluster_that_is_gone_does_not_keep_the_engine(engine: PrivateEngine, tmp_path: Path) -> None:
    forgotten, used = a_cluster(tmp_path, "forgotten"), a_cluster(tmp_path, "used")
    engine.acquire(forgotten, SILENT)
    engine.acquire(used, SILENT)
    forgotten.rmdir()
    engine.release(used, SILENT)
    assert not engine.running()
