"""YAML and JSON text as plain values, with the line of each value.

Owns reading untrusted text: scalars (as kubectl reads them), duplicate keys, aliases that recurse or multiply, depth and size.
Every refusal is one sentence with its line. Knows nothing of Kubernetes objects.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeAlias

import yaml

from draco.resources.written.manifests import ManifestError

MAX_DEPTH: Final = 100
"""Kubernetes objects are about a dozen levels deep; opaque driver parameters can be deeper."""
MAX_VALUES: Final = 20_000_000
"""Most values in one document, with aliases expanded: more than the largest list of a cluster's slices has."""

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALAR_TAGS: Final = "tag:yaml.org,2002:"


DocumentRule: TypeAlias = Literal["yaml", "duplicate-key", "size"]
_Places: TypeAlias = dict[int, dict[str | int, int]]
_NOWHERE: Final[_Places] = {}


class DocumentError(ManifestError):
    """Text that cannot be read: the problem, its line, and the rule."""

    def __init__(self, where: str, line: int, problem: str, rule: DocumentRule = "yaml") -> None:
        super().__init__(f"{where}: {problem}.")
        self.line = line
        self.problem = problem
        self.rule: DocumentRule = rule


class Document(NamedTuple):
    """One document of a file: its number, its first line, and its value."""

    number: int
    line: int
    value: object
    size: int = 0
    """Number of keys and values, with aliases expanded; 0 for JSON."""
    places: Mapping[int, Mapping[str | int, int]] = MappingProxyType({})
    """The line of each key and item, by the `id` of its container; empty unless asked for."""

    def line_of(self, path: Sequence[str | int]) -> int:
        """The line of a path, or of its nearest ancestor."""
        line = self.line
        here: Any = self.value
        for step in path:
            lines = self.places.get(id(here), {})
            if step not in lines:
                break
            line, here = lines[step], here[step]
        return line


def documents(name: str, text: str) -> Iterator[Document]:
    """The non-empty documents of a text. Raises ManifestError."""
    if text.lstrip()[:1] in {"{", "["}:
        try:
            yield from list(_json_documents(name, text))
        except _NotJsonError as error:
            if name.endswith(".json"):
                raise ManifestError(str(error)) from error
        else:
            return
    yield from _yaml_documents(name, text, None)


def placed_documents(name: str, text: str) -> Iterator[Document]:
    """The documents of a YAML text, with the line of each value. Raises DocumentError."""
    yield from _yaml_documents(name, text, {})


class _NotJsonError(ValueError):
    """The text is not JSON; it may still be YAML flow style, which is less strict."""


def _json_documents(name: str, text: str) -> Iterator[Document]:
    """Concatenated JSON objects, which kubectl accepts too."""
    decoder = json.JSONDecoder(object_pairs_hook=_without_twins, parse_constant=_no_constant, parse_int=_integer)
    position = number = 0
    while begins := _FILLED.search(text, position):
        position, number = begins.start(), number + 1
        line = text.count("\n", 0, position) + 1
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise _NotJsonError(f"{name}, line {error.lineno}: this is not valid JSON: {error.msg}.") from error
        except _TwinError as error:
            raise ManifestError(
                f'{name}, document {number} (line {line}): the key "{error}" appears twice in one object; remove one of them.'
            ) from error
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise ManifestError(f"{name}, document {number} (line {line}) cannot be read: {reason}.") from error
        _check(value, f"{name}, document {number} (line {line})")
        yield Document(number, line, value)


_FILLED: Final = re.compile(r"\S")


class _TwinError(ValueError):
    """A key occurs twice."""


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _TwinError(key[:80])
            seen.add(key)
    return made


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= 40 else float(text)


def _check(value: Any, where: str) -> None:
    """Refuse values that are too deep, and lone surrogates, which UTF-8 cannot encode."""
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, str):
            if not item.isascii() and _HALF.search(item):
                raise ManifestError(f"{where}: a string contains half of a character (\\ud800 to \\udfff); correct it.")
        elif isinstance(item, dict | list):
            if depth > MAX_DEPTH:
                raise ManifestError(
                    f"{where}: it is nested more than {MAX_DEPTH} levels deep; no Kubernetes object is."
                )
            inner = [*item.keys(), *item.values()] if isinstance(item, dict) else item
            waiting += [(each, depth + 1) for each in inner if isinstance(each, str | dict | list)]


