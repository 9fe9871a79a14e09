"""`draco cluster` from outside: up, down, repeated, side by side, and killed midway."""

import json
import os
import signal
import socket
from pathlib import Path

from draco_local.cluster import ports
from draco_local.cluster.process import start_ticks
from tests.component.cluster.machine import BARE, Machine, until

CONTROL_PLANE = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}


def all_gone(pids: dict[str, tuple[int, int]]) -> bool:
    return all(start_ticks(pid) != ticks for pid, ticks in pids.values())


def test_two_clusters_live_side_by_side_and_go_without_a_trace(machine: Machine) -> None:
    told = machine.must("up", "--name", "one", *BARE)
    assert f"export KUBECONFIG={machine.clusters / 'one' / 'kubeconfig'}" in told
    machine.must("up", "--name", "two", *BARE)
    assert machine.must("list").split() == ["one", "two"]

    first = json.loads(machine.must("status", "--name", "one", "-o", "json"))
    assert {each["name"] for each in first["components"] if each["alive"]} == CONTROL_PLANE
    servers = {machine.must("kubeconfig", "--name", name).split("server: ")[1].split()[0] for name in ("one", "two")}
    assert len(servers) == 2

    same = machine.draco("up", "--name", "one", *BARE)
    assert (same.returncode, same.stderr) == (0, "Cluster one already runs.\n")
    other = machine.draco("up", "--name", "one", "--nodes", "3", "--no-operator")
    assert other.returncode == 1
    assert other.stderr.startswith(
        "Error: Cluster one already runs with other settings: run `draco cluster down --name one`"
    )

    one, two = machine.pids("one"), machine.pids("two")
    machine.must("down", "--name", "one")
    assert all_gone(one)
    assert not all_gone(two)
    machine.must("status", "--name", "two")
    machine.must("down", "--name", "two")
    assert all_gone(two)
    assert machine.mentioned() == []
    assert list(machine.clusters.iterdir()) == []


def test_an_up_that_was_killed_is_cleaned_by_the_next_up_and_by_down(machine: Machine) -> None:
    killed = machine.start("up", "--name", "a", *BARE)
    until(lambda: "kube-apiserver" in machine.pids("a"))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    left = machine.pids("a")
    assert not all_gone(left)
    (machine.clusters / "a" / "processes" / "etcd.json").unlink()  # as if killed between starting etcd and recording it

    again = machine.draco("up", "--name", "a", *BARE)
    assert again.returncode == 0, again.stderr
    assert "Removing what is left of an earlier cluster a" in again.stderr
    assert all_gone(left)

    pid, _ = machine.pids("a")["kube-scheduler"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: start_ticks(pid) is None)
    status = machine.draco("status", "--name", "a")
    assert status.returncode == 1
    assert "DEAD" in next(line for line in status.stdout.splitlines() if "kube-scheduler" in line)
    refused = machine.draco("up", "--name", "a", *BARE)
    assert refused.returncode == 1
    assert "Cluster a runs, but without kube-scheduler: run `draco cluster down --name a` first." in refused.stderr

    (machine.clusters / "a" / "cluster.json").write_text('{"name": "a", "pha')
    damaged = machine.draco("status", "--name", "a")
    assert damaged.returncode == 1
    assert "run `draco cluster down --name a`" in damaged.stderr
    running = machine.pids("a")
    machine.must("down", "--name", "a")
    assert all_gone(running)
    assert machine.mentioned() == []
    assert list(machine.clusters.iterdir()) == []


def test_a_port_in_use_stops_up_with_one_sentence_and_nothing_left_running(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", ports.pick())) as server:
        port = server.getsockname()[1]
        refused = machine.draco("up", "--name", "a", "--port", str(port), *BARE)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith(f"Error: Port {port} on 127.0.0.1 is in use: ")
    assert machine.mentioned() == []
    machine.must("down", "--name", "a")


def test_a_component_that_does_not_start_is_told_with_its_last_words(machine: Machine, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    broken = programs / "etcd"
    broken.write_text("#!/bin/sh\necho the disk is on fire; exit 3\n")
    broken.chmod(0o755)
    refused = machine.draco("up", "--name", "a", "--bin-dir", str(programs), *BARE)
    assert refused.returncode == 1
    assert "The process etcd stopped right after its start: the disk is on fire" in refused.stderr
    log = machine.clusters / "a" / "logs" / "etcd.log"
    assert str(log) in refused.stderr
    assert log.read_text() == "the disk is on fire\n"  # a failed cluster leaves its logs, and nothing running
    assert machine.mentioned() == []
    assert machine.draco("status", "--name", "a").returncode == 1
    machine.must("down", "--name", "a")


def test_one_cluster_is_changed_by_one_program_at_a_time(machine: Machine) -> None:
    first = machine.start("up", "--name", "a", *BARE)
    until((machine.clusters / "a").exists)
    second = machine.draco("down", "--name", "a")
    first.send_signal(signal.SIGKILL)
    first.wait()
    machine.must("down", "--name", "a")
    assert second.returncode == 1
    assert f"Cluster a is being changed by process {first.pid}" in second.stderr
    assert machine.mentioned() == []
