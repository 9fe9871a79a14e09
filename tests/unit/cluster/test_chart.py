import json
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner

from draco_local.cli.cluster import command
from draco_local.cluster import chart, clusters
from draco_local.cluster.errors import ClusterError
from draco_local.cluster.progress import SilentProgress
from draco_local.cluster.state import ClusterSpec


def an_archive(path: Path, manifest: object) -> Path:
    with tarfile.open(path, "w") as tar:
        text = json.dumps(manifest).encode()
        member = tarfile.TarInfo("manifest.json")
        member.size = len(text)
        tar.addfile(member, BytesIO(text))
    return path


def test_the_image_of_an_archive_has_the_name_it_was_saved_by(tmp_path: Path) -> None:
    archive = an_archive(tmp_path / "a.tar", [{"Config": "c", "RepoTags": ["localhost:5000/draco:1"], "Layers": []}])
    assert chart.image_of(archive) == "localhost:5000/draco:1"
    image = chart.values("localhost:5000/draco:1")["image"]
    assert (image["repository"], image["tag"]) == ("localhost:5000/draco", "1")


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        ([{"Config": "c", "RepoTags": None}], "is not an archive of an image"),
        ([{"Config": "c"}], "has no name: save it by its name"),
        ([], "has no name: save it by its name"),
        ({"schemaVersion": 2}, "is not an archive of an image"),
    ],
)
def test_an_archive_of_something_else_is_refused(tmp_path: Path, manifest: object, sentence: str) -> None:
    with pytest.raises(ClusterError, match=sentence):
        chart.image_of(an_archive(tmp_path / "a.tar", manifest))


@pytest.mark.parametrize("content", [None, b"", b"no archive"])
def test_a_file_that_is_no_archive_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    archive = tmp_path / "draco.tar"
    if content is not None:
        archive.write_bytes(content)
    wanted = ClusterSpec(real_nodes=1, from_image=str(archive))
    with pytest.raises(ClusterError, match="is not an archive of an image: make one with `docker save`"):
        clusters.up("a", wanted, progress=SilentProgress(), wait_s=0)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("options", [["--existing", "a"], ["--provider", "kind"]])
def test_an_operator_that_allocates_needs_an_account(options: list[str]) -> None:
    done = CliRunner().invoke(command, ["up", "--allocate", *options])
    assert done.exit_code == 2
    assert "--allocate needs an operator with an account of its own" in done.output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--existing", "a"], "leave out --existing"),
        (["--provider", "kind"], "add --real-nodes 2"),
        (["--nodes", "1"], "add --real-nodes 2"),
    ],
)
def test_an_image_needs_nodes_that_run_it(options: list[str], sentence: str) -> None:
    done = CliRunner().invoke(command, ["up", "--from-image", "draco.tar", *options])
    assert done.exit_code == 2
    assert sentence in done.output
