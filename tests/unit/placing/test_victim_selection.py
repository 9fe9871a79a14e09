"""Which pods are preempted for a group of higher priority: no more than needed, and those that lose least work."""

from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draco.allocation.fleet.fleet import Fleet
from draco.placing.groups.group import ClaimGroup, GroupMember
from draco.placing.groups.place import place
from draco.placing.preempting import victim_selection
from draco.placing.preempting.victim_selection import PreemptionInput, PreemptionPlan, cost, plan_preemption
from draco.placing.preempting.victims import Victim
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import DeviceAttribute
from tests.builders import a_claim, a_device_class, a_node, a_slice
from tests.doubles.placing import a_placer
from tests.mig_claims import MIG_CLASS, a_mig_claim, a_mig_pool
from tests.unit.placing.test_place import CLASS, ours


def a_fleet(holders: dict[str, list[str]], *, gpus: int = 2, nodes: int = 2) -> Fleet:
    """Nodes with this many GPUs that Draco allocates, and the claims that hold them: `{"a": ["0/1"]}` is GPU 1 of node 0."""
    device_class = a_device_class(CLASS)
    meta = msgspec.structs.replace(device_class.metadata, labels={"draco.dev/allocator": "operator"})
    names = [f"node-{number}" for number in range(nodes)]
    return Fleet.of(
        nodes=[a_node(name) for name in names],
        slices=[a_slice(name, [ours(f"gpu-{number}") for number in range(gpus)]) for name in names],
        classes=[msgspec.structs.replace(device_class, metadata=meta)],
        claims=[
            a_claim(
                name, device_class=CLASS, on=["gpu.nvidia.com/node-{}/gpu-{}".format(*each.split("/")) for each in on]
            )
            for name, on in holders.items()
        ],
    )


def key(name: str) -> ObjectKey:
    return ObjectKey("default", name)


def a_victim(*claims: str, priority: int = 0, pods: int = 1, **more: object) -> Victim:
    made = Victim([key(each) for each in claims], [key(f"{claims[0]}-{number}") for number in range(pods)], priority)
    return msgspec.structs.replace(made, **more)


def a_group(*counts: int, **more: object) -> ClaimGroup:
    members = []
    for number, count in enumerate(counts):
        claim = a_claim(f"wants-{number}", device_class=CLASS)
        (request,) = claim.spec.devices.requests
        assert request.exactly is not None
        exactly = msgspec.structs.replace(request.exactly, count=count)
        devices = msgspec.structs.replace(
            claim.spec.devices, requests=[msgspec.structs.replace(request, exactly=exactly)]
        )
        members.append(
            GroupMember([msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))])
        )
    return msgspec.structs.replace(ClaimGroup(members, len(members)), **more)


def room(
    fleet: Fleet, group: ClaimGroup, *victims: Victim, priority: int = 10, leaving: tuple[str, ...] = (), **allowed: int
) -> PreemptionPlan | None:
    wanted = PreemptionInput(
        group, priority, [key(each) for each in leaving], list(victims), [(key(name), n) for name, n in allowed.items()]
    )
    return plan_preemption(a_placer(fleet), wanted, [])


def leave(found: PreemptionPlan | None, *victims: Victim) -> set[str] | None:
    return None if found is None else {claim.name for number in found.victims for claim in victims[number].claims}


FULL = {"a": ["0/0"], "b": ["0/1"], "c": ["1/0"], "d": ["1/1"]}


def test_one_of_lower_priority_leaves_for_one_gpu_and_the_lowest_first() -> None:
    victims = [
        a_victim("a", priority=5),
        a_victim("b", priority=1),
        a_victim("c", priority=3),
        a_victim("d", priority=10),
    ]
    found = room(a_fleet(FULL), a_group(1), *victims)
    assert leave(found, *victims) == {"b"}
    assert found is not None
    assert [(each.pool, each.device) for (result,) in found.results for each in result.devices.results] == [
        ("node-0", "gpu-1")
    ]


def test_nobody_of_the_same_priority_or_a_higher_leaves() -> None:
    assert room(a_fleet(FULL), a_group(1), *(a_victim(name, priority=10) for name in FULL)) is None


def test_where_the_group_fits_anyway_or_will_once_leaving_pods_are_gone_nobody_is_evicted() -> None:
    free = {name: on for name, on in FULL.items() if name != "d"}
    assert leave(room(a_fleet(free), a_group(1), a_victim("a"))) == set()
    assert leave(room(a_fleet(FULL), a_group(1), a_victim("a"), leaving=("d",))) == set()


