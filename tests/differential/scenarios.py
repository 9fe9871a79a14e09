"""Random scenarios for the allocator: a small cluster, and claims that only just fit or only just do not.

Owns what a scenario consists of. A scenario is the JSON object of `draco simulate --scenarios`: name, objects, node, claims.
Every choice is drawn from the `Random` that is passed in; hypothesis passes one that it can shrink.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.differential.requests import Demand, claims_of, classes_of
from tests.differential.supply import DRIVERS, Pool, pools_of

Json = dict[str, Any]
NODES = ("node-0", "node-1", "node-2")
THEMES = (
    "admin",  # administrative access
    "binding",  # binding conditions
    "broken-pools",  # incomplete, obsolete and invalid pools
    "constraints",
    "consumable",  # shared devices, capacity requests and their policies
    "errors",  # selectors that fail, classes that do not exist
    "limits",  # about 32 devices
    "node-selection",  # every kind of node selection
    "partitions",  # shared counters
    "prioritized",  # firstAvailable
    "taints",
    "all-mode",
)

OFTEN = {"limits": 5, "constraints": 35, "partitions": 35, "consumable": 30}
"""In what percentage of scenarios a theme occurs, where it is not the default."""


@dataclass
class Plan:
    """The themes of a scenario, and the random choices of its parts."""

    random: random.Random
    themes: frozenset[str]
    pools: list[Pool] = field(default_factory=list)

    def about(self, theme: str) -> bool:
        """Whether the scenario has this theme."""
        return theme in self.themes

    def chance(self, percent: int) -> bool:
        """True in this percentage of calls."""
        return self.random.randrange(100) < percent


def a_scenario(source: random.Random, name: str = "scenario") -> Json:
    """One scenario. Its objects are valid for the API, except where upstream's allocator also answers to invalid ones."""
    themes = frozenset(theme for theme in THEMES if source.randrange(100) < OFTEN.get(theme, 22))
    plan = Plan(source, themes)
    plan.pools = pools_of(plan, NODES)
    objects = [*_nodes(plan)]
    objects += [slice_ for pool in plan.pools for slice_ in pool.slices]
    objects += classes_of(plan, DRIVERS)
    objects += _rules(plan)
    objects += _in_use(plan)
    claims = claims_of(plan, Demand.of(plan.pools))
    objects += claims
    source.shuffle(objects)
    return {
        "name": name,
        "objects": objects,
        "node": NODES[0] if plan.chance(95) else "node-unknown",
        "claims": [f"{claim['metadata']['namespace']}/{claim['metadata']['name']}" for claim in claims],
    }


def _nodes(plan: Plan) -> Iterator[Json]:
    for index, name in enumerate(NODES):
        labels = {"zone": plan.random.choice("ab"), "tier": str(plan.random.randrange(1, 4))}
        if plan.chance(30):
            labels["special"] = ""
        if index == 0 or plan.chance(50):
            yield {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def _rules(plan: Plan) -> Iterator[Json]:
    if not plan.about("taints"):
        return
    for index in range(plan.random.randrange(3)):
        selector: Json = {}
        pool = plan.random.choice(plan.pools)
        if plan.chance(50):
            selector["driver"] = pool.driver
        if plan.chance(50):
            selector["pool"] = pool.name
        if plan.chance(60):
            selector["device"] = plan.random.choice(pool.device_names)
        spec: Json = {
            "taint": {"key": "example.com/rule", "effect": plan.random.choice(["NoSchedule", "NoExecute", "None"])}
        }
        if plan.chance(90):
            spec["deviceSelector"] = selector
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {"name": f"rule-{index}"},
            "spec": spec,
        }


def _in_use(plan: Plan) -> Iterator[Json]:
    """Claims that hold most of the devices, so that few are left."""
    share = plan.random.choice([0, 0, 15, 30, 50])
    published = [(pool, device) for pool in plan.pools for device in pool.devices]
    for number, (pool, device) in enumerate(published):
        if not plan.chance(share):
            continue
        results = []
        for turn in range(plan.random.choice([1, 1, 1, 2]) if device.get("allowMultipleAllocations") else 1):
            result: Json = {"request": "held", "driver": pool.driver, "pool": pool.name, "device": device["name"]}
            if device.get("allowMultipleAllocations") and plan.chance(90):
                result["shareID"] = f"00000000-0000-4000-8000-{number:06d}{turn:06d}"
                if device.get("capacity") and plan.chance(90):
                    result["consumedCapacity"] = {
                        key: plan.random.choice(["1Gi", "5Gi", "10Gi"]) for key in device["capacity"] if plan.chance(90)
                    }
            if plan.about("admin") and plan.chance(25):
                result["adminAccess"] = True
            results.append(result)
        if plan.chance(3):
            results.append(results[0] | {"device": "gone"})
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": f"held-{number}", "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "held", "exactly": {"deviceClassName": "any"}}]}},
            "status": {"allocation": {"devices": {"results": results}}},
        }
