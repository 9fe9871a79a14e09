"""Generate the tables of the selectors' parser from `operator/draco/cel/syntax/cel.lark`.

Writes `cel.tables.json` beside it, which is committed, if the grammar or the version of lark has changed.

Usage: python -m scripts.generate_grammar
"""

import json
from pathlib import Path

import lark

from draco.cel.syntax import tables

FILE = Path(tables.__file__).with_name(tables.TABLES)

if __name__ == "__main__":
    found = json.loads(FILE.read_bytes()) if FILE.exists() else {}
    if (found.get("lark"), found.get("grammar")) != (lark.__version__, tables.digest()):
        FILE.write_text(tables.written(), encoding="utf-8")
