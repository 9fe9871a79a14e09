"""What is recorded about a cluster."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from draco_local.cluster import clusters, state
from draco_local.cluster.errors import ClusterError, StateDamaged, UnknownCluster
from draco_local.cluster.progress import SilentProgress
from draco_local.cluster.state import ClusterSpec, ClusterState, Record
from draco_local.simulator.gpus.boards import BoardError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "draco" / "clusters"


def a_state(name: str = "a") -> ClusterState:
    return ClusterState(
        name=name, phase="ready", wanted=ClusterSpec(nodes=3), created=datetime(2026, 11, 21, tzinfo=UTC)
    )


def test_what_was_written_is_read_and_only_the_owner_may(folder: Path) -> None:
    record = Record("a")
    record.write(a_state())
    assert Record("a").read() == a_state()
    assert (folder / "a").stat().st_mode & 0o777 == 0o700
    assert (folder / "a" / "cluster.json").stat().st_mode & 0o777 == 0o600


def test_an_unknown_name_is_told_the_known_ones(folder: Path) -> None:
    with pytest.raises(UnknownCluster, match=r"^There is no cluster called b: start one with `draco cluster up`\.$"):
        Record("b").read()
    Record("a").write(a_state())
    with pytest.raises(UnknownCluster, match=r"^There is no cluster called b; known: a\.$"):
        Record("b").read()
    assert state.names() == ["a"]


@pytest.mark.parametrize("content", ['{"name": "a", "pha', "", "[]", '{"name": "a"}'])
def test_a_half_written_state_file_is_one_sentence_with_the_way_out(folder: Path, content: str) -> None:
    Record("a").write(a_state())
    (folder / "a" / "cluster.json").write_text(content)
    with pytest.raises(
        StateDamaged, match=r"cannot be read: run `draco cluster down --name a`, which removes what is left"
    ):
        Record("a").read()


def test_the_state_of_a_newer_draco_is_not_guessed_at(folder: Path) -> None:
    Record("a").write(a_state())
    file = folder / "a" / "cluster.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(StateDamaged, match="it is of format 2, this version of draco writes 1"):
        Record("a").read()


def test_down_removes_what_a_damaged_state_file_left(folder: Path) -> None:
    Record("a").write(a_state())
    (folder / "a" / "cluster.json").write_text("{")
    clusters.down("a", progress=SilentProgress())
    assert list(folder.iterdir()) == []


def test_down_of_an_unknown_name_leaves_no_trace(folder: Path) -> None:
    with pytest.raises(UnknownCluster):
        clusters.down("a", progress=SilentProgress())
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a/../b", "x" * 31])
def test_a_name_that_could_not_be_a_folder_or_a_host_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(ClusterError, match="cannot name a cluster"):
        Record(name)


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (ClusterSpec(board="H1000"), "There is no board 'H1000' in the simulator"),
        (ClusterSpec(gpus=99), "A node has 0 to 8 GPUs of board H100-80GB, not 99"),
        (ClusterSpec(bin_dir="/no/such/folder"), "/no/such/folder is not a folder"),
        (ClusterSpec(kubernetes="1.20.0"), "Kubernetes 1.20.0 cannot be started here"),
    ],
)
def test_a_wish_that_cannot_come_true_is_refused_before_anything_starts(
    folder: Path, wanted: ClusterSpec, sentence: str
) -> None:
    with pytest.raises((ClusterError, BoardError), match=sentence):
        clusters.up("a", wanted, progress=SilentProgress(), wait_s=0)
    assert not folder.exists()