def test_as_few_pods_as_can_be_leave_and_of_these_the_youngest() -> None:
    victims = [
        a_victim("a", ran_s=50.0),
        a_victim("b", ran_s=60.0),
        a_victim("c", ran_s=1.0),
        a_victim("d", ran_s=90.0),
    ]
    assert leave(room(a_fleet(FULL), a_group(1), *victims), *victims) == {"c"}
    whole = {"a": ["0/0", "0/1"], "c": ["1/0"], "d": ["1/1"]}
    victims = [a_victim("a", ran_s=500.0), a_victim("c"), a_victim("d")]
    assert leave(room(a_fleet(whole), a_group(2), *victims), *victims) == {"a"}


def test_pods_that_start_together_are_all_hurt_so_one_on_its_own_leaves_before() -> None:
    victims = [a_victim("a", "c", pods=2), a_victim("b", ran_s=900.0), a_victim("d", ran_s=1000.0)]
    assert leave(room(a_fleet(FULL), a_group(1), *victims), *victims) == {"b"}
    assert leave(room(a_fleet(FULL), a_group(1), victims[0]), victims[0]) == {"a", "c"}


def test_pods_that_nobody_makes_again_leave_after_others_of_their_priority_and_before_those_of_a_higher() -> None:
    victims = [a_victim("a", lone=1), a_victim("b", ran_s=900.0), a_victim("c", priority=5)]
    assert leave(room(a_fleet(FULL), a_group(1), *victims), *victims) == {"b"}
    assert leave(room(a_fleet(FULL), a_group(1), victims[0], victims[2]), victims[0], victims[2]) == {"a"}


def test_room_is_made_for_all_of_a_group_or_for_none_of_it() -> None:
    victims = [a_victim("a"), a_victim("c", priority=1), a_victim("d")]
    assert leave(room(a_fleet(FULL), a_group(1, 2), *victims), *victims) == {"a", "c", "d"}
    assert room(a_fleet(FULL), a_group(2, 2), *victims) is None


def test_a_group_gets_room_within_its_topology() -> None:
    victims = [a_victim("a"), a_victim("b", priority=5), a_victim("c"), a_victim("d")]
    assert leave(room(a_fleet(FULL), a_group(1, 1, topology="sameNode"), *victims), *victims) == {"c", "d"}
    assert leave(room(a_fleet(FULL), a_group(1, 1, topology="spread"), *victims), *victims) in ({"a", "c"}, {"a", "d"})


def test_no_disruption_budget_is_asked_for_more_than_it_allows() -> None:
    guarded = [(key("guard"), 1)]
    victims = [a_victim("a", budgets=guarded), a_victim("b", budgets=guarded), a_victim("c", priority=5), a_victim("d")]
    assert leave(room(a_fleet(FULL), a_group(2), *victims, guard=2), *victims) == {"a", "b"}
    assert leave(room(a_fleet(FULL), a_group(2), *victims, guard=1), *victims) == {"c", "d"}
    assert room(a_fleet(FULL), a_group(2), *victims[:2], guard=1) is None


def test_what_is_free_already_is_used_before_anybody_leaves_for_it() -> None:
    victims = [a_victim("a"), a_victim("b"), a_victim("c")]
    fleet = a_fleet({name: on for name, on in FULL.items() if name != "d"})
    assert len(leave(room(fleet, a_group(1, 1), *victims), *victims) or ()) == 1
    assert leave(room(fleet, a_group(2), *victims), *victims) == {"c"}


def test_afterwards_the_fleet_is_as_it_was() -> None:
    fleet = a_fleet(FULL)
    before = dict(fleet.claims), bytes(fleet.held)
    room(fleet, a_group(2), a_victim("a"), a_victim("b"))
    assert (dict(fleet.claims), bytes(fleet.held)) == before


@st.composite
def crowds(draw: st.DrawFn) -> tuple[dict[str, list[str]], list[Victim]]:
    """Claims that hold most GPUs of three nodes with three each, and the pods that use them; some pods form groups."""
    holders: dict[str, list[str]] = {}
    for node in range(3):
        left = list(range(3))
        while left:
            count = draw(st.integers(1, len(left)))
            if draw(st.integers(0, 7)):
                holders[f"c{len(holders)}"] = [f"{node}/{gpu}" for gpu in left[:count]]
            left = left[count:]
    victims, names = [], list(holders)
    while names:
        size = min(len(names), draw(st.sampled_from([1, 1, 1, 2])))
        victims.append(
            a_victim(
                *names[:size],
                priority=draw(st.integers(0, 3)),
                pods=size,
                lone=draw(st.integers(0, 1)),
                ran_s=float(draw(st.integers(0, 9))),
            )
        )
        names = names[size:]
    return holders, victims


