"""Find every text in the source that people read: errors, conditions, Events and what the commands print.

Owns the page docs/reference/messages.md, which `scripts/reference.py` writes, so that the English can be read in one place. A
text is a string of several words that is not a docstring, the help of an option or a log event. Braces mark what varies in it.
"""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[1]

PARTS = {
    "Agent": ("operator/draco/agent",),
    "Keeper of MPS daemons": ("operator/draco/mps",),
    "Operator": (
        "operator/draco/controller",
        "operator/draco/maintenance",
        "operator/draco/mig_policy",
        "operator/draco/sharing",
        "operator/draco/health",
        "operator/draco/limits",
        "operator/draco/placing",
        "operator/draco/reservations",
        "operator/draco/allocation/ownership",
        "operator/draco/allocation/extended_resources.py",
    ),
    "Why a claim waits": ("operator/draco/explanation", "operator/draco/allocation/search/upstream_bugs.py"),
    "Command line": (
        "operator/draco/cli",
        "operator/draco/overview",
        "operator/draco/whatif",
        "operator/draco/linting",
        "operator/draco/migration",
        "operator/draco/__main__.py",
    ),
    "Local cluster": ("local/draco_local",),
    "Shared by the programs": (
        "operator/draco/kube",
        "operator/draco/mig",
        "operator/draco/certificates.py",
        "operator/draco/connections.py",
        "operator/draco/endpoints.py",
        "operator/draco/logs.py",
        "operator/draco/options.py",
        "operator/draco/resources",
        "operator/draco/selectors",
        "operator/draco/allocation/pod_claims.py",
        "operator/draco/allocation/configurations.py",
        "operator/draco/allocation/exclusion.py",
        "operator/draco/allocation/configured_claims.py",
        "operator/draco/allocation/mps.py",
        "operator/draco/allocation/share_limits.py",
    ),
}
"""The folders and modules of each part of the program."""
NOT_LISTED = {
    "operator/draco/cel": "the errors of selectors are Kubernetes' own words",
    "operator/draco/allocation/fleet": "the errors of the allocator are Kubernetes' own words",
    "operator/draco/allocation/search": "the errors of the allocator are Kubernetes' own words",
    "operator/draco/allocation/errors.py": "the errors of the allocator are Kubernetes' own words",
}
"""What is left out, and why; modules below it are still listed if a part names them."""

_CAMEL = re.compile(r"[A-Z][a-z]+(?:[A-Z][A-Za-z]*)?|[A-Z]{2,}[a-z][A-Za-z]*")
_WORD = re.compile(r"(?<![\w./{-])[A-Za-z]+(?:'[a-z]+)?(?![\w/}-])")
_CODE = re.compile(r"\n|^-\w|^\(\?|^[<^%\[]|^(?:case|kubectl|draco|black|text/plain|export) (?!said)|\| None$")
_FEWEST_WORDS = 3
_NO_TEXT_FOR = {"click.option", "click.argument", "option", "output_option", "re.compile", "Template"}
_CONDITIONS_OF = (*PARTS["Agent"], *PARTS["Operator"])
_NO_TEXT_IN = {"help", "description", "epilog", "short_help", "prefix"}


class Message(NamedTuple):
    """One text of the source, and its kind."""

    text: str
    kind: str


class _Place(NamedTuple):
    """The context of an expression that decides the kind of its texts."""

    error: bool = False
    reasons: tuple[str, ...] = ()


