"""How large and how deep trees are."""

import pytest

from draco.cel.syntax.measure import depth, size
from draco.cel.syntax.parse import parse


@pytest.mark.parametrize(("expression", "nodes"), [("1", 1), ("[1, 2]", 3), ("a.b(c, d)", 4), ("{1: [2]}", 4)])
def test_every_node_of_a_tree_counts_once(expression: str, nodes: int) -> None:
    assert size(parse(expression).root, most=100) == nodes


@pytest.mark.parametrize("most", [0, 1, 2, 4])
def test_counting_stops_with_the_first_node_too_many(most: int) -> None:
    assert size(parse("[1, 2, 3, 4]").root, most=most) == most + 1


@pytest.mark.parametrize(("expression", "levels"), [("1", 1), ("[1, [2]]", 3), ("a.b(c)", 2), ("1 + 2 + 3", 3)])
def test_the_depth_of_a_tree_is_that_of_its_deepest_node(expression: str, levels: int) -> None:
    assert depth(parse(expression).root) == levels
