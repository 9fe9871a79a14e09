"""Manifest files: YAML and JSON from files, folders and standard input, with limits on their size. Owns the option `-f`."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import click
import msgspec

from draco.cli.input.yaml_documents import documents
from draco.cli.output import echo
from draco.linting import model as linting
from draco.linting.rules.fields import check_fields, check_nesting
from draco.resources.api.core import Pod
from draco.resources.kinds import CLAIM_TEMPLATES, CLAIMS, DEVICE_CLASSES
from draco.resources.written.limits import refusal
from draco.resources.written.manifests import ManifestError, Object, UnknownKindError, copies, decode, expand, pod_path

Manifest = Mapping[str, Any]

_SMALL: Final = frozenset({CLAIMS.kind, CLAIM_TEMPLATES.kind, DEVICE_CLASSES.kind, "DeviceTaintRule"})
"""Kinds of a few fields, which people write."""
SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
MAX_COPIES: Final = 100_000
STANDARD_INPUT: Final = "standard input"
MAX_JSON_BYTES: Final = 512 << 20
MAX_YAML_BYTES: Final = 64 << 20
"""YAML parses at about 1.5 MB/s, JSON ten times as fast."""


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """The options that say where objects come from."""

    filenames: Sequence[str]
    cluster: bool | None
    kubeconfig: Path | None
    context: str | None


files_option: Final = click.option(
    "-f",
    "--filename",
    "filenames",
    multiple=True,
    metavar="FILE",
    help="Manifests, YAML or JSON: a file, a folder, or - for standard input. Repeatable.",
)


def read_manifests(filenames: Sequence[str]) -> list[tuple[Manifest, str]]:
    """The manifests of all files in order, with lists expanded. Raises ManifestError."""
    return [each for document, where in read_documents(filenames) for each in expand(document, source=where)]


def read_or_ask(
    filenames: Sequence[str], *, cluster: bool | None, enough: str
) -> tuple[list[tuple[Manifest, str]], bool]:
    """The manifests, and whether they are used without a cluster: by default if one is of kind `enough`. Raises ManifestError."""
    manifests = read_manifests(filenames)
    if filenames and not manifests:
        raise ManifestError("the files hold no objects: give manifests as for `kubectl apply`, or leave -f out.")
    if cluster is None:
        return manifests, any(manifest.get("kind") == enough for manifest, _ in manifests)
    if not cluster and not manifests:
        raise click.UsageError("There is nothing to read: give files with -f, or leave --no-cluster out.")
    return manifests, not cluster


def decode_all(manifests: Iterable[tuple[Manifest, str]], namespace: str) -> list[tuple[Object, str]]:
    """The objects of the manifests, each with its source. Raises ManifestError.

    Leaves out kinds that play no role in device allocation, such as Services, with a note on standard error.
    """
    objects = []
    for manifest, source in manifests:
        try:
            item = decode(manifest, source=source, namespace=namespace)
        except UnknownKindError as error:
            echo(f"Left out: {error}", err=True)
            continue
        kind = manifest["kind"]
        for finding in _wrong_fields(manifest):
            if finding.rule == "field-place":
                raise ManifestError(f"{source}: {kind} {item.metadata.key}: {finding.message}.")
            echo(f"Ignored: {source}: {finding.message}.", err=True)
        if refused := refusal(item, at=pod_path(manifest)):
            raise ManifestError(f"{source}: {kind} {item.metadata.key}: {refused}.")
        objects += [(each, source) for each in _copies(item, manifest, source)]
    return objects


def _wrong_fields(manifest: Manifest) -> list[linting.Finding]:
    """Fields of a claim or class that an API server ignores with a warning: unknown ones, and others in the wrong place.

    What is in the wrong place would be read as if it were not there: `kubectl` refuses it, too.
    """
    if manifest.get("kind") not in _SMALL:
        return []
    written = [linting.Manifest(tree=dict(manifest))]
    found = [*check_nesting(written, 0), *check_fields(written, 0)]
    return [finding for finding in found if finding.rule in {"unknown-field", "field-place"}]


def _copies(item: Object, manifest: Manifest, source: str) -> list[Object]:
    """The object itself, or the numbered pods of a workload with several replicas."""
    count = copies(manifest) if isinstance(item, Pod) else 1
    if count == 1:
        return [item]
    if not 0 <= count <= MAX_COPIES:
        raise ManifestError(
            f"{source}: {manifest['kind']} {item.metadata.key} asks for {count} pods, but Draco tries at most {MAX_COPIES}."
        )
    names = [f"{item.metadata.name}-{number}" for number in range(1, count + 1)]
    return [msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, name=name)) for name in names]


def read_documents(filenames: Sequence[str]) -> Iterator[tuple[object, str]]:
    """The documents of all files in order, each with its source. Raises ManifestError."""
    for name, text in read_texts(filenames):
        for document in documents(name, text):
            yield document.value, f"{name}, document {document.number} (line {document.line})"


def read_texts(
    filenames: Sequence[str], *, within: Callable[[Path], Iterable[Path]] = Path.iterdir
) -> Iterator[tuple[str, str]]:
    """The text of each file by name, in order; of a folder, the files that `within` yields. Raises ManifestError."""
    if filenames.count("-") > 1:
        raise click.UsageError("Standard input can be read only once: give -f - once.")
    if "" in filenames:  # Path("") is the current folder; an unset variable must not select it
        raise click.UsageError("-f names no file: its value is empty. Is a variable unset?")
    for filename in filenames:
        if filename == "-":
            yield STANDARD_INPUT, _text(STANDARD_INPUT, sys.stdin.buffer)
        else:
            for path in _files(Path(filename), within):
                with path.open("rb") as stream:
                    yield str(path), _text(str(path), stream)


def _files(path: Path, within: Callable[[Path], Iterable[Path]]) -> list[Path]:
    paths = [path]
    if path.is_dir():
        paths = sorted(each for each in within(path) if each.suffix in SUFFIXES and each.is_file())
        if not paths:
            raise ManifestError(
                f"the folder {path} has no files that end in .yaml, .yml or .json; give the files themselves."
            )
    return paths


def _text(name: str, stream: IO[bytes]) -> str:
    data = stream.read(MAX_JSON_BYTES + 1)
    is_json = data[:64].lstrip()[:1] == b"{"
    limit = MAX_JSON_BYTES if is_json else MAX_YAML_BYTES
    if len(data) > limit:
        hint = "split it" if is_json else "split it, or write it as JSON, which is read faster (kubectl get -o json)"
        raise ManifestError(f"{name} is larger than {limit >> 20} MiB; {hint}.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ManifestError(f"{name}, line {line}: this is not UTF-8 text; save the file as UTF-8.") from None
