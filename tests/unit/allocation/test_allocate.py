"""What claims get, case by case; `tests/differential` compares thousands of random cases with Kubernetes' own allocator."""

import itertools
from typing import Any

import msgspec
import pytest

from draco.allocation.errors import AllocationError, NodeError, SearchTooLong
from draco.allocation.fleet.inventory import Inventory
from draco.allocation.fleet.state import AllocatedState
from draco.allocation.search.allocate import allocate
from draco.resources.api.claims import AllocationResult, DeviceClass, ResourceClaim
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.slices import ResourceSlice
from draco.resources.names import DeviceKey
from tests.builders import a_claim, a_node

Json = dict[str, Any]
DRIVER = "d"


def a_pool(*devices: str | Json, name: str = "a", pool: str = "p", of: int = 1, **spec: Any) -> ResourceSlice:
    listed = [{"name": device} if isinstance(device, str) else device for device in devices]
    whole = {"driver": DRIVER, "pool": {"name": pool, "generation": 1, "resourceSliceCount": of}, "devices": listed}
    return msgspec.convert({"metadata": {"name": name}, "spec": {"nodeName": "node-0"} | whole | spec}, ResourceSlice)


def asking(*requests: Json, name: str = "claim", **devices: Any) -> ResourceClaim:
    """A claim; each request without `exactly` or `firstAvailable` is wrapped in `exactly`."""
    listed: list[Json] = []
    for number, request in enumerate(requests):
        named: Json = {"name": f"r{number}"}
        if "firstAvailable" in request:
            choices = [{"name": f"s{n}", "deviceClassName": "any"} | c for n, c in enumerate(request["firstAvailable"])]
            listed.append(named | {"firstAvailable": choices})
        else:
            listed.append(named | {"exactly": {"deviceClassName": "any"} | request})
    spec = {"devices": {"requests": listed, **devices}}
    return msgspec.convert({"metadata": {"name": name, "namespace": "default"}, "spec": spec}, ResourceClaim)


def selecting(expression: str) -> Json:
    return {"selectors": [{"cel": {"expression": expression}}]}


def answer(
    slices: list[ResourceSlice], *claims: ResourceClaim, held: list[ResourceClaim] | None = None, **options: Any
) -> list[AllocationResult] | None:
    inventory = Inventory()
    for each in slices:
        inventory.put_slice(each)
    state = AllocatedState.of(held or [])
    classes = {"any": DeviceClass(metadata=ObjectMeta(name="any"))}
    ids = map("share-{}".format, itertools.count())
    return allocate(inventory, state, a_node("node-0"), claims, classes, share_ids=ids, **options)


def devices(results: list[AllocationResult] | None) -> list[str] | None:
    return None if results is None else [each.device for result in results for each in result.devices.results]


def test_claims_get_devices_in_the_order_of_requests_and_devices() -> None:
    results = answer([a_pool("x", "y", "z")], asking({}, {}), asking({}, name="other"))
    assert devices(results) == ["x", "y", "z"]


def test_a_device_in_use_is_passed_over_and_administrative_access_minds_no_use() -> None:
    held = [a_claim("holder", on=[f"{DRIVER}/p/x"])]
    assert devices(answer([a_pool("x", "y")], asking({}), held=held)) == ["y"]
    results = answer([a_pool("x", "y")], asking({"adminAccess": True}), held=held)
    assert devices(results) == ["x"]
    assert results is not None
    assert results[0].devices.results[0].admin_access is True
    assert devices(answer([a_pool("x")], asking({"adminAccess": True}, {"adminAccess": True}))) is None


def test_the_search_goes_back_to_an_earlier_request() -> None:
    pool = a_pool("x", {"name": "y", "attributes": {"big": {"bool": True}}})
    small = {"selectors": [{"cel": {"expression": '!device.attributes["d"].?big.orValue(false)'}}]}
    pool_of_two = a_pool({"name": "x"}, {"name": "y", "attributes": {"big": {"bool": True}}})
    assert devices(answer([pool_of_two], asking({}, small))) == ["y", "x"]
    assert devices(answer([pool], asking({}, {}, {}))) is None


