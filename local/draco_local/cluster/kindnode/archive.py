"""Archives of images as `docker save` writes them, for images that are made here.

Owns the layout. Layers are files, so that large ones need no memory; images of one archive may share them. Must not know what is
in a layer.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from draco_local.cluster.realnode.image import ARCHITECTURES

_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Layer:
    """A tar file and its SHA-256."""

    path: Path
    digest: str

    @property
    def name(self) -> str:
        """Its path in an archive."""
        return f"{self.digest}/layer.tar"

    @classmethod
    def of(cls, path: Path) -> "Layer":
        """Make the layer of an existing tar file."""
        with path.open("rb") as file:
            return cls(path, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True, slots=True)
class Image:
    """One image: its name with a tag, its layers from the lowest, and what it runs."""

    name: str
    layers: Sequence[Layer]
    entrypoint: Sequence[str] = ()
    stop_signal: str = ""
    variables: Sequence[str] = ()

    def config(self) -> bytes:
        """Return its configuration."""
        runs: dict[str, Any] = {"Env": [_PATH, *self.variables]}
        if self.entrypoint:
            runs["Entrypoint"] = list(self.entrypoint)
        if self.stop_signal:
            runs["StopSignal"] = self.stop_signal
        layers = [f"sha256:{layer.digest}" for layer in self.layers]
        return json.dumps(
            {
                "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
                "os": "linux",
                "config": runs,
                "rootfs": {"type": "layers", "diff_ids": layers},
                "history": [{"created_by": "draco"} for _ in layers],
            }
        ).encode()


def layer_of(programs: Mapping[str, Path], target: Path, *, links: Mapping[str, str] | None = None) -> Layer:
    """Write a layer with programs by their paths in it; a program with several paths is stored once."""
    with tarfile.open(target, "w") as tar:
        folders = {str(parent) for name in programs for parent in Path(name).parents if str(parent) != "."}
        for folder in (*sorted(folders), "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        stored: dict[int, str] = {}
        for name, path in sorted(programs.items()):
            entry = tarfile.TarInfo(name)
            entry.mode = 0o755
            inode = path.stat().st_ino
            if inode in stored:
                entry.type, entry.linkname = tarfile.LNKTYPE, stored[inode]
                tar.addfile(entry)
                continue
            stored[inode] = name
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(entry, file)
        for name, destination in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, destination, 0o777
            tar.addfile(entry)
    return Layer.of(target)


def write(path: Path, images: Sequence[Image]) -> None:
    """Write images as one archive.

    `repositories`, the table of names, comes first: kind reads all names from it, but from manifest.json only those of one image.
    """
    repositories: dict[str, dict[str, str]] = {}
    manifest, configs = [], {}
    for image in images:
        config = image.config()
        file = f"{hashlib.sha256(config).hexdigest()}.json"
        configs[file] = config
        repository, _, tag = image.name.rpartition(":")
        repositories.setdefault(repository, {})[tag] = image.layers[-1].digest
        manifest.append({"Config": file, "RepoTags": [image.name], "Layers": [layer.name for layer in image.layers]})
    with tarfile.open(path, "w") as tar:
        add(tar, "repositories", json.dumps(repositories).encode())
        for file, config in configs.items():
            add(tar, file, config)
        for layer in {layer.digest: layer for image in images for layer in image.layers}.values():
            tar.add(layer.path, layer.name)
        add(tar, "manifest.json", json.dumps(manifest).encode())


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Put a file of these bytes into an archive."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    tar.addfile(entry, io.BytesIO(content))
