"""Where shares of GPUs go, who makes room for them, and for whom they make room."""

from collections.abc import Sequence
from itertools import accumulate

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draco.allocation.fleet.fleet import Fleet
from draco.placing.groups.group import ClaimGroup, GroupMember, GroupPlacement
from draco.placing.groups.place import place
from draco.placing.preempting.victim_selection import PreemptionInput, PreemptionPlan, plan_preemption
from draco.placing.preempting.victims import Victim
from draco.resources.api.claims import CapacityRequirements, DeviceRequest, ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.api.sharing import SharingMode
from draco.resources.api.slices import Device, DeviceCapacity
from draco.sharing.terms import Terms, as_shareable
from tests.builders import a_claim, a_device_class, a_node, a_slice, as_shares
from tests.doubles.placing import a_placer
from tests.mig_claims import a_mig_pool, a_partition
from tests.unit.placing.test_place import CLASS, ours

GI = 1 << 30
SIZE = 80
BY_MEMORY = Terms(mode=SharingMode.MEMORY, step=GI, minimum=GI, default=SIZE * GI)
HIGH = 10


def shareable(name: str, terms: Terms = BY_MEMORY) -> Device:
    device = msgspec.structs.replace(ours(name), capacity={"memory": DeviceCapacity(value=f"{SIZE}Gi")})
    return as_shareable(device, terms)


def a_share(name: str, on: str, amount: int) -> ResourceClaim:
    """A claim that has this many Gi of "node/gpu"."""
    claim = a_claim(name, device_class=CLASS, on=[on], reserved_for=[name])
    return as_shares(claim, f"share-{name}", memory=f"{amount}Gi")


def a_fleet(*claims: ResourceClaim, nodes: int = 2, gpus: int = 2, devices: Sequence[Device] = ()) -> Fleet:
    device_class = a_device_class(CLASS)
    meta = msgspec.structs.replace(device_class.metadata, labels={"draco.dev/allocator": "operator"})
    names = [f"node-{number}" for number in range(nodes)]
    published = devices or [shareable(f"gpu-{number}") for number in range(gpus)]
    return Fleet.of(
        nodes=[a_node(name) for name in names],
        slices=[a_slice(name, published) for name in names],
        classes=[msgspec.structs.replace(device_class, metadata=meta)],
        claims=claims,
    )


def wants(*amounts: int | None, name: str = "wanted") -> ResourceClaim:
    """A claim with a request for each amount in Gi; None asks for no capacity."""
    claim = a_claim(name, device_class=CLASS)
    (first,) = claim.spec.devices.requests
    requests = [_request(first, f"gpu-{number}", each) for number, each in enumerate(amounts)]
    devices = msgspec.structs.replace(claim.spec.devices, requests=requests)
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))


def _request(first: DeviceRequest, name: str, amount: int | None) -> DeviceRequest:
    assert first.exactly is not None
    capacity = None if amount is None else CapacityRequirements(requests={"memory": f"{amount}Gi"})
    return msgspec.structs.replace(first, name=name, exactly=msgspec.structs.replace(first.exactly, capacity=capacity))


def a_group(*claims: ResourceClaim, **more: object) -> ClaimGroup:
    return msgspec.structs.replace(ClaimGroup([GroupMember([each]) for each in claims], len(claims)), **more)


def got(placement: GroupPlacement | PreemptionPlan | None) -> list[str]:
    """The devices of a group with what it has of each."""
    assert placement is not None
    return [
        f"{each.pool}/{each.device} {each.consumed_capacity.get('memory', 'alone')}"
        for results in placement.results
        for result in results
        for each in result.devices.results
    ]


def placed(fleet: Fleet, *groups: ClaimGroup) -> list[list[str]]:
    return [got(each) for each in place(a_placer(fleet), groups, [])]


# --- where a share goes ---


def test_a_share_goes_where_others_are_and_least_is_left() -> None:
    held = [a_share("a", "node-0/gpu-1", 10), a_share("b", "node-1/gpu-0", 50)]
    assert placed(a_fleet(*held), a_group(wants(20))) == [["node-1/gpu-0 20Gi"]]
    assert placed(a_fleet(*held), a_group(wants(40))) == [["node-0/gpu-1 40Gi"]]
    assert placed(a_fleet(*held), a_group(wants(80))) == [["node-0/gpu-0 80Gi"]]


def test_each_group_counts_the_shares_of_those_before_it() -> None:
    groups = [a_group(wants(30, name=name)) for name in "abcdefg"]
    found = placed(a_fleet(nodes=1), *groups)
    assert found == [["node-0/gpu-0 30Gi"]] * 2 + [["node-0/gpu-1 30Gi"]] * 2 + [[]] * 3


def test_a_claim_without_an_amount_gets_the_default_and_never_a_gpu_with_shares_when_that_is_all_of_it() -> None:
    fleet = a_fleet(a_share("a", "node-0/gpu-0", 1), nodes=1)
    assert placed(fleet, a_group(wants(None)), a_group(wants(None, name="next"))) == [["node-0/gpu-1 80Gi"], []]


