"""Unpreparing claims of partitions on simulated NVML: what stays warm, what is destroyed, and how long holders are waited for."""

from pathlib import Path

import pytest

from draco.agent.errors import InstanceHeld, PrepareError
from draco.agent.hardware.gpus import Use
from draco.agent.mig.claim_instances import PATIENCE_S
from draco.mig.keeping import KeptInstances
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.gpu_state import GpuProcess
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

ONE = a_mig_claim("one", *names([(9, 4)]))
LEFT = a_mig_claim("left", *names([(9, 0)]))
ONE_WARM = KeptInstances(counts={9: 1})


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    build(tmp_path)
    return MigNode(tmp_path, keeping=ONE_WARM)


def hold(node: MigNode, start: int, compute_instance: int | None = None) -> None:
    """A process that NVML does not list keeps an instance open."""
    [there] = [one for one in node.hardware().instances if one.start == start]
    faults.hold(
        node.path, 0, GpuProcess(pid=4711, gpu_instance=there.id, compute_instance=compute_instance, listed=False)
    )


def test_of_idle_instances_the_earlier_one_stays_warm(node: MigNode) -> None:
    node.prepare(LEFT)
    node.prepare(ONE)
    node.unprepare(LEFT)
    node.unprepare(ONE)
    assert node.uses() == [(9, 0, Use.WARM)]


def test_what_another_claim_has_is_not_idle(node: MigNode) -> None:
    node.prepare(LEFT)
    node.prepare(ONE)
    node.unprepare(ONE)
    assert node.uses() == [(9, 0, Use.CLAIM), (9, 4, Use.WARM)]


def test_what_is_idle_on_another_gpu_is_not_counted(tmp_path: Path) -> None:
    build(tmp_path, gpus=2)
    node = MigNode(tmp_path, keeping=ONE_WARM)
    for gpu in (0, 1):
        claim = a_mig_claim(f"claim-{gpu}", *names([(9, 4)], gpu=gpu))
        node.prepare(claim)
        node.unprepare(claim)
    assert (node.uses(0), node.uses(1)) == ([(9, 4, Use.WARM)], [(9, 4, Use.WARM)])


def test_what_is_idle_on_several_gpus_gives_way_to_one_claim(tmp_path: Path) -> None:
    build(tmp_path, gpus=2)
    node = MigNode(tmp_path, keeping=ONE_WARM)
    for gpu in (0, 1):
        claim = a_mig_claim(f"claim-{gpu}", *names([(9, 4)], gpu=gpu))
        node.prepare(claim)
        node.unprepare(claim)
    node.prepare(a_mig_claim("both", *names([(19, 5)]), *names([(19, 6)], gpu=1)))
    assert (node.real(0), node.real(1)) == ([(19, 5, 1)], [(19, 6, 1)])


def test_what_is_going_and_in_use_is_not_idle(node: MigNode) -> None:
    node.keep = KeptInstances()
    node.prepare(LEFT)
    hold(node, 0)
    with pytest.raises(InstanceHeld):
        node.unprepare(LEFT)
    node.keep = ONE_WARM
    node.prepare(ONE)
    node.unprepare(ONE)
    assert node.uses() == [(9, 0, Use.ORPHAN), (9, 4, Use.WARM)]


@pytest.mark.parametrize("given_up", ["when it was released", "when that had been published for long"])
def test_each_time_that_a_claim_is_given_up_its_user_is_waited_for_anew(node: MigNode, given_up: str) -> None:
    node.keep = KeptInstances()
    node.prepare(ONE)
    hold(node, 4)
    with pytest.raises(InstanceHeld):
        node.unprepare(ONE)
    if given_up == "when it was released":
        faults.release(node.path, 4711)
        node.unprepare(ONE)
    else:
        node.now_s += PATIENCE_S
        node.unprepare(ONE)
        faults.release(node.path, 4711)
    node.prepare(ONE)
    hold(node, 4)
    node.now_s += PATIENCE_S
    with pytest.raises(InstanceHeld):
        node.unprepare(ONE)


def test_an_instance_that_is_going_and_whole_is_given_to_nobody(node: MigNode) -> None:
    node.keep = KeptInstances()
    node.prepare(ONE)
    hold(node, 4, compute_instance=0)
    with pytest.raises(InstanceHeld):
        node.unprepare(ONE)
    assert node.real() == [(9, 4, 1)]
    with pytest.raises(PrepareError, match=r"The instance 3g\.40gb at 4 is in the way: no claim uses it any more"):
        node.prepare(a_mig_claim("next", *names([(9, 4)])))


def test_who_may_watch_a_partition_need_not_wait_for_those_who_compute_on_it(node: MigNode) -> None:
    node.prepare(ONE)
    [there] = node.hardware().instances
    faults.hold(node.path, 0, GpuProcess(pid=4711, gpu_instance=there.id, compute_instance=0))
    node.prepare(a_mig_claim("watch", *names([(9, 4)]), admin_access=True))
    assert node.real() == [(9, 4, 1)]
