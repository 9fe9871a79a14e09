"""Draco's allocations against DeviceLimits: what counts as held, which claims are told, and when a refusal ends."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from draco.controller.limits.enforcement import LimitGuard
from draco.controller.limits.holdings_cache import HeldDevices
from draco.controller.view import ClusterView
from draco.kube.events.shares import EventReason
from draco.kube.watch.collection import Collection
from draco.placing.groups.group import ClaimGroup, GroupMember, GroupPlacement
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import ObjectReference
from draco.resources.api.limits import Namespace
from draco.resources.api.meta import ObjectKey, ObjectMeta
from tests.builders import a_claim, a_limit, a_pod
from tests.doubles.clock import ManualClock
from tests.mig_claims import a_mig_claim, a_mig_pool


class World:
    """A cluster with a namespace and two H100s, without an API server, and the recorded Events."""

    def __init__(self, *objects: Any) -> None:
        self.view = ClusterView(cast("Any", None), None, clock=ManualClock())
        self.held = HeldDevices(self.view)
        self.guard = LimitGuard(self.view, self.held, cast("Any", self))
        self.events: list[tuple[str, str]] = []
        waiting = [unallocated(on(gpu)) for gpu in range(3)]
        self.put(a_namespace("default", tenant="a"), *a_mig_pool("node-0", 2), *waiting, *objects)

    def record(self, regarding: ObjectReference, _: EventReason, note: str) -> None:
        self.events.append((regarding.name, note))

    def put(self, *objects: Any) -> None:
        for item in objects:
            self._tell(self._of(item), list(self._of(item).store.put(item)))

    def delete(self, item: Any) -> None:
        self._tell(self._of(item), list(self._of(item).store.remove(item.metadata.key)))

    def _of(self, item: Any) -> Collection[Any]:
        known: dict[str, Collection[Any]] = {
            "DeviceLimit": self.view.limits,
            "Namespace": self.view.namespaces,
            "ResourceClaim": self.view.claims,
            "ResourceSlice": self.view.slices,
        }
        return known[type(item).__name__]

    def _tell(self, collection: Collection[Any], changes: Sequence[Any]) -> None:
        for change in changes:
            for subscriber in collection._subscribers:
                subscriber(change)

    def judge(self, group: ClaimGroup, placement: GroupPlacement) -> GroupPlacement:
        """Judge this group alone, and report the decision."""
        limits = self.guard.begin([])
        found = limits.within(group, placement)
        limits.tell()
        return found


def a_namespace(name: str, **labels: str) -> Namespace:
    return Namespace(metadata=ObjectMeta(name=name, labels=labels))


def result_of(claim: ResourceClaim) -> AllocationResult:
    assert claim.status.allocation is not None
    return claim.status.allocation


def asked(*claims: ResourceClaim, needed: int = 1, each: bool = True) -> tuple[ClaimGroup, GroupPlacement]:
    """A group of these claims before their allocation, and the placement that they have."""
    waiting = [unallocated(claim) for claim in claims]
    if not each:
        return ClaimGroup([GroupMember(waiting)]), GroupPlacement([[result_of(claim) for claim in claims]])
    members = [GroupMember([claim], [a_pod(claim.metadata.name)]) for claim in waiting]
    return ClaimGroup(members, needed), GroupPlacement([[result_of(claim)] for claim in claims])


def unallocated(claim: ResourceClaim) -> ResourceClaim:
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=None))


def on(gpu: int, name: str = "") -> ResourceClaim:
    return a_claim(name or f"claim-{gpu}", on=[f"node-0/gpu-{gpu}"])


def test_of_two_claims_in_one_round_the_second_is_refused_and_told_once() -> None:
    world = World(a_limit(devices=1))
    for _ in range(2):
        limits = world.guard.begin([])
        assert limits.within(*asked(on(0))).results
        refused = limits.within(*asked(on(1)))
        assert (refused.results, refused.is_hopeless) == ([], True)
        assert refused.why_not.startswith(
            "Namespace default has 1 of 1 devices (DeviceLimit limit); this claim takes 1 more."
        )
        limits.tell()
    assert [name for name, _ in world.events] == ["claim-1"]


def test_what_is_on_its_way_counts_until_and_after_it_is_delivered() -> None:
    world = World(a_limit(devices=1))
    assert world.guard.begin([on(0)]).within(*asked(on(1))).results == []
    world.put(on(0))
    assert world.guard.begin([on(0)]).within(*asked(on(1))).results == []
    assert world.guard.begin([]).within(*asked(on(1))).results == []
    world.delete(on(0))
    assert world.guard.begin([]).within(*asked(on(1))).results


def test_a_claim_that_is_allocated_or_gone_is_not_refused_any_more() -> None:
    world = World(a_limit(devices=0), unallocated(on(0)), unallocated(on(1)))
    told: list[ObjectKey] = []
    world.guard.listeners.add(told.append)
    for gpu in (0, 1):
        world.judge(*asked(on(gpu)))
    assert world.guard.waiting() == {"limit": 2}
    world.put(on(0))
    world.delete(on(1))
    assert world.guard.waiting() == {}
    assert world.guard.why_not(ObjectKey("default", "claim-0")) == ""
    assert told == [ObjectKey("default", f"claim-{gpu}") for gpu in (0, 1, 0, 1)]


def test_what_finds_no_place_any_more_is_no_longer_said_to_be_refused() -> None:
    world = World(a_limit(devices=0))
    group, placement = asked(on(0))
    world.judge(group, placement)
    assert world.guard.why_not(group.claims[0].metadata.key)
    world.judge(group, GroupPlacement([], "no device is free"))
    assert world.guard.why_not(group.claims[0].metadata.key) == ""


def test_the_claims_of_a_pod_are_refused_together() -> None:
    world = World(a_limit(devices=1))
    found = world.guard.begin([]).within(*asked(on(0), on(1), each=False))
    assert found.why_not.startswith(
        "These 2 claims together take 2 devices, and DeviceLimit limit permits namespace default 1."
    )


def test_of_a_group_as_many_start_as_a_limit_permits_if_these_are_enough() -> None:
    world = World(a_limit(devices=1))
    assert world.judge(*asked(on(0), on(1), needed=1)).results == [[result_of(on(0))], []]
    assert world.guard.waiting() == {"limit": 1}
    assert world.judge(*asked(on(0), on(1), needed=2)).results == []
    assert world.guard.waiting() == {"limit": 2}


def test_what_a_limit_forbids_whichever_devices_it_gets_is_foreseen() -> None:
    world = World(a_limit(devices=1), on(0))
    group, _ = asked(on(1))
    assert world.guard.begin([]).foreseen(group).startswith("Namespace default has 1 of 1 devices")
    world.put(a_limit(memory="1Gi"))
    assert world.guard.begin([]).foreseen(group) == ""


def test_nothing_is_foreseen_of_a_group_some_of_whose_unlike_pods_would_do() -> None:
    world = World(a_limit(devices=1))
    pair = GroupMember([unallocated(on(0)), unallocated(on(1))], [a_pod("pair")])
    one = GroupMember([unallocated(on(2))], [a_pod("one")])
    group = ClaimGroup([pair, one], needed=1)
    limits = world.guard.begin([])
    assert limits.foreseen(group) == ""
    placed = GroupPlacement([[result_of(on(0)), result_of(on(1))], [result_of(on(2))]])
    assert limits.within(group, placed).results == [[], [result_of(on(2))]]
    assert world.guard.begin([]).foreseen(msgspec.structs.replace(group, needed=2)) != ""


def test_nothing_is_allocated_in_a_namespace_that_is_not_known() -> None:
    world = World(a_limit(devices=9))
    world.delete(a_namespace("default"))
    group, placement = asked(on(0))
    assert "has not been read yet" in world.guard.begin([]).foreseen(group)
    assert world.guard.begin([]).within(group, placement).results == []
    before = world.guard.version
    world.put(a_namespace("default"))
    assert world.guard.version > before
    assert world.guard.begin([]).within(group, placement).results


def test_a_namespace_that_gets_another_label_is_under_other_limits_at_once() -> None:
    world = World(a_limit(tenant="b", devices=0))
    assert world.guard.begin([]).within(*asked(on(0))).results
    before = world.guard.version
    world.put(a_namespace("default", tenant="b"))
    assert world.guard.version > before
    assert world.guard.begin([]).within(*asked(on(0))).results == []


def test_a_partition_counts_on_as_before_when_it_is_published_no_more() -> None:
    part = a_mig_claim("part", "3g.40gb", "0:3g.40gb@4")
    world = World(part)
    before = world.held.of_namespace("default")
    for item in a_mig_pool("node-0", 2):
        world.delete(item)
    assert world.held.of_namespace("default") == before


def test_a_share_of_a_gpu_is_refused_in_the_singular() -> None:
    whole = World(a_limit(gpu_share="0.5")).guard.begin([]).within(*asked(on(0)))
    assert whole.why_not.startswith("This claim takes 1 GPU, and DeviceLimit limit permits namespace default 0.5.")


def test_a_deleted_limit_forbids_nothing() -> None:
    world = World(a_limit(devices=0))
    world.delete(a_limit(devices=0))
    assert world.guard.begin([]).within(*asked(on(0))).results


def test_of_a_claim_that_is_deleted_while_its_place_is_sought_no_refusal_is_kept() -> None:
    """The answer may come after the watch reported the deletion, and then nothing would ever remove the refusal."""
    world = World(a_limit(devices=0))
    limits = world.guard.begin([])
    world.delete(on(0))
    assert limits.within(*asked(on(0))).results == []
    assert (world.guard.waiting(), world.events) == ({}, [])
