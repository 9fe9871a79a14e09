"""Manifest files: YAML and JSON, from files, folders and standard input.

Owns the reading of `-f` and the option itself. What a manifest means is `resources.manifests`.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from draco.resources.manifests import ManifestError, Object, decode, expand

SUFFIXES = frozenset({".yaml", ".yml", ".json"})


def files_option(command: Any) -> Any:
    """`-f`, as often as wanted: files, folders and `-`."""
    return click.option(
        "-f",
        "--filename",
        "filenames",
        multiple=True,
        metavar="FILE",
        help="Manifests, YAML or JSON: a file, a folder, or - for standard input. May be given several times.",
    )(command)


def read_objects(filenames: Sequence[str]) -> list[tuple[Object, str]]:
    """The objects of all files in their order, each with where it stands. Raises ManifestError."""
    return [
        (decode(manifest, source=source), source)
        for document, where in read_documents(filenames)
        for manifest, source in expand(document, source=where)
    ]


def read_documents(filenames: Sequence[str]) -> Iterator[tuple[object, str]]:
    """The documents of all files in their order, each with where it stands. Raises ManifestError."""
    for filename in filenames:
        for name, text in _texts(filename):
            for number, document in enumerate(_documents(name, text), 1):
                if document is not None:
                    yield document, f"{name}, document {number}"


def _texts(filename: str) -> Iterator[tuple[str, str]]:
    if filename == "-":
        yield "standard input", _text("standard input", sys.stdin.buffer.read())
        return
    path = Path(filename)
    paths = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES) if path.is_dir() else [path]
    for each in paths:
        yield str(each), _text(str(each), each.read_bytes())


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(f"{name} is not UTF-8 text: byte {error.start} cannot be read; save it as UTF-8.") from None


def _documents(name: str, text: str) -> Iterator[object]:
    try:
        yield from yaml.safe_load_all(text)
    except yaml.YAMLError as error:
        raise ManifestError(f"{name} is not valid YAML: {error}") from error
