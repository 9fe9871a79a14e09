import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from draco_local.cluster.realnode.image import ImagePlan, write_archive

PLAN = ImagePlan(
    names=("draco.dev/thing:1", "draco.dev/thing:latest"),
    command=("/bin/thing", "--serve"),
    files={"bin/thing": b"\x7fELF"},
    links={"bin/sh": "thing"},
)


def written(folder: Path, plan: ImagePlan = PLAN, machine: str = "x86_64") -> tarfile.TarFile:
    write_archive(plan, folder / "thing.tar", machine=machine)
    return tarfile.open(folder / "thing.tar")


def content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def manifest_and_config(archive: tarfile.TarFile) -> tuple[dict[str, Any], dict[str, Any]]:
    (manifest,) = json.loads(content(archive, "manifest.json"))
    return manifest, json.loads(content(archive, manifest["Config"]))


def test_the_manifest_lists_the_images_names_its_config_and_its_layer(tmp_path: Path) -> None:
    archive = written(tmp_path)
    manifest, config = manifest_and_config(archive)
    assert manifest["RepoTags"] == ["draco.dev/thing:1", "draco.dev/thing:latest"]
    assert config["config"]["Cmd"] == ["/bin/thing", "--serve"]
    (layer,) = manifest["Layers"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content(archive, layer)).hexdigest()}"]
    assert manifest["Config"] == f"{hashlib.sha256(content(archive, manifest['Config'])).hexdigest()}.json"


def test_the_layer_holds_executables_links_and_the_folders_above_them(tmp_path: Path) -> None:
    archive = written(tmp_path)
    manifest, _ = manifest_and_config(archive)
    with tarfile.open(fileobj=io.BytesIO(content(archive, manifest["Layers"][0]))) as layer:
        assert layer.getmember("bin").isdir()
        assert layer.getmember("bin/thing").mode & 0o111
        assert layer.getmember("bin/sh").linkname == "thing"
        assert layer.getmember("tmp").mode == 0o1777


def test_an_image_is_for_the_machine_it_was_made_on(tmp_path: Path) -> None:
    _, config = manifest_and_config(written(tmp_path, machine="aarch64"))
    assert config["architecture"] == "arm64"


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        written(tmp_path / name)
    assert (tmp_path / "one/thing.tar").read_bytes() == (tmp_path / "other/thing.tar").read_bytes()
