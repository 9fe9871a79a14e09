"""Random pools of devices for the allocator's scenarios: drivers, pools, slices, devices, counters.

Owns everything that a driver publishes, including mistakes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.differential.scenarios import Plan

Json = dict[str, Any]
DRIVERS = ("gpu.example.com", "nic.example.com")
POOL_NAMES = ("node-0", "shared", "rack")
BINDING = ("example.com/attached", "example.com/warm")


@dataclass
class Pool:
    """One pool as published."""

    driver: str
    name: str
    slices: list[Json]

    @property
    def devices(self) -> list[Json]:
        """The devices of all its slices, of any generation."""
        return [device for slice_ in self.slices for device in slice_["spec"].get("devices", [])]

    @property
    def device_names(self) -> list[str]:
        """The names of its devices; a made-up one if it has none."""
        return [device["name"] for device in self.devices] or ["gpu-0"]


def pools_of(plan: "Plan", nodes: Sequence[str]) -> list[Pool]:
    """One to six pools; two drivers may use the same pool names."""
    return [
        _pool(plan, driver, name, nodes)
        for driver in DRIVERS[: plan.random.choice([1, 1, 2])]
        for name in POOL_NAMES[: plan.random.choice([1, 1, 2, 3])]
    ]


def _pool(plan: "Plan", driver: str, name: str, nodes: Sequence[str]) -> Pool:
    random = plan.random
    counter_sets = _counter_sets(plan) if plan.about("partitions") and plan.chance(70) else []
    names = [f"dev-{index}" for index in range(_how_many(plan))]
    if plan.chance(40):
        random.shuffle(names)
    shared = plan.about("consumable") and plan.chance(70)
    binding = plan.about("binding") and plan.chance(40)
    devices = [_device(plan, driver, each, counter_sets, shared=shared, binding=binding) for each in names]
    parts = random.choice([1, 1, 2, 3]) if devices else 1
    cuts = [devices[part::parts] for part in range(parts)]
    if plan.chance(50):  # either consecutive devices per slice, or every n-th one
        size = -(-len(devices) // parts)
        cuts = [devices[part * size : (part + 1) * size] for part in range(parts)]
    specs: list[Json] = [{"devices": part} if part else {} for part in cuts]
    if counter_sets:
        specs.append({"sharedCounters": counter_sets})
    generation = random.choice([1, 1, 2])
    selections = _selection(plan, nodes, len(specs))
    slices = []
    for number, (spec, selection) in enumerate(zip(specs, selections, strict=True)):
        slices.append(_slice(driver, name, number, generation, len(specs), spec, selection))
        if "perDeviceNodeSelection" in selection:
            for device in spec.get("devices", []):
                device.update(_node_of_device(plan, nodes))
    if plan.about("broken-pools") and plan.chance(60):
        _break(plan, slices)
    order = [f"{letter}-{driver}-{name}" for letter in "abcdefg"]
    if plan.chance(50):
        random.shuffle(order)
    for slice_, own in zip(slices, order, strict=False):
        slice_["metadata"]["name"] = own
    return Pool(driver, name, slices)


def _how_many(plan: "Plan") -> int:
    if plan.about("limits"):
        return plan.random.choice([0, 16, 31, 32, 33, 40])
    return plan.random.choice([0, 1, 2, 2, 3, 3, 4, 4, 5, 6, 8])


def _slice(driver: str, pool: str, number: int, generation: int, count: int, spec: Json, selection: Json) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{driver}-{pool}-{number}"},
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            **selection,
            **spec,
        },
    }


# --- devices ---


def _device(plan: "Plan", driver: str, name: str, counter_sets: list[Json], *, shared: bool, binding: bool) -> Json:
    random = plan.random
    device: Json = {"name": name}
    if attributes := dict(_attributes(plan, driver)):
        device["attributes"] = attributes
    capacity: Json = {}
    if shared or plan.chance(40):
        capacity["memory"] = _capacity(plan, random.choice(["10Gi", "10Gi", "20Gi", "40Gi"]), shared=shared)
        if plan.chance(25):
            capacity["example.com/cores"] = _capacity(plan, random.choice(["4", "8", "12Gi", "0"]), shared=shared)
        device["capacity"] = capacity
    if shared and plan.chance(80):
        device["allowMultipleAllocations"] = plan.chance(95)
    if counter_sets and plan.chance(85):
        device["consumesCounters"] = _consumption(plan, counter_sets)
    if plan.about("taints") and plan.chance(25):
        device["taints"] = [
            {
                "key": random.choice(["example.com/a", "example.com/b"]),
                **({"value": random.choice("xy")} if plan.chance(40) else {}),
                "effect": random.choice(["NoSchedule", "NoExecute", "NoSchedule", "None", "Future"]),
            }
            for _ in range(random.choice([1, 1, 2]))
        ]
    if binding and plan.chance(50):
        device["bindingConditions"] = list(BINDING[: random.choice([1, 2])])
        if plan.chance(60):
            device["bindingFailureConditions"] = ["example.com/broken"]
        if plan.chance(40):
            device["bindsToNode"] = True
    elif plan.chance(3):
        device["bindsToNode"] = True
    return device


def _attributes(plan: "Plan", driver: str) -> "list[tuple[str, Json]]":
    random = plan.random
    present = 99 if plan.chance(70) else 75
    drawn: list[tuple[str, Json]] = [
        ("model", {"string": random.choice("AAB")}),
        ("numa", {"int": random.choice([0, 0, 1])}),
        ("healthy", {"bool": plan.chance(75)}),
        ("index", {"int": random.randrange(6)}),
        ("firmware", {"version": random.choice(["1.0.0", "1.0.0", "1.0.0+build", "2.1.0", "2.1.0-rc.1"])}),
    ]
    if plan.chance(30):
        drawn.append(
            ("example.com/group", random.choice([{"string": "x"}, {"string": "y"}, {"int": 0}, {"string": "x"}]))
        )
    if plan.chance(10):
        drawn[0] = ("model", random.choice([{"int": 1}, {"bool": True}, {"version": "1.0.0"}]))
    return [
        (f"{driver}/{key}" if "/" not in key and plan.chance(10) else key, value)
        for key, value in drawn
        if plan.chance(present)
    ]


def _capacity(plan: "Plan", value: str, *, shared: bool) -> Json:
    random = plan.random
    if not shared or plan.chance(35):
        return {"value": value}
    policy: Json = {}
    kind = random.choice(["values", "range", "range", "step", "step", "default"])
    if kind == "values":
        policy["validValues"] = sorted(random.sample(["1Gi", "2Gi", "5Gi", "10Gi"], 2), key=lambda text: int(text[:-2]))
        policy["default"] = random.choice(policy["validValues"])
    elif kind != "default":
        policy["validRange"] = {"min": random.choice(["1Gi", "2Gi", "512Mi", "1G"])}
        if plan.chance(50):
            policy["validRange"]["max"] = random.choice(["8Gi", "10Gi", "20Gi"])
        if kind == "step":
            policy["validRange"]["step"] = random.choice(["1Gi", "3Gi", "512Mi", "1G"])
        policy["default"] = policy["validRange"]["min"] if plan.chance(80) else "5Gi"
    if kind == "default" or plan.chance(5):
        policy["default"] = random.choice(["1Gi", "1024Mi", "4Gi", "0.5Gi"])
    if plan.chance(10):
        policy.pop("default", None)
    return {"value": value, "requestPolicy": policy}


# --- counters ---


def _counter_sets(plan: "Plan") -> list[Json]:
    return [
        {
            "name": f"card-{index}",
            "counters": {
                "memory": {"value": plan.random.choice(["10Gi", "20Gi", "40Gi"])},
                "slices": {"value": plan.random.choice(["2", "3", "4", "7"])},
            },
        }
        for index in range(plan.random.choice([1, 1, 2]))
    ]


def _consumption(plan: "Plan", counter_sets: list[Json]) -> list[Json]:
    consumed = []
    for counter_set in plan.random.sample(counter_sets, plan.random.choice([1, 1, len(counter_sets)])):
        counters: Json = {"memory": {"value": plan.random.choice(["5Gi", "10Gi", "20Gi", "0"])}}
        if plan.chance(70):
            counters["slices"] = {"value": plan.random.choice(["1", "2", "3", "1500m"])}
        consumed.append({"counterSet": counter_set["name"], "counters": counters})
    return consumed


# --- which nodes ---


def _selection(plan: "Plan", nodes: Sequence[str], count: int) -> list[Json]:
    """How each slice of a pool selects its nodes."""
    if not plan.about("node-selection"):
        kinds_of_all: list[Json] = [{"nodeName": nodes[0]}, {"nodeName": nodes[0]}, {"allNodes": True}]
        kind = plan.random.choice(kinds_of_all)
        return [dict(kind) for _ in range(count)]
    kinds = plan.random.choice(["one", "one", "mixed"])
    first = _one_selection(plan, nodes)
    return [dict(first) if kinds == "one" else _one_selection(plan, nodes) for _ in range(count)]


def _one_selection(plan: "Plan", nodes: Sequence[str]) -> Json:
    return plan.random.choice(
        [
            {"nodeName": plan.random.choice([nodes[0], nodes[0], nodes[1]])},
            {"allNodes": True},
            {"nodeSelector": _node_selector(plan, nodes)},
            {"nodeSelector": _node_selector(plan, nodes)},
            {"perDeviceNodeSelection": True},
            {"perDeviceNodeSelection": True},
            {} if plan.chance(10) else {"allNodes": True},
        ]
    )


def _node_of_device(plan: "Plan", nodes: Sequence[str]) -> Json:
    return plan.random.choice(
        [
            {"nodeName": plan.random.choice([nodes[0], nodes[0], nodes[1]])},
            {"allNodes": True},
            {"nodeSelector": _node_selector(plan, nodes)},
            {} if plan.chance(10) else {"allNodes": True},
        ]
    )


def _node_selector(plan: "Plan", nodes: Sequence[str]) -> Json:
    random = plan.random
    term: Json = {}
    expressions: list[Json] = [
        random.choice(
            [
                {"key": "zone", "operator": "In", "values": random.choice([["a"], ["a", "b"], ["b", "a"], ["b"]])},
                {"key": "zone", "operator": "NotIn", "values": [random.choice("ab")]},
                {"key": "special", "operator": "Exists"},
                {"key": "special", "operator": "DoesNotExist"},
                {"key": "absent", "operator": random.choice(["DoesNotExist", "NotIn"]), "values": ["x"]},
                {"key": "tier", "operator": "Gt", "values": [random.choice("0123")]},
                {"key": "tier", "operator": "Lt", "values": [random.choice("1234")]},
            ]
        )
        for _ in range(random.choice([0, 1, 1, 1, 2]))
    ]
    for expression in expressions:
        if expression["operator"] in {"Exists", "DoesNotExist"}:
            expression.pop("values", None)
    if expressions:
        term["matchExpressions"] = expressions
    if plan.chance(25):
        term["matchFields"] = [
            {"key": "metadata.name", "operator": random.choice(["In", "NotIn"]), "values": [random.choice(nodes[:2])]}
        ]
    terms = [term]
    if plan.chance(3):
        terms.append({"matchExpressions": [{"key": "zone", "operator": "Exists"}]})
    return {"nodeSelectorTerms": terms}


# --- mistakes in what is published ---


def _break(plan: "Plan", slices: list[Json]) -> None:
    random = plan.random
    victim = random.choice(slices)
    devices = victim["spec"].get("devices", [])
    fault = random.choice(["missing", "more-expected", "older", "newer", "twice", "no-counter", "twice-counted"])
    if fault == "missing" and len(slices) > 1:
        slices.remove(victim)
    elif fault == "more-expected":
        for slice_ in slices:
            slice_["spec"]["pool"]["resourceSliceCount"] += 1
    elif fault in {"older", "newer"}:
        step = 1 if fault == "newer" else -1
        other = _slice(
            victim["spec"]["driver"],
            victim["spec"]["pool"]["name"],
            len(slices),
            victim["spec"]["pool"]["generation"] + step,
            random.choice([1, len(slices)]),
            {"devices": [{"name": "dev-0"}, {"name": f"dev-{fault}"}]},
            random.choice([{"nodeName": "node-0"}, {"nodeName": "node-1"}, {"allNodes": True}]),
        )
        slices.append(other)
    elif fault == "twice" and devices:
        devices.append(dict(devices[0]))
    elif fault == "no-counter" and devices:
        devices[-1]["consumesCounters"] = [
            random.choice(
                [
                    {"counterSet": "nowhere", "counters": {"memory": {"value": "1"}}},
                    {"counterSet": "card-0", "counters": {"nothing": {"value": "1"}}},
                ]
            )
        ]
    elif fault == "twice-counted":
        for counter_set in victim["spec"].get("sharedCounters", []):
            victim["spec"]["sharedCounters"].append(counter_set)
            break
