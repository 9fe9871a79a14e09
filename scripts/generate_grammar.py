"""Generate the tables of the selectors' parser from `operator/draco/cel/syntax/cel.lark`.

Writes `cel.tables.json` beside it, which is committed, if the grammar or the version of lark has changed.

Usage: python -m scripts.generate_grammar
"""

import json
from hashlib import sha256
from pathlib import Path

import lark
from lark.grammar import Rule
from lark.lexer import TerminalDef

from draco.cel.syntax import tables

FILE = Path(tables.__file__).with_name(tables.TABLES)


def written() -> str:
    """The content of `cel.tables.json`. The order of states differs from run to run and has no meaning."""
    data, memo = tables.from_grammar(None).memo_serialize([TerminalDef, Rule])
    return json.dumps({"lark": lark.__version__, "grammar": digest(), "tables": {"data": data, "memo": memo}}) + "\n"


def digest() -> str:
    """Digest of the grammar: tables with another digest are out of date."""
    return sha256(tables.content(tables.GRAMMAR)).hexdigest()


if __name__ == "__main__":
    found = json.loads(FILE.read_bytes()) if FILE.exists() else {}
    if (found.get("lark"), found.get("grammar")) != (lark.__version__, digest()):
        FILE.write_text(written(), encoding="utf-8")
