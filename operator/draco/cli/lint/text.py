"""Manifests as text, and as trees that remember it: comments, order, quotes.

Owns splitting files into pieces, repairing what copying breaks, the errors about unreadable text, and writing. `yaml_documents`
parses; a tree is loaded only for a piece that is edited. Knows no rule; trees are changed by `edits`.
"""

import io
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import ReusedAnchorWarning, YAMLError

from draco.cli.input.yaml_documents import Document, DocumentError, DocumentRule, placed_documents
from draco.linting.model import TreePath

MOST_CHARACTERS: Final = 2_000_000
MOST_VALUES: Final = 200_000
"""Keys and values of a document, with aliases expanded."""
_SEPARATOR: Final = re.compile(r"^---[ \t]*(?:#.*)?$")
_WRONG_DASHES: Final = re.compile("^\\s*(?=.*[\u2013\u2014\u2212])[-\u2013\u2014\u2212]{2,4}\\s*$")
_FENCE: Final = re.compile(r"^\s*(```|~~~)\s*\w*\s*$")
_ODD_INDENT: Final = re.compile(r"^[ \t]*[\t\u00a0\u2007\u202f\u200b][ \t\u00a0\u2007\u202f\u200b]*")
_CURLY: Final = re.compile(r"(?:[:\[(,=]|^\s*-)\s*[\u201c\u201d\u201e\u2018\u2019]")
_STRAIGHT: Final = str.maketrans({"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2018": "'", "\u2019": "'"})
_FIELD: Final = re.compile(r"[A-Za-z]\w*:(?=\s|$)")
_TEMPLATED: Final = re.compile(r"(?:^|:|-)[ \t]+\{\{[^{}]*\}\}", re.MULTILINE)
_TEMPLATE: Final = "this is a template, not YAML: render it first, as `helm template` does"
_COMMENT: Final = re.compile(r"(?:^|\s)#\s?(.*)$")
_MAPPING_INDENT: Final = re.compile(r"^( *)[^\s#-][^#\n]*:[ \t]*\n( +)[^\s#-]", re.MULTILINE)
_LIST_INDENT: Final = re.compile(r"^( *)(?:- )?[\w./-]+:[ \t]*(?:#.*)?\n(?: *#.*\n)*( *)- ", re.MULTILINE)


class DocumentText(NamedTuple):
    """A piece of a file: the separator before it, its text, and the number of lines before the text."""

    separator: str
    text: str
    offset: int


def repaired(text: str) -> tuple[str, list[tuple[int, str, str]]]:
    """The text without damage from copying, and the repairs: line, rule and message."""
    lines = text.split("\n")
    remarks = []
    for number, line in enumerate(lines):
        new, rule, message = line, "", ""
        if _WRONG_DASHES.match(line):
            new, rule, message = "---", "separator", "documents are separated by three hyphens `---`, not by dashes"
        elif _FENCE.match(line):
            new, rule, message = "---", "separator", "this line belongs to the article, not to the manifest"
        elif match := _ODD_INDENT.match(line):
            new = match[0].replace("\t", "  ").replace("\u200b", "") + line[match.end() :]
            new = new.replace("\u00a0", " ").replace("\u2007", " ").replace("\u202f", " ")
            rule, message = "indentation", "the line is indented with tabs or with spaces that YAML does not allow"
        elif _CURLY.search(line) and not line.lstrip().startswith("#"):
            new, rule, message = (
                line.translate(_STRAIGHT),
                "quotes",
                "YAML and CEL take typographic quotes for letters: use straight quotes",
            )
        if new != line:
            lines[number] = new
            remarks.append((number + 1, rule, message))
    return "\n".join(lines), remarks


def pieces(text: str) -> Iterator[DocumentText]:
    """The pieces of a file, one per document. Their separators and texts, joined, are the file."""
    separator, offset = "", 0
    body: list[str] = []
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if _SEPARATOR.match(line.rstrip("\r\n")):
            yield DocumentText(separator, "".join(body), offset)
            separator, body, offset = line, [], number + 1
        else:
            body.append(line)
    yield DocumentText(separator, "".join(body), offset)


