"""Manifests as text and as trees that remember it: comments, order, quotes, and on which line each thing stands.

Owns the splitting of files into documents, the repair of what copying breaks, the reading and the writing. Knows no rule and
changes no tree: that is `lint_edits`'.
"""

import io
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError

from draco.linting import Path

MOST_CHARACTERS: Final = 2_000_000
MOST_NODES: Final = 100_000
"""Nodes of a document with its aliases written out."""
DEEPEST: Final = 100
_SEPARATOR: Final = re.compile(r"^---[ \t]*(?:#.*)?$")
_WRONG_DASHES: Final = re.compile("^\\s*(?=.*[\u2013\u2014\u2212])[-\u2013\u2014\u2212]{2,4}\\s*$")
_FENCE: Final = re.compile(r"^\s*(```|~~~)\s*\w*\s*$")
_ODD_INDENT: Final = re.compile(r"^[ \t]*[\t\u00a0\u2007\u202f\u200b][ \t\u00a0\u2007\u202f\u200b]*")
_CURLY: Final = re.compile(r"(?:[:\[(,=]|^\s*-)\s*[\u201c\u201d\u201e\u2018\u2019]")
_STRAIGHT: Final = str.maketrans({"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2018": "'", "\u2019": "'"})
_FIELD: Final = re.compile(r"[A-Za-z]\w*:(?=\s|$)")
_BRACKETS: Final = re.compile(r"[\[\]{}]|(?:[-?] +){2,}")
_LEVELS: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
_TEMPLATED: Final = re.compile(r"(?:^|:|-)[ \t]+\{\{[^{}]*\}\}", re.MULTILINE)
_TEMPLATE: Final = "this is a template and not YAML yet: render it first, as `helm template` does"
_COMMENT: Final = re.compile(r"(?:^|\s)#\s?(.*)$")
_MAPPING_INDENT: Final = re.compile(r"^( *)[^\s#-][^#\n]*:[ \t]*\n( +)[^\s#-]", re.MULTILINE)
_LIST_INDENT: Final = re.compile(r"^( *)(?:- )?[\w./-]+:[ \t]*(?:#.*)?\n(?: *#.*\n)*( *)- ", re.MULTILINE)


class Remark(NamedTuple):
    """Something about the text itself."""

    line: int
    rule: str
    message: str
    is_repaired: bool


