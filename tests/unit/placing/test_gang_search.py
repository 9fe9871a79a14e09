"""Groups get devices for all members that they need, within their topology, or none."""

from collections.abc import Iterable, Sequence
from unittest.mock import Mock

import msgspec
import pytest

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.ownership.claims import as_searched
from draco.placing.groups.gang_search import ATTEMPTS, GangSearch
from draco.placing.groups.group import ClaimGroup, GroupMember, GroupPlacement, withheld
from draco.placing.groups.place import Forecast, forecast, place
from draco.placing.scoring.score import ALONE, RestOfGroup
from draco.placing.search.best import BestPlacer
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.slices import Device, DeviceAttribute
from tests.builders import a_claim, a_device_class, a_device_key, a_node, a_pod, a_slice
from tests.doubles.placing import a_placer
from tests.unit.placing.test_place import CLASS, ours

GPUS = 2


def labelled(name: str, labels: dict[str, str]) -> Node:
    node = a_node(name)
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels))


def a_fleet(*claims: ResourceClaim, racks: Sequence[str] = ("a", "a", "b"), fabrics: Sequence[str] = ()) -> Fleet:
    """Nodes node-0, ... in these racks and NVLink fabrics, each with two GPUs that Draco allocates."""
    device_class = a_device_class(CLASS)
    labels = {"draco.dev/allocator": "operator"}
    device_class = msgspec.structs.replace(
        device_class, metadata=msgspec.structs.replace(device_class.metadata, labels=labels)
    )
    names = [f"node-{number}" for number in range(len(racks))]
    return Fleet.of(
        nodes=[labelled(name, {"rack": rack, name: "yes"}) for name, rack in zip(names, racks, strict=True)],
        slices=[
            a_slice(name, [in_fabric(ours(f"gpu-{index}"), fabric) for index in range(GPUS)])
            for name, fabric in zip(names, fabrics or [""] * len(names), strict=True)
        ],
        classes=[device_class],
        claims=claims,
    )


def in_fabric(device: Device, fabric: str) -> Device:
    if not fabric:
        return device
    cluster, _, clique = fabric.partition(".")
    attributes = {"clusterUUID": DeviceAttribute(string=cluster), "cliqueID": DeviceAttribute(string=clique)}
    return msgspec.structs.replace(device, attributes={**device.attributes, **attributes})


def asking(name: str, count: int = 1) -> ResourceClaim:
    claim = a_claim(name, device_class=CLASS)
    (request,) = claim.spec.devices.requests
    assert request.exactly is not None
    request = msgspec.structs.replace(request, exactly=msgspec.structs.replace(request.exactly, count=count))
    return msgspec.structs.replace(
        claim,
        spec=msgspec.structs.replace(
            claim.spec, devices=msgspec.structs.replace(claim.spec.devices, requests=[request])
        ),
    )


def member(name: str, count: int = 1, *, only: str = "") -> GroupMember:
    pod = a_pod(name)
    if only:
        pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_selector={only: "yes"}))
    return GroupMember([asking(name, count)], [pod])


def a_group(members: Iterable[GroupMember], *, needed: int = 0, topology: str = "", **more: object) -> ClaimGroup:
    members = list(members)
    group = ClaimGroup(members, needed or len(members), topology, name="PodGroup default/train")
    return msgspec.structs.replace(group, **more)


def nodes(placement: GroupPlacement) -> list[str]:
    """The node of each member; "" for members without devices."""
    return [results[0].devices.results[0].pool if results else "" for results in placement.results]


def holder(name: str, node: str, gpu: int) -> ResourceClaim:
    return a_claim(name, device_class=CLASS, on=[f"gpu.nvidia.com/{node}/gpu-{gpu}"])


def test_all_members_get_devices_or_none_and_those_after_the_group_get_what_it_leaves() -> None:
    fleet = a_fleet()
    huge, fitting = a_group(member(f"h{n}", 2) for n in range(4)), a_group(member(f"f{n}", 2) for n in range(3))
    found = place(a_placer(fleet), [huge, fitting], [])
    assert (nodes(found[0]), sorted(nodes(found[1]))) == ([], ["node-0", "node-1", "node-2"])
    assert found[0].is_hopeless
    assert "3 of 4" in found[0].why_not
    assert fleet.claims == {}


