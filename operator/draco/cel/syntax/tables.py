"""The parser's tables, kept in `cel.tables.json`: to make them from the grammar takes ten times as long as to read them.

Owns how they are made and read; `make grammar` writes them. A release of lark other than the one that made them reads the
grammar instead.
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
    """The parser of `cel.lark`, which calls `builder` for each rule it has read."""
    found = json.loads(content(TABLES))
    if found["lark"] != lark.__version__:
        return from_grammar(builder)
    tables: dict[str, Any] = _with_numbers(found["tables"])
    tables["data"]["options"]["transformer"] = builder
    return Lark.load(tables)


def from_grammar(builder: object) -> Lark:
    """The same, made from the grammar.

    One scanner for the whole text instead of one for each state of the parser: `inner` must never be read as `in ner`.
    """
    return Lark(
        content(GRAMMAR).decode(),
        parser="lalr",
        lexer="basic",
        start="expr",
        maybe_placeholders=True,
        transformer=builder,  # any object with methods named after the rules
    )


def written() -> str:
    """What `cel.tables.json` is to say. The order of states is another one in each process, and means nothing."""
    data, memo = from_grammar(None).memo_serialize([TerminalDef, Rule])
    return json.dumps({"lark": lark.__version__, "grammar": digest(), "tables": {"data": data, "memo": memo}}) + "\n"


def digest() -> str:
    """Of the grammar: tables with another one are of another grammar."""
    return sha256(content(GRAMMAR)).hexdigest()


def content(name: str) -> bytes:
    """A file of this package."""
    return pkgutil.get_data(__package__, name) or b""


def _with_numbers(found: Any) -> Any:
    """JSON has only texts as keys, where states, rules and terminals have numbers."""
    if isinstance(found, list):
        return [_with_numbers(each) for each in found]
    if isinstance(found, dict):
        return {int(key) if key.isdigit() else key: _with_numbers(value) for key, value in found.items()}
    return found
