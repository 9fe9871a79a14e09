"""Random fleets for tests, with everything that the allocator knows.

Owns how several scenarios of `tests/differential` become one fleet, and random changes to it.
"""

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule
from tests.differential.scenarios import a_scenario

Json = dict[str, Any]
PUT: dict[str, tuple[type, Callable[[Fleet, Any], None]]] = {
    "Node": (Node, Fleet.put_node),
    "ResourceSlice": (ResourceSlice, Fleet.put_slice),
    "DeviceClass": (DeviceClass, Fleet.put_class),
    "DeviceTaintRule": (DeviceTaintRule, Fleet.put_rule),
    "ResourceClaim": (ResourceClaim, Fleet.put_claim),
}
REMOVE: dict[str, Callable[[Fleet, str], None]] = {
    "Node": Fleet.remove_node,
    "ResourceSlice": Fleet.remove_slice,
    "DeviceClass": Fleet.remove_class,
    "DeviceTaintRule": Fleet.remove_rule,
}


def a_world(source: random.Random) -> tuple[list[Json], list[str]]:
    """The objects of several scenarios side by side, and the claims of the first, which are to be allocated."""
    first = a_scenario(source)
    objects: list[Json] = list(first["objects"])
    for number in range(source.randrange(4)):
        text = json.dumps(a_scenario(source)["objects"])
        for node in ("node-0", "node-1", "node-2"):
            text = text.replace(f'"{node}"', f'"{node}-{number}"')  # its pool is named after it
        for raw in json.loads(text):
            if raw["kind"] in {"ResourceClaim", "ResourceSlice", "DeviceTaintRule"}:
                raw["metadata"]["name"] += f"-{number}"
            if raw["kind"] == "DeviceClass" or (raw["kind"] == "ResourceClaim" and "status" not in raw):
                continue
            objects.append(raw)
    return objects, first["claims"]


def put(fleet: Fleet, raw: Json) -> Any:
    """Put an object into the fleet; returns the object."""
    kind, into = PUT[raw["kind"]]
    decoded: Any = msgspec.convert(raw, kind)
    into(fleet, decoded)
    return decoded


def remove(fleet: Fleet, raw: Json) -> None:
    """Remove an object from the fleet."""
    meta = raw["metadata"]
    if raw["kind"] == "ResourceClaim":
        fleet.remove_claim(ObjectKey(meta["namespace"], meta["name"]))
    else:
        REMOVE[raw["kind"]](fleet, meta["name"])