def test_one_claim_gets_several_shares_of_one_gpu_each_with_its_own_id() -> None:
    (found,) = place(a_placer(a_fleet(nodes=1)), [a_group(wants(10, 70))], [])
    assert got(found) == ["node-0/gpu-0 10Gi", "node-0/gpu-0 70Gi"]
    assert len({each.share_id for results in found.results for one in results for each in one.devices.results}) == 2


def test_a_gang_gets_its_shares_together_or_none() -> None:
    members = [wants(30, name=name) for name in "abcd"]
    assert placed(a_fleet(nodes=1), a_group(*members)) == [
        ["node-0/gpu-0 30Gi", "node-0/gpu-0 30Gi", "node-0/gpu-1 30Gi", "node-0/gpu-1 30Gi"]
    ]
    taken = a_fleet(a_share("x", "node-0/gpu-1", 40), nodes=1)
    assert placed(taken, a_group(*members), a_group(wants(80))) == [[], ["node-0/gpu-0 80Gi"]]


def test_who_has_a_gpu_alone_leaves_no_share_of_it() -> None:
    alone = a_claim("alone", device_class=CLASS, on=["node-0/gpu-0"])
    assert placed(a_fleet(alone, nodes=1, gpus=1), a_group(wants(1))) == [[]]


# --- what is kept for a group that waits too long ---


def test_a_gpu_whose_shares_must_end_is_kept_for_an_overdue_claim_so_that_small_shares_cannot_starve_it() -> None:
    held = [a_share("a", "node-0/gpu-0", 50)]
    fleet = a_fleet(*held, nodes=1, gpus=1)
    overdue = a_group(wants(40), is_overdue=True)
    waits, small = place(a_placer(fleet), [overdue, a_group(wants(10, name="small"))], [])
    assert got(waits) == []
    assert [each.device for each in waits.kept] == ["gpu-0"]
    assert got(small) == []
    waits, small = place(
        a_placer(fleet), [msgspec.structs.replace(overdue, is_overdue=False), a_group(wants(10, name="small"))], []
    )
    assert got(small) == ["node-0/gpu-0 10Gi"]


def test_shares_beside_those_that_an_overdue_claim_waits_for_are_given_out() -> None:
    held = [a_share(name, f"node-0/gpu-{number}", 50) for number, name in enumerate("ab")]
    fleet = a_fleet(*held, nodes=1)
    waits, small = place(a_placer(fleet), [a_group(wants(40), is_overdue=True), a_group(wants(10, name="small"))], [])
    kept = {each.device for each in waits.kept}
    assert len(kept) == 1
    assert got(small) == [f"node-0/{({'gpu-0', 'gpu-1'} - kept).pop()} 10Gi"]


# --- preemption ---


def a_victim(claim: str, priority: int = 0, **more: object) -> Victim:
    made = Victim([ObjectKey("default", claim)], [ObjectKey("default", claim)], priority)
    return msgspec.structs.replace(made, **more)


def leaving(fleet: Fleet, group: ClaimGroup, *victims: Victim) -> tuple[set[str], list[str]] | None:
    plan = plan_preemption(a_placer(fleet), PreemptionInput(group, HIGH, [], list(victims)), [])
    return None if plan is None else ({victims[each].claims[0].name for each in plan.victims}, got(plan))


EIGHT = [a_share(name, "node-0/gpu-0", 10) for name in "abcdefgh"]


@pytest.mark.parametrize(("amount", "shares"), [(10, 1), (11, 2), (40, 4), (80, 8)])
def test_just_enough_shares_leave(amount: int, shares: int) -> None:
    fleet = a_fleet(*EIGHT, nodes=1, gpus=1)
    found = leaving(fleet, a_group(wants(amount)), *(a_victim(each) for each in "abcdefgh"))
    assert found is not None
    assert (len(found[0]), found[1]) == (shares, [f"node-0/gpu-0 {amount}Gi"])


def test_fewer_large_shares_leave_rather_than_many_small_ones() -> None:
    sizes = {"a": 10, "b": 10, "c": 10, "d": 10, "e": 30, "f": 5, "g": 5}
    fleet = a_fleet(*(a_share(name, "node-0/gpu-0", size) for name, size in sizes.items()), nodes=1, gpus=1)
    found = leaving(fleet, a_group(wants(40)), *map(a_victim, sizes))
    assert found is not None
    assert len(found[0]) == 2
    assert "e" in found[0]


def test_what_is_free_on_the_gpu_counts() -> None:
    fleet = a_fleet(*EIGHT[:5], nodes=1, gpus=1)
    found = leaving(fleet, a_group(wants(40)), *(a_victim(each) for each in "abcde"))
    assert found is not None
    assert len(found[0]) == 1


def test_nobody_leaves_where_those_that_stay_hold_too_much() -> None:
    fleet = a_fleet(*EIGHT, nodes=1, gpus=1)
    victims = [a_victim(each, HIGH if each in "abcde" else 0) for each in "abcdefgh"]
    assert leaving(fleet, a_group(wants(40)), *victims) is None
    assert leaving(fleet, a_group(wants(None)), *victims) is None
    found = leaving(fleet, a_group(wants(30)), *victims)
    assert found is not None
    assert found[0] == {"f", "g", "h"}


