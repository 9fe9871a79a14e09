"""Shrinking a failing case removes everything that it does not need to fail."""

from typing import Any

from tests.differential.shrinking import shrunk


def test_only_what_is_needed_to_fail_is_left() -> None:
    case = {"a": [1, 2, {"b": [7, 8, 9], "c": 0}, 3], "d": {"e": [5]}}

    def fails(candidate: Any) -> bool:
        return any(isinstance(item, dict) and 8 in item.get("b", []) for item in candidate.get("a", []))

    assert shrunk(case, fails) == {"a": [{"b": [8]}]}
