"""Finding the simulated GPUs of a cluster's nodes, and what a reboot does to them."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from draco_local.cluster import gpus
from draco_local.cluster.errors import ClusterError
from draco_local.cluster.realnode.agent import boot_gpus, create_gpus, gpu_state_file, install_driver
from draco_local.cluster.realnode.config import DRIVER_ROOT
from draco_local.cluster.state import ClusterSpec, ClusterState, Record
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.driver import root
from draco_local.simulator.gpus.state import create, load, mutate


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cluster "mixed" with one simulated and one real node."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record = Record("mixed")
    wanted = ClusterSpec(nodes=1, real_nodes=1, gpus=1)
    record.write(ClusterState(name="mixed", phase="ready", wanted=wanted, created=datetime(2026, 1, 1, tzinfo=UTC)))
    nodes = record.folder / "real-nodes" / "network.json"
    nodes.parent.mkdir()
    plan = {"nodes_cidr": "10.0.0.0/24", "pods_cidr": "10.1.0.0/16", "nodes": [{"name": "real-1", "index": 1}]}
    nodes.write_text(json.dumps(plan))
    return record.folder


def test_a_simulated_nodes_gpus_are_in_its_folder(folder: Path) -> None:
    with pytest.raises(ClusterError, match="Node gpu-node-0 has no GPUs yet: wait until `draco cluster status`"):
        gpus.state_file("mixed", "gpu-node-0")
    file = folder / "sockets" / "gpu-node-0" / "gpus.json"
    create(file, gpus=1, node_name="gpu-node-0")
    assert gpus.state_file("mixed", "gpu-node-0") == file


def test_a_real_nodes_gpus_are_on_its_disk(folder: Path) -> None:
    disk = folder / "real-nodes" / "disks" / "real-1"
    create_gpus(disk, board="A100-40GB", gpus=2, node="real-1")
    assert load(gpus.state_file("mixed", "real-1")).node_name == "real-1"


def test_a_node_of_another_name_is_told_with_those_there_are(folder: Path) -> None:
    with pytest.raises(ClusterError, match=r"has no node real-2; it has: gpu-node-0, real-1\. Did you mean real-1\?"):
        gpus.state_file("mixed", "real-2")


def test_a_boot_takes_instances_and_finds_no_lost_gpu(tmp_path: Path) -> None:
    create_gpus(tmp_path, board="A100-40GB", gpus=2, node="real-1")
    path = gpu_state_file(tmp_path)
    with mutate(path) as state:
        state.gpus[0].mig_current = state.gpus[0].mig_pending = 1
    by_hand.create_instance(path, 0, "3g.20gb")
    faults.lose(path, 1)
    before = load(path)
    boot_gpus(tmp_path)
    after = load(path)
    assert after.boot_id != before.boot_id
    assert [(gpu.instances, gpu.error, gpu.mig_current) for gpu in after.gpus] == [([], 0, 1)]
    assert [gpu.uuid for gpu in after.missing] == [before.gpus[1].uuid]


def test_nvidia_smi_is_taken_from_a_real_nodes_disk_and_put_back(tmp_path: Path) -> None:
    create_gpus(tmp_path, board="T4", gpus=1, node="real-1")
    install_driver(tmp_path)
    program, state = tmp_path / "fs" / DRIVER_ROOT.lstrip("/") / root.NVIDIA_SMI, gpu_state_file(tmp_path)
    for repair in (
        lambda: gpus.nvidia_smi(state, installed=True),
        lambda: gpus.reload_driver(state, version="595.58.03"),
    ):
        gpus.nvidia_smi(state, installed=False)
        assert (program.exists(), load(state).driver.nvidia_smi) == (False, False)
        repair()
        assert (os.access(program, os.X_OK), load(state).driver.nvidia_smi) == (True, True)
