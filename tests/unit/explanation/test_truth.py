"""An explanation agrees with the allocator about every node, and accounts for every device."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from draco.allocation.errors import AllocationError, NodeError, SearchTooLong
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.pools import is_device_for
from draco.allocation.search.allocate import allocate
from draco.allocation.search.requests import expand, matcher
from draco.explanation.explain import explain
from draco.explanation.findings.allocator_runs import MAX_STEPS
from draco.explanation.findings.verdicts import Judge, constrained_requests
from draco.explanation.model import Cause, Explanation
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule
from tests.differential.scenarios import a_scenario

Json = dict[str, Any]
TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (Node, ResourceSlice, DeviceClass, DeviceTaintRule, ResourceClaim)
}
PUT = {
    "Node": Fleet.put_node,
    "ResourceSlice": Fleet.put_slice,
    "DeviceClass": Fleet.put_class,
    "DeviceTaintRule": Fleet.put_rule,
    "ResourceClaim": Fleet.put_claim,
}
DRIVER = "gpu.example.com"
QUICK = settings(
    max_examples=150, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


def fleet_of(scenario: Json) -> tuple[Fleet, list[ResourceClaim]]:
    fleet = Fleet()
    for raw in scenario["objects"]:
        PUT[raw["kind"]](fleet, msgspec.convert(raw, TYPES[raw["kind"]]))  # type: ignore[operator]
    return fleet, [claim for key, claim in fleet.claims.items() if str(key) in scenario["claims"]]


def check(fleet: Fleet, claims: Sequence[ResourceClaim]) -> Explanation:
    """Compare an explanation with the allocator's answer for each node, and with the judgement of each single device."""
    fitting, errors = [], []
    for name in fleet.node_names:
        try:
            results = allocate(
                fleet.inventory, fleet.state, fleet.nodes[name], claims, fleet.classes, share_ids=repeat(""),
                max_steps=MAX_STEPS,
            )  # fmt: skip
        except NodeError:
            continue
        except SearchTooLong:  # the explanation can prove more by counting
            return explain(fleet, claims)
        except AllocationError as error:
            errors.append(str(error))
        else:
            fitting += [name] * (results is not None)

    told = explain(fleet, claims)

    assert told.fits == (bool(fitting) and not errors)
    assert bool(told.error) == bool(errors)
    assert told.error in ["", *errors] or not told.requests  # with a missing class, no devices are read
    assert told.fits_on_total == len(fitting) or (not told.requests and not fitting)
    assert set(told.fits_on) <= set(fitting)
    if told.requests and not told.fits:
        assert told.fits_on_total + sum(cause.nodes for cause in told.nodes) == len(fleet.nodes)
    for request in told.requests:
        assert sum(count.devices for count in request.causes) == len(fleet.inventory)
    if told.requests:
        assert [causes(request.causes) for request in told.requests] == judged(fleet, claims)
    assert 0 < len(str(told)) <= 1000
    assert told.names_subject or not any(claim.metadata.name in str(told) for claim in claims)
    assert msgspec.json.decode(msgspec.json.encode(told), type=Explanation) == told
    return told


def causes(counts: Any) -> Counter[Cause]:
    found: Counter[Cause] = Counter()
    for count in counts:
        if count.cause in REACHED:
            found[count.cause] += count.devices
    return found


REACHED = set(Cause) - {
    Cause.NOT_SELECTED, Cause.POOL_INCOMPLETE, Cause.POOL_INVALID, Cause.POOL_OBSOLETE, Cause.NO_NODE,
}  # fmt: skip


def judged(fleet: Fleet, claims: Sequence[ResourceClaim]) -> list[Counter[Cause]]:
    """The obstacles of the devices within reach of any node, each judged on its best node."""
    match = matcher(fleet.inventory.selectors, Node())
    requests = constrained_requests([expand(claim, fleet.classes, (), match) for claim in claims])
    judge = Judge(fleet.inventory.selectors, fleet.state)
    best: list[dict[int, Cause]] = [{} for _ in requests]
    for node in fleet.nodes.values():
        for view in fleet.inventory.views(node):
            for candidate in view.candidates:
                if candidate.spec.per_device_node_selection and not is_device_for(candidate.device, node):
                    continue
                for constrained, known in zip(requests, best, strict=True):
                    cause = judge.finding(constrained, view, candidate).cause
                    known[candidate.row] = max(known.get(candidate.row, cause), cause, key=list(Cause).index)
    return [Counter(cause for cause in known.values() if cause in REACHED) for known in best]