@pytest.mark.parametrize(
    ("slices", "claim", "text"),
    [
        ([a_pool("x", of=2)], asking({"allocationMode": "All"}), "resource pool d/p is currently being updated"),
        ([a_pool("x", "x")], asking({"allocationMode": "All"}), "resource pool d/p is currently invalid"),
        ([a_pool("x")], asking({"deviceClassName": "nosuch"}), "could not retrieve device class nosuch"),
        ([a_pool("x")], asking({"allocationMode": "Some"}), "unsupported count mode Some"),
        ([a_pool("x")], asking({"selectors": [{}]}), "CEL expression empty"),
        ([a_pool("x")], asking({"count": 33}), "adding 33 devices exceeds the claim limit of 32"),
        ([a_pool("x")], asking({}, constraints=[{}]), "empty constraint"),
        ([a_pool("x")], asking(selecting("1 +")), "CEL compile error"),
        ([a_pool("x")], asking(selecting('device.attributes["d"].nosuch')), "no such key: nosuch. consider using"),
        (
            [a_pool("x", "y")],
            asking({"allocationMode": "All"}, constraints=[{"matchAttribute": "d/nosuch"}]),
            "cannot add device d/p/x because a claim constraint would not be satisfied",
        ),
    ],
)
def test_what_no_node_can_answer_is_a_fatal_error(slices: list[ResourceSlice], claim: ResourceClaim, text: str) -> None:
    with pytest.raises(AllocationError) as caught:
        answer(slices, claim)
    assert text in str(caught.value)
    assert caught.value.fatal


def test_an_invalid_pool_is_an_error_of_the_node_and_only_if_nothing_else_fits() -> None:
    broken, whole = a_pool("x", "x"), a_pool("y", pool="q", name="b")
    assert devices(answer([broken, whole], asking({}))) == ["y"]
    with pytest.raises(NodeError, match="d/p: duplicate device name x") as caught:
        answer([broken], asking({}))
    assert not caught.value.fatal


def test_a_selector_that_fails_matters_only_on_devices_that_are_reached() -> None:
    failing = asking(selecting('device.attributes["d"].ok'))
    good, bad = {"name": "good", "attributes": {"ok": {"bool": True}}}, {"name": "bad"}
    assert devices(answer([a_pool(good, bad)], failing)) == ["good"]
    with pytest.raises(AllocationError):
        answer([a_pool(bad, good)], failing)


def test_mode_all_takes_every_matching_device_or_none() -> None:
    every = asking({"allocationMode": "All"})
    assert devices(answer([a_pool("x", "y")], every)) == ["x", "y"]
    assert devices(answer([a_pool("x", "y")], every, held=[a_claim(on=[f"{DRIVER}/p/y"])])) is None
    assert devices(answer([a_pool()], every)) is None


def test_the_first_alternative_that_lets_everything_fit_is_taken_and_configured() -> None:
    claim = asking(
        {"firstAvailable": [{"count": 2}, {"count": 1}]},
        {},
        config=[
            {"requests": ["r0/s0"], "opaque": {"driver": DRIVER, "parameters": "two"}},
            {"requests": ["r0/s1"], "opaque": {"driver": DRIVER, "parameters": "one"}},
            {"requests": ["r0", "r1"], "opaque": {"driver": DRIVER, "parameters": "all"}},
        ],
    )
    results = answer([a_pool("x", "y")], claim)
    assert results is not None
    assert [each.request for each in results[0].devices.results] == ["r0/s1", "r1"]
    assert [(each.requests, each.opaque.parameters) for each in results[0].devices.config if each.opaque] == [
        (["r0/s1"], "one"),
        ([], "all"),
    ]


def test_a_later_alternative_is_tried_when_an_earlier_one_passes_the_limit_of_a_claim() -> None:
    many = a_pool(*(f"gpu-{number}" for number in range(40)))
    results = answer([many], asking({"count": 30}, {"firstAvailable": [{"count": 3}, {"count": 2}]}))
    assert results is not None
    assert results[0].devices.results[-1].request == "r1/s1"
    earlier = asking({"firstAvailable": [{"count": 20}, {"count": 1}]}, {"firstAvailable": [{"count": 31}]})
    results = answer([many], earlier)
    assert results is not None
    assert results[0].devices.results[0].request == "r0/s1"


