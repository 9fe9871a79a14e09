"""Idle claims that block a waiting one: as few as possible are released, and only if all others find a place."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from draco.allocation.fleet.fleet import Fleet
from draco.mig_policy import releases
from draco.mig_policy.releases import ClaimRelease, plan_release
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node, PodSpec
from draco.resources.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectKey
from tests.builders import a_node, a_pod
from tests.mig_claims import MIG_CLASS, a_mig_claim, a_mig_pool

WAITING = ObjectKey("default", "waiting")


def planned(
    *claims: ResourceClaim,
    wanted: str,
    gpus: int = 1,
    max_moves: int = 2,
    nodes: Sequence[Node] = (a_node("node-0"),),
    spec: PodSpec | None = None,
) -> ClaimRelease | None:
    waiting = a_mig_claim("waiting", wanted)
    slices = [each for node in nodes for each in a_mig_pool(node.metadata.name, gpus)]
    fleet = Fleet.of(slices=slices, nodes=nodes, classes=[MIG_CLASS], claims=[*claims, waiting])
    pod = a_pod("train", claims=["waiting"])
    if spec is not None:
        pod = msgspec.structs.replace(pod, spec=spec)
    before = {key: fleet.state.held_by(key) for key in fleet.claims}
    found = plan_release(fleet, pod, [waiting], dict.fromkeys(fleet.idle, max_moves))
    assert {key: fleet.state.held_by(key) for key in fleet.claims} == before
    return found


def names(found: ClaimRelease | None) -> list[str]:
    return [] if found is None else [key.name for key in found.claims]


def test_one_idle_claim_in_the_way_is_named_if_it_finds_another_place() -> None:
    found = planned(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), wanted="4g.40gb")
    assert found == ClaimRelease(
        pod=ObjectKey("default", "train"),
        waiting=(WAITING,),
        node="node-0",
        claims=(ObjectKey("default", "idle"),),
        devices={ObjectKey("default", "idle"): ("gpu-0-mig-1g10gb-19-0 of node-0",)},
    )
    assert str(found) == "default/waiting fits on node-0 without default/idle"


def test_a_claim_that_a_pod_uses_is_never_named() -> None:
    assert planned(a_mig_claim("busy", "1g.10gb", "0:1g.10gb@0", used=True), wanted="4g.40gb") is None


def test_what_fits_as_things_are_needs_no_release() -> None:
    assert planned(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@6"), wanted="4g.40gb") is None


def test_an_idle_claim_that_would_find_no_other_place_stays() -> None:
    assert planned(a_mig_claim("idle", "7g.80gb", "0:7g.80gb@0"), wanted="1g.10gb") is None
    assert names(planned(a_mig_claim("idle", "7g.80gb", "0:7g.80gb@0"), wanted="1g.10gb", gpus=2)) == []


def test_two_go_where_one_does_not_suffice() -> None:
    idle = [a_mig_claim("a", "1g.10gb", "0:1g.10gb@0"), a_mig_claim("b", "1g.10gb", "0:1g.10gb@2")]
    assert names(planned(*idle, wanted="4g.40gb")) == ["a", "b"]
    assert planned(*idle, wanted="4g.40gb", max_moves=1) is None


def test_two_go_together_only_if_each_may() -> None:
    idle = [a_mig_claim("a", "1g.10gb", "0:1g.10gb@0"), a_mig_claim("b", "1g.10gb", "0:1g.10gb@2")]
    waiting = a_mig_claim("waiting", "4g.40gb")
    fleet = Fleet.of(
        slices=a_mig_pool("node-0", 1), nodes=[a_node("node-0")], classes=[MIG_CLASS], claims=[*idle, waiting]
    )
    pod = a_pod("train", claims=["waiting"])
    for often in ((1, 2), (2, 1)):
        movable = dict(zip(sorted(fleet.idle), often, strict=True))
        assert plan_release(fleet, pod, [waiting], movable) is None


def test_two_that_would_find_one_place_between_them_stay() -> None:
    halves = [a_mig_claim("a", "3g.40gb", "0:3g.40gb@0"), a_mig_claim("b", "3g.40gb", "0:3g.40gb@4")]
    busy = [a_mig_claim(f"busy-{gpu}", "1g.10gb", f"{gpu}:1g.10gb@0", used=True) for gpu in (1, 2)]
    assert planned(*halves, busy[0], wanted="7g.80gb", gpus=2) is None
    assert names(planned(*halves, *busy, wanted="7g.80gb", gpus=3)) == ["a", "b"]


@pytest.mark.parametrize(("home", "moved"), [("node-0", ["idle"]), ("node-1", [])])
def test_a_pod_goes_only_where_it_reaches_what_it_has_already(home: str, moved: list[str]) -> None:
    nodes = [a_node("node-0"), a_node("node-1")]
    have = bound_to(home, a_mig_claim("have", "3g.40gb", "0:3g.40gb@4", used=True, node=home))
    idle, waiting = a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), a_mig_claim("waiting", "4g.40gb")
    busy = a_mig_claim("busy", "1g.10gb", "0:1g.10gb@0", used=True, node="node-1")
    fleet = Fleet.of(
        slices=[each for node in nodes for each in a_mig_pool(node.metadata.name, 1)],
        nodes=nodes,
        classes=[MIG_CLASS],
        claims=[idle, have, busy, waiting],
    )
    pod = a_pod("train", claims=["have", "waiting"])
    found = plan_release(fleet, pod, [have, waiting], dict.fromkeys(fleet.idle, 2))
    assert names(found) == moved
    assert found is None or found.waiting == (WAITING,)


def bound_to(node: str, claim: ResourceClaim) -> ResourceClaim:
    """The claim as kube-scheduler allocates it: usable from its node only."""
    assert claim.status.allocation is not None
    only = NodeSelectorRequirement(key="metadata.name", operator="In", values=[node])
    selector = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[only])])
    allocation = msgspec.structs.replace(claim.status.allocation, node_selector=selector)
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=allocation))


def test_nothing_is_named_when_the_searches_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0")
    monkeypatch.setattr(releases, "_SEARCHES", 3)
    assert names(planned(idle, wanted="4g.40gb")) == ["idle"]
    monkeypatch.setattr(releases, "_SEARCHES", 2)
    assert planned(idle, wanted="4g.40gb") is None


def test_one_goes_where_one_suffices() -> None:
    idle = [a_mig_claim("a", "1g.10gb", "0:1g.10gb@6"), a_mig_claim("b", "1g.10gb", "0:1g.10gb@2")]
    assert names(planned(*idle, wanted="4g.40gb")) == ["b"]


def test_three_are_never_named() -> None:
    idle = [a_mig_claim(name, "1g.10gb", f"0:1g.10gb@{start}") for name, start in (("a", 0), ("b", 1), ("c", 2))]
    assert planned(*idle, wanted="4g.40gb") is None


def test_a_claim_may_go_to_another_gpu() -> None:
    idle = a_mig_claim("idle", "3g.40gb", "0:3g.40gb@0")
    busy = a_mig_claim("busy", "3g.40gb", "1:3g.40gb@0", used=True)
    assert names(planned(idle, busy, wanted="7g.80gb", gpus=2)) == ["idle"]


@pytest.mark.parametrize("node_selector", [{"zone": "elsewhere"}])
def test_a_node_that_the_pod_may_not_go_to_is_no_help(node_selector: dict[str, str]) -> None:
    spec = PodSpec(node_selector=node_selector)
    assert planned(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), wanted="4g.40gb", spec=spec) is None


def test_a_claim_that_no_node_can_ever_meet_moves_nobody() -> None:
    assert planned(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), wanted="9g.99gb") is None


def test_a_claim_that_is_used_by_the_time_its_turn_comes_is_not_named() -> None:
    idle = a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0")
    busy = a_mig_claim("busy", "1g.10gb", "1:1g.10gb@0", used=True)
    fleet, search = a_search(idle, busy)
    assert names(search()) == ["idle"]
    fleet.put_claim(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0", used=True))
    assert search() is None
    fleet.remove_claim(idle.metadata.key)
    fleet.put_claim(a_mig_claim("new", "1g.10gb", "0:1g.10gb@0", used=True))
    assert search() is None


def test_what_a_waiting_claim_is_allocated_meanwhile_stays_in_use() -> None:
    idle, busy = (a_mig_claim(name, "1g.10gb", f"{gpu}:1g.10gb@0", used=bool(gpu)) for gpu, name in enumerate("ab"))
    fleet, search = a_search(idle, busy)
    fleet.remove_claim(busy.metadata.key)
    fleet.put_claim(a_mig_claim("waiting", "4g.40gb", "1:4g.40gb@0", used=True))
    held = fleet.state.held_by(WAITING)
    assert held
    assert search() is None
    assert fleet.state.held_by(WAITING) == held


def a_search(*claims: ResourceClaim) -> tuple[Fleet, Callable[[], ClaimRelease | None]]:
    """A search on two GPUs among those of these claims that are idle now, for whatever happens before it runs."""
    waiting = a_mig_claim("waiting", "4g.40gb")
    fleet = Fleet.of(
        slices=a_mig_pool("node-0", 2), nodes=[a_node("node-0")], classes=[MIG_CLASS], claims=[*claims, waiting]
    )
    movable = dict.fromkeys(fleet.idle, 2)
    return fleet, lambda: plan_release(fleet, a_pod("train", claims=["waiting"]), [waiting], movable)