_HEAD = """# Messages

All messages that people read: errors, conditions, Events and what the commands print. `{name}` stands for a value,
`{one|other}` for one of these words. Texts that begin or end in the middle are parts of a longer sentence.

The errors of selectors and of the allocator are Kubernetes' own words and are not listed. The texts of fields are in
[kinds](kinds.md), those of options in [commands](commands.md).
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, folders in PARTS.items():
        found = sorted({message for folder in folders for path in _sources(folder) for message in _messages(path)})
        parts.append(f"## {title}\n")
        errors = [[one.text] for one in found if one.kind == "error"]
        reasoned = [[one.kind, one.text] for one in sorted(found, key=lambda one: (one.kind, one.text))]
        if errors:
            parts.append(f"### Errors\n\n{_table(['text'], errors)}")
        conditions = [row for row in reasoned if row[0] not in ("", "error")]
        if conditions:
            parts.append(f"### Conditions and Events\n\n{_table(['type and reason', 'text'], conditions)}")
        parts.append(f"### Other texts\n\n{_table(['text'], [[one.text] for one in found if not one.kind])}")
    parts.append(f"## Refused by the API server\n\n{_table(['by', 'text'], sorted(set(_rules())))}")
    parts.append(f"## Refused by Helm\n\n{_table(['text'], sorted(_failures()))}")
    return "\n".join(parts)


def _table(head: list[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---"] * len(head), *([_cell(each) for each in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    """A text escaped for a cell, so that it neither ends the cell nor becomes markup."""
    plain = " ".join(text.split()).replace("|", "\\|")
    return (
        re.sub(r"(?<!\\)([<>\[\]*_])", r"\\\1", plain)
        if "`" not in plain
        else re.sub(r"(?<!\\)([<>\[\]])", r"\\\1", plain)
    )


def _sources(folder: str) -> Iterator[Path]:
    root = ROOT / folder
    left_out = [ROOT / each for each in NOT_LISTED if each.startswith(folder)]
    for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
        if "_pb2" not in path.name and not any(path.is_relative_to(each) for each in left_out):
            yield path


# --- texts in Python ---


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a module, cached because several pages read it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module, outer ones first."""
    return tuple(ast.walk(parsed(path)))


def forget() -> None:
    """Drop the cached trees: they are large."""
    parsed.cache_clear()
    nodes_of.cache_clear()


def _messages(path: Path) -> Iterator[Message]:
    tree = parsed(path)
    constants = _constants(tree)
    has_conditions = str(path.relative_to(ROOT)).startswith(_CONDITIONS_OF)
    for statement in tree.body:
        for message in _in(statement, _Place(), constants):
            yield message if has_conditions or message.kind == "error" else message._replace(kind="")


def _in(node: ast.AST, place: _Place, constants: dict[str, str]) -> Iterator[Message]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.expr) and (text := _text(node)) is not None and _is_read(text):
        yield Message(text, "error" if place.error else ", ".join(place.reasons))
        return
    match node:
        case ast.Call(func=function) if _is_log(function) or ast.unparse(function) in _NO_TEXT_FOR:
            return
        case ast.Call(func=function):
            inner = _Place(place.error or _is_error(function), place.reasons or _reasons(node, constants))
        case ast.Tuple():
            inner = place._replace(reasons=place.reasons or _reasons(node, constants))
        case ast.stmt():
            inner = _Place()
        case _:
            inner = place
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword) and child.arg in _NO_TEXT_IN:
            continue
        if child is getattr(node, "annotation", None) or child is getattr(node, "returns", None):
            continue
        if isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant):
            continue
        yield from _in(child, inner, constants)


