"""Tests that share a cluster run on the same worker, and the longest start first."""

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
        ("tests/component/chart/test_chart.py::test_a[a pool on my node]", "tests/component/chart/test_chart.py"),
        ("tests/component/kube/test_client.py::test_a[1g.10gb@0] on api-server-2", "api-server-2"),
    ],
)
def test_the_tests_of_a_file_stay_together_and_those_of_a_folder_with_one_cluster(test: str, group: str) -> None:
    assert group_of(test) == group


def test_where_every_cluster_is_alike_only_the_tests_of_a_file_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "SHARED", ())
    assert group_of("tests/e2e/real_nodes/test_claims.py::test_a") == "tests/e2e/real_nodes/test_claims.py"


def test_what_takes_longest_begins_first_and_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "SECONDS", {"c.py": 60.0})
    collected = ["a.py::1", "b.py::1", "a.py::2", "b.py::2", "b.py::3", "c.py::1"]
    assert ordered(*(SimpleNamespace(nodeid=each) for each in collected)) == [
        *("c.py::1", "b.py::1", "b.py::2", "b.py::3", "a.py::1", "a.py::2")
    ]


def test_files_that_need_a_server_share_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "SECONDS", {"long.py": 60.0, "middle.py": 40.0, "short.py": 30.0})
    asking = {"long.py": "served", "middle.py": "api_server", "short.py": "api_server", "whole.py": "control_plane"}
    items = [an_item(f"{file}::1", fixture) for file, fixture in asking.items()]
    assert ordered(*items, an_item("short.py::2")) == [
        *("middle.py::1 on api-server-2", "short.py::1 on api-server-2"),
        *("long.py::1 on api-server-1", "short.py::2", "whole.py::1 on control-plane"),
    ]


def an_item(test: str, *fixtures: str) -> SimpleNamespace:
    return SimpleNamespace(nodeid=test, fixturenames=fixtures)


def ordered(*collected: SimpleNamespace) -> list[str]:
    """The collected tests in the order in which a worker runs them."""
    items: list[Any] = list(collected)
    config: Any = SimpleNamespace(workerinput={})
    side_by_side.pytest_collection_modifyitems(config, items)
    return [getattr(each, "_nodeid", each.nodeid) for each in items]


def test_what_is_known_to_take_long_exists() -> None:
    assert [group for group in (*side_by_side.SECONDS, *side_by_side.SHARED) if not (ROOT / group).exists()] == []
