"""Draco's own manifests and examples need no corrections."""

import re
from pathlib import Path

import pytest

from draco.cli.lint.command import check

ROOT = Path(__file__).parents[3]
MANIFESTS = sorted((ROOT / "manifests").rglob("*.yaml"))
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^( *)```yaml\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def test_there_is_something_to_check() -> None:
    assert len(MANIFESTS) > 10
    assert any(BLOCK.search(page.read_text(encoding="utf-8")) for page in PAGES)


@pytest.mark.parametrize("folder", sorted({path.parent for path in MANIFESTS}), ids=lambda path: path.name)
def test_the_manifests_have_nothing_to_correct(folder: Path) -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in MANIFESTS if path.parent == folder}
    assert check(texts, kubernetes=36).findings == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_manifests_in_the_documents_have_nothing_to_correct(page: Path) -> None:
    blocks = {
        f"{page.name}, block {number}": re.sub(rf"^{match[1]}", "", match[2], flags=re.MULTILINE)
        for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8")), 1)
    }
    assert check(blocks, kubernetes=36).findings == []