@pytest.mark.exhaustive
@QUICK
@given(st.randoms(use_true_random=False))
def test_an_explanation_says_of_each_node_what_the_allocator_says(source: random.Random) -> None:
    check(*fleet_of(a_scenario(source)))


def many_nodes(source: random.Random) -> Json:
    """Nodes with one pool each, of few kinds, so that many are alike; and a claim for some of their devices."""
    roots = source.choice([["0", "0", "1"], ["0", "1", "2", "3"], ["0"]])
    own_roots, amounts = chance(source, 30), chance(source, 25)
    objects: list[Json] = [
        {"kind": "DeviceClass", "metadata": {"name": "gpu"}},
        *([a_far_pool(source)] if chance(source, 20) else []),
    ]
    for number in range(source.randrange(1, 14)):
        name = f"node-{number:02}"
        own = [f"{name}-{root}" for root in roots] if own_roots else roots
        devices = [a_gpu(source, f"gpu-{index}", own, amounts) for index in range(source.choice([1, 2, 4, 4, 4]))]
        objects.append({"kind": "Node", "metadata": {"name": name, "labels": {"zone": source.choice("ab")}}})
        objects.append(a_pool(name, devices, nodeName=name))
        objects += [held(name, device) for device in devices if chance(source, 35)]
    return {"objects": [*objects, a_waiting_claim(source, amounts)], "claims": ["default/wait"]}


def chance(source: random.Random, percent: int) -> bool:
    return source.randrange(100) < percent


def a_gpu(source: random.Random, name: str, roots: Sequence[str], amounts: object) -> Json:
    device: Json = {"name": name, "attributes": {"model": {"string": source.choice("AAAB")}}}
    if chance(source, 90):
        device["attributes"]["root"] = {"string": source.choice(roots)}
    if amounts:
        device["capacity"] = {"memory": {"value": source.choice(["10Gi", "20Gi"])}}
        device["allowMultipleAllocations"] = chance(source, 70)
    if chance(source, 8):
        device["taints"] = [{"key": "example.com/a", "effect": "NoSchedule"}]
    return device