@given(crowd=crowds(), counts=st.lists(st.integers(1, 3), min_size=1, max_size=3), priority=st.integers(0, 4))
def test_the_laws_of_room(crowd: tuple[dict[str, list[str]], list[Victim]], counts: list[int], priority: int) -> None:
    """Only lower priorities are preempted, then the whole group fits, and it would not if one of them stayed."""
    holders, victims = crowd
    group = a_group(*counts)

    def fits(gone: set[int]) -> bool:
        claims = {claim.name for number in gone for claim in victims[number].claims}
        fleet = a_fleet({name: on for name, on in holders.items() if name not in claims}, gpus=3, nodes=3)
        return bool(place(a_placer(fleet), [group], [])[0].results)

    lower = {number for number, each in enumerate(victims) if each.priority < priority}
    found = room(a_fleet(holders, gpus=3, nodes=3), group, *victims, priority=priority)
    if found is None:
        assert not fits(lower)
        return
    gone = set(found.victims)
    assert gone <= lower
    assert fits(gone)
    assert not any(fits(gone - {number}) for number in gone)
    if gone:
        highest = max(victims[number].priority for number in gone)
        assert not fits({number for number in lower if victims[number].priority < highest})


@given(crowd=crowds(), count=st.integers(1, 3))
def test_for_one_pod_nothing_else_would_cost_less(crowd: tuple[dict[str, list[str]], list[Victim]], count: int) -> None:
    holders, victims = crowd
    found = room(a_fleet(holders, gpus=3, nodes=3), a_group(count), *victims)
    assert found is not None
    held = {tuple(map(int, gpu.split("/"))): name for name, on in holders.items() for gpu in on}
    owner = {claim.name: number for number, each in enumerate(victims) for claim in each.claims}
    best = min(
        cost([victims[number] for number in {owner[held[gpu]] for gpu in gpus if gpu in held}])
        for node in range(3)
        for gpus in combinations([(node, gpu) for gpu in range(3)], count)
    )
    assert cost([victims[number] for number in found.victims]) == best


def a_divided_fleet(*claims: ResourceClaim) -> Fleet:
    """One node with two divisible H100s that Draco allocates, with the partitions that these claims hold."""
    mine = {"draco.dev/allocator": DeviceAttribute(string="operator")}
    slices = []
    for each in a_mig_pool("node-0", 2):
        devices = [
            msgspec.structs.replace(device, attributes={**device.attributes, **mine}) for device in each.spec.devices
        ]
        slices.append(msgspec.structs.replace(each, spec=msgspec.structs.replace(each.spec, devices=devices)))
    meta = msgspec.structs.replace(MIG_CLASS.metadata, labels={"draco.dev/allocator": "operator"})
    return Fleet.of(
        nodes=[a_node("node-0")],
        slices=slices,
        classes=[msgspec.structs.replace(MIG_CLASS, metadata=meta)],
        claims=claims,
    )


def test_a_partition_gets_room_by_the_fewest_others_on_one_gpu() -> None:
    """Both GPUs are full; on the second one, a single pod has most of the slices."""
    first = [a_mig_claim(f"a{start}", "1g.10gb", f"0:1g.10gb@{start}", used=True) for start in range(7)]
    second = [
        a_mig_claim("b0", "4g.40gb", "1:4g.40gb@0", used=True),
        a_mig_claim("b1", "3g.40gb", "1:3g.40gb@4", used=True),
    ]
    fleet = a_divided_fleet(*first, *second)
    victims = [a_victim(claim.metadata.name) for claim in (*first, *second)]
    group = ClaimGroup([GroupMember([a_mig_claim("wants", "3g.40gb")])])
    found = room(fleet, group, *victims)
    assert leave(found, *victims) in ({"b0"}, {"b1"})
    low = [msgspec.structs.replace(each, priority=0 if each.claims[0].name[0] == "a" else 5) for each in victims]
    assert len(leave(room(fleet, group, *low), *low) or ()) == 3
    assert room(fleet, group, *low, priority=0) is None


def test_in_a_large_cluster_nobody_leaves_from_gpus_that_the_group_does_not_get(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are too few searches to check for each pod whether it may stay."""
    monkeypatch.setattr(victim_selection, "SEARCHES", 3)
    monkeypatch.setattr(victim_selection, "FEWEST_SEARCHES", 3)
    holders = {f"c{node}-{gpu}": [f"{node}/{gpu}"] for node in range(40) for gpu in range(2)}
    victims = [a_victim(name, ran_s=float(number * 7 % 80)) for number, name in enumerate(holders)]
    found = room(a_fleet(holders, nodes=40), a_group(2), *victims)
    assert len(leave(found, *victims) or ()) == 2
