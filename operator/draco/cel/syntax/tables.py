"""The parser's tables, kept in `cel.tables.json`: building them from the grammar takes ten times as long as reading them.

`make grammar` writes them. If another release of lark built them, the grammar is read instead.
"""

import json
import pkgutil
from typing import Any, Final

import lark
from lark import Lark

GRAMMAR: Final = "cel.lark"
TABLES: Final = "cel.tables.json"


def parser(builder: object) -> Lark:
    """The parser of `cel.lark`; it calls a method of `builder` for each rule."""
    found = json.loads(content(TABLES), object_hook=_with_numbers)
    if found["lark"] != lark.__version__:
        return from_grammar(builder)
    tables: dict[str, Any] = found["tables"]
    tables["data"]["options"]["transformer"] = builder
    return Lark.load(tables)


def from_grammar(builder: object) -> Lark:
    """The same, built from the grammar. One scanner, not one per parser state: `inner` must never be read as `in ner`."""
    return Lark(
        content(GRAMMAR).decode(),
        parser="lalr",
        lexer="basic",
        start="expr",
        maybe_placeholders=True,
        transformer=builder,  # any object with methods named after the rules
    )


def content(name: str) -> bytes:
    """A file of this package."""
    return pkgutil.get_data(__package__, name) or b""


def _with_numbers(entries: dict[str, Any]) -> dict[Any, Any]:
    """Restore the numeric keys of states, rules and terminals, which JSON keeps as texts."""
    return {int(key) if key.isdigit() else key: value for key, value in entries.items()}