def a_pool(name: str, devices: Sequence[Json], **spec: Any) -> Json:
    pool = {"driver": DRIVER, "pool": {"name": name, "resourceSliceCount": 1}, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": pool | spec}


def a_far_pool(source: random.Random) -> Json:
    in_zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    where: Json = source.choice([{"allNodes": True}, {"nodeSelector": {"nodeSelectorTerms": [in_zone]}}])
    return a_pool("far", [{"name": "far", "attributes": {"model": {"string": "A"}, "root": {"string": "0"}}}], **where)


def held(pool: str, device: Json) -> Json:
    result: Json = {"request": "held", "driver": DRIVER, "pool": pool, "device": device["name"]}
    if device.get("allowMultipleAllocations"):
        result |= {"shareID": "00000000-0000-4000-8000-000000000000", "consumedCapacity": {"memory": "6Gi"}}
    metadata = {"name": f"{pool}-{device['name']}", "namespace": "default"}
    return {
        "kind": "ResourceClaim",
        "metadata": metadata,
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def a_waiting_claim(source: random.Random, amounts: object) -> Json:
    own = 'device.attributes["gpu.example.com"]'
    requests = []
    for number in range(source.choice([1, 1, 2])):
        asked: Json = {"deviceClassName": "gpu", "count": source.choice([1, 2, 3, 4])}
        if chance(source, 60):
            expression = source.choice([f'{own}.model == "A"', f'{own}.model == "C"', f'{own}.root != ""', "true"])
            asked["selectors"] = [{"cel": {"expression": expression}}]
        if amounts and chance(source, 60):
            asked["capacity"] = {"requests": {"memory": source.choice(["4Gi", "5Gi", "12Gi"])}}
        if chance(source, 10):
            asked |= {"allocationMode": "All", "count": 0}
        requests.append({"name": f"r{number}", "exactly": asked})
    devices: Json = {"requests": requests}
    if chance(source, 60):
        kind = source.choice(["matchAttribute", "matchAttribute", "distinctAttribute"])
        devices["constraints"] = [{kind: "gpu.example.com/root"}]
    return {"kind": "ResourceClaim", "metadata": {"name": "wait", "namespace": "default"}, "spec": {"devices": devices}}


@pytest.mark.exhaustive
@QUICK
@given(st.randoms(use_true_random=False))
def test_nodes_that_are_taken_for_alike_are_alike_to_the_allocator(source: random.Random) -> None:
    check(*fleet_of(many_nodes(source)))


def divided_nodes(source: random.Random) -> Json:
    """Nodes with one pool of divisible cards each, whose parts draw from counters, in few kinds and few states."""
    objects: list[Json] = [{"kind": "DeviceClass", "metadata": {"name": "gpu"}}]
    in_use = [source.sample(["card", "left", "right"], source.choice([0, 0, 1, 2])) for _ in range(3)]
    kinds = [(source.choice(["4", "3"]), source.choice(["2", "2", "1"])) for _ in range(2)]
    sets = source.choice([["a"], ["a", "b"]])
    for number in range(source.randrange(1, 10)):
        name = f"node-{number:02}"
        total, of_part = source.choice(kinds)
        objects.append({"kind": "Node", "metadata": {"name": name, "labels": {"zone": source.choice("ab")}}})
        for card in sets:
            devices = [
                a_part(source, f"{card}-{part}", card, total if part == "card" else of_part)
                for part in ("card", "left", "right")
            ]
            objects += [held(name, each) for each in devices if each["name"][2:] in source.choice(in_use)]
            # the slice's name sorts randomly before or after the one of its counters
            slice_ = a_pool(f"{name}-{source.choice(['x', 'z'])}-{card}", devices, nodeName=name)
            objects.append(in_pool(slice_, name, len(sets) + 1 + chance(source, 3)))
        counters = [{"name": card, "counters": {"units": {"value": total}, "more": {"value": "9"}}} for card in sets]
        slice_ = {"driver": DRIVER, "nodeName": name, "pool": {}, "sharedCounters": counters}
        objects.append(
            in_pool({"kind": "ResourceSlice", "metadata": {"name": f"{name}-y"}, "spec": slice_}, name, len(sets) + 1)
        )
    return {"objects": [*objects, a_waiting_claim(source, None)], "claims": ["default/wait"]}


def a_part(source: random.Random, name: str, card: str, units: str) -> Json:
    device = a_gpu(source, name, ["0", "1"], None)
    drawn = {"units": {"value": units}} | ({"more": {"value": "2"}} if chance(source, 10) else {})
    return device | {"consumesCounters": [{"counterSet": card, "counters": drawn}]}


def in_pool(slice_: Json, name: str, of: int) -> Json:
    slice_["spec"]["pool"] = {"name": name, "resourceSliceCount": of}
    return slice_


@pytest.mark.exhaustive
@QUICK
@given(st.randoms(use_true_random=False))
def test_nodes_whose_devices_draw_from_like_counters_are_alike_to_the_allocator(source: random.Random) -> None:
    check(*fleet_of(divided_nodes(source)))


def test_nodes_that_have_less_of_a_counter_are_not_taken_for_those_that_have_more() -> None:
    objects: list[Json] = [{"kind": "DeviceClass", "metadata": {"name": "gpu"}}]
    for name, total in (("node-3", "3"), ("node-4", "4")):
        drawn = [{"counterSet": "card", "counters": {"units": {"value": "2"}}}]
        parts = [{"name": part, "consumesCounters": drawn} for part in ("left", "right")]
        counters = {"sharedCounters": [{"name": "card", "counters": {"units": {"value": total}}}]}
        objects.append({"kind": "Node", "metadata": {"name": name}})
        objects.append(in_pool(a_pool(f"{name}-parts", parts, nodeName=name), name, 2))
        spec = {"driver": DRIVER, "nodeName": name, **counters}
        objects.append(in_pool({"kind": "ResourceSlice", "metadata": {"name": f"{name}-c"}, "spec": spec}, name, 2))
    requests = [{"name": "parts", "exactly": {"deviceClassName": "gpu", "count": 2}}]
    metadata = {"name": "wait", "namespace": "default"}
    objects.append({"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": {"requests": requests}}})
    fleet, claims = fleet_of({"objects": objects, "claims": ["default/wait"]})

    assert not fleet.inventory.others
    assert check(fleet, claims).fits_on == ["node-4"]