def read(piece: DocumentText) -> Document | None:
    """Parse a piece; None if it is empty. Raises DocumentError with the line in the file."""
    if len(piece.text) > MOST_CHARACTERS:
        raise _refused(piece, 1, f"the document has more than {MOST_CHARACTERS:,} characters", "size")
    try:
        found = list(placed_documents("", piece.text))
    except DocumentError as error:
        line = min(error.line, piece.text.count("\n") + 1)
        source = piece.text.split("\n")[line - 1]
        raise _refused(piece, line, _error_sentence(source, error.problem), error.rule) from None
    if _TEMPLATED.search(piece.text):
        raise _refused(piece, _first_line(piece) + 1, _TEMPLATE)
    if len(found) > 1:
        raise _refused(piece, found[1].line, "documents are separated by a line of three hyphens `---`")
    if found and found[0].size > MOST_VALUES:
        message = f"the document has more than {MOST_VALUES:,} keys and values with its aliases expanded"
        raise _refused(piece, 1, message, "size")
    return found[0] if found else None


def _refused(piece: DocumentText, line: int, problem: str, rule: DocumentRule = "yaml") -> DocumentError:
    return DocumentError("", piece.offset + line, problem, rule)


def editable(piece: DocumentText) -> Any:
    """A tree of the parsed piece that remembers its text; None if ruamel cannot load it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML allows it
            return _yaml(piece.text).load(piece.text)
    except (YAMLError, ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError):
        # ruamel reads a newer YAML than Kubernetes, and its constructors raise other errors.
        return None


def _yaml(text: str) -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 1 << 16
    yaml.allow_unicode = True
    yaml.brace_single_entry_mapping_in_flow_sequence = True  # [{name: gpu}], a common style
    lists = _LIST_INDENT.search(text)
    offset = max(0, len(lists[2]) - len(lists[1])) if lists else 2
    mappings = _MAPPING_INDENT.search(text)
    indent = max(2, len(mappings[2]) - len(mappings[1])) if mappings else 2
    yaml.indent(mapping=indent, sequence=offset + 2, offset=offset)
    return yaml


def _error_sentence(source: str, problem: str) -> str:
    """One sentence about a line that is not YAML."""
    if "mapping values" in problem and len(_FIELD.findall(source)) > 1:
        return (
            "several fields are on one line: the line breaks of this manifest were lost when it was copied, and with them its "
            "indentation; copy it again from its source, one field on a line"
        )
    if "mapping values" in problem and "expression:" in source:
        return (
            "YAML takes the colon in this expression for the start of a value: move the expression to the line below "
            "`expression: >-`"
        )
    if "{{" in source:
        return _TEMPLATE
    return problem


def comments_of(piece: DocumentText) -> str:
    """The text of a document's comments."""
    return " ".join(match[1] for line in piece.text.split("\n") if (match := _COMMENT.search(line)))


def line_of(read: Document, path: TreePath, piece: DocumentText) -> int:
    """The line in the file of a path, or of its nearest ancestor."""
    return piece.offset + (read.line_of(path) if path else _first_line(piece) + 1)


def _first_line(piece: DocumentText) -> int:
    for number, line in enumerate(piece.text.split("\n")):
        if line.strip() and not line.lstrip().startswith("#"):
            return number
    return 0


def dump(tree: Any, piece: DocumentText) -> str:
    """The text of a changed tree in the document's style. Comments that lost their place go to the top."""
    out = io.StringIO()
    _yaml(piece.text).dump(tree, out)
    text = out.getvalue()
    text = _aligned(text, piece.text)
    lost = Counter(_comment_lines(piece.text)) - Counter(_comment_lines(text))
    return "".join(f"{comment}\n" for comment in lost.elements()) + text


def _aligned(text: str, before: str) -> str:
    """The text with comments indented like the line after them, if they were before."""
    lines = text.split("\n")
    were = Counter(line.strip() for line, far in _followed(before.split("\n")) if _indent(line) == far)
    for number, (line, far) in enumerate(_followed(lines)):
        if line.lstrip().startswith("#") and were[line.strip()] and far is not None:
            lines[number] = " " * far + line.lstrip()
    return "\n".join(lines)


def _followed(lines: list[str]) -> list[tuple[str, int | None]]:
    """Each line with the indentation of the next line that is neither empty nor a comment."""
    found: list[tuple[str, int | None]] = []
    far: int | None = None
    for line in reversed(lines):
        found.append((line, far))
        if line.strip() and not line.lstrip().startswith("#"):
            far = _indent(line)
    return found[::-1]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _comment_lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if line.lstrip().startswith("#"):
            yield line.strip()