@pytest.mark.parametrize(("counts", "asked"), [([1] * 8, 7), ([1] * 7 + [2], ATTEMPTS * 6)])
def test_another_order_is_tried_only_where_members_differ(
    counts: list[int], asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = a_fleet()
    group = a_group(member(f"m{index}", count) for index, count in enumerate(counts))
    with a_placer(fleet).as_if() as placer:
        counted = Mock(wraps=placer.best)
        monkeypatch.setattr(placer, "best", counted)
        fit = GangSearch(placer).place(group)
    assert (fit.found < len(counts), counted.call_count) == (True, asked)


def test_a_group_that_needs_fewer_than_it_has_takes_as_many_as_find_devices() -> None:
    (found,) = place(a_placer(a_fleet()), [a_group((member(f"m{n}", 2) for n in range(5)), needed=2)], [])
    assert sorted(filter(None, nodes(found))) == ["node-0", "node-1", "node-2"]
    assert len(found.results) == 5


@pytest.mark.parametrize(
    ("members", "on"),
    [
        (2, ["node-2"] * 2),  # not the gaps that others have left
        (3, ["node-2"] * 2 + ["node-0"]),
        (4, ["node-2"] * 2 + ["node-3"] * 2),
        (5, ["node-2"] * 2 + ["node-3"] * 2 + ["node-0"]),
    ],
)
def test_a_group_is_on_few_nodes_and_fills_them(members: int, on: list[str]) -> None:
    fleet = a_fleet(holder("one", "node-0", 0), holder("other", "node-1", 0), racks=("a",) * 4)
    (found,) = place(a_placer(fleet), [a_group(member(f"m{n}") for n in range(members))], [])
    assert nodes(found) == on


def test_a_member_that_comes_later_goes_where_the_others_are() -> None:
    there = placed_on("node-2")
    fleet = a_fleet(holder("one", "node-0", 0), there, racks=("a",) * 4)
    (found,) = place(a_placer(fleet), [a_group([member("m1")], placed=[there])], [])
    assert nodes(found) == ["node-2"]


def test_of_a_member_no_runner_up_is_told_which_would_have_won_without_the_others() -> None:
    fleet = a_fleet(holder("one", "node-0", 0))
    with a_placer(fleet).as_if() as placer:
        alone, member_of_two = (
            placer.best([as_searched(asking("m"), fleet.classes)], fleet.nodes, rest=rest)
            for rest in (ALONE, RestOfGroup(devices=1))
        )
    assert alone is not None
    assert member_of_two is not None
    assert (alone.node, member_of_two.node) == ("node-0", "node-1")
    assert alone.runner_up is not None
    assert member_of_two.runner_up is None


def test_a_group_that_is_spread_is_on_as_many_nodes_as_it_has_members() -> None:
    fleet = a_fleet(holder("one", "node-0", 0), racks=("a",) * 3)
    (found,) = place(a_placer(fleet), [a_group((member(f"m{n}") for n in range(3)), topology="spread")], [])
    assert nodes(found) == ["node-0", "node-1", "node-2"]


def test_unlike_members_do_not_take_each_others_only_devices() -> None:
    """They are of equal size, and the first could take the only node on which the second may run."""
    fleet = a_fleet(racks=("a", "b"))
    (found,) = place(a_placer(fleet), [a_group([member("anywhere", 2), member("bound", 2, only="node-0")])], [])
    assert nodes(found) == ["node-1", "node-0"]


def test_what_asks_for_most_is_placed_first() -> None:
    fleet = a_fleet(holder("taken", "node-0", 0), racks=("a", "b"))
    (found,) = place(a_placer(fleet), [a_group([member("small"), member("large", 2)])], [])
    assert nodes(found) == ["node-0", "node-1"]


@pytest.mark.parametrize(
    ("topology", "members", "where"),
    [
        ("sameNode", 2, {1}),
        ("sameNode", 3, set()),
        ("rack", 4, {2}),
        ("rack", 5, set()),
        ("spread", 3, {3}),
        ("spread", 4, set()),
    ],
)
def test_a_group_keeps_to_its_topology(topology: str, members: int, where: set[int]) -> None:
    (found,) = place(a_placer(a_fleet()), [a_group((member(f"m{n}") for n in range(members)), topology=topology)], [])
    assert {len(set(nodes(found)))} - {0} == where
    if topology == "rack":
        assert set(nodes(found)) <= {"node-0", "node-1"}


def test_nodes_of_one_nvlink_fabric_are_one_domain_and_others_one_each() -> None:
    fleet = a_fleet(fabrics=("u.1", "", "u.1"))
    (found,) = place(
        a_placer(fleet), [a_group((member(f"m{n}", 2) for n in range(2)), topology="sameNVLinkDomain")], []
    )
    assert sorted(nodes(found)) == ["node-0", "node-2"]
    (three,) = place(
        a_placer(fleet), [a_group((member(f"m{n}", 2) for n in range(3)), topology="sameNVLinkDomain")], []
    )
    assert three.is_hopeless


def test_the_domain_with_least_to_spare_is_taken() -> None:
    (found,) = place(a_placer(a_fleet()), [a_group((member(f"m{n}") for n in range(2)), topology="rack")], [])
    assert set(nodes(found)) == {"node-2"}


def test_members_that_come_later_go_where_the_others_are() -> None:
    placed = placed_on("node-0")
    (found,) = place(a_placer(a_fleet(placed)), [a_group([member("late")], topology="rack", placed=[placed])], [])
    assert set(nodes(found)) <= {"node-0", "node-1"}
    (spread,) = place(a_placer(a_fleet(placed)), [a_group([member("late")], topology="spread", placed=[placed])], [])
    assert nodes(spread) == ["node-1"]


def test_members_that_are_in_two_domains_already_are_said() -> None:
    placed = [placed_on("node-0"), placed_on("node-2")]
    (found,) = place(a_placer(a_fleet()), [a_group([member("late")], topology="rack", placed=placed)], [])
    assert "several domains of its topology rack: a, b" in found.why_not


def placed_on(node: str) -> ResourceClaim:
    (found,) = place(a_placer(a_fleet()), [a_group([member("m", only=node)])], [])
    (result,) = found.results[0]
    claim = a_claim("placed", device_class=CLASS)
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=result))


