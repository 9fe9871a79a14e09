"""The keeper of MPS daemons: it starts what is wanted, finds what runs, and replaces what is broken when clients have left."""

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from draco.agent.hardware.programs import ProgramFailed
from draco.agent.mps.folder import WantedDaemon, daemon_name
from tests.doubles.mps import MpsClient, MpsNode

GPU = f"GPU-{uuid.uuid4()}"  # other tests have daemons, too
OTHER = "GPU-00000000-2222-3333-4444-555555555555"
NAME = daemon_name([GPU])
WANTED = WantedDaemon(claim="default/one", devices=[GPU], percentage=50, limits_mib=[1024])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MpsNode]:
    with MpsNode(tmp_path) as made:
        yield made


def pids(node: MpsNode) -> set[int]:
    return {each.pid for each in node.processes.of(NAME)}


def started(node: MpsNode) -> int:
    """The process of the daemon that is wanted."""
    node.folder.want(NAME, WANTED)
    node.keeper.keep(NAME)
    [pid] = pids(node)
    return pid


def test_a_wanted_daemon_is_started_with_its_limits_and_ended_with_its_files(node: MpsNode) -> None:
    started(node)
    pipe = node.folder.pipe(NAME)
    assert node.control.lacking(pipe, WANTED) == ""
    assert node.control.ask(pipe, "get_default_device_pinned_mem_limit 0") == "1024M"
    assert node.folder.state(NAME).problem == ""
    node.folder.forget(NAME)
    assert node.keeper.keep(NAME) is None
    assert not pids(node)
    assert not node.folder.names()


def test_another_keeper_finds_the_daemon_and_leaves_it_alone(node: MpsNode) -> None:
    pid = started(node)
    node.another_keeper().keep(NAME)
    assert pids(node) == {pid}


def test_a_dead_daemon_is_started_again(node: MpsNode) -> None:
    pid = started(node)
    os.kill(pid, signal.SIGKILL)
    node.keeper.keep(NAME)
    assert pids(node) != {pid}
    assert node.control.lacking(node.folder.pipe(NAME), WANTED) == ""
    assert node.folder.state(NAME).starts == 2


def test_a_daemon_of_another_driver_is_replaced_when_its_last_client_has_left(node: MpsNode) -> None:
    pid = started(node)
    client = MpsClient(node.folder.pipe(NAME))
    node.version = "590.44.01"
    assert node.keeper.keep(NAME) == 1.0
    assert pid in pids(node)
    assert "started with another driver; it is replaced when its last client has left (1 now)" in (
        node.folder.state(NAME).problem
    )
    client.end()
    node.keeper.keep(NAME)
    assert pid not in pids(node)
    assert node.folder.state(NAME).problem == ""


def test_a_hanging_daemon_is_killed_if_no_container_has_its_pipe(node: MpsNode) -> None:
    pid = started(node)
    os.kill(pid, signal.SIGSTOP)
    node.keeper.keep(NAME)
    assert pid not in pids(node)
    assert node.control.lacking(node.folder.pipe(NAME), WANTED) == ""


def test_a_client_killed_at_work_leaves_a_fault_until_the_others_have_left(node: MpsNode) -> None:
    pid = started(node)
    first, second = MpsClient(node.folder.pipe(NAME)), MpsClient(node.folder.pipe(NAME))
    first.say("busy")
    first.end()
    assert MpsClient(node.folder.pipe(NAME)).answer == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    node.keeper.keep(NAME)
    assert "has a FAULT" in node.folder.state(NAME).problem
    assert pid in pids(node)
    second.end()
    node.keeper.keep(NAME)
    assert node.folder.state(NAME).problem == ""
    assert MpsClient(node.folder.pipe(NAME)).answer == "ok"


def test_a_daemon_that_does_not_start_is_tried_less_and_less_often(node: MpsNode) -> None:
    node.daemons.broken = True
    node.folder.want(NAME, WANTED)
    assert [node.keeper.keep(NAME) for _ in range(6)] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert node.folder.state(NAME).problem == (
        f"nvidia-cuda-mps-control failed (exit status 1); its log on the node is in {node.folder.log(NAME)}"
    )
    node.daemons.broken = False
    node.keeper.keep(NAME)
    assert node.folder.state(NAME).problem == ""


def test_a_claim_with_other_limits_gets_another_daemon(node: MpsNode) -> None:
    pid = started(node)
    other = WantedDaemon(claim="default/two", devices=[OTHER, GPU], percentage=30)
    node.folder.want(NAME, other)
    node.keeper.keep(NAME)
    assert pid not in pids(node)
    assert node.control.lacking(node.folder.pipe(NAME), other) == ""
    with pytest.raises(ProgramFailed):
        node.control.ask(node.folder.pipe(daemon_name([OTHER])), "ps")


def test_only_one_keeper_has_the_folder_and_others_can_tell(node: MpsNode) -> None:
    assert not node.folder.is_kept()
    descriptor = node.folder.keep()
    assert descriptor is not None
    assert node.folder.is_kept()
    assert node.folder.keep() is None
    os.close(descriptor)
    assert not node.folder.is_kept()
