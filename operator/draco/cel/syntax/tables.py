"""The parser's tables, kept in `cel.tables.json`: building them from the grammar takes ten times as long as reading them.

`make grammar` writes them. If another release of lark built them, the grammar is read instead.
"""

import json
import pkgutil
from hashlib import sha256
from typing import Any, Final

import lark
from lark import Lark
from lark.grammar import Rule
from lark.lexer import TerminalDef

GRAMMAR: Final = "cel.lark"
TABLES: Final = "cel.tables.json"


def parser(builder: object) -> Lark:
    """The parser of `cel.lark`; it calls a method of `builder` for each rule."""
    found = json.loads(content(TABLES))
    if found["lark"] != lark.__version__:
        return from_grammar(builder)
    tables: dict[str, Any] = _with_numbers(found["tables"])
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


def written() -> str:
    """The content of `cel.tables.json`. The order of states differs from run to run and has no meaning."""
    data, memo = from_grammar(None).memo_serialize([TerminalDef, Rule])
    return json.dumps({"lark": lark.__version__, "grammar": digest(), "tables": {"data": data, "memo": memo}}) + "\n"


def digest() -> str:
    """Digest of the grammar: tables with another digest are out of date."""
    return sha256(content(GRAMMAR)).hexdigest()


def content(name: str) -> bytes:
    """A file of this package."""
    return pkgutil.get_data(__package__, name) or b""


def _with_numbers(found: Any) -> Any:
    """Restore the numeric keys of states, rules and terminals, which JSON keeps as texts."""
    if isinstance(found, list):
        return [_with_numbers(each) for each in found]
    if isinstance(found, dict):
        return {int(key) if key.isdigit() else key: _with_numbers(value) for key, value in found.items()}
    return found