MODELS = a_pool(*({"name": n, "attributes": {"model": {"string": m}}} for n, m in zip("xyz", "ABA", strict=True)), "w")


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [({"matchAttribute": "d/model"}, ["x", "z"]), ({"distinctAttribute": "d/model"}, ["x", "y"])],
)
def test_devices_agree_or_differ_in_an_attribute(constraint: Json, expected: list[str]) -> None:
    assert devices(answer([MODELS], asking({"count": 2}, constraints=[constraint]))) == expected
    assert devices(answer([MODELS], asking({"count": 3}, constraints=[constraint]))) is None


def test_a_device_that_is_given_back_leaves_its_constraints() -> None:
    pool = a_pool(*({"name": n, "attributes": {"model": {"string": m}}} for n, m in zip("xyz", "ABB", strict=True)))
    assert devices(answer([pool], asking({"count": 2}, constraints=[{"matchAttribute": "d/model"}]))) == ["y", "z"]


def test_a_constraint_binds_only_the_requests_it_names() -> None:
    claim = asking({}, {}, {}, constraints=[{"matchAttribute": "d/model", "requests": ["r0", "r2"]}])
    assert devices(answer([MODELS], claim)) == ["x", "y", "z"]


def test_a_taint_must_be_tolerated() -> None:
    tainted = {"name": "x", "taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]}
    assert devices(answer([a_pool(tainted, "y")], asking({}))) == ["y"]
    tolerant = asking({"tolerations": [{"key": "k", "operator": "Exists"}]})
    assert devices(answer([a_pool(tainted, "y")], tolerant)) == ["x"]


def partitions(*memory: str, **fields: Any) -> list[ResourceSlice]:
    taking = [
        {
            "name": f"part-{number}",
            "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": value}}}],
            **fields,
        }
        for number, value in enumerate(memory)
    ]
    counters = [{"name": "card", "counters": {"memory": {"value": "10Gi"}}}]
    return [a_pool(*taking, of=2), a_pool(name="b", of=2, sharedCounters=counters)]


def test_partitions_share_the_counters_of_their_card() -> None:
    assert devices(answer(partitions("5Gi", "7Gi", "5Gi"), asking({"count": 2}))) == ["part-0", "part-2"]
    assert devices(answer(partitions("7Gi", "5Gi", "5Gi"), asking({"count": 2}))) == ["part-1", "part-2"]
    held = [a_claim(on=[f"{DRIVER}/p/part-0"])]
    assert devices(answer(partitions("5Gi", "7Gi", "5Gi"), asking({}), held=held)) == ["part-2"]


def test_an_overdrawn_counter_lets_no_device_of_the_pool_take_any_other_counter() -> None:
    def part(name: str, card: str) -> Json:
        return {"name": name, "consumesCounters": [{"counterSet": card, "counters": {"memory": {"value": "7Gi"}}}]}

    cards = [{"name": card, "counters": {"memory": {"value": "10Gi"}}} for card in ("card-0", "card-1")]
    slices = [
        a_pool(part("x", "card-0"), part("y", "card-0"), part("z", "card-1"), of=2),
        a_pool(name="b", of=2, sharedCounters=cards),
    ]
    assert devices(answer(slices, asking({}), held=[a_claim(on=[f"{DRIVER}/p/x"])])) == ["z"]
    assert devices(answer(slices, asking({}), held=[a_claim(on=[f"{DRIVER}/p/x", f"{DRIVER}/p/y"])])) is None


SHARED = {
    "name": "x",
    "allowMultipleAllocations": True,
    "capacity": {
        "memory": {"value": "10Gi", "requestPolicy": {"default": "4Gi", "validRange": {"min": "1Gi", "step": "2Gi"}}}
    },
}


def consumed(results: list[AllocationResult] | None) -> list[str] | None:
    return (
        None if results is None else [each.consumed_capacity["memory"] for r in results for each in r.devices.results]
    )


def wanting(memory: str, **more: Any) -> Json:
    return {"capacity": {"requests": {"memory": memory}}, **more}