def test_a_topology_that_no_node_has_is_said() -> None:
    (found,) = place(a_placer(a_fleet()), [a_group([member("m")], topology="zone")], [])
    assert "No node that the group may run on has the label zone" in found.why_not


def test_for_an_overdue_group_what_is_free_is_kept_and_later_groups_do_not_get_it() -> None:
    fleet = a_fleet(holder("a", "node-0", 0), holder("b", "node-1", 0), holder("c", "node-1", 1), racks=("a", "b"))
    gang = a_group((member(f"m{n}", 2) for n in range(1)), is_overdue=True)
    small = a_group([member("small")])
    found = place(a_placer(fleet), [gang, small], [])
    assert [f"{each.pool}/{each.device}" for each in found[0].kept] == ["node-0/gpu-1"]
    assert found[1].results == []
    assert nodes(place(a_placer(fleet), [msgspec.structs.replace(gang, is_overdue=False), small], [])[1]) == ["node-0"]


def test_all_that_is_free_is_kept_for_an_overdue_group_that_needs_more_than_that_wherever_it_is() -> None:
    racks = "a" * 16
    held = [holder(f"h{n}", f"node-{n}", 0) for n in range(16)]
    held += [holder(f"i{n}", f"node-{n}", 1) for n in range(6, 16)]
    gang = a_group((member(f"m{n}") for n in range(10)), is_overdue=True)
    found = place(a_placer(a_fleet(*held, racks=racks)), [gang, a_group([member("small")])], [])
    assert {each.pool for each in found[0].kept} == {f"node-{n}" for n in range(6)}
    assert found[1].results == []


def test_small_claims_go_ahead_of_an_overdue_group_where_that_does_not_delay_it() -> None:
    fleet = a_fleet(holder("a", "node-0", 0), racks=("a", "b", "c"))
    gang = a_group((member(f"m{n}", 2) for n in range(3)), is_overdue=True)
    only = a_group((member(f"m{n}", 2, only="node-0") for n in range(1)), is_overdue=True)
    assert place(a_placer(fleet), [gang, a_group([member("small")])], [])[1].results == []
    assert nodes(place(a_placer(fleet), [only, a_group([member("small")])], [])[1]) == ["node-1"]


def test_a_group_may_start_once_what_is_still_being_handed_over_is_dracos() -> None:
    fleet = a_fleet(racks=("a", "b"))
    coming = withheld(
        "not-yet", [a_device_key("gpu.nvidia.com/node-1/gpu-0"), a_device_key("gpu.nvidia.com/node-1/gpu-1")]
    )
    (pair,) = place(a_placer(fleet), [a_group(member(f"m{n}", 2) for n in range(2))], [coming])
    assert (pair.results, pair.is_hopeless) == ([], False)
    (three,) = place(a_placer(fleet), [a_group(member(f"m{n}", 2) for n in range(3))], [coming])
    assert three.is_hopeless


def of_version(version: str, member: GroupMember) -> GroupMember:
    """The member after the API server has written its objects again."""
    claims, pods = (
        [
            msgspec.structs.replace(each, metadata=msgspec.structs.replace(each.metadata, resource_version=version))
            for each in some
        ]
        for some in (member.claims, member.pods)
    )
    return msgspec.structs.replace(member, claims=claims, pods=pods)


def test_whether_a_group_that_waits_ever_finds_a_place_is_found_out_once_and_again_when_more_than_claims_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for an overdue group: what is kept for it depends on what is free."""
    asked: list[ClaimGroup] = []

    def counted(placer: BestPlacer, group: ClaimGroup) -> Forecast:
        asked.append(group)
        return forecast(placer, group)

    monkeypatch.setattr("draco.placing.groups.place.forecast", counted)
    fleet = a_fleet(holder("a", "node-0", 0))
    placer, waiting = a_placer(fleet), a_group(member(f"m{n}", 2) for n in range(3))
    later = msgspec.structs.replace(waiting, members=[of_version("2", each) for each in waiting.members])
    first, second = (place(placer, [each], [])[0] for each in (waiting, later))
    assert (first, first.is_hopeless, asked) == (second, False, [waiting])
    larger = a_group(member(f"m{n}", 2) for n in range(4))
    assert place(placer, [larger], [])[0].is_hopeless
    overdue = msgspec.structs.replace(waiting, is_overdue=True)
    assert [len(place(placer, [overdue], [])[0].kept) for _ in range(2)] == [5, 5]
    assert asked == [waiting, larger, overdue, overdue]
    fleet.remove_node("node-1")
    placer.forget()
    assert place(placer, [waiting], [])[0].is_hopeless
