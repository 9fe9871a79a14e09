"""What the cluster machine tells its observer when it takes a part down."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.adversary.cluster.cluster import REPLICA_GRACE_S, REPLICAS, Cluster


@pytest.fixture
def process() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made.pid
        made.kill()


@pytest.fixture
def cluster(tmp_path: Path, process: int) -> Cluster:
    programs: Any = Mock(records=lambda: [SimpleNamespace(name=REPLICAS[0], pid=process)])
    observer: Any = Mock(world=Mock(leases={}))
    return Cluster(tmp_path, tmp_path, Mock(), programs, observer, tmp_path / "kubeconfig", running=set(REPLICAS))


def told(cluster: Cluster, what: str) -> list[str]:
    return [call.args[0] for call in getattr(cluster.observer, what).call_args_list]


def test_a_leader_that_is_stopped_while_the_other_replica_is_killed_leaves_nobody(
    cluster: Cluster, process: int
) -> None:
    leader, other = REPLICAS
    cluster.stop_for_a_while(leader, process)
    assert told(cluster, "down") == []
    cluster.kill(other)
    assert told(cluster, "down") == ["replicas"]
    assert cluster.let_go_on(leader, process)
    assert told(cluster, "up") == ["replicas"]


def test_a_replica_that_has_just_started_is_nobody_who_could_take_the_lease_at_once(
    cluster: Cluster, process: int
) -> None:
    fresh, other = REPLICAS
    cluster.start_operator(fresh)
    assert told(cluster, "down") == []
    cluster.kill(other)
    assert told(cluster, "down") == ["replicas"]
    recovers = cluster.observer.up.call_args  # type: ignore[attr-defined]
    assert recovers.args == ("replicas",)
    assert 0 < recovers.kwargs["grace_s"] <= REPLICA_GRACE_S


def test_a_replica_goes_on_once_and_only_if_it_is_still_the_same(cluster: Cluster, process: int) -> None:
    leader, _ = REPLICAS
    assert not cluster.let_go_on(leader, process), "it was never stopped"
    cluster.stop_for_a_while(leader, process)
    assert not cluster.let_go_on(leader, os.getpid()), "another one runs in its place"
    assert cluster.let_go_on(leader, process)
    assert not cluster.let_go_on(leader, process)


def test_an_agent_that_is_killed_in_an_upgrade_does_not_come_back_to_stand_by_for_ever(cluster: Cluster) -> None:
    serving, following = "agent-adv-1", "agent-adv-1-next"
    cluster.running |= {serving, following}
    cluster.kill(serving)
    cluster.start(serving)
    assert serving not in cluster.running
    assert cluster.agents["adv-1"] == following
