"""Finds, writes and replaces reads of attributes and capacities: `device.attributes["domain"].name` in its many spellings."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from draco.cel.errors import CompileError
from draco.cel.paths import AttributePath, reads
from draco.cel.syntax.parse import parse
from draco.selectors.tokens import Token, quoted, replaced, tokens


class AccessStep(NamedTuple):
    """One `.name`, `.?name`, `["name"]` or `[?"name"]`: its name, first and last token."""

    name: str
    first: int
    last: int
    is_optional: bool


class Access(NamedTuple):
    """One read of a device, in token indexes; `end` is exclusive."""

    start: int
    kind: Token
    domain: AccessStep
    name: AccessStep | None
    end: int

    @property
    def path(self) -> AttributePath:
        """The path it reads; without a name, the whole domain."""
        name = self.name.name if self.name is not None else None
        return AttributePath("capacity" if self.kind.text == "capacity" else "attributes", self.domain.name, name)


def accesses(found: Sequence[Token]) -> Iterator[Access]:
    """Every access, from left to right."""
    for index, token in enumerate(found[:-2]):
        if token.text != "device" or found[index + 1].text != "." or _is_member(found, index):
            continue
        kind = found[index + 2]
        if kind.text not in {"attributes", "capacity"}:
            continue
        domain = _step(found, index + 3)
        if domain is None:
            continue
        name = _step(found, domain.last + 1)
        yield Access(index, kind, domain, name, (name or domain).last + 1)


def _is_member(found: Sequence[Token], index: int) -> bool:
    """Whether a name follows a dot: `a.device`, `a.?device`."""
    before = [token.text for token in found[max(index - 2, 0) : index]]
    return before[-1:] == ["."] or before == [".", "?"]


def _step(found: Sequence[Token], at: int) -> AccessStep | None:
    """The step that begins at a token; None for a call or anything else."""
    here = [token.text for token in found[at : at + 4]]
    is_optional = here[1:2] == ["?"]
    last = at + (2 if is_optional else 1)
    if last >= len(found):
        return None
    token = found[last]
    if here[:1] == ["."] and token.kind == "name":
        if last + 1 < len(found) and found[last + 1].text == "(":
            return None
        return AccessStep(token.text.strip("`"), at, last, is_optional)
    if here[:1] == ["["] and last + 1 < len(found) and found[last + 1].text == "]":
        name = quoted(token)
        return None if name is None else AccessStep(name, at, last + 1, is_optional)
    return None


def spelled(name: str, *, like: AccessStep | None = None) -> str:
    """Write a step, as an identifier if possible."""
    mark = "?" if like is not None and like.is_optional else ""
    return f".{mark}{name}" if name.isidentifier() else f'[{mark}"{name}"]'


def path_text(path: AttributePath) -> str:
    """Write a path as in a selector."""
    if path.kind in {"driver", "allowMultipleAllocations"}:
        return f"device.{path.kind}"
    if path.id is None:
        return f'device.{path.kind}["{path.domain}"]'
    return f'device.{path.kind}["{path.domain}"]{spelled(path.id)}'


def paths_of(expression: str) -> list[AttributePath]:
    """The attributes and capacities that an expression reads, sorted; empty if it does not parse."""
    try:
        read = reads(parse(expression).root)
    except CompileError:
        return []
    return sorted(path for path in read.paths if path.domain is not None and path.id is not None)


def with_path(expression: str, old: AttributePath, new: AttributePath) -> str | None:
    """The expression with one attribute or capacity replaced by another; None if other changes are needed."""
    if new.domain is None or new.id is None:
        return None
    found = tokens(expression)
    changed = expression
    for access in reversed(list(accesses(found))):
        if access.name is None or access.path != old:
            continue
        is_quoted = found[access.name.first].text == "["
        if not is_quoted and not new.id.isidentifier():
            return None
        domain_mark, mark = ("?" if step.is_optional else "" for step in (access.domain, access.name))
        name = f'[{mark}"{new.id}"]' if is_quoted else f".{mark}{new.id}"
        start, end = access.kind.start, found[access.name.last].end
        changed = replaced(changed, start, end, f'{new.kind}[{domain_mark}"{new.domain}"]{name}')
    return changed if changed != expression else None
