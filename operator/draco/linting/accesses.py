"""Where an expression reads an attribute or a capacity, as it is written.

Owns the recognition of `device.attributes["domain"].name` in its many spellings. Judges nothing.
"""

from collections.abc import Iterator
from typing import NamedTuple

from draco.linting.tokens import Token, quoted


class Step(NamedTuple):
    """One `.name`, `.?name`, `["name"]` or `[?"name"]`: what it names, and its first and last token."""

    name: str
    first: int
    last: int
    is_optional: bool


class Access(NamedTuple):
    """One read of a device. Token numbers count from the start of the expression; `end` is the one after the last."""

    start: int
    kind: Token
    domain: Step
    name: Step | None
    end: int


def accesses(found: list[Token]) -> Iterator[Access]:
    """Every access, from left to right."""
    for index, token in enumerate(found[:-2]):
        if token.text != "device" or found[index + 1].text != "." or (index and found[index - 1].text in {".", "?"}):
            continue
        kind = found[index + 2]
        if kind.text not in {"attributes", "capacity"}:
            continue
        domain = _step(found, index + 3)
        if domain is None:
            continue
        name = _step(found, domain.last + 1)
        yield Access(index, kind, domain, name, (name or domain).last + 1)


def _step(found: list[Token], at: int) -> Step | None:
    """The step that begins at a token; a call is none."""
    here = [token.text for token in found[at : at + 4]]
    is_optional = here[1:2] == ["?"]
    last = at + (2 if is_optional else 1)
    if last >= len(found):
        return None
    token = found[last]
    if here[:1] == ["."] and token.kind == "name":
        if last + 1 < len(found) and found[last + 1].text == "(":
            return None
        return Step(token.text.strip("`"), at, last, is_optional)
    if here[:1] == ["["] and last + 1 < len(found) and found[last + 1].text == "]":
        name = quoted(token)
        return None if name is None else Step(name, at, last + 1, is_optional)
    return None


def spelled(name: str, *, like: Step | None = None) -> str:
    """A step as it is written: as an identifier where it can be one."""
    mark = "?" if like is not None and like.is_optional else ""
    return f".{mark}{name}" if name.isidentifier() else f'[{mark}"{name}"]'