class TextError(Exception):
    """A document that is no YAML, or none that may be read."""

    def __init__(self, line: int, rule: str, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.rule = rule


class Document(NamedTuple):
    """A part of a file: the separator before it, its text and the number of lines before that text."""

    separator: str
    text: str
    offset: int


def repaired(text: str) -> tuple[str, list[Remark]]:
    """The text without what copying from an article breaks, line by line; and what was repaired."""
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
            rule, message = "indentation", "the line is indented with tabs or with spaces that are none to YAML"
        elif _CURLY.search(line) and not line.lstrip().startswith("#"):
            new, rule, message = (
                line.translate(_STRAIGHT),
                "quotes",
                "typographic quotes are letters to YAML and CEL: use straight ones",
            )
        if new != line:
            lines[number] = new
            remarks.append(Remark(number + 1, rule, message, is_repaired=True))
    return "\n".join(lines), remarks


def documents(text: str) -> Iterator[Document]:
    """The documents of a file; joined again, separators and texts are the file."""
    separator, offset = "", 0
    body: list[str] = []
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if _SEPARATOR.match(line.rstrip("\r\n")):
            yield Document(separator, "".join(body), offset)
            separator, body, offset = line, [], number + 1
        else:
            body.append(line)
    yield Document(separator, "".join(body), offset)


def load(document: Document) -> Any:
    """The tree of a document, None for an empty one. Raises TextError with the line in the file."""
    if len(document.text) > MOST_CHARACTERS:
        raise TextError(document.offset + 1, "size", f"the document has more than {MOST_CHARACTERS:,} characters")
    _check_nesting(document)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML allows it
            tree = _yaml(document.text).load(document.text)
        if _TEMPLATED.search(document.text):
            raise TextError(_first_line(document) + document.offset + 1, "yaml", _TEMPLATE)
        _check_size(tree, document.offset + 1)
    except DuplicateKeyError as error:
        raise TextError(_line(error, document), "duplicate-key", _without_marks(error.problem)) from None
    except MarkedYAMLError as error:
        line = _line(error, document)
        source = document.text.split("\n")[line - document.offset - 1] if document.text else ""
        raise TextError(line, "yaml", _told(source, _without_marks(error.problem))) from None
    except RecursionError:
        raise TextError(
            document.offset + 1, "size", f"the document is nested more than {DEEPEST} levels deep"
        ) from None
    except (YAMLError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        # The parser's constructors let errors of their own through for odd tags and numbers.
        raise TextError(document.offset + 1, "yaml", f"not valid YAML: {' '.join(str(error).split())[:200]}") from None
    return tree


def _check_nesting(document: Document) -> None:
    """Refuse what would keep the parser busy for minutes: brackets in brackets, lists in lists on one line."""
    depth = 0
    for match in _BRACKETS.finditer(document.text):
        depth = max(0, depth + _LEVELS.get(match[0], 0))
        if depth > DEEPEST or len(match[0]) > 2 * DEEPEST:
            line = document.offset + document.text.count("\n", 0, match.start()) + 1
            raise TextError(line, "size", f"the document is nested more than {DEEPEST} levels deep")


def _yaml(text: str) -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 1 << 16
    yaml.allow_unicode = True
    yaml.brace_single_entry_mapping_in_flow_sequence = True  # [{name: gpu}], as people write it
    lists = _LIST_INDENT.search(text)
    offset = max(0, len(lists[2]) - len(lists[1])) if lists else 2
    mappings = _MAPPING_INDENT.search(text)
    indent = max(2, len(mappings[2]) - len(mappings[1])) if mappings else 2
    yaml.indent(mapping=indent, sequence=offset + 2, offset=offset)
    return yaml


def _line(error: MarkedYAMLError, document: Document) -> int:
    mark = error.problem_mark or error.context_mark
    last = document.text.count("\n") + 1
    return document.offset + 1 + (min(mark.line, last - 1) if mark is not None else 0)


def _without_marks(problem: str | None) -> str:
    """The parser's own words, which may go on about where."""
    return " ".join((problem or "").split("\n")[0].split())


def _told(source: str, problem: str) -> str:
    """One sentence about a line that is no YAML."""
    if "mapping values" in problem and len(_FIELD.findall(source)) > 1:
        return (
            "several fields stand on one line: the line breaks of this manifest were lost when it was copied, and with them its "
            "indentation; copy it again from its source, one field on a line"
        )
    if "mapping values" in problem and "expression:" in source:
        return "the colon in this expression begins a value to YAML: write the expression on the line below `expression: >-`"
    if "{{" in source:
        return _TEMPLATE
    return f"not valid YAML: {problem or 'it cannot be read'}"


def _check_size(tree: Any, line: int) -> None:
    """Refuse what grows without bound when its aliases are written out, or contains itself."""
    sizes: dict[int, int] = {}
    inside: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(tree, False)]
    while waiting:
        node, is_done = waiting.pop()
        parts = list(node.values()) if isinstance(node, dict) else list(node) if isinstance(node, list) else []
        if is_done:
            inside.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes.get(id(part), 1) for part in parts)
            if sizes[id(node)] > MOST_NODES:
                raise TextError(
                    line, "size", f"the document has more than {MOST_NODES:,} nodes with its aliases written out"
                )
        elif id(node) in inside:
            raise TextError(line, "size", "an alias leads back into what it stands for")
        elif id(node) not in sizes and isinstance(node, dict | list):
            if len(inside) > DEEPEST:
                raise TextError(line, "size", f"the document is nested more than {DEEPEST} levels deep")
            inside.add(id(node))
            waiting.append((node, True))
            waiting += [(part, False) for part in parts if isinstance(part, dict | list)]


def plain(tree: Any) -> Any:
    """The tree as plain values."""
    if isinstance(tree, dict):
        return {str(key): plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [plain(value) for value in tree]
    match tree:
        case bool() | None:
            return tree
        case int():
            return int(tree)
        case float():
            return float(tree)
    return str(tree)


def comments_of(document: Document) -> str:
    """What the comments of a document say."""
    return " ".join(match[1] for line in document.text.split("\n") if (match := _COMMENT.search(line)))


def line_of(tree: Any, path: Path, document: Document) -> int:
    """The line in the file of what a path leads to, or of the nearest thing above it."""
    line = _first_line(document)
    here = tree
    for step in path:
        try:
            position = here.lc.key(step) if isinstance(here, CommentedMap) else here.lc.item(step)
            here = here[step]
        except (KeyError, IndexError, TypeError, AttributeError):
            break
        line = position[0]
    return document.offset + 1 + line


def _first_line(document: Document) -> int:
    for number, line in enumerate(document.text.split("\n")):
        if line.strip() and not line.lstrip().startswith("#"):
            return number
    return 0


def dump(tree: Any, document: Document) -> str:
    """The text of a changed tree, in the style of the document; comments that lost their place stand before it."""
    out = io.StringIO()
    _yaml(document.text).dump(tree, out)
    text = out.getvalue()
    text = _aligned(text, document.text)
    lost = Counter(_comment_lines(document.text)) - Counter(_comment_lines(text))
    return "".join(f"{comment}\n" for comment in lost.elements()) + text


def _aligned(text: str, before: str) -> str:
    """The text with every comment as far in as what follows it, if that was so before."""
    lines = text.split("\n")
    were = Counter(line.strip() for line, far in _followed(before.split("\n")) if _indent(line) == far)
    for number, (line, far) in enumerate(_followed(lines)):
        if line.lstrip().startswith("#") and were[line.strip()] and far is not None:
            lines[number] = " " * far + line.lstrip()
    return "\n".join(lines)


def _followed(lines: list[str]) -> list[tuple[str, int | None]]:
    """Each line with how far in the next one is that is neither empty nor a comment."""
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
