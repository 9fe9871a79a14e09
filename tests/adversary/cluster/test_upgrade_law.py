"""The law of upgrades: which upgrades were noticed, and how."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.adversary.cluster.cluster import Cluster, node_of
from tests.adversary.cluster.observer.fairness import Fairness, Pace
from tests.adversary.cluster.observer.hardware import Spec
from tests.adversary.cluster.observer.lease import GIVEN_UP_WITHIN_S, TAKEOVER_GRACE_S, LeaseLaw
from tests.adversary.cluster.observer.programs import Programs
from tests.adversary.cluster.observer.upgrades import AFTER_S, LASTS_S, RECOVERS_S, UpgradeLaw
from tests.adversary.cluster.observer.world import World

NODE = "adv-0"
NODES = {NODE: None}
SPEC = Spec(NODE, "claim", frozenset(), {}, frozenset())


def pod(message: str = "", **status: Any) -> dict[str, Any]:
    waits = [{"state": {"waiting": {"message": message}}}] if message else []
    return {
        "metadata": {"name": "p", "namespace": "default", "uid": "pod"},
        "spec": {"nodeName": NODE},
        "status": {"phase": "Running", "containerStatuses": waits, **status},
    }


@pytest.fixture
def world() -> World:
    claim = {"metadata": {"name": "c"}, "status": {"reservedFor": [{"uid": "pod"}]}}
    slices = {"slice": {"spec": {"pool": {"name": NODE}}}}
    return World(claims={"claim": claim}, pods={"pod": pod()}, slices=slices)


@pytest.fixture
def law(world: World) -> UpgradeLaw:
    law = UpgradeLaw()
    assert not list(law.look(world, [SPEC], NODES, 0.0))
    law.began(NODE, world, 0.0)
    return law


def test_an_upgrade_of_which_nobody_hears_is_right(law: UpgradeLaw, world: World) -> None:
    assert not list(law.look(world, [SPEC], NODES, 1.0))


def test_a_pod_is_not_told_that_nobody_serves_its_node(law: UpgradeLaw, world: World) -> None:
    world.pods["pod"] = pod("DRA driver gpu.nvidia.com is not registered on this node")
    (wrong,) = law.look(world, [SPEC], NODES, 1.0)
    assert "a pod was told" in wrong.text


def test_what_a_pod_was_told_before_is_no_fault_of_the_upgrade(world: World) -> None:
    law = UpgradeLaw()
    world.pods["pod"] = pod("DRA driver gpu.nvidia.com is not registered on this node")
    law.began(NODE, world, 0.0)
    assert not list(law.look(world, [], NODES, 1.0))


def test_slices_stay(law: UpgradeLaw, world: World) -> None:
    world.slices.clear()
    (wrong,) = law.look(world, [SPEC], NODES, 1.0)
    assert "nothing was published" in wrong.text


def test_the_spec_of_a_running_pod_stays(law: UpgradeLaw, world: World) -> None:
    assert not list(law.look(world, [], NODES, 1.0)), "it may be missed for a moment"
    (wrong,) = law.look(world, [], NODES, 1.0 + LASTS_S)
    assert "the spec of claim claim" in wrong.text
    world.pods["pod"] = pod(phase="Succeeded")
    assert not list(law.look(world, [], NODES, 2.0 + LASTS_S))


def test_an_upgrade_is_not_judged_when_something_else_happened_or_it_is_over(law: UpgradeLaw, world: World) -> None:
    world.slices.clear()
    law.disturbed(1.0, NODE)
    assert not list(law.look(world, [], NODES, 1.0))
    law.began(NODE, world, RECOVERS_S)
    assert not list(law.look(world, [], NODES, RECOVERS_S))
    law.began(NODE, world, 1.0 + RECOVERS_S)
    assert list(law.look(world, [], NODES, 1.0 + RECOVERS_S))
    law.ended(NODE, 1.0)
    assert list(law.look(world, [], NODES, 1.0 + AFTER_S))
    assert not list(law.look(world, [], NODES, 1.1 + AFTER_S))


def test_a_leader_that_is_told_to_end_gives_its_lease_up() -> None:
    law = LeaseLaw(Fairness(), Pace(2.0))
    clock: Any = Mock()
    spec = {"renewTime": "2026-01-01T00:00:00Z", "leaseDurationSeconds": 15, "holderIdentity": "operator-a_1"}
    world = World(leases={"lease": {"metadata": {"name": "draco-operator"}, "spec": spec}})
    late_s = GIVEN_UP_WITHIN_S + TAKEOVER_GRACE_S + 0.1
    clock.__sub__ = lambda *_: Mock(total_seconds=lambda: 0.0)
    law.told_to_end(100.0)
    assert [each.law for each in law.look(world, 100.0 + late_s, clock)] == ["lease not taken over"]
    law.killed(100.0)
    assert not list(law.look(world, 100.0 + late_s, clock))


def test_a_program_that_was_told_to_end_may_end_and_is_not_started_again(tmp_path: Path) -> None:
    programs = Programs(lambda _: False)
    gone = 2**22 + 1
    for name in ("agent-adv-0", "agent-adv-1"):
        programs.started(name, gone, tmp_path / name)
    programs.told_to_end("agent-adv-0")
    assert [each.text.split()[0] for each in programs.look()] == ["agent-adv-1"]
    assert programs.ended() == ["agent-adv-1"]


def test_agents_of_a_node_follow_each_other_under_two_names(tmp_path: Path) -> None:
    stopped: Any = Mock(records=list)
    observer: Any = Mock(world=Mock(leases={}))
    cluster = Cluster(tmp_path, tmp_path, Mock(), stopped, observer, tmp_path, running={"agent-adv-0"})
    (tmp_path / NODE).mkdir()
    (tmp_path / NODE / "gpus.json").touch()
    following = cluster.start_next_agent(NODE)
    assert following != "agent-adv-0"
    assert node_of(following) == NODE
    assert not cluster.start_next_agent(NODE), "one stands by already"
    assert cluster.end("agent-adv-0")
    assert cluster.agents[NODE] == following
    assert [call.args[0] for call in observer.down.call_args_list] == [], "nobody was ever gone"
    assert cluster.start_next_agent(NODE) == "agent-adv-0"
