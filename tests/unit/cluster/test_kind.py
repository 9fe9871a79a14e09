"""The kind provider, with a fake `kind` and `docker` that record their arguments, and nothing else on PATH."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from draco_local.cluster import clusters, state
from draco_local.cluster.errors import ClusterError, MissingRequirement
from draco_local.cluster.kindnode.docker import Docker
from draco_local.cluster.kindnode.engine import PrivateEngine
from draco_local.cluster.kindnode.machines import KindMachines
from draco_local.cluster.progress import Progress, SilentProgress
from draco_local.cluster.providers import kind
from draco_local.cluster.providers.kind import config, kubelet_config
from draco_local.cluster.state import ClusterSpec, ClusterState, Record

WANTED = ClusterSpec(provider="kind", kubernetes="1.36.3", nodes=0, real_nodes=2, operator=False)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def put(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_the_configuration_turns_on_gates_api_versions_and_cdi() -> None:
    document = config(WANTED)
    assert document["featureGates"]["DRADeviceTaintRules"] is True
    assert document["runtimeConfig"] == {"resource.k8s.io/v1beta2": "true", "resource.k8s.io/v1alpha3": "true"}
    assert "enable_cdi = true" in document["containerdConfigPatches"][0]
    assert [node["role"] for node in document["nodes"]] == ["control-plane", "worker", "worker"]
    assert "networking" not in document
    assert yaml.safe_load(yaml.safe_dump(document)) == document


def test_an_older_version_gets_only_the_gates_it_knows() -> None:
    document = config(ClusterSpec(provider="kind", kubernetes="1.34.4", port=6443))
    assert "DRADeviceTaintRules" not in document["featureGates"]
    assert document["runtimeConfig"] == {"resource.k8s.io/v1alpha3": "true"}
    assert document["networking"] == {"apiServerPort": 6443}


def test_only_nodes_that_have_gpus_are_labelled_and_have_a_disk(tmp_path: Path) -> None:
    machines = KindMachines(["draco-a-worker", "draco-a-worker2"], tmp_path, Docker())
    machines.prepare(board="H100-80GB", gpus=2)
    document = config(WANTED, machines=machines, address="10.99.1.2")
    control_plane, *workers = document["nodes"]
    assert control_plane == {"role": "control-plane"}
    for name, worker in zip(machines.nodes, workers, strict=True):
        assert worker["labels"] == {"draco.dev/real": "true", "nvidia.com/gpu.present": "true"}
        driver, disk, at_boot = worker["extraMounts"]
        assert driver["containerPath"] == "/run/nvidia/driver"
        assert Path(driver["hostPath"], "usr/bin/nvidia-smi").exists()
        assert disk["containerPath"] == "/var/lib/draco"
        assert name in disk["hostPath"]
        assert {"gpus.json", "boot.sh"} <= {path.name for path in Path(disk["hostPath"]).iterdir()}
        assert "ExecStartPre=/bin/sh /var/lib/draco/boot.sh" in Path(at_boot["hostPath"]).read_text()
    assert document["networking"] == {"apiServerAddress": "10.99.1.2"}


def test_containers_are_restarted_soon_where_kubelet_can_be_told() -> None:
    assert kubelet_config("1.36.3")["crashLoopBackOff"] == {"maxContainerRestartPeriod": "1s"}
    assert "crashLoopBackOff" not in kubelet_config("1.34.4")


def test_without_docker_a_private_engine_needs_root(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        MissingRequirement,
        match=r"^No Docker answers here, and a private Docker Engine needs root: start Docker, or run",
    ):
        clusters.up("a", WANTED, progress=SilentProgress(), wait_s=0)
    assert state.names() == []


@pytest.mark.parametrize("docker", ["", "exit 1"])
def test_without_docker_the_packages_of_a_private_engine_are_named(
    path: Path, monkeypatch: pytest.MonkeyPatch, docker: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    if docker:
        put(path, "docker", docker)
    with pytest.raises(
        MissingRequirement, match=r"run `apt-get install --no-install-recommends docker.io mmdebstrap runc "
    ):
        clusters.up("a", WANTED, progress=SilentProgress(), wait_s=0)
    assert state.names() == []


def test_an_image_that_docker_has_is_used(path: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    put(path, "kind", f'echo "$@" >> {told}; exit 1')
    put(path, "docker", f'echo "docker $@" >> {told}')
    with pytest.raises(ClusterError):
        clusters.up("a", WANTED, progress=SilentProgress(), wait_s=0)
    assert "--image kindest/node:v1.36.3 " in told.read_text()


def test_an_image_that_docker_lacks_is_not_pulled_by_its_name(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    told = tmp_path / "told"
    put(path, "docker", f'echo "$@" >> {told}; [ "$1" != image ]')
    says = r"^Docker has no kindest/node:v1.36.3, .* needs root: run `docker pull kindest/node:v1.36.3`, if you trust "
    with pytest.raises(MissingRequirement, match=says):
        clusters.up("a", WANTED, progress=SilentProgress(), wait_s=0)
    assert not any(line.startswith("pull") for line in told.read_text().splitlines())
    assert Record("a").read().phase == "failed"
    clusters.down("a", progress=SilentProgress())
    assert state.names() == []


def test_a_cluster_keeps_the_engine_that_it_was_made_with(path: Path) -> None:
    record = Record("a")
    record.folder.mkdir(parents=True)
    engine = PrivateEngine()
    assert not engine.used_by(record.folder)
    (engine.folder / "users").mkdir(parents=True)
    engine._user(record.folder).write_bytes(bytes(record.folder))
    assert engine.used_by(record.folder)
    assert engine.users() == [record.folder]
    record.folder.rmdir()
    assert engine.users() == []


def test_what_kind_complains_about_is_told_and_its_cluster_is_deleted(path: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    put(path, "docker", "exit 0")
    put(path, "kind", f'echo "$@" >> {told}; [ "$1" = create ] || exit 0; echo "Creating ..." >&2; '
        'echo "ERROR: failed to create cluster: docker is not running" >&2; echo "Stack: x" >&2; exit 1')  # fmt: skip
    with pytest.raises(ClusterError, match=r"`kind create cluster` failed: ERROR: .* docker is not running$"):
        clusters.up("a", WANTED, progress=SilentProgress(), wait_s=0)
    record = Record("a")
    assert record.read().phase == "failed"
    create, delete = told.read_text().splitlines()
    assert create == (
        f"create cluster --name draco-a --config {record.folder}/kind.yaml --image kindest/node:v1.36.3 "
        f"--kubeconfig {record.folder}/kubeconfig --wait 180s"
    )
    assert delete.startswith("delete cluster --name draco-a ")
    clusters.down("a", progress=SilentProgress())
    assert not record.exists()


def test_a_killed_up_has_its_kind_cluster_deleted_even_if_the_state_is_damaged(path: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    put(path, "kind", f'echo "$@" >> {told}')
    record = Record("a")
    record.folder.mkdir(parents=True)
    (record.folder / "kind.yaml").write_text("kind: Cluster\n")
    (record.folder / "cluster.json").write_text("{")
    clusters.down("a", progress=SilentProgress())
    assert told.read_text().startswith("delete cluster --name draco-a")


def recorded(name: str, wanted: ClusterSpec = WANTED) -> Record:
    """The record of a running cluster."""
    record = Record(name)
    record.write(ClusterState(name=name, phase="ready", wanted=wanted, created=datetime.now(UTC)))
    (record.folder / "kind.yaml").write_text("kind: Cluster\n")
    return record


def test_a_cluster_that_runs_in_containers_alone_is_not_made_again(path: Path, tmp_path: Path) -> None:
    put(path, "docker", f'echo "$@" >> {tmp_path / "told"}')
    wanted = replace(WANTED, board="H100-80GB")
    recorded("a", wanted)
    clusters.up("a", wanted, progress=SilentProgress(), wait_s=0)
    assert (tmp_path / "told").read_text() == "exec draco-a-control-plane true\n"


def test_a_cluster_is_deleted_from_an_engine_that_died_too(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    put(path, "kind", f'echo "kind $1" >> {told}')

    class Died:
        def used_by(self, _cluster: Path) -> bool:
            return True

        def acquire(self, _cluster: Path, _progress: Progress) -> Docker:
            with told.open("a") as file:
                file.write("started\n")
            return Docker()

        def release(self, _cluster: Path, _progress: Progress) -> None:
            with told.open("a") as file:
                file.write("released\n")

    monkeypatch.setattr(kind, "PrivateEngine", Died)
    recorded("a")
    clusters.down("a", progress=SilentProgress())
    assert told.read_text().splitlines() == ["started", "kind delete", "released"]
    assert state.names() == []


def test_nodes_are_kinds_workers(path: Path) -> None:
    assert clusters._provided(Record("a"), WANTED).nodes == ["draco-a-worker", "draco-a-worker2"]
