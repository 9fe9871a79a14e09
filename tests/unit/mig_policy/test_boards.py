"""The boards that nodes report."""

from draco.mig.known_boards import BOARDS
from draco.mig_policy.boards import boards_of
from tests.builders import a_mig_node


def test_nodes_that_report_equal_tables_share_one_board() -> None:
    """Otherwise ten thousand nodes would hold as many copies of it."""
    [first], [second] = (list(boards_of(a_mig_node(name, board=BOARDS["H100-80GB"])).values()) for name in ("a", "b"))
    assert first is second