def _text(node: ast.expr) -> str | None:
    """A string as people read it, with what varies in braces; None if it is no string."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(_text(each) or "" for each in values)
        case ast.FormattedValue(value=value):
            return "{" + _placeholder(value) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            pair = [_text(left), _text(right)]
            if pair == [None, None]:
                return None
            return "".join(
                "{" + _placeholder(side) + "}" if text is None else text
                for side, text in zip((left, right), pair, strict=True)
            )
        case _:
            return None


def _placeholder(node: ast.expr) -> str:
    """A name for a value: the last name in its expression, or the words that it can be."""
    match node:
        case ast.IfExp(body=body, orelse=other):
            texts = (_text(body), _text(other))
            return "|".join(
                _placeholder(each) if text is None else text for each, text in zip((body, other), texts, strict=True)
            )
        case ast.Constant(value=value):
            return str(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_")
        case _:
            inner = _inner(node)
            return "…" if inner is None else _placeholder(inner)


def _inner(node: ast.expr) -> ast.expr | None:
    """The part of an expression that describes it best."""
    match node:
        case (
            ast.Call(func=ast.Attribute(attr="join" | "get"), args=[value, *_])
            | ast.Call(func=ast.Name(id="len" | "str" | "sorted" | "repr" | "shown" | "map"), args=[*_, value])
            | ast.Call(func=value)
            | ast.Subscript(value=value)
            | ast.Await(value=value)
            | ast.Starred(value=value)
            | ast.GeneratorExp(generators=[ast.comprehension(iter=value), *_])
            | ast.ListComp(generators=[ast.comprehension(iter=value), *_])
            | ast.BoolOp(values=[value, *_])
            | ast.BinOp(left=value)
        ):
            return value
        case _:
            return None


def _is_read(text: str) -> bool:
    """Whether people read it: it has words, and is no file, pattern or command."""
    plain = re.sub(r"\{[^}]*\}", " ", text)
    return len(_WORD.findall(plain)) >= _FEWEST_WORDS and _CODE.search(text.strip()) is None


def _is_log(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and re.search(r"(^|[._])log$", ast.unparse(function.value)) is not None


@cache
def _errors() -> frozenset[str]:
    """The names of all classes of errors, the program's and Python's."""
    bases: dict[str, list[str]] = {}
    for folder in ("operator/draco", "local/draco_local"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in nodes_of(path):
                if isinstance(node, ast.ClassDef):
                    bases[node.name] = [ast.unparse(base).rsplit(".", 1)[-1] for base in node.bases]
    known = {
        name for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, BaseException)
    }
    known |= {"ClickException", "UsageError", "BadParameter", "ValidationError", "Exit"}
    while found := {name for name, its in bases.items() if name not in known and known.intersection(its)}:
        known |= found
    return frozenset(known)


def _is_error(function: ast.expr) -> bool:
    return ast.unparse(function).rsplit(".", 1)[-1] in _errors()


def _constants(tree: ast.Module) -> dict[str, str]:
    """The names of the module that stand for a text of one word, such as the type of a condition or an EventReason."""
    return {
        target.id: str(value.value)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(value := _named(node.value), ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def _named(value: ast.expr | None) -> ast.expr | None:
    match value:
        case ast.Call(func=ast.Name(id="EventReason"), args=[name, *_]):
            return name
    return value


def _reasons(node: ast.Call | ast.Tuple, constants: dict[str, str]) -> tuple[str, ...]:
    """The type and reason beside a message, if the call or pair is that of a condition or Event."""
    sides = [*node.args, *(each.value for each in node.keywords)] if isinstance(node, ast.Call) else node.elts
    words = [constants.get(each.id, "") if isinstance(each, ast.Name) else getattr(each, "value", "") for each in sides]
    return tuple(word for word in words if isinstance(word, str) and _CAMEL.fullmatch(word) and word not in _STATUS)


_STATUS = {"True", "False", "Unknown", "Normal", "Warning"}


# --- texts in YAML ---


def _rules() -> Iterator[tuple[str, str]]:
    """The API server's refusals: the rules of the definitions and of the admission policies."""
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield from ((document["spec"]["names"]["kind"], text) for text in _rule_texts(document))
    for document in yaml.safe_load_all((ROOT / "manifests" / "install" / "draco.yaml").read_text(encoding="utf-8")):
        if document and document["kind"] == "ValidatingAdmissionPolicy":
            yield from ((document["metadata"]["name"], text) for text in _rule_texts(document))


def _rule_texts(node: object) -> Iterator[str]:
    match node:
        case {"expression": _, **rest} | {"rule": _, **rest} if rest:
            text = rest.get("message") or rest.get("messageExpression")
            if isinstance(text, str):
                yield text
        case dict():
            for each in node.values():
                yield from _rule_texts(each)
        case list():
            for each in node:
                yield from _rule_texts(each)


def _failures() -> Iterator[list[str]]:
    """Helm's refusals of values that cannot be combined."""
    for path in sorted((ROOT / "charts" / "draco" / "templates").rglob("*")):
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                if found := re.search(r'\bfail \(?(?:printf )?"((?:[^"\\]|\\.)*)"', line):
                    yield [found[1]]
