"""What is reported about an image: its parts, and the differences between two images."""

import gzip
import io
import json
import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from scripts import image, image_reproducible, sbom
from scripts.image_archive import ImageArchive

MADE = datetime(2026, 1, 2, tzinfo=UTC)
HASH = "ab" * 32
STATUS = """\
Package: bash
Essential: yes
Status: install ok installed
Architecture: amd64
Version: 5.2.37-2+b5
Description: a shell
 Package: of no interest

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


MODULES = """/out/nvidia-ctk: go1.27.3
\tpath\tgithub.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk
\tdep\tgithub.com/NVIDIA/go-nvml\tv0.13.4-0\th1:abc=
\tbuild\tCGO_ENABLED=1
"""


def an_archive(path: Path, *layers: dict[str, tuple[bytes, float]]) -> ImageArchive:
    """The archive of an image with these layers: content and modification time by file name."""

    def packed(files: dict[str, tuple[bytes, float]]) -> bytes:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for name, (content, changed) in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime = len(content), changed
                archive.addfile(entry, io.BytesIO(content))
        return stream.getvalue()

    names = [f"{number}.tar" for number in range(len(layers))]
    config = {"rootfs": {"diff_ids": [repr(sorted(layer.items())) for layer in layers]}}
    manifest = [{"Config": "config.json", "Layers": names}]
    described = {"manifest.json": manifest, "config.json": config}
    files = {name: (json.dumps(content).encode(), 0.0) for name, content in described.items()}
    path.write_bytes(packed(files | {name: (packed(layer), 0.0) for name, layer in zip(names, layers, strict=True)}))
    return ImageArchive(path)


def a_package(folder: Path, name: str, *lines: str) -> None:
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *lines, ""]))


@pytest.fixture
def listed(tmp_path: Path) -> dict[str, Any]:
    """The list for an image of Draco's, with one other package and one Debian package."""
    a_package(tmp_path / "packages", "draco-dra", "License-Expression: Apache-2.0")
    a_package(tmp_path / "packages", "Some.Package", "License: all of\n  this text")
    (tmp_path / "root/var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "root/var/lib/dpkg/status").write_text(STATUS)
    (tmp_path / "root/etc").mkdir()
    (tmp_path / "root/etc/os-release").write_text('ID=debian\nVERSION_ID="13"\n')
    report = {
        "install": [
            {"metadata": {"name": name}, "download_info": {"archive_info": {"hashes": {"sha256": HASH}}}}
            for name in ("draco-dra", "some_package")
        ]
    }
    texts = {sbom.sbom(tmp_path / "packages", [report], MODULES, tmp_path / "root", MADE) for _ in range(2)}
    assert len(texts) == 1, "the same image is listed in the same words"
    [text] = texts
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    decoded: dict[str, Any] = json.loads(text)
    return decoded


def test_python_packages_are_listed_with_the_hash_of_what_was_installed(listed: dict[str, Any]) -> None:
    ours = listed["metadata"]["component"]
    [other] = [each for each in listed["components"] if each["purl"].startswith("pkg:pypi/")]
    assert (ours["name"], ours["licenses"]) == ("draco-dra", [{"license": {"id": "Apache-2.0"}}])
    assert other["purl"] == "pkg:pypi/some-package@1.0"
    assert ours["hashes"] == other["hashes"] == [{"alg": "SHA-256", "content": HASH}]


def test_go_modules_of_nvidias_programs_are_listed(listed: dict[str, Any]) -> None:
    go = [each["purl"] for each in listed["components"] if each["purl"].startswith("pkg:golang/")]
    assert go == ["pkg:golang/github.com/NVIDIA/go-nvml@v0.13.4-0"]


def test_debian_packages_that_are_installed_are_listed(listed: dict[str, Any]) -> None:
    debian = [each["purl"] for each in listed["components"] if each["purl"].startswith("pkg:deb/")]
    assert debian == ["pkg:deb/debian/bash@5.2.37-2%2Bb5?arch=amd64&distro=debian-13"]


def test_the_list_says_when_its_source_was_committed(listed: dict[str, Any]) -> None:
    assert listed["metadata"]["timestamp"] == "2026-01-02T00:00:00+00:00"


def test_what_differs_between_two_images_is_named(tmp_path: Path) -> None:
    same = {"etc/same": (b"same", 0.0)}
    one = an_archive(tmp_path / "one", same, {"a": (b"1", 0.0), "b": (b"", 1.0), "c": (b"", 0.0)})
    other = an_archive(tmp_path / "other", same, {"a": (b"2", 0.0), "b": (b"", 2.0), "c": (b"", 0.0), "d": (b"", 0.0)})
    told = list(image_reproducible.differences(one, other))
    assert [line.split(":")[:2] for line in told] == [["layer 1", " a"], ["layer 1", " b"], ["layer 1", " d"]]
    assert list(image_reproducible.differences(one, one)) == []


def test_the_uppermost_of_two_files_is_read_and_unpacked(tmp_path: Path) -> None:
    archive = an_archive(tmp_path / "image", {"etc/a": (b"old", 0.0), "b": (b"b", 0.0)}, {"etc/a": (b"new", 0.0)})
    assert archive.read("etc/a") == b"new"
    with pytest.raises(KeyError):
        archive.read("etc/none")
    archive.unpack(tmp_path / "root")
    assert {path.name: path.read_bytes() for path in (tmp_path / "root").rglob("*") if path.is_file()} == {
        "a": b"new",
        "b": b"b",
    }


def test_an_image_takes_no_more_in_a_registry_than_is_said(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4096
    archive = an_archive(tmp_path / "image", {"a": (content, 0.0)})
    with tarfile.open(archive._path) as outer:
        layer = outer.extractfile("0.tar")
        assert layer is not None
        assert len(gzip.compress(layer.read(), 6)) <= archive.compressed_bytes() < len(content) / 10


def test_a_docker_that_cannot_pull_is_told_with_the_way_that_needs_no_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    docker = tmp_path / "docker"
    docker.write_text(
        "#!/bin/sh\n[ $1 = pull ] && echo 'Using default' >&2 && echo 'dial tcp: lookup registry: no such host' >&2\nexit 1\n"
    )
    docker.chmod(0o755)
    told = (
        r"^Docker cannot pull docker.io/library/python:3.13-slim-trixie, which the build needs "
        r'\(dial tcp: lookup registry: no such host\). If .*: make image IMAGE_ARGS="--base debian".$'
    )
    with pytest.raises(SystemExit, match=told):
        image.base_in(image.Docker(), "")
    with pytest.raises(SystemExit, match=r"^Docker cannot pull docker.io/library/python:3.13-trixie,"):
        image.compiler_in(image.Docker(), "")


def test_a_base_that_docker_has_is_not_pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\n[ "$*" = "image inspect mine:1" ]\n')
    docker.chmod(0o755)
    assert image.base_in(image.Docker(), "mine:1") == "mine:1"
