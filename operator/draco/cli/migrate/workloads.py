"""`draco migrate convert`: the texts of manifests with workloads that ask by claims. `draco.migration.workloads` decides.

Owns the output: all documents in order, and a template before the workload that uses it. Only documents with changes are written
anew, as `draco lint --fix` writes them. Each is read again: if its text cannot hold the change, its plain values are written.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from draco.cli.input.yaml_documents import Document, DocumentError, resolved
from draco.cli.lint import text as lint_text
from draco.cli.lint.edits import EditRound, as_tree, below
from draco.cli.lint.text import DocumentText
from draco.linting.model import Edit, Json, Manifest, SetField, TreePath
from draco.linting.objects import mapping, name_of, objects_in, text
from draco.migration.conversion import Rest
from draco.migration.workloads import Left, convert

_SEPARATOR: Final = "---\n"


class ConvertedTexts(NamedTuple):
    """The whole as one YAML text and as objects, what stays, and how many documents changed."""

    text: str
    objects: Sequence[Any]
    rests: Sequence[Rest]
    changed: int


class _Part(NamedTuple):
    """A document of a file; `unread` says why it is no manifest."""

    file: str
    piece: DocumentText
    read: Document | None
    unread: Rest | None = None


class _Place(NamedTuple):
    part: int
    prefix: TreePath


class _Piece(NamedTuple):
    """Lines of a document that are edited alone: the field at `path`, without its indentation."""

    before: str
    inner: DocumentText
    after: str
    path: TreePath
    indent: int


def converted(texts: Mapping[str, str]) -> ConvertedTexts:
    """Convert files that are applied together, given by name and text."""
    parts = [
        _read(file, piece) for file, whole in texts.items() for piece in lint_text.pieces(whole.replace("\r\n", "\n"))
    ]
    manifests, places = _manifests(parts)
    found = convert(manifests)
    rests = [(number, 0, part.unread) for number, part in enumerate(parts) if part.unread]
    for left in found.left:
        place = places[left.manifest]
        rests.append(_rest(parts[place.part], place, manifests[left.manifest].tree, left))
    by_part: dict[int, list[int]] = defaultdict(list)
    for index, place in enumerate(places):
        by_part[place.part].append(index)
    documents: list[str] = []
    objects: list[Any] = []
    for number, part in enumerate(parts):
        within = by_part[number]
        edits = [below(places[index].prefix, edit) for index in within for edit in found.edits.get(index, ())]
        made = [template for index in within for template in found.templates.get(index, ())]
        if part.read is None or not edits:
            documents.append(part.piece.text)
            objects += [part.read.value] if part.read else []
            continue
        if isinstance(items := _items(part.read.value), list):
            edits += [SetField(("items", len(items) + each), template) for each, template in enumerate(made)]
            made = []
        document, value = _edited(part.piece, part.read, edits)
        documents += [*map(_dumped, made), document]
        objects += [*made, value]
    ordered = [rest for *_, rest in sorted(rests, key=lambda each: each[:2])]
    return ConvertedTexts(_joined(documents), objects, ordered, sum(map(bool, found.edits.values())))


def _read(file: str, piece: DocumentText) -> _Part:
    try:
        read = lint_text.read(piece)
    except DocumentError as error:
        return _Part(file, piece, None, Rest(f"{file}:{error.line}", f"{error.problem}."))
    if read is not None and not isinstance(read.value, dict):
        line = lint_text.line_of(read, (), piece)
        return _Part(
            file, piece, None, Rest(f"{file}:{line}", "this is no manifest, which begins with apiVersion and kind.")
        )
    return _Part(file, piece, read)


def _rest(part: _Part, place: _Place, tree: Json, left: Left) -> tuple[int, int, Rest]:
    """What stays, with its place in the file, and as what it is sorted."""
    line = lint_text.line_of(part.read, (*place.prefix, *left.path), part.piece) if part.read else 1
    name = "/".join(filter(None, (text(mapping(tree.get("metadata")).get("namespace")), name_of(tree))))
    return place.part, line, Rest(f"{part.file}:{line}: {tree.get('kind')} {name}", left.sentence)


def _items(value: object) -> Any:
    """The items of a document that is a list; None for any other."""
    return value.get("items") if isinstance(value, dict) and str(value.get("kind")).endswith("List") else None


def _manifests(parts: Sequence[_Part]) -> tuple[list[Manifest], list[_Place]]:
    found = [
        (Manifest(tree=tree), _Place(number, prefix))
        for number, part in enumerate(parts)
        if part.read is not None and isinstance(part.read.value, dict)
        for prefix, tree in objects_in(part.read.value)
    ]
    return [manifest for manifest, _ in found], [place for _, place in found]


def _edited(piece: DocumentText, read: Document, edits: Sequence[Edit]) -> tuple[str, Any]:
    """The document's text and value with the edits: of the smallest part that has them all, or of the whole."""
    plain = _plain(_applied(as_tree(read.value), edits))
    for part in filter(None, (_smallest(piece, read, edits), _Piece("", piece, "", (), 0))):
        tree = lint_text.editable(part.inner)
        if tree is None:
            continue
        outside = max(0, len(part.path) - 1)
        inner = [msgspec.structs.replace(edit, path=edit.path[outside:]) for edit in edits]
        written = lint_text.dump(_applied(tree, inner), part.inner)
        indented = "".join(" " * part.indent * bool(line.strip()) + line for line in written.splitlines(keepends=True))
        whole = part.before + indented + part.after
        try:
            again = lint_text.read(piece._replace(text=whole))
        except DocumentError:
            continue
        if again is not None and again.value == plain:
            return whole, plain
    return _dumped(plain), plain


def _smallest(piece: DocumentText, read: Document, edits: Sequence[Edit]) -> "_Piece | None":
    """The lines of the innermost field around all edits, if it has lines of its own: ruamel takes 5 ms for 25 lines."""
    path: TreePath = tuple(
        steps[0]
        for steps in takewhile(
            lambda steps: len(set(steps)) == 1, zip(*(edit.path[:-1] for edit in edits), strict=False)
        )
    )
    while path and isinstance(path[-1], int):
        path = path[:-1]
    if not path:
        return None
    lines = piece.text.splitlines(keepends=True)
    first = read.line_of(path) - 1
    indent = len(lines[first]) - len(lines[first].lstrip(" "))
    if not lines[first].lstrip(" ").startswith(f"{path[-1]}:"):
        return None
    end = first + 1
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" " * (indent + 1))):
        end += 1
    inner = "".join(line[indent:] if line.strip() else line for line in lines[first:end])
    return _Piece("".join(lines[:first]), DocumentText("", inner, 0), "".join(lines[end:]), path, indent)


def _applied(tree: Any, edits: Sequence[Edit]) -> Any:
    edit_round = EditRound(tree)
    for edit in edits:
        edit_round.apply(edit)
    return edit_round.tree


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


class _Dumper(yaml.SafeDumper):
    """Quotes each text that Kubernetes would read as something else, such as the name 1e3."""


def _quoted(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if resolved(value) == value else "'")


_Dumper.add_representer(str, _quoted)


def _dumped(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 16)


def _joined(documents: Sequence[str]) -> str:
    """One YAML text. A piece before the first separator may be empty."""
    filled = [each if each.endswith("\n") else f"{each}\n" for each in documents if each.strip()]
    return _SEPARATOR.join(filled)