_HALF: Final = re.compile("[\ud800-\udfff]")


def _yaml_documents(name: str, text: str, places: _Places | None) -> Iterator[Document]:
    try:
        yield from _Builder(name, places).documents(yaml.parse(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        raise _not_yaml(name, text, error) from error


def _not_yaml(name: str, text: str, error: yaml.YAMLError) -> DocumentError:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        character = error.character if isinstance(error.character, int) else ord(str(error.character)[:1] or "\0")
        return DocumentError(
            f"{name}, line {line}", line, f"the character U+{character:04X} is not allowed in YAML; remove it"
        )
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f"{name}, line {mark.line + 1}, column {mark.column + 1}" if mark is not None else name
    problem = getattr(error, "problem", None) or "it cannot be read"
    hint = ""
    if mark is not None and "\t" in _line(text, mark.line)[: mark.column + 1]:
        hint = "; indent with spaces, because YAML does not allow tabs"
    return DocumentError(where, mark.line + 1 if mark is not None else 1, f"this is not valid YAML: {problem}{hint}")


def _line(text: str, number: int) -> str:
    lines = text.split("\n", number + 1)
    return lines[number] if number < len(lines) else ""


_NO_KEY: Final = object()
_MERGE: Final = object()
_OPEN: Final = object()
"""Marks an anchor whose value is still being read."""


@dataclass(slots=True)
class _Frame:
    value: Any
    anchor: str | None
    line: int
    key: Any = _NO_KEY
    lines: dict[str | int, int] = field(default_factory=dict)
    merged: list[dict[str, Any]] = field(default_factory=list)
    size: int = 1


class _Builder:
    """Builds values from parser events, without recursion. Aliases share their value, but its size counts each time."""

    def __init__(self, name: str, places: _Places | None) -> None:
        self._name = name
        self._places = places
        self._number = 0
        self._begins = 1
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._stack: list[_Frame] = []
        self._root: Any = None
        self._size = 0

    def documents(self, events: Iterator[Any]) -> Iterator[Document]:
        for event in events:
            line = event.start_mark.line + 1
            match event:
                case yaml.ScalarEvent():
                    self._add(self._scalar(event, line), 1, line, anchor=event.anchor)
                case yaml.MappingStartEvent():
                    self._open({}, event.anchor, line)
                case yaml.SequenceStartEvent():
                    self._open([], event.anchor, line)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._close()
                case yaml.AliasEvent():
                    self._alias(event.anchor, line)
                case yaml.DocumentStartEvent():
                    self._number += 1
                    self._begins, self._root = line + event.explicit, None
                    self._anchors.clear()
                    if self._places is not None:
                        self._places = {}
                case yaml.DocumentEndEvent():
                    if self._root is not None:
                        yield Document(self._number, self._begins, self._root, self._size, self._places or _NOWHERE)

    def _fail(self, line: int, what: str, rule: DocumentRule = "yaml") -> NoReturn:
        raise DocumentError(f"{self._name}, document {self._number}, line {line}", line, what, rule)

    def _open(self, value: Any, anchor: str | None, line: int) -> None:
        if len(self._stack) >= MAX_DEPTH:
            self._fail(line, f"it is nested more than {MAX_DEPTH} levels deep; no Kubernetes object is", "size")
        if self._stack and isinstance(self._stack[-1].value, dict) and self._stack[-1].key is _NO_KEY:
            self._fail(line, "a key must be a string, not a list or an object")
        if anchor:
            self._anchors[anchor] = (_OPEN, 0)
        self._stack.append(_Frame(value, anchor, line))

    def _close(self) -> None:
        frame = self._stack.pop()
        value = frame.value
        if frame.merged:
            value = {}
            for each in reversed(frame.merged):
                value |= each
            value |= frame.value
        if self._places is not None:
            self._places[id(value)] = frame.lines
        self._add(value, frame.size, frame.line, anchor=frame.anchor)

    def _alias(self, anchor: str | None, line: int) -> None:
        if anchor is None or anchor not in self._anchors:
            self._fail(line, f"the alias *{anchor} refers to nothing: there is no &{anchor} before it")
        value, size = self._anchors[anchor]
        if value is _OPEN:
            self._fail(
                line,
                f"the alias *{anchor} is inside the value that it repeats, which never ends; write the value out",
                "size",
            )
        self._add(value, size, line)

    def _add(self, value: Any, size: int, line: int, *, anchor: str | None = None) -> None:
        """Attach a finished value: to the enclosing list or mapping, as a mapping's key, or as the document."""
        if anchor:
            self._anchors[anchor] = (value, size)
        if not self._stack:
            self._root, self._size = value, size
            return
        frame = self._stack[-1]
        frame.size += size
        if frame.size > MAX_VALUES:
            self._fail(
                line,
                f"with its aliases expanded it has more than {MAX_VALUES:,} values; write it without them",
                "size",
            )
        if isinstance(frame.value, list):
            frame.lines[len(frame.value)] = line
            frame.value.append(value)
        elif frame.key is _NO_KEY:
            frame.key = value if value is _MERGE else self._key(frame, value, line)
        else:
            key, frame.key = frame.key, _NO_KEY
            if key is _MERGE:
                frame.merged += self._merged(value, line)
            else:
                frame.value[key] = value

    def _key(self, frame: _Frame, value: Any, line: int) -> str:
        if isinstance(value, dict | list) or value is None:
            self._fail(line, "a key must be a string, not empty, a list or an object")
        key = str(value).lower() if isinstance(value, bool) else str(value)
        if key in frame.lines:
            self._fail(
                line,
                f'the key "{key[:80]}" is already in line {frame.lines[key]}; remove one of them',
                "duplicate-key",
            )
        frame.lines[key] = line
        return key

    def _merged(self, value: Any, line: int) -> list[dict[str, Any]]:
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(each, dict) for each in values):
            self._fail(line, "<< merges objects only")
        return values

    def _scalar(self, event: Any, line: int) -> Any:
        text: str = event.value
        tag = event.tag or ""
        if tag in {"", "!"}:
            if not event.implicit[0]:
                return text
            frame = self._stack[-1] if self._stack else None
            if text == "<<" and frame is not None and isinstance(frame.value, dict) and frame.key is _NO_KEY:
                return _MERGE
            return resolved(text)
        kind = tag.removeprefix(_SCALAR_TAGS)
        value = text if kind == "str" else resolved(text)
        wanted = {"str": str, "int": int, "float": int | float, "bool": bool, "null": type(None)}.get(kind)
        if wanted is None:
            self._fail(line, f"the tag {tag[:80]} means nothing to Kubernetes; remove it")
        if not isinstance(value, wanted):
            self._fail(line, f'"{text[:80]}" is not of the type that its tag says; remove the tag')
        return value


_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
_INTEGER: Final = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


_EXACT: Final = 1e15
"""Below this value a float represents every integer exactly."""


def resolved(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar as kubectl reads it: YAML 1.1, but timestamps and 1:30 stay text."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789" or len(text) > 40:
        return text
    if _INTEGER.fullmatch(text):
        return _whole(text)
    return _real(text)


def _real(text: str) -> str | int | float:
    if not _FLOAT.fullmatch(text):
        return text
    number = float(text)
    if not math.isfinite(number):
        return text
    return int(number) if number.is_integer() and abs(number) < _EXACT else number


def _whole(text: str) -> str | int | float:
    plain = text.replace("_", "").lower()
    sign, digits = (plain[0], plain[1:]) if plain[0] in "+-" else ("", plain)
    base = {"0b": 2, "0o": 8, "0x": 16}.get(digits[:2], 8 if len(digits) > 1 and digits[0] == "0" else 10)
    try:
        return int(sign + digits, base)
    except ValueError:  # 08, or 0x without digits
        return _real(text)
