"""Tests that need each other's cluster stay together, and what takes longest begins first."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import side_by_side
from tests.side_by_side import group_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("test", "group"),
    [
        ("tests/unit/mig/test_packing.py::test_a[1::2]", "tests/unit/mig/test_packing.py"),
        ("tests/unit/mig/test_packing.py::TestA::test_b", "tests/unit/mig/test_packing.py"),
        ("tests/e2e/test_mig.py::test_a", "tests/e2e"),
        ("tests/e2e/real_nodes/test_claims.py::test_a", "tests/e2e/real_nodes"),
    ],
)
def test_the_tests_of_a_file_stay_together_and_those_of_a_folder_with_one_cluster(test: str, group: str) -> None:
    assert group_of(test) == group


def test_what_takes_longest_begins_first_and_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "SECONDS", {"c.py": 60.0})
    collected = ["a.py::1", "b.py::1", "a.py::2", "b.py::2", "b.py::3", "c.py::1"]
    items: list[Any] = [SimpleNamespace(nodeid=each) for each in collected]
    config: Any = SimpleNamespace(workerinput={})
    side_by_side.pytest_collection_modifyitems(config, items)
    assert [each.nodeid for each in items] == ["c.py::1", "b.py::1", "b.py::2", "b.py::3", "a.py::1", "a.py::2"]


def test_what_is_known_to_take_long_exists() -> None:
    assert [group for group in (*side_by_side.SECONDS, *side_by_side.SHARED) if not (ROOT / group).exists()] == []
