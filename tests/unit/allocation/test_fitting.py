"""The first node that fits is found without trying every node, with the same answer as trying all in order."""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from draco.allocation.errors import AllocationError, NodeError, SearchTooLong
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.search.allocate import allocate, first_fitting
from draco.allocation.search.candidates import candidates
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectMeta
from tests.builders import a_claim, a_node
from tests.unit.allocation.worlds import a_world, put, remove

MAX_STEPS = 3000


Answer = tuple[str, Any]


def asking_all(fleet: Fleet, claims: Sequence[ResourceClaim], nodes: Iterable[Node]) -> Answer:
    """The answer of trying every node in order."""
    ids = map(str, itertools.count())
    for node in nodes:
        try:
            results = allocate(
                fleet.inventory, fleet.state, node, claims, fleet.classes, share_ids=ids, max_steps=MAX_STEPS
            )
        except NodeError:
            continue
        except SearchTooLong:
            return "given up", None
        except AllocationError as error:
            return type(error).__name__, str(error)
        if results is not None:
            return "fits", (node, results)
    return "nowhere", None


def asking_few(fleet: Fleet, claims: Sequence[ResourceClaim], nodes: Iterable[Node] | None) -> Answer:
    ids = map(str, itertools.count())
    try:
        found = first_fitting(fleet, claims, nodes, share_ids=ids, max_steps=MAX_STEPS)
    except AllocationError as error:
        return type(error).__name__, str(error)
    return ("nowhere", None) if found is None else ("fits", found)


@pytest.fixture(scope="module")
def tally() -> Iterable[Counter[str]]:
    answers: Counter[str] = Counter()
    yield answers
    assert min(answers[each] for each in ("fits", "nowhere", "AllocationError")) > 5
    assert answers["nodes that need not be asked"] > 50


@pytest.mark.exhaustive
@settings(max_examples=120, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(number=st.integers(0, (1 << 64) - 1))
def test_asking_few_nodes_answers_what_asking_every_node_does(tally: Counter[str], number: int) -> None:
    source = random.Random(number)
    objects, wanted = a_world(source)
    fleet = Fleet()
    claims = {str(each.metadata.key): each for raw in objects if isinstance(each := put(fleet, raw), ResourceClaim)}
    for _ in range(3):
        pod = [claims[name] for name in source.sample(wanted, source.randrange(1, len(wanted) + 1))]
        in_order = [fleet.nodes[name] for name in fleet.node_names]
        shuffled = [*source.sample(in_order, len(in_order)), Node()]
        for given_nodes, nodes in ((None, in_order), (shuffled, shuffled)):
            expected = asking_all(fleet, pod, nodes)
            tally[expected[0]] += 1
            if expected[0] != "given up":
                assert asking_few(fleet, pod, given_nodes) == expected
            if expected[0] in {"fits", "nowhere"} and nodes and (worth := candidates(fleet, pod)) is not None:
                tally["nodes that need not be asked"] += sum(node.metadata.name not in worth for node in nodes)
        for raw in source.sample(objects, min(3, len(objects))):  # and once more after some changes
            source.choice([put, remove])(fleet, raw)


def a_fleet(*devices: dict[str, Any], held: Iterable[str] = ()) -> Fleet:
    """Two nodes with one device each; `devices` describes the devices."""
    fleet = Fleet.of(classes=[DeviceClass(metadata=ObjectMeta(name="any"))])
    for number, device in enumerate(devices):
        name = f"node-{number}"
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "d", "nodeName": name, "pool": pool, "devices": [{"name": "x", **device}]}
        put(fleet, {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})
        fleet.put_node(a_node(name))
    for name in held:
        fleet.put_claim(a_claim(f"on-{name}", on=[f"d/{name}/x"]))
    return fleet


