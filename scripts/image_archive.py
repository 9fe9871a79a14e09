"""Read the archive of an image: its configuration, its layers, and the files in them.

Owns reading archives as `docker save` and buildah write them. Knows no engine, and not what should be in an image.
"""

import hashlib
import json
import tarfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

_PIECE: Final = 1 << 20


class StoredFile(NamedTuple):
    """What a layer says about one file."""

    kind: bytes
    mode: int
    owner: tuple[int, int]
    modified: float
    target: str
    """Of a link."""
    size: int
    digest: str


class ImageArchive:
    """One image."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with tarfile.open(path) as outer:
            [manifest] = json.loads(_content(outer, "manifest.json").read())
            self.config: dict[str, Any] = json.loads(_content(outer, manifest["Config"]).read())
        self._layers: list[str] = manifest["Layers"]

    @property
    def digests(self) -> list[str]:
        """Digests of the uncompressed layers, the lowest layer first."""
        return list(self.config["rootfs"]["diff_ids"])

    def files(self, layer: int) -> dict[str, StoredFile]:
        """The files of a layer, by their paths without the leading slash."""
        with self._opened(layer) as opened:
            return {each.name.removeprefix("./").rstrip("/"): _stored(opened, each) for each in opened}

    def read(self, name: str) -> bytes:
        """The content of a file, from the uppermost layer that has it. Raises KeyError."""
        for layer in reversed(range(len(self._layers))):
            with self._opened(layer) as opened:
                if name in opened.getnames():
                    return _content(opened, name).read()
        raise KeyError(name)

    def unpack(self, folder: Path) -> None:
        """Unpack the files that a container sees. Only root sets their owners. No layer may remove files of another."""
        for layer in range(len(self._layers)):
            with self._opened(layer) as opened:
                assert not [each.name for each in opened if Path(each.name).name.startswith(".wh.")]
                opened.extraction_filter = _unchanged  # the argument `filter` is newer than Python 3.11.2
                opened.extractall(folder, numeric_owner=True)  # noqa: S202 - an image of our own, as root

    def compressed_bytes(self) -> int:
        """An upper bound of the layers' size in a registry, which compresses better."""
        with ThreadPoolExecutor() as threads:
            return sum(threads.map(self._compressed_bytes, self._layers))

    def _compressed_bytes(self, layer: str) -> int:
        size, packing = 0, zlib.compressobj(1, wbits=31)
        with tarfile.open(self._path) as outer, _content(outer, layer) as content:
            while piece := content.read(_PIECE):
                size += len(packing.compress(piece))
        return size + len(packing.flush())

    @contextmanager
    def _opened(self, layer: int) -> Iterator[tarfile.TarFile]:
        with (
            tarfile.open(self._path) as outer,
            _content(outer, self._layers[layer]) as content,
            tarfile.open(fileobj=content) as opened,
        ):
            yield opened


def _content(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    if found is None:
        raise KeyError(name)
    return found


def _unchanged(member: tarfile.TarInfo, _folder: str) -> tarfile.TarInfo:
    """Unpack a file as the archive has it, with its owner and all bits of its mode."""
    return member


def _stored(archive: tarfile.TarFile, each: tarfile.TarInfo) -> StoredFile:
    digest = hashlib.sha256(_content(archive, each.name).read()).hexdigest() if each.isreg() else ""
    return StoredFile(each.type, each.mode, (each.uid, each.gid), each.mtime, each.linkname, each.size, digest)