def test_shares_are_rounded_up_and_take_what_is_left() -> None:
    results = answer([a_pool(SHARED)], asking(wanting("2Gi"), {}))
    assert consumed(results) == ["3Gi", "4Gi"]
    assert results is not None
    assert [each.share_id for each in results[0].devices.results] == ["share-0", "share-1"]
    assert devices(answer([a_pool(SHARED)], asking(wanting("6Gi"), {}))) is None


def test_a_share_in_use_is_counted_and_given_back() -> None:
    holder = a_claim("holder", on=[f"{DRIVER}/p/x"])
    share = msgspec.structs.replace(
        holder.status.allocation.devices.results[0],  # type: ignore[union-attr]
        share_id="s",
        consumed_capacity={"memory": "7Gi"},
    )
    claim = msgspec.convert(
        {
            "metadata": {"name": "holder", "namespace": "default"},
            "status": {"allocation": {"devices": {"results": [msgspec.to_builtins(share)]}}},
        },
        ResourceClaim,
    )
    assert devices(answer([a_pool(SHARED)], asking({}), held=[claim])) is None
    assert consumed(answer([a_pool(SHARED)], asking(wanting("3Gi")), held=[claim])) == ["3Gi"]
    state = AllocatedState.of([claim])
    key = DeviceKey(DRIVER, "p", "x")
    assert state.uses(key)
    state.remove_claim(ObjectKey("default", "holder"))
    assert not state.uses(key)
    assert not state.consumed(key)


def test_a_share_that_is_given_back_leaves_room() -> None:
    first, second = SHARED | {"attributes": {"first": {"bool": True}}}, SHARED | {"name": "y"}
    only_first = selecting('device.attributes["d"].?first.orValue(false)')
    assert devices(answer([a_pool(first, second)], asking(wanting("5Gi"), wanting("9Gi", **only_first)))) == ["y", "x"]


def test_a_capacity_that_a_device_lacks_or_has_too_little_of_passes_it_over() -> None:
    small = {"name": "small", "capacity": {"memory": {"value": "1Gi"}}}
    big = {"name": "big", "capacity": {"memory": {"value": "8Gi"}}}
    results = answer([a_pool("none", small, big)], asking(wanting("2Gi")))
    assert devices(results) == ["big"]
    assert results is not None
    assert results[0].devices.results[0].consumed_capacity == {}
    assert results[0].devices.results[0].share_id is None


def test_an_amount_that_cannot_be_rounded_is_a_fatal_error() -> None:
    with pytest.raises(AllocationError, match="cannot be represented"):
        answer([a_pool(SHARED)], asking(wanting("16E")))


def test_a_second_share_of_a_partition_charges_no_counters() -> None:
    shared = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "10Gi"}}}
    results = answer(partitions("7Gi", **shared), asking(wanting("1Gi"), wanting("1Gi")))
    assert devices(results) == ["part-0", "part-0"]


def test_binding_conditions_are_copied_and_bind_to_the_node() -> None:
    device = {"name": "x", "bindsToNode": True, "bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
    results = answer([a_pool(device, nodeName=None, allNodes=True)], asking({}))
    assert results is not None
    assert results[0].devices.results[0].binding_conditions == ["ready"]
    assert results[0].devices.results[0].binding_failure_conditions == ["failed"]
    assert results[0].node_selector is not None
    assert answer([a_pool("x", nodeName=None, allNodes=True)], asking({}))[0].node_selector is None  # type: ignore[index]


def test_a_search_without_end_is_given_up() -> None:
    many = a_pool(*({"name": f"x{n}", "attributes": {"n": {"int": n}}} for n in range(40)))
    hopeless = asking({"count": 20}, {"count": 10}, constraints=[{"matchAttribute": "d/nosuch", "requests": ["r1"]}])
    with pytest.raises(SearchTooLong):
        answer([many], hopeless, max_steps=10_000)


def test_two_hundred_claims_of_one_pod_need_no_deep_stack() -> None:
    pool = [a_pool(*(f"x{n}" for n in range(200)))]
    assert len(answer(pool, *(asking({}, name=f"c{n}") for n in range(200))) or []) == 200
