"""Draco's allocator decides as Kubernetes' own does: the same verdict, the same devices in the same order, the same errors."""

import itertools
import json
import random
import re
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, seed
from hypothesis import strategies as st

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.inventory import Inventory
from draco.allocation.fleet.state import AllocatedState
from draco.allocation.search.allocate import allocate
from draco.resources.api.claims import AllocationResult, DeviceClass, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule
from tests.differential.runs import SEED, Tally, kept, size
from tests.differential.scenarios import a_scenario
from tests.differential.shrinking import shrunk
from tests.oracle.programs import Oracle

Json = dict[str, Any]
TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (Node, ResourceSlice, DeviceClass, DeviceTaintRule, ResourceClaim)
}
PATIENCE_MS = 50
"""Scenarios that take Go longer are left out: the search can grow without bound, and Python's takes as many steps."""

ORACLE = "allocator"
COUNTED = "allocation scenarios"


def draco_says(scenario: Json) -> Json:
    inventory = Inventory()
    nodes: dict[str, Node] = {}
    classes: dict[str, DeviceClass] = {}
    claims: dict[str, ResourceClaim] = {}
    for raw in scenario["objects"]:
        match msgspec.convert(raw, TYPES[raw["kind"]]):
            case Node() as node:
                nodes[node.metadata.name] = node
            case DeviceClass() as device_class:
                classes[device_class.metadata.name] = device_class
            case ResourceSlice() as published:
                inventory.put_slice(published)
            case DeviceTaintRule() as rule:
                inventory.put_rule(rule)
            case ResourceClaim() as claim:
                claims[str(claim.metadata.key)] = claim
    node = nodes.get(scenario["node"], Node(metadata=ObjectMeta(name=scenario["node"])))
    state = AllocatedState.of(claims.values())
    try:
        wanted = [claims[name] for name in scenario["claims"]]
        results = allocate(inventory, state, node, wanted, classes, share_ids=map(str, itertools.count()))
    except AllocationError as error:
        text = str(error) if error.fatal else str(error).partition(":")[0]  # Draco also names the invalid pools
        return {"error": text, "fatal": error.fatal}
    return {"results": None if results is None else [comparable(result) for result in results]}


def kubernetes_says(go: Oracle, scenario: Json) -> Json | None:
    """Kubernetes' answer; None if it took too long, or panicked over what the API server never stores."""
    [answer] = go.ask(scenario | {"timeoutMilliseconds": PATIENCE_MS})
    if answer.get("timedOut") or answer.get("panic"):
        return None
    if "error" in answer:
        return {"error": answer["error"], "fatal": answer["fatal"]}
    if answer["results"] is None:
        return {"results": None}
    return {"results": [comparable(msgspec.convert(result, AllocationResult)) for result in answer["results"]]}


def comparable(result: AllocationResult) -> AllocationResult:
    """A result in which random share ids are replaced by one fixed id."""
    devices = [
        device if device.share_id is None else msgspec.structs.replace(device, share_id="some")
        for device in result.devices.results
    ]
    return msgspec.structs.replace(result, devices=msgspec.structs.replace(result.devices, results=devices))


def agree(mine: Json, theirs: Json) -> bool:
    if "error" not in mine or "error" not in theirs:
        return mine == theirs
    return bool(mine["fatal"] == theirs["fatal"] and same_words(mine["error"]) == same_words(theirs["error"]))


def same_words(error: str) -> str:
    """An error without what differs on purpose.

    Go names the first of several bad capacities in random order, and names devices and claims sometimes with and sometimes
    without their owner; Draco says more about a missing class and an invalid pool.
    """
    error = (
        error.removeprefix("create NodeSelector for ").partition("unsupported ResourceSlice.NodeSelector")[1] or error
    )
    return re.sub(
        r"(could not retrieve device class \S+|is currently invalid|checking capacity for device).*", r"\1", error
    )


def difference(go: Oracle, scenario: Json) -> tuple[str, str] | None:
    """The kinds of both answers, if both read the scenario and answer it differently."""
    try:
        if any(not raw["metadata"]["name"] for raw in scenario["objects"]):
            return None  # the API server stores nothing without a name
        mine = draco_says(scenario)
    except (msgspec.ValidationError, KeyError):
        return None  # shrinking made it unreadable
    theirs = kubernetes_says(go, scenario)
    if theirs is None or agree(mine, theirs):
        return None
    return kind_of(mine) + mine.get("error", "")[:60], kind_of(theirs) + theirs.get("error", "")[:60]


def kind_of(answer: Json) -> str:
    if "error" in answer:
        return "fatal errors" if answer["fatal"] else "invalid pools"
    return "not satisfiable" if answer["results"] is None else "allocated"


def compare(go: Oracle, scenario: Json) -> str:
    theirs = kubernetes_says(go, scenario)
    if theirs is None:
        return "left out"
    found = difference(go, scenario)
    if found is not None:
        small = shrunk(scenario, lambda candidate: difference(go, candidate) == found)
        print("keep as tests/differential/kept/allocator/<what it is>.json:")  # noqa: T201 - shown with the failure
        print(json.dumps(small, indent=2))  # noqa: T201 - the same
        assert draco_says(small) == kubernetes_says(go, small)
    return kind_of(theirs)


@seed(SEED)
@size(2000, Phase.generate)
@given(number=st.integers(0, (1 << 64) - 1))
def test_random_scenarios_are_decided_alike(go: Oracle, tally: Tally, number: int) -> None:
    tally.answers[compare(go, a_scenario(random.Random(number), str(number)))] += 1


@pytest.mark.parametrize("scenario", kept("allocator"))
def test_scenarios_that_once_were_decided_differently_are_not(go: Oracle, scenario: Json) -> None:
    assert difference(go, scenario) is None