def test_shares_leave_the_gpu_where_that_costs_least() -> None:
    others = [a_share(name, "node-1/gpu-0", 20) for name in "wxyz"]
    fleet = a_fleet(*EIGHT, *others, gpus=1)
    victims = [a_victim(each) for each in "abcdefghwxyz"]
    found = leaving(fleet, a_group(wants(40)), *victims)
    assert found is not None
    assert (len(found[0]), found[1]) == (2, ["node-1/gpu-0 40Gi"])
    low = [a_victim(each, 5 if each in "wxyz" else 1) for each in "abcdefghwxyz"]
    found = leaving(fleet, a_group(wants(40)), *low)
    assert found is not None
    assert (len(found[0]), found[1]) == (4, ["node-0/gpu-0 40Gi"])


def test_shares_leave_for_all_of_a_gang_or_stay() -> None:
    others = [a_share(name, "node-1/gpu-0", 20) for name in "wxyz"]
    fleet = a_fleet(*EIGHT, *others, gpus=1)
    gang = a_group(*(wants(40, name=name) for name in ("one", "two")))
    found = leaving(fleet, gang, *(a_victim(each) for each in "abcdefghwxyz"))
    assert found is not None
    assert found[0] == set("wxyz")
    assert leaving(fleet, gang, *(a_victim(each) for each in "abcw")) is None


def test_few_of_very_many_shares_leave() -> None:
    held = [a_share(f"s{number:03}", f"node-{number // 80}/gpu-0", 1) for number in range(320)]
    fleet = a_fleet(*held, nodes=4, gpus=1)
    found = leaving(fleet, a_group(wants(40)), *(a_victim(f"s{number:03}") for number in range(320)))
    assert found is not None
    assert len(found[0]) == 40


# --- MIG devices of static layouts ---


def a_mig_fleet(*claims: ResourceClaim) -> Fleet:
    """A GPU that is divided into 3g.40gb and four 1g.10gb, all shared."""
    names = ["0:3g.40gb@4", *(f"0:1g.10gb@{start}" for start in range(4))]
    kept = {a_partition(each).rpartition("/")[2] for each in names}
    counters, *slices = a_mig_pool("node-0", 1)
    devices = [one for each in slices for one in each.spec.devices if one.name in kept]
    shared = [
        _of_draco(as_shareable(one, Terms(mode=SharingMode.MEMORY, step=GI, minimum=GI, default=GI))) for one in devices
    ]
    fleet = a_fleet(*claims, nodes=1)
    fleet.remove_slice(a_slice("node-0").metadata.name)
    fleet.put_slice(counters)
    fleet.put_slice(a_slice("node-0", shared, name="node-0-1", of=2))
    return fleet


def _of_draco(device: Device) -> Device:
    bare = ours(device.name)
    return msgspec.structs.replace(device, attributes=device.attributes | bare.attributes, taints=bare.taints)


def test_shares_of_a_mig_device_fill_it_before_another_is_opened() -> None:
    groups = [a_group(wants(4, name=name)) for name in "abcde"]
    found = [each for (each,) in placed(a_mig_fleet(), *groups)]
    devices = [each.split()[0] for each in found]
    assert devices[0] == devices[1]
    assert devices[2] == devices[3] != devices[0]
    (large,) = placed(a_mig_fleet(), a_group(wants(30)))
    assert large == [f"{a_partition('0:3g.40gb@4')} 30Gi"]


def test_a_mig_device_whose_shares_draw_on_counters_is_charged_once() -> None:
    held = [a_share(name, a_partition(f"0:1g.10gb@{start}"), 5) for start, name in enumerate("abcd")]
    found = placed(a_mig_fleet(*held), *(a_group(wants(4, name=name)) for name in "wxyz"))
    assert sorted(each.split()[0] for (each,) in found) == [a_partition(f"0:1g.10gb@{start}") for start in range(4)]


# --- in general ---


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 40)), max_size=10), st.integers(1, 80),
)  # fmt: skip
def test_no_smaller_number_of_shares_of_one_priority_would_do(sizes: list[tuple[int, int]], amount: int) -> None:
    left = [SIZE, SIZE]
    held = {}
    for number, (gpu, size) in enumerate(sizes):
        if left[gpu] >= size:
            left[gpu] -= size
            held[f"s{number}"] = (gpu, size)
    fleet = a_fleet(*(a_share(name, f"node-0/gpu-{gpu}", size) for name, (gpu, size) in held.items()), nodes=1)
    found = leaving(fleet, a_group(wants(amount)), *map(a_victim, held))
    assert found is not None
    fewest = min(
        number
        for gpu in (0, 1)
        for number, free in enumerate(_freed(left[gpu], [size for at, size in held.values() if at == gpu]))
        if free >= amount
    )
    assert len(found[0]) == fewest


def _freed(left: int, sizes: Sequence[int]) -> list[int]:
    """What is free once no, one, two... of the largest shares have ended."""
    return list(accumulate(sorted(sizes, reverse=True), initial=left))
