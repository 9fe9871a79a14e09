"""Names that are derived from other names."""

import string

from hypothesis import given
from hypothesis import strategies as st

from draco.maintenance.taint_rules import fence_for, fenced_node
from draco.resources.names import LONGEST_NAME, PoolKey, agent_lease_name
from tests.builders import a_gpu_node

LETTERS = string.ascii_lowercase + string.digits
NODES = st.text(LETTERS + "-.", min_size=1, max_size=LONGEST_NAME).filter(lambda name: name.strip("-.") == name)
LONG = "a.b-" * 62


def test_a_lease_has_the_nodes_name_as_long_as_that_fits() -> None:
    assert agent_lease_name("n" * 241) == f"draco-agent-{'n' * 241}"
    assert agent_lease_name("n" * 242) != f"draco-agent-{'n' * 242}"


@given(NODES)
def test_every_nodes_lease_has_a_name_that_the_api_server_takes(node: str) -> None:
    name = agent_lease_name(node)
    assert len(name) <= LONGEST_NAME
    assert name[-1] in LETTERS


def test_two_nodes_that_differ_at_the_end_have_two_leases() -> None:
    names = {agent_lease_name(LONG + last) for last in ("a", "b", "ab", "abcde")}
    assert len(names) == 4


@given(NODES)
def test_no_label_has_a_nodes_name(node: str) -> None:
    rule = fence_for(a_gpu_node(node), PoolKey("gpu.nvidia.com", node))
    assert fenced_node(rule) == node
    assert all(len(value) <= 63 and (value != node) for value in rule.metadata.labels.values())
