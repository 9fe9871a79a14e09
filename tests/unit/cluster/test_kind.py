"""The kind provider, with a `kind` that writes down what it is told."""

from pathlib import Path

import pytest
import yaml

from draco_local.cluster import clusters, state
from draco_local.cluster.errors import ClusterError, MissingRequirement
from draco_local.cluster.progress import SilentProgress
from draco_local.cluster.providers.kind import config
from draco_local.cluster.state import ClusterSpec, Record

WANTED = ClusterSpec(provider="kind", kubernetes="1.36.3", nodes=0, real_nodes=2, operator=False)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
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


def test_without_kind_there_is_one_sentence_and_no_cluster(path: Path) -> None:
    with pytest.raises(
        MissingRequirement, match=r"^--provider kind needs the program kind, which is not on PATH: install it"
    ):
        clusters.up("a", WANTED, progress=SilentProgress(), wait_s=0)
    assert state.names() == []


def test_what_kind_complains_about_is_told_and_its_cluster_is_deleted(path: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
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


def test_nodes_are_kinds_workers(path: Path) -> None:
    assert clusters._provided(Record("a"), WANTED).nodes == ["draco-a-worker", "draco-a-worker2"]
