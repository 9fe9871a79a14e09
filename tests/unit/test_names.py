"""One name for one thing: no two public classes share a name, wherever they are."""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "operator" / "draco"


def test_public_classes_have_names_of_their_own() -> None:
    names = Counter(
        statement.name
        for module in PACKAGE.rglob("*.py")
        for statement in ast.parse(module.read_text("utf-8")).body
        if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_")
    )
    assert names["ResourceClaim"] == 1
    assert [name for name, times in names.items() if times > 1] == []
