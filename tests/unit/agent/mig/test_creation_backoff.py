"""GPUs on which instances cannot be created must not attract one pod after the other."""

from pathlib import Path

import pytest

from draco.agent.errors import PrepareError
from draco_local.simulator.accidents import faults
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

ONE = a_mig_claim("one", *names([(9, 4)]))
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    build(tmp_path)
    return MigNode(tmp_path)


def fail_to_prepare(node: MigNode) -> None:
    with pytest.raises(PrepareError):
        node.prepare(ONE)


def dirty(node: MigNode) -> bool:
    node.scan()
    return node.mig.divisions[node.uuid].dirty


def test_a_gpu_on_which_making_fails_twice_in_a_row_gets_nothing_new_for_a_while(node: MigNode) -> None:
    faults.fail(node.path, CREATE, faults.ERRORS["UNKNOWN"])
    fail_to_prepare(node)
    assert not dirty(node), "one failure may be an accident"
    fail_to_prepare(node)
    assert dirty(node)
    message = node.mig.divisions[node.uuid].message
    assert message.startswith("Creating instances on it failed 2 times in a row")
    assert CREATE in message
    node.now_s += 59
    assert dirty(node)
    node.now_s += 1
    assert not dirty(node)


def test_what_is_made_ends_it_also_for_a_claim_that_waited(node: MigNode) -> None:
    faults.fail(node.path, CREATE, faults.ERRORS["UNKNOWN"], times=2)
    fail_to_prepare(node)
    fail_to_prepare(node)
    assert dirty(node)
    node.prepare(ONE)
    assert not dirty(node)


@pytest.mark.parametrize("name", ["INSUFFICIENT_RESOURCES", "NOT_SUPPORTED", "NO_PERMISSION", "DRIVER_NOT_LOADED"])
def test_what_is_not_the_gpu_s_fault_is_not_held_against_it(node: MigNode, name: str) -> None:
    faults.fail(node.path, CREATE, faults.ERRORS[name], times=3)
    for _ in range(3):
        fail_to_prepare(node)
    assert not dirty(node)


def test_each_rest_is_longer_than_the_last_up_to_ten_minutes(node: MigNode) -> None:
    faults.fail(node.path, CREATE, faults.ERRORS["UNKNOWN"])
    rests = []
    for _ in range(7):
        fail_to_prepare(node)
        began_s = node.now_s
        while dirty(node):
            node.now_s += 30
        rests.append(node.now_s - began_s)
    assert rests == [0, 60, 120, 240, 480, 600, 600]


def test_a_failure_during_a_rest_counts_and_begins_the_next_one(node: MigNode) -> None:
    """Claims that are allocated already are tried again and again: the GPU must not look free between their failures."""
    faults.fail(node.path, CREATE, faults.ERRORS["UNKNOWN"])
    for _ in range(3):
        fail_to_prepare(node)
    node.now_s += 100
    fail_to_prepare(node)
    node.now_s += 239
    assert dirty(node)
    assert node.mig.divisions[node.uuid].message.startswith("Creating instances on it failed 4 times in a row")
    node.now_s += 1
    assert not dirty(node)