def asking(**asked: Any) -> ResourceClaim:
    requests = [{"name": "r", "exactly": {"deviceClassName": "any", **asked}}]
    return msgspec.convert({"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}, ResourceClaim)


def where(fleet: Fleet, claim: ResourceClaim) -> str | None:
    found = first_fitting(fleet, [claim], share_ids=iter(["share"]))
    return None if found is None else found[0].metadata.name


def test_nodes_whose_devices_are_all_in_use_are_not_asked_but_for_administrative_access() -> None:
    fleet = a_fleet({}, {}, held=["node-0"])
    worth = candidates(fleet, [asking()])
    assert worth is not None
    assert [name for name in fleet.node_names if name in worth] == list(worth.among(fleet.node_names)) == ["node-1"]
    assert where(fleet, asking()) == "node-1"
    assert where(fleet, asking(adminAccess=True)) == "node-0"


def test_a_node_whose_amounts_cannot_be_reckoned_with_is_asked() -> None:
    stepped = {"value": "10Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}}
    fleet = a_fleet({"capacity": {"memory": stepped}, "allowMultipleAllocations": True}, {})
    assert where(fleet, asking(count=2)) is None
    with pytest.raises(AllocationError, match="MaxInt64"):
        where(fleet, asking(count=2, capacity={"requests": {"memory": "10E"}}))
    below = a_fleet({"capacity": {"memory": {"value": "-1Gi"}}})
    with pytest.raises(AllocationError, match="negative"):
        where(below, asking(count=2))


def test_a_selector_that_fails_on_a_node_that_is_too_small_is_still_an_error() -> None:
    fleet = a_fleet({}, {"attributes": {"a": {"int": 1}}})
    fails = asking(count=2, selectors=[{"cel": {"expression": "device.attributes['d'].a == 1"}}])
    with pytest.raises(AllocationError, match=r"selector #0 on device d/node-0/x: CEL runtime error: no such key: a"):
        where(fleet, fails)
    fleet.put_claim(a_claim("holds", on=["d/node-0/x"]))
    assert where(fleet, fails) is None  # no selector is evaluated on a device in use


def test_a_selector_that_does_not_compile_is_an_error_where_a_device_is_free() -> None:
    broken = asking(selectors=[{"cel": {"expression": "device.nothing"}}])
    with pytest.raises(AllocationError, match="CEL compile error"):
        where(a_fleet({}), broken)
    assert where(a_fleet({}, held=["node-0"]), broken) is None


def test_no_node_is_looked_for_where_there_are_none() -> None:
    assert where(Fleet(), asking(deviceClassName="unknown")) is None


def test_where_a_node_selector_is_not_valid_every_node_is_asked() -> None:
    fleet = a_fleet({}, {}, held=["node-0", "node-1"])
    assert candidates(fleet, [asking()]) is not None
    terms = [{"matchExpressions": [{"key": "-not a key-", "operator": "Exists"}]}]
    spec = {"driver": "d", "pool": {"name": "odd", "generation": 1, "resourceSliceCount": 1}, "devices": []}
    odd = {
        "kind": "ResourceSlice",
        "metadata": {"name": "odd"},
        "spec": {**spec, "nodeSelector": {"nodeSelectorTerms": terms}},
    }
    put(fleet, odd)
    assert candidates(fleet, [asking()]) is None
    with pytest.raises(AllocationError, match="not a key"):
        where(fleet, asking())
    fleet.remove_slice("odd")
    assert where(fleet, asking()) is None


def test_a_selector_that_fails_on_a_device_for_another_node_is_an_error_where_its_slice_is_seen() -> None:
    model = {"model": {"string": "A"}}
    devices = [
        {"name": "x", "nodeName": "node-1", "attributes": model},
        {"name": "y", "nodeName": "node-1"},
        {"name": "z", "nodeName": "node-0", "attributes": {"model": {"string": "B"}}},
    ]
    pool = {"name": "each", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d", "pool": pool, "perDeviceNodeSelection": True, "devices": devices}
    fleet = Fleet.of(nodes=[a_node("node-0"), a_node("node-1")], classes=[DeviceClass(metadata=ObjectMeta(name="any"))])
    put(fleet, {"kind": "ResourceSlice", "metadata": {"name": "each"}, "spec": spec})
    claim = asking(selectors=[{"cel": {"expression": "device.attributes['d'].model == 'A'"}}])
    with pytest.raises(AllocationError, match="no such key: model"):
        where(fleet, claim)
